# mirage-kernels generate rms_norm_residual
# Schedule  a program per tile of the result, of any shape.
# Formula   [M, K] = rms_norm(total) * (norm_weight + weight_offset); total = x + residual

import torch
import triton
import triton.language as tl


@triton.jit
def _rms_norm_residual(
    x_ptr,
    norm_weight_ptr,
    residual_ptr,
    out_ptr,
    total_ptr,
    M,
    x_stride,
    residual_stride,
    eps,
    weight_offset,
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
    residual_tile = tl.load(
        residual_ptr + m[:, None] * residual_stride + k_whole,
        mask=(m[:, None] < M) & (k_whole < K),
        other=0.0,
    )  # [M, K]
    total_tile = x_tile.to(tl.float32) + residual_tile.to(tl.float32)  # [M, K]
    total_squared = total_tile * total_tile  # [M, K]
    sum_total_squared = tl.sum(tl.where(k_whole < K, total_squared, 0.0), axis=1)  # [M]
    weight_offset_plus_norm_weight = norm_weight_line.to(tl.float32) + weight_offset  # [K]
    mean_total_squared = sum_total_squared / K  # [M]
    mean_total_squared_plus_eps = eps + mean_total_squared  # [M]
    root = tl.sqrt(mean_total_squared_plus_eps)  # [M]
    normed_total = total_tile / root[:, None]  # [M, K]
    scaled_normed = weight_offset_plus_norm_weight * normed_total  # [K, M]
    tl.store(
        out_ptr + m[:, None] * K + k_whole,
        scaled_normed.to(out_ptr.dtype.element_ty),
        mask=(k_whole < K) & (m[:, None] < M),
    )  # [M, K]
    tl.store(
        total_ptr + m[:, None] * K + k_whole,
        total_tile.to(total_ptr.dtype.element_ty),
        mask=(k_whole < K) & (m[:, None] < M),
    )  # [M, K]


def rms_norm_residual(
    x: torch.Tensor,
    norm_weight: torch.Tensor,
    residual: torch.Tensor,
    eps: float,
    weight_offset: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return out [M, K] and total [M, K]."""
    M = x.shape[0]
    K = x.shape[1]
    BLOCK_M = 1
    BLOCK_K_whole = triton.next_power_of_2(K)
    out = torch.empty(M, K, dtype=x.dtype, device=x.device)
    total = torch.empty(M, K, dtype=x.dtype, device=x.device)
    grid = (triton.cdiv(M, BLOCK_M),)
    _rms_norm_residual[grid](
        x,
        norm_weight,
        residual,
        out,
        total,
        M,
        x.stride(0),
        residual.stride(0),
        eps,
        weight_offset,
        K,
        BLOCK_M,
        BLOCK_K_whole,
    )
    return out, total
