# mirage-kernels generate rms_norm_linear_full
# Schedule  a program per tile of the result, of any shape.
# Formula   [M, N] = linear(rms_norm(x, norm_weight + weight_offset), weight) + bias

import torch
import triton
import triton.language as tl


@triton.jit
def _rms_norm_linear_full(
    x_ptr,
    norm_weight_ptr,
    weight_ptr,
    bias_ptr,
    out_ptr,
    M,
    x_stride,
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
    x_squared = tl.zeros((BLOCK_M,), tl.float32)
    scaled_x_product = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
    for k0 in range(0, K, BLOCK_K):
        k = k0 + tl.arange(0, BLOCK_K)
        x_tile = tl.load(
            x_ptr + m[:, None] * x_stride + k, mask=(m[:, None] < M) & (k < K), other=0.0
        )  # [M, K]
        norm_weight_tile = tl.load(norm_weight_ptr + k, mask=k < K, other=0.0)  # [K]
        weight_tile = tl.load(
            weight_ptr + n[:, None] * K + k, mask=(n[:, None] < N) & (k < K), other=0.0
        )  # [N, K]
        x_squared_terms = x_tile.to(tl.float32) * x_tile.to(tl.float32)  # [M, K]
        x_squared += tl.sum(x_squared_terms, axis=1)  # [M]
        weight_offset_plus_norm_weight = norm_weight_tile.to(tl.float32) + weight_offset  # [K]
        scaled_x_wide = x_tile.to(tl.float32) * weight_offset_plus_norm_weight
        scaled_x = scaled_x_wide.to(x_ptr.dtype.element_ty)  # [M, K]
        scaled_x_product += tl.dot(weight_tile, tl.trans(scaled_x))  # [N, M]
    bias_tile = tl.load(bias_ptr + n, mask=n < N, other=0.0)  # [N]
    x_squared_total = x_squared  # [M]
    scaled_x_product_total = scaled_x_product  # [N, M]
    mean_x_squared = x_squared_total / K  # [M]
    mean_x_squared_plus_eps = eps + mean_x_squared  # [M]
    root = tl.sqrt(mean_x_squared_plus_eps)  # [M]
    normed_scaled_x_product = scaled_x_product_total / root  # [N, M]
    normed_scaled_x_product_plus = bias_tile[:, None] + normed_scaled_x_product  # [N, M]
    tl.store(
        out_ptr + m * N + n[:, None],
        normed_scaled_x_product_plus.to(out_ptr.dtype.element_ty),
        mask=(n[:, None] < N) & (m < M),
    )  # [N, M]


def rms_norm_linear_full(
    x: torch.Tensor,
    norm_weight: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    eps: float,
    weight_offset: float,
) -> torch.Tensor:
    """Return out [M, N]."""
    M = x.shape[0]
    K = x.shape[1]
    N = weight.shape[0]
    BLOCK_N = 32
    BLOCK_M = 16
    BLOCK_K = 128
    out = torch.empty(M, N, dtype=x.dtype, device=x.device)
    grid = (triton.cdiv(N, BLOCK_N), triton.cdiv(M, BLOCK_M))
    _rms_norm_linear_full[grid](
        x,
        norm_weight,
        weight,
        bias,
        out,
        M,
        x.stride(0),
        eps,
        weight_offset,
        N,
        K,
        BLOCK_N,
        BLOCK_M,
        BLOCK_K,
    )
    return out
