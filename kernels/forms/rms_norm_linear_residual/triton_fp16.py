# mirage-kernels generate rms_norm_linear_residual
# Schedule  a program per tile of the result, of any shape.
# Formula   [M, N] = linear(rms_norm(total, norm_weight + weight_offset), weight) + bias; total = x
#           + residual

import torch
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
    M,
    x_stride,
    residual_stride,
    eps,
    weight_offset,
    N: tl.constexpr,
    K: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    n = tl.program_id(0).to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)
    m = tl.program_id(1).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    total_squared = tl.zeros((BLOCK_M,), tl.float32)
    scaled_product = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
    for k0 in range(0, K, BLOCK_K):
        k = k0 + tl.arange(0, BLOCK_K)
        x_tile = tl.load(
            x_ptr + m[:, None] * x_stride + k, mask=(m[:, None] < M) & (k < K), other=0.0
        )  # [M, K]
        norm_weight_tile = tl.load(norm_weight_ptr + k, mask=k < K, other=0.0)  # [K]
        weight_tile = tl.load(
            weight_ptr + n[:, None] * K + k, mask=(n[:, None] < N) & (k < K), other=0.0
        )  # [N, K]
        residual_tile = tl.load(
            residual_ptr + m[:, None] * residual_stride + k,
            mask=(m[:, None] < M) & (k < K),
            other=0.0,
        )  # [M, K]
        total_tile_wide = x_tile.to(tl.float32) + residual_tile.to(tl.float32)
        total_tile = total_tile_wide.to(x_ptr.dtype.element_ty)  # [M, K]
        total_squared_terms = total_tile.to(tl.float32) * total_tile.to(tl.float32)  # [M, K]
        total_squared += tl.sum(total_squared_terms, axis=1)  # [M]
        weight_offset_plus_norm_weight = norm_weight_tile.to(tl.float32) + weight_offset  # [K]
        scaled_weight_wide = weight_tile.to(tl.float32) * weight_offset_plus_norm_weight
        scaled_weight = scaled_weight_wide.to(x_ptr.dtype.element_ty)  # [N, K]
        scaled_product += tl.dot(scaled_weight, tl.trans(total_tile))  # [N, M]
        mine = k // BLOCK_K % tl.num_programs(0) == tl.program_id(0)
        tl.store(
            total_ptr + m[:, None] * K + k, total_tile, mask=(m[:, None] < M) & (k < K) & mine
        )  # [M, K]
    bias_tile = tl.load(bias_ptr + n, mask=n < N, other=0.0)  # [N]
    total_squared_total = total_squared  # [M]
    scaled_product_total = scaled_product  # [N, M]
    mean_total_squared = total_squared_total / K  # [M]
    mean_total_squared_plus_eps = eps + mean_total_squared  # [M]
    root = tl.sqrt(mean_total_squared_plus_eps)  # [M]
    normed_scaled_product = scaled_product_total / root  # [N, M]
    normed_scaled_product_plus = bias_tile[:, None] + normed_scaled_product  # [N, M]
    tl.store(
        out_ptr + m * N + n[:, None],
        normed_scaled_product_plus.to(out_ptr.dtype.element_ty),
        mask=(n[:, None] < N) & (m < M),
    )  # [N, M]


def rms_norm_linear_residual(
    x: torch.Tensor,
    norm_weight: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    residual: torch.Tensor,
    eps: float,
    weight_offset: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return out [M, N] and total [M, K]."""
    M = x.shape[0]
    K = x.shape[1]
    N = weight.shape[0]
    BLOCK_N = 32
    BLOCK_M = 16
    BLOCK_K = 128
    out = torch.empty(M, N, dtype=x.dtype, device=x.device)
    total = torch.empty(M, K, dtype=x.dtype, device=x.device)
    grid = (triton.cdiv(N, BLOCK_N), triton.cdiv(M, BLOCK_M))
    _rms_norm_linear_residual[grid](
        x,
        norm_weight,
        weight,
        bias,
        residual,
        out,
        total,
        M,
        x.stride(0),
        residual.stride(0),
        eps,
        weight_offset,
        N,
        K,
        BLOCK_N,
        BLOCK_M,
        BLOCK_K,
    )
    return out, total
