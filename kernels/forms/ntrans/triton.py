# mirage-kernels generate ntrans
# Schedule  a program per tile of the result, of any shape.
# Formula   [M, K] = norm(h + alpha * (norm(x) - h)), where norm(x) = x / sqrt(sum(x^2))

import torch
import triton
import triton.language as tl


@triton.jit
def _ntrans(
    h_ptr,
    x_ptr,
    alpha_ptr,
    out_ptr,
    M,
    h_stride,
    x_stride,
    K: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_K_whole: tl.constexpr,
):
    m = tl.program_id(0).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    k_whole = tl.arange(0, BLOCK_K_whole)
    h_tile = tl.load(
        h_ptr + m[:, None] * h_stride + k_whole, mask=(m[:, None] < M) & (k_whole < K), other=0.0
    )  # [M, K]
    x_tile = tl.load(
        x_ptr + m[:, None] * x_stride + k_whole, mask=(m[:, None] < M) & (k_whole < K), other=0.0
    )  # [M, K]
    alpha_line = tl.load(alpha_ptr + k_whole, mask=k_whole < K, other=0.0)  # [K]
    x_squared = x_tile.to(tl.float32) * x_tile.to(tl.float32)  # [M, K]
    sum_x_squared = tl.sum(tl.where(k_whole < K, x_squared, 0.0), axis=1)  # [M]
    root_sum_x_squared = tl.sqrt(sum_x_squared)  # [M]
    normed_x = x_tile.to(tl.float32) / root_sum_x_squared[:, None]  # [M, K]
    normed_x_minus_h = normed_x - h_tile.to(tl.float32)  # [M, K]
    scaled_normed_x_minus_h = alpha_line.to(tl.float32)[None, :] * normed_x_minus_h  # [K, M]
    scaled_normed_x_minus_h_plus = h_tile.to(tl.float32) + scaled_normed_x_minus_h  # [M, K]
    scaled_normed_x_minus_h_plus_squared = (
        scaled_normed_x_minus_h_plus * scaled_normed_x_minus_h_plus
    )
    sum_scaled_normed_x_minus_h_plus_squared = tl.sum(
        tl.where(k_whole < K, scaled_normed_x_minus_h_plus_squared, 0.0), axis=1
    )
    root = tl.sqrt(sum_scaled_normed_x_minus_h_plus_squared)  # [M]
    normed_scaled_normed_x_minus_h_plus = scaled_normed_x_minus_h_plus / root[:, None]  # [M, K]
    tl.store(
        out_ptr + m[:, None] * K + k_whole,
        normed_scaled_normed_x_minus_h_plus.to(out_ptr.dtype.element_ty),
        mask=(k_whole < K) & (m[:, None] < M),
    )  # [M, K]


def ntrans(
    h: torch.Tensor,
    x: torch.Tensor,
    alpha: torch.Tensor,
) -> torch.Tensor:
    """Return out [M, K]."""
    M = h.shape[0]
    K = h.shape[1]
    BLOCK_M = 1
    BLOCK_K_whole = triton.next_power_of_2(K)
    out = torch.empty(M, K, dtype=h.dtype, device=h.device)
    grid = (triton.cdiv(M, BLOCK_M),)
    _ntrans[grid](
        h,
        x,
        alpha,
        out,
        M,
        h.stride(0),
        x.stride(0),
        K,
        BLOCK_M,
        BLOCK_K_whole,
    )
    return out
