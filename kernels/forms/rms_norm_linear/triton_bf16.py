# mirage-kernels generate rms_norm_linear
# Schedule  a program per tile of the result, of any shape.
# Formula   [M, N] = linear(x / sqrt(mean(x^2) + eps) * norm_weight, weight)

import torch
import triton
import triton.language as tl


@triton.jit
def _rms_norm_linear(
    x_ptr,
    norm_weight_ptr,
    weight_ptr,
    out_ptr,
    M,
    x_stride,
    eps,
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
        scaled_x_wide = x_tile.to(tl.float32) * norm_weight_tile.to(tl.float32)[None, :]
        scaled_x = scaled_x_wide.to(x_ptr.dtype.element_ty)  # [M, K]
        scaled_x_product += tl.dot(weight_tile, tl.trans(scaled_x))  # [N, M]
    x_squared_total = x_squared  # [M]
    scaled_x_product_total = scaled_x_product  # [N, M]
    mean_x_squared = x_squared_total / K  # [M]
    mean_x_squared_plus_eps = eps + mean_x_squared  # [M]
    root = tl.sqrt(mean_x_squared_plus_eps)  # [M]
    normed_scaled_x_product = scaled_x_product_total / root  # [N, M]
    tl.store(
        out_ptr + m * N + n[:, None],
        normed_scaled_x_product.to(out_ptr.dtype.element_ty),
        mask=(n[:, None] < N) & (m < M),
    )  # [N, M]


def rms_norm_linear(
    x: torch.Tensor,
    norm_weight: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
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
    _rms_norm_linear[grid](
        x,
        norm_weight,
        weight,
        out,
        M,
        x.stride(0),
        eps,
        N,
        K,
        BLOCK_N,
        BLOCK_M,
        BLOCK_K,
    )
    return out
