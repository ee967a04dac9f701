# mirage-kernels generate layer_norm_linear_full
# Schedule  tiles chosen for the extents of a call, any extents, any strides.
# Formula   [M, N] = linear(layer_norm(x, eps) * norm_weight + norm_bias, weight) + bias

import triton
import triton.language as tl


@triton.jit
def _layer_norm_linear_full(
    x_ptr,
    norm_weight_ptr,
    norm_bias_ptr,
    weight_ptr,
    bias_ptr,
    out_ptr,
    x_strides,
    norm_weight_strides,
    norm_bias_strides,
    weight_strides,
    bias_strides,
    out_strides,
    eps,
    M,
    K: tl.constexpr,
    N: tl.constexpr,
    ALL_K: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    STEP_K: tl.constexpr,
):
    block = tl.program_id(0).to(tl.int64)
    offs_n = block % tl.cdiv(N, BLOCK_N) * BLOCK_N + tl.arange(0, BLOCK_N)
    offs_m = block // tl.cdiv(N, BLOCK_N) * BLOCK_M + tl.arange(0, BLOCK_M)
    all_k = tl.arange(0, ALL_K).to(tl.int64)
    storage = x_ptr.dtype.element_ty
    x_tile = tl.load(
        x_ptr + offs_m[:, None] * x_strides[0] + all_k[None, :] * x_strides[1],
        mask=(offs_m[:, None] < M) & (all_k[None, :] < K),
        other=0,
    )
    sum_x = tl.sum(x_tile.to(tl.float32), axis=1)
    mean_x = sum_x / (K * 1.0)
    x_minus_mean_x = x_tile.to(tl.float32) - mean_x[:, None]
    x_minus_mean_x_squared = x_minus_mean_x * x_minus_mean_x
    terms = tl.where(all_k[None, :] < K, x_minus_mean_x_squared, 0.0)
    sum_x_minus_mean_x_squared = tl.sum(terms, axis=1)
    mean_x_minus_mean_x_squared = sum_x_minus_mean_x_squared / (K * 1.0)
    mean_x_minus_mean_x_squared_plus = eps + mean_x_minus_mean_x_squared
    root = tl.sqrt(mean_x_minus_mean_x_squared_plus)
    scaled_normed_x_tile_2_minus_mean_x_plus_product_total = tl.full(
        (BLOCK_M, BLOCK_N), 0.0, tl.float32
    )
    for first in range(0, K, STEP_K):
        step_k = first + tl.arange(0, STEP_K).to(tl.int64)
        weight_tile = tl.load(
            weight_ptr + offs_n[None, :] * weight_strides[0] + step_k[:, None] * weight_strides[1],
            mask=(step_k[:, None] < K) & (offs_n[None, :] < N),
            other=0,
        )
        x_tile_2 = tl.load(
            x_ptr + offs_m[:, None] * x_strides[0] + step_k[None, :] * x_strides[1],
            mask=(offs_m[:, None] < M) & (step_k[None, :] < K),
            other=0,
        )
        norm_weight_tile = tl.load(
            norm_weight_ptr + step_k * norm_weight_strides[0], mask=step_k < K, other=0
        )
        norm_bias_tile = tl.load(
            norm_bias_ptr + step_k * norm_bias_strides[0], mask=step_k < K, other=0
        )
        x_tile_2_minus_mean_x = x_tile_2.to(tl.float32) - mean_x[:, None]
        normed_x_tile_2_minus_mean_x = x_tile_2_minus_mean_x / root[:, None]
        scaled_normed_x_tile_2_minus_mean_x = (
            norm_weight_tile.to(tl.float32)[None, :] * normed_x_tile_2_minus_mean_x
        )
        step_made = norm_bias_tile.to(tl.float32)[None, :] + scaled_normed_x_tile_2_minus_mean_x
        scaled_normed_x_tile_2_minus_mean_x_plus = tl.where(step_k[None, :] < K, step_made, 0.0).to(
            storage
        )
        scaled_normed_x_tile_2_minus_mean_x_plus_product_total = tl.dot(
            scaled_normed_x_tile_2_minus_mean_x_plus,
            weight_tile,
            scaled_normed_x_tile_2_minus_mean_x_plus_product_total,
        )
    bias_tile = tl.load(bias_ptr + offs_n * bias_strides[0], mask=offs_n < N, other=0)
    scaled_normed_x_tile_2_minus_mean_x_plus_product_plus = (
        bias_tile.to(tl.float32)[None, :] + scaled_normed_x_tile_2_minus_mean_x_plus_product_total
    )
    tl.store(
        out_ptr + offs_m[:, None] * out_strides[0] + offs_n[None, :] * out_strides[1],
        scaled_normed_x_tile_2_minus_mean_x_plus_product_plus.to(out_ptr.dtype.element_ty),
        mask=(offs_m[:, None] < M) & (offs_n[None, :] < N),
    )


def layer_norm_linear_full(x, norm_weight, norm_bias, weight, eps, bias=None):
    """Return out [M, N]."""
    M, K = x.shape
    N = weight.shape[0]
    norm_bias = x.new_zeros(()).expand((K,)) if norm_bias is None else norm_bias
    bias = x.new_zeros(()).expand((N,)) if bias is None else bias
    for name, tensor, shape in (
        ("x", x, (M, K)),
        ("norm_weight", norm_weight, (K,)),
        ("norm_bias", norm_bias, (K,)),
        ("weight", weight, (N, K)),
        ("bias", bias, (N,)),
    ):
        if tensor.shape != shape:
            raise ValueError(f"{name} is {tuple(tensor.shape)}; {shape} works")
    ALL_K = max(16, triton.next_power_of_2(K))
    BLOCK_M = max(16, min(128, 16384 // ALL_K, triton.next_power_of_2(M)))
    BLOCK_N = max(16, min(64, triton.next_power_of_2(N)))
    STEP_K = max(16, min(128, 8192 // max(BLOCK_M, BLOCK_N), triton.next_power_of_2(K)))
    out = x.new_empty((M, N))
    elements = max(ALL_K * BLOCK_M, BLOCK_M * BLOCK_N, BLOCK_M * STEP_K)
    warps = 4 if elements <= 8192 else 8 if elements <= 32768 else 16
    grid = (triton.cdiv(N, BLOCK_N) * triton.cdiv(M, BLOCK_M),)
    tensors = (x, norm_weight, norm_bias, weight, bias, out)
    numbers = (eps, M, K, N, ALL_K, BLOCK_M, BLOCK_N, STEP_K)
    _layer_norm_linear_full[grid](
        *tensors, *(t.stride() for t in tensors), *numbers, num_warps=warps
    )
    return out
