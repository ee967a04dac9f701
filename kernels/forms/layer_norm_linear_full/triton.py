# mirage-kernels generate layer_norm_linear_full
# Schedule  a program per tile of the result, of any shape.
# Formula   [M, N] = linear(layer_norm(x, eps) * norm_weight + norm_bias, weight) + bias

import torch
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
    M,
    x_stride,
    eps,
    N: tl.constexpr,
    K: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_K_whole: tl.constexpr,
):
    n = tl.program_id(0).to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)
    m = tl.program_id(1).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    k_whole = tl.arange(0, BLOCK_K_whole)
    x_tile = tl.load(
        x_ptr + m[:, None] * x_stride + k_whole, mask=(m[:, None] < M) & (k_whole < K), other=0.0
    )  # [M, K]
    sum_x = tl.sum(tl.where(k_whole < K, x_tile.to(tl.float32), 0.0), axis=1)  # [M]
    mean_x = sum_x / K  # [M]
    x_minus_mean_x = x_tile.to(tl.float32) - mean_x[:, None]  # [M, K]
    x_minus_mean_x_squared = x_minus_mean_x * x_minus_mean_x  # [M, K]
    sum_x_minus_mean_x_squared = tl.sum(tl.where(k_whole < K, x_minus_mean_x_squared, 0.0), axis=1)
    mean_x_minus_mean_x_squared = sum_x_minus_mean_x_squared / K  # [M]
    mean_x_minus_mean_x_squared_plus = eps + mean_x_minus_mean_x_squared  # [M]
    root = tl.sqrt(mean_x_minus_mean_x_squared_plus)  # [M]
    scaled_normed_x_tile_2_minus_mean_x_plus_product = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
    for k0 in range(0, K, BLOCK_K):
        k = k0 + tl.arange(0, BLOCK_K)
        x_tile_2 = tl.load(
            x_ptr + m[:, None] * x_stride + k, mask=(m[:, None] < M) & (k < K), other=0.0
        )  # [M, K]
        norm_weight_tile = tl.load(norm_weight_ptr + k, mask=k < K, other=0.0)  # [K]
        norm_bias_tile = tl.load(norm_bias_ptr + k, mask=k < K, other=0.0)  # [K]
        weight_tile = tl.load(
            weight_ptr + n[:, None] * K + k, mask=(n[:, None] < N) & (k < K), other=0.0
        )  # [N, K]
        x_tile_2_minus_mean_x = x_tile_2.to(tl.float32) - mean_x[:, None]  # [M, K]
        normed_x_tile_2_minus_mean_x = x_tile_2_minus_mean_x / root[:, None]  # [M, K]
        scaled_normed_x_tile_2_minus_mean_x = (
            normed_x_tile_2_minus_mean_x * norm_weight_tile.to(tl.float32)[None, :]
        )
        scaled_normed_x_tile_2_minus_mean_x_plus_wide = (
            scaled_normed_x_tile_2_minus_mean_x + norm_bias_tile.to(tl.float32)[None, :]
        )
        scaled_normed_x_tile_2_minus_mean_x_plus = scaled_normed_x_tile_2_minus_mean_x_plus_wide.to(
            x_ptr.dtype.element_ty
        )
        scaled_normed_x_tile_2_minus_mean_x_plus_product += tl.dot(
            weight_tile, tl.trans(scaled_normed_x_tile_2_minus_mean_x_plus)
        )
    bias_tile = tl.load(bias_ptr + n, mask=n < N, other=0.0)  # [N]
    scaled_normed_x_tile_2_minus_mean_x_plus_product_total = (
        scaled_normed_x_tile_2_minus_mean_x_plus_product
    )
    scaled_normed_x_tile_2_minus_mean_x_plus_product_plus = (
        bias_tile[:, None] + scaled_normed_x_tile_2_minus_mean_x_plus_product_total
    )
    tl.store(
        out_ptr + m * N + n[:, None],
        scaled_normed_x_tile_2_minus_mean_x_plus_product_plus.to(out_ptr.dtype.element_ty),
        mask=(n[:, None] < N) & (m < M),
    )  # [N, M]


def layer_norm_linear_full(
    x: torch.Tensor,
    norm_weight: torch.Tensor,
    norm_bias: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    eps: float,
) -> torch.Tensor:
    """Return out [M, N]."""
    M = x.shape[0]
    K = x.shape[1]
    N = weight.shape[0]
    BLOCK_N = 32
    BLOCK_M = 16
    BLOCK_K = 128
    BLOCK_K_whole = triton.next_power_of_2(K)
    out = torch.empty(M, N, dtype=x.dtype, device=x.device)
    grid = (triton.cdiv(N, BLOCK_N), triton.cdiv(M, BLOCK_M))
    _layer_norm_linear_full[grid](
        x,
        norm_weight,
        norm_bias,
        weight,
        bias,
        out,
        M,
        x.stride(0),
        eps,
        N,
        K,
        BLOCK_N,
        BLOCK_M,
        BLOCK_K,
        BLOCK_K_whole,
    )
    return out
