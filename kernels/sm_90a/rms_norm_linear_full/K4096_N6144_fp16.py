# mirage-kernels generate rms_norm_linear_full --arch sm_90a --dtype fp16 --shape K=4096,N=6144
#
# Formula   [M, N] = linear(rms_norm(x, norm_weight + weight_offset), weight) + bias
# Shape     Llama-3-8B qkv_proj, TP 1 (no bias, weight_offset is 0)
# muGraph   one kernel, its loop cuts K. Its grid, in the muGraph: x cuts N, y cuts M (a launch
#           numbers its blocks as its plan needs). In the loop: x_squared, scaled_weight,
#           scaled_product; carried: x_squared_total, scaled_product_total; the rest after it.
# Found     the first by predicted time of 316 proved muGraphs that passes the numeric gate and has
#           a plan (2234 states, 316 candidates).
# Proved    equal to the recipe on 16 random draws over finite fields, for the tiles of all 4
#           variants, at full extents and uneven edges; a wrong muGraph passes with probability at
#           most 2^-56.8.
# Accuracy  emulated error against float64 (unfused program's): unit 2.6e-04 (3.2e-04), tiny 2.4e-04
#           (2.9e-04), outliers 2.6e-04 (3.1e-04), wide 2.7e-04 (3.2e-04).
# Expects   x [M, K] rows 16-byte aligned, any row stride, norm_weight [K] contiguous, weight [N, K]
#           contiguous, bias [N] contiguous, out [M, N] contiguous; any M >= 0.
# Launch    a program per block of the grid, BLOCK_N 32, BLOCK_M 16, BLOCK_K 128; what was proved
#           are the tiles of CUDA's.

import torch
import triton
import triton.language as tl

K = 4096
N = 6144
BLOCK_N = 32
BLOCK_M = 16
BLOCK_K = 128


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
    scaled_product = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
    for k0 in range(0, K, BLOCK_K):
        k = k0 + tl.arange(0, BLOCK_K)
        x_tile = tl.load(
            x_ptr + m[:, None] * x_stride + k[None, :],
            mask=(m[:, None] < M) & (k[None, :] < K),
            other=0.0,
        )  # [M, K]
        norm_weight_tile = tl.load(
            norm_weight_ptr + k,
            mask=k < K,
            other=0.0,
        )  # [K]
        weight_tile = tl.load(
            weight_ptr + n[:, None] * K + k[None, :],
            mask=(n[:, None] < N) & (k[None, :] < K),
            other=0.0,
        )  # [N, K]
        x_squared_terms = x_tile.to(tl.float32) * x_tile.to(tl.float32)  # [M, K]
        x_squared += tl.sum(x_squared_terms, axis=1)  # [M]
        weight_offset_plus_norm_weight = norm_weight_tile.to(tl.float32) + weight_offset  # [K]
        scaled_weight_wide = weight_tile.to(tl.float32) * weight_offset_plus_norm_weight[None, :]
        scaled_weight = scaled_weight_wide.to(x_ptr.dtype.element_ty)  # [N, K]
        scaled_product += tl.dot(scaled_weight, tl.trans(x_tile))  # [N, M]
    bias_tile = tl.load(
        bias_ptr + n,
        mask=n < N,
        other=0.0,
    )  # [N]
    x_squared_total = x_squared  # [M]
    scaled_product_total = scaled_product  # [N, M]
    mean_x_squared = x_squared_total / K  # [M]
    mean_x_squared_plus_eps = eps + mean_x_squared  # [M]
    root = tl.sqrt(mean_x_squared_plus_eps)  # [M]
    normed_scaled_product = scaled_product_total / root[None, :]  # [N, M]
    normed_scaled_product_plus = bias_tile[:, None] + normed_scaled_product  # [N, M]
    tl.store(
        out_ptr + m[None, :] * N + n[:, None],
        normed_scaled_product_plus.to(out_ptr.dtype.element_ty),
        mask=(n[:, None] < N) & (m[None, :] < M),
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
