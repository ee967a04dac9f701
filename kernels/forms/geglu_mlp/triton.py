# mirage-kernels generate geglu_mlp
# Schedule  tiles chosen for the extents of a call, any extents, any strides.
# Formula   [M, N] = gelu_tanh(linear(x, gate_weight)) * linear(x, up_weight)

import triton
import triton.language as tl


@triton.jit
def _geglu_mlp(
    x_ptr,
    gate_weight_ptr,
    up_weight_ptr,
    out_ptr,
    x_strides,
    gate_weight_strides,
    up_weight_strides,
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
    up_product_total = tl.full((BLOCK_M, BLOCK_N), 0.0, tl.float32)
    gate_product_total = tl.full((BLOCK_M, BLOCK_N), 0.0, tl.float32)
    for first in range(0, K, STEP_K):
        step_k = first + tl.arange(0, STEP_K).to(tl.int64)
        x_tile = tl.load(
            x_ptr + offs_m[:, None] * x_strides[0] + step_k[None, :] * x_strides[1],
            mask=(offs_m[:, None] < M) & (step_k[None, :] < K),
            other=0,
        )
        up_weight_tile = tl.load(
            up_weight_ptr
            + offs_n[None, :] * up_weight_strides[0]
            + step_k[:, None] * up_weight_strides[1],
            mask=(step_k[:, None] < K) & (offs_n[None, :] < N),
            other=0,
        )
        gate_weight_tile = tl.load(
            gate_weight_ptr
            + offs_n[None, :] * gate_weight_strides[0]
            + step_k[:, None] * gate_weight_strides[1],
            mask=(step_k[:, None] < K) & (offs_n[None, :] < N),
            other=0,
        )
        up_product_total = tl.dot(x_tile, up_weight_tile, up_product_total)
        gate_product_total = tl.dot(x_tile, gate_weight_tile, gate_product_total)
    gelu_tanh_gate_product = gate_product_total * tl.sigmoid(
        gate_product_total * (1.59576912 + 0.0713548163 * gate_product_total * gate_product_total)
    )
    up_product_times_gelu_tanh_gate_product = up_product_total * gelu_tanh_gate_product
    tl.store(
        out_ptr + offs_m[:, None] * out_strides[0] + offs_n[None, :] * out_strides[1],
        up_product_times_gelu_tanh_gate_product.to(out_ptr.dtype.element_ty),
        mask=(offs_m[:, None] < M) & (offs_n[None, :] < N),
    )


def geglu_mlp(x, gate_weight, up_weight):
    """Return out [M, N]."""
    M, K = x.shape
    N = gate_weight.shape[0]
    for name, tensor, shape in (
        ("x", x, (M, K)),
        ("gate_weight", gate_weight, (N, K)),
        ("up_weight", up_weight, (N, K)),
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
    tensors = (x, gate_weight, up_weight, out)
    numbers = (M, K, N, BLOCK_M, BLOCK_N, STEP_K)
    _geglu_mlp[grid](*tensors, *(t.stride() for t in tensors), *numbers, num_warps=warps)
    return out
