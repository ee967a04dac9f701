# mirage-kernels generate layer_norm
# Schedule  a program per tile of the result, of any shape.
# Formula   [M, K] = layer_norm(x, eps) * norm_weight + norm_bias

import torch
import triton
import triton.language as tl


@triton.jit
def _layer_norm(
    x_ptr,
    norm_weight_ptr,
    norm_bias_ptr,
    out_ptr,
    M,
    x_stride,
    eps,
    K: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_K_whole: tl.constexpr,
):
    m = tl.program_id(0).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    k_whole = tl.arange(0, BLOCK_K_whole)
    x_tile = tl.load(
        x_ptr + m[:, None] * x_stride + k_whole, mask=(m[:, None] < M) & (k_whole < K), other=0.0
    )  # [M, K]
    norm_weight_line = tl.load(norm_weight_ptr + k_whole, mask=k_whole < K, other=0.0)  # [K]
    norm_bias_line = tl.load(norm_bias_ptr + k_whole, mask=k_whole < K, other=0.0)  # [K]
    sum_x = tl.sum(tl.where(k_whole < K, x_tile.to(tl.float32), 0.0), axis=1)  # [M]
    mean_x = sum_x / K  # [M]
    x_minus_mean_x = x_tile.to(tl.float32) - mean_x[:, None]  # [M, K]
    x_minus_mean_x_squared = x_minus_mean_x * x_minus_mean_x  # [M, K]
    sum_x_minus_mean_x_squared = tl.sum(tl.where(k_whole < K, x_minus_mean_x_squared, 0.0), axis=1)
    mean_x_minus_mean_x_squared = sum_x_minus_mean_x_squared / K  # [M]
    mean_x_minus_mean_x_squared_plus = eps + mean_x_minus_mean_x_squared  # [M]
    root = tl.sqrt(mean_x_minus_mean_x_squared_plus)  # [M]
    normed_x_minus_mean_x = x_minus_mean_x / root[:, None]  # [M, K]
    scaled_normed_x_minus_mean_x = norm_weight_line.to(tl.float32)[None, :] * normed_x_minus_mean_x
    scaled_normed_x_minus_mean_x_plus = (
        norm_bias_line.to(tl.float32)[None, :] + scaled_normed_x_minus_mean_x
    )
    tl.store(
        out_ptr + m[:, None] * K + k_whole,
        scaled_normed_x_minus_mean_x_plus.to(out_ptr.dtype.element_ty),
        mask=(k_whole < K) & (m[:, None] < M),
    )  # [M, K]


def layer_norm(
    x: torch.Tensor,
    norm_weight: torch.Tensor,
    norm_bias: torch.Tensor,
    eps: float,
) -> torch.Tensor:
    """Return out [M, K]."""
    M = x.shape[0]
    K = x.shape[1]
    BLOCK_M = 1
    BLOCK_K_whole = triton.next_power_of_2(K)
    out = torch.empty(M, K, dtype=x.dtype, device=x.device)
    grid = (triton.cdiv(M, BLOCK_M),)
    _layer_norm[grid](
        x,
        norm_weight,
        norm_bias,
        out,
        M,
        x.stride(0),
        eps,
        K,
        BLOCK_M,
        BLOCK_K_whole,
    )
    return out
