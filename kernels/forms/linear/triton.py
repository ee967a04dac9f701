# mirage-kernels generate linear
# Schedule  tiles chosen for the extents of a call, any extents, any strides.
# Formula   [M, N] = residual + linear(x, weight) + bias

import triton
import triton.language as tl


@triton.jit
def _linear(
    x_ptr,
    weight_ptr,
    bias_ptr,
    residual_ptr,
    out_ptr,
    x_strides,
    weight_strides,
    bias_strides,
    residual_strides,
    out_strides,
    M,
    K: tl.constexpr,
    N: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    STEP_K: tl.constexpr,
):
    block = tl.program_id(0).to(tl.int64)
    offs_n = block % tl.cdiv(N, BLOCK_N) * BLOCK_N + tl.arange(0, BLOCK_N)
    offs_m = block // tl.cdiv(N, BLOCK_N) * BLOCK_M + tl.arange(0, BLOCK_M)
    weight_product_total = tl.full((BLOCK_M, BLOCK_N), 0.0, tl.float32)
    for first in range(0, K, STEP_K):
        step_k = first + tl.arange(0, STEP_K).to(tl.int64)
        x_tile = tl.load(
            x_ptr + offs_m[:, None] * x_strides[0] + step_k[None, :] * x_strides[1],
            mask=(offs_m[:, None] < M) & (step_k[None, :] < K),
            other=0,
        )
        weight_tile = tl.load(
            weight_ptr + offs_n[None, :] * weight_strides[0] + step_k[:, None] * weight_strides[1],
            mask=(step_k[:, None] < K) & (offs_n[None, :] < N),
            other=0,
        )
        weight_product_total = tl.dot(x_tile, weight_tile, weight_product_total)
    bias_tile = tl.load(bias_ptr + offs_n * bias_strides[0], mask=offs_n < N, other=0)
    residual_tile = tl.load(
        residual_ptr
        + offs_m[:, None] * residual_strides[0]
        + offs_n[None, :] * residual_strides[1],
        mask=(offs_m[:, None] < M) & (offs_n[None, :] < N),
        other=0,
    )
    residual_plus_bias = bias_tile.to(tl.float32)[None, :] + residual_tile.to(tl.float32)
    residual_plus_bias_plus_weight_product = residual_plus_bias + weight_product_total
    tl.store(
        out_ptr + offs_m[:, None] * out_strides[0] + offs_n[None, :] * out_strides[1],
        residual_plus_bias_plus_weight_product.to(out_ptr.dtype.element_ty),
        mask=(offs_m[:, None] < M) & (offs_n[None, :] < N),
    )


def linear(x, weight, bias=None, residual=None):
    """Return out [M, N]."""
    M, K = x.shape
    N = weight.shape[0]
    bias = x.new_zeros(()).expand((N,)) if bias is None else bias
    residual = x.new_zeros(()).expand((M, N)) if residual is None else residual
    for name, tensor, shape in (
        ("x", x, (M, K)),
        ("weight", weight, (N, K)),
        ("bias", bias, (N,)),
        ("residual", residual, (M, N)),
    ):
        if tensor.shape != shape:
            raise ValueError(f"{name} is {tuple(tensor.shape)}; {shape} works")
    BLOCK_M = max(16, min(128, triton.next_power_of_2(M)))
    BLOCK_N = max(16, min(64, triton.next_power_of_2(N)))
    STEP_K = max(16, min(128, 8192 // max(BLOCK_M, BLOCK_N), triton.next_power_of_2(K)))
    out = x.new_empty((M, N))
    elements = BLOCK_M * BLOCK_N
    warps = 4 if elements <= 8192 else 8 if elements <= 32768 else 16
    grid = (triton.cdiv(N, BLOCK_N) * triton.cdiv(M, BLOCK_M),)
    tensors = (x, weight, bias, residual, out)
    numbers = (M, K, N, BLOCK_M, BLOCK_N, STEP_K)
    _linear[grid](*tensors, *(t.stride() for t in tensors), *numbers, num_warps=warps)
    return out
