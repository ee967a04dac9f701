# mirage-kernels generate rms_norm_linear_residual
# Schedule  tiles chosen for the extents of a call, any extents, any strides.
# Formula   [M, N] = linear(rms_norm(total, norm_weight + weight_offset), weight) + bias; total = x
#           + residual

import triton
import triton.language as tl


@triton.jit
def _rms_norm_linear_residual(
    x_ptr,
    norm_weight_ptr,
    weight_ptr,
    bias_ptr,
    residual_ptr,
    out_ptr,
    total_ptr,
    x_strides,
    norm_weight_strides,
    weight_strides,
    bias_strides,
    residual_strides,
    out_strides,
    total_strides,
    eps,
    weight_offset,
    M,
    K: tl.constexpr,
    N: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    STEP_K: tl.constexpr,
):
    block = tl.program_id(0).to(tl.int64)
    offs_m = block % tl.cdiv(M, BLOCK_M) * BLOCK_M + tl.arange(0, BLOCK_M)
    offs_n = block // tl.cdiv(M, BLOCK_M) * BLOCK_N + tl.arange(0, BLOCK_N)
    storage = x_ptr.dtype.element_ty
    total_squared_total = tl.full((BLOCK_M,), 0.0, tl.float32)
    scaled_product_total = tl.full((BLOCK_M, BLOCK_N), 0.0, tl.float32)
    for first in range(0, K, STEP_K):
        step_k = first + tl.arange(0, STEP_K).to(tl.int64)
        x_tile = tl.load(
            x_ptr + offs_m[:, None] * x_strides[0] + step_k[None, :] * x_strides[1],
            mask=(offs_m[:, None] < M) & (step_k[None, :] < K),
            other=0,
        )
        norm_weight_tile = tl.load(
            norm_weight_ptr + step_k * norm_weight_strides[0], mask=step_k < K, other=0
        )
        weight_tile = tl.load(
            weight_ptr + offs_n[None, :] * weight_strides[0] + step_k[:, None] * weight_strides[1],
            mask=(step_k[:, None] < K) & (offs_n[None, :] < N),
            other=0,
        )
        residual_tile = tl.load(
            residual_ptr
            + offs_m[:, None] * residual_strides[0]
            + step_k[None, :] * residual_strides[1],
            mask=(offs_m[:, None] < M) & (step_k[None, :] < K),
            other=0,
        )
        step_made = x_tile.to(tl.float32) + residual_tile.to(tl.float32)
        total_tile = tl.where(step_k[None, :] < K, step_made, 0.0).to(storage)
        total_squared_total += tl.sum(total_tile.to(tl.float32) * total_tile.to(tl.float32), axis=1)
        weight_offset_plus_norm_weight = norm_weight_tile.to(tl.float32) + weight_offset
        step_made = weight_tile.to(tl.float32) * weight_offset_plus_norm_weight[:, None]
        scaled_weight = step_made.to(storage)
        scaled_product_total = tl.dot(total_tile, scaled_weight, scaled_product_total)
        tl.store(
            total_ptr + offs_m[:, None] * total_strides[0] + step_k[None, :] * total_strides[1],
            total_tile.to(tl.float32).to(total_ptr.dtype.element_ty),
            mask=(offs_m[:, None] < M) & (step_k[None, :] < K),
        )
    mean_total_squared = total_squared_total / (K * 1.0)
    mean_total_squared_plus_eps = eps + mean_total_squared
    root = tl.sqrt(mean_total_squared_plus_eps)
    bias_tile = tl.load(bias_ptr + offs_n * bias_strides[0], mask=offs_n < N, other=0)
    normed_scaled_product = scaled_product_total / root[:, None]
    normed_scaled_product_plus = bias_tile.to(tl.float32)[None, :] + normed_scaled_product
    tl.store(
        out_ptr + offs_m[:, None] * out_strides[0] + offs_n[None, :] * out_strides[1],
        normed_scaled_product_plus.to(out_ptr.dtype.element_ty),
        mask=(offs_m[:, None] < M) & (offs_n[None, :] < N),
    )


def rms_norm_linear_residual(x, norm_weight, weight, eps, bias, residual, weight_offset=None):
    """Return out [M, N] and total [M, K]."""
    M, K = x.shape
    N = weight.shape[0]
    bias = x.new_zeros(()).expand((N,)) if bias is None else bias
    weight_offset = 0.0 if weight_offset is None else weight_offset
    for name, tensor, shape in (
        ("x", x, (M, K)),
        ("norm_weight", norm_weight, (K,)),
        ("weight", weight, (N, K)),
        ("bias", bias, (N,)),
        ("residual", residual, (M, K)),
    ):
        if tensor.shape != shape:
            raise ValueError(f"{name} is {tuple(tensor.shape)}; {shape} works")
    BLOCK_M = max(16, min(128, triton.next_power_of_2(M)))
    BLOCK_N = max(16, min(64, triton.next_power_of_2(N)))
    STEP_K = max(16, min(128, 8192 // max(BLOCK_M, BLOCK_N), triton.next_power_of_2(K)))
    out = x.new_empty((M, N))
    total = x.new_empty((M, K))
    elements = max(BLOCK_M * BLOCK_N, BLOCK_M * STEP_K, BLOCK_N * STEP_K)
    warps = 4 if elements <= 8192 else 8 if elements <= 32768 else 16
    grid = (triton.cdiv(M, BLOCK_M) * triton.cdiv(N, BLOCK_N),)
    tensors = (x, norm_weight, weight, bias, residual, out, total)
    numbers = (eps, weight_offset, M, K, N, BLOCK_M, BLOCK_N, STEP_K)
    _rms_norm_linear_residual[grid](
        *tensors, *(t.stride() for t in tensors), *numbers, num_warps=warps
    )
    return out, total
