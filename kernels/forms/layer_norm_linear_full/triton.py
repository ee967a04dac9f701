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
    x_stride_M,
    x_stride_K,
    norm_weight_stride_K,
    norm_bias_stride_K,
    weight_stride_N,
    weight_stride_K,
    bias_stride_N,
    out_stride_M,
    out_stride_N,
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
    block = block // tl.cdiv(N, BLOCK_N)
    offs_m = block * BLOCK_M + tl.arange(0, BLOCK_M)
    all_k = tl.arange(0, ALL_K).to(tl.int64)
    x_tile = tl.load(
        x_ptr + offs_m[:, None] * x_stride_M + all_k[None, :] * x_stride_K,
        mask=(offs_m[:, None] < M) & (all_k[None, :] < K),
        other=0,
    )
    sum_x = tl.sum(x_tile.to(tl.float32), axis=1)
    mean_x = sum_x / (K * 1.0)
    x_minus_mean_x = x_tile.to(tl.float32) - mean_x[:, None]
    x_minus_mean_x_squared = x_minus_mean_x * x_minus_mean_x
    sum_x_minus_mean_x_squared_terms = tl.where(all_k[None, :] < K, x_minus_mean_x_squared, 0.0)
    sum_x_minus_mean_x_squared = tl.sum(sum_x_minus_mean_x_squared_terms, axis=1)
    scaled_normed_x_tile_2_minus_mean_x_plus_product_total = tl.full(
        (BLOCK_M, BLOCK_N), 0.0, tl.float32
    )
    for first in range(0, K, STEP_K):
        step_k = first + tl.arange(0, STEP_K).to(tl.int64)
        weight_tile = tl.load(
            weight_ptr + offs_n[None, :] * weight_stride_N + step_k[:, None] * weight_stride_K,
            mask=(step_k[:, None] < K) & (offs_n[None, :] < N),
            other=0,
        )
        x_tile_2 = tl.load(
            x_ptr + offs_m[:, None] * x_stride_M + step_k[None, :] * x_stride_K,
            mask=(offs_m[:, None] < M) & (step_k[None, :] < K),
            other=0,
        )
        norm_weight_tile = tl.load(
            norm_weight_ptr + step_k * norm_weight_stride_K, mask=step_k < K, other=0
        )
        norm_bias_tile = tl.load(
            norm_bias_ptr + step_k * norm_bias_stride_K, mask=step_k < K, other=0
        )
        mean_x = sum_x / (K * 1.0)
        x_tile_2_minus_mean_x = x_tile_2.to(tl.float32) - mean_x[:, None]
        mean_x_minus_mean_x_squared = sum_x_minus_mean_x_squared / (K * 1.0)
        mean_x_minus_mean_x_squared_plus = eps + mean_x_minus_mean_x_squared
        root = tl.sqrt(mean_x_minus_mean_x_squared_plus)
        normed_x_tile_2_minus_mean_x = x_tile_2_minus_mean_x / root[:, None]
        scaled_normed_x_tile_2_minus_mean_x = (
            norm_weight_tile.to(tl.float32)[None, :] * normed_x_tile_2_minus_mean_x
        )
        scaled_normed_x_tile_2_minus_mean_x_plus = (
            norm_bias_tile.to(tl.float32)[None, :] + scaled_normed_x_tile_2_minus_mean_x
        )
        scaled_normed_x_tile_2_minus_mean_x_plus = tl.where(
            step_k[None, :] < K, scaled_normed_x_tile_2_minus_mean_x_plus, 0.0
        )
        scaled_normed_x_tile_2_minus_mean_x_plus = scaled_normed_x_tile_2_minus_mean_x_plus.to(
            x_ptr.dtype.element_ty
        )
        scaled_normed_x_tile_2_minus_mean_x_plus_product_total = tl.dot(
            scaled_normed_x_tile_2_minus_mean_x_plus,
            weight_tile,
            scaled_normed_x_tile_2_minus_mean_x_plus_product_total,
        )
    bias_tile = tl.load(bias_ptr + offs_n * bias_stride_N, mask=offs_n < N, other=0)
    scaled_normed_x_tile_2_minus_mean_x_plus_product_plus = (
        bias_tile.to(tl.float32)[None, :] + scaled_normed_x_tile_2_minus_mean_x_plus_product_total
    )
    tl.store(
        out_ptr + offs_m[:, None] * out_stride_M + offs_n[None, :] * out_stride_N,
        scaled_normed_x_tile_2_minus_mean_x_plus_product_plus.to(out_ptr.dtype.element_ty),
        mask=(offs_m[:, None] < M) & (offs_n[None, :] < N),
    )


def layer_norm_linear_full(x, norm_weight, norm_bias, weight, eps, bias=None):
    """Return out [M, N]."""
    M, K = x.shape
    N = weight.shape[0]
    if norm_bias is None:
        norm_bias = x.new_zeros(()).expand((K,))
    if bias is None:
        bias = x.new_zeros(()).expand((N,))
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
    elements = max(ALL_K * BLOCK_M, BLOCK_M * BLOCK_N, BLOCK_M * STEP_K)
    num_warps = 4 if elements <= 8192 else 8 if elements <= 32768 else 16
    out = x.new_empty((M, N))
    grid = (triton.cdiv(N, BLOCK_N) * triton.cdiv(M, BLOCK_M),)
    _layer_norm_linear_full[grid](
        x,
        norm_weight,
        norm_bias,
        weight,
        bias,
        out,
        *x.stride(),
        *norm_weight.stride(),
        *norm_bias.stride(),
        *weight.stride(),
        *bias.stride(),
        *out.stride(),
        eps,
        M,
        K,
        N,
        ALL_K,
        BLOCK_M,
        BLOCK_N,
        STEP_K,
        num_warps=num_warps,
    )
    return out
