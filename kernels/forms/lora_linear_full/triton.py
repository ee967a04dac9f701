# mirage-kernels generate lora_linear_full
# Schedule  a program per tile of the result, of any shape.
# Formula   [M, N] = linear(x, weight) + scale * linear(linear(x, lora_a), lora_b) + bias

import torch
import triton
import triton.language as tl


@triton.jit
def _lora_linear_full(
    x_ptr,
    weight_ptr,
    lora_a_ptr,
    lora_b_ptr,
    bias_ptr,
    out_ptr,
    M,
    x_stride,
    scale,
    N: tl.constexpr,
    K: tl.constexpr,
    R: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_R: tl.constexpr,
):
    n = tl.program_id(0).to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)
    m = tl.program_id(1).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    r = tl.arange(0, BLOCK_R)
    weight_product = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
    lora_a_product = tl.zeros((BLOCK_R, BLOCK_M), tl.float32)
    for k0 in range(0, K, BLOCK_K):
        k = k0 + tl.arange(0, BLOCK_K)
        x_tile = tl.load(
            x_ptr + m[:, None] * x_stride + k, mask=(m[:, None] < M) & (k < K), other=0.0
        )  # [M, K]
        weight_tile = tl.load(
            weight_ptr + n[:, None] * K + k, mask=(n[:, None] < N) & (k < K), other=0.0
        )  # [N, K]
        lora_a_tile = tl.load(
            lora_a_ptr + r[:, None] * K + k, mask=(r[:, None] < R) & (k < K), other=0.0
        )  # [R, K]
        weight_product += tl.dot(weight_tile, tl.trans(x_tile))  # [N, M]
        lora_a_product += tl.dot(lora_a_tile, tl.trans(x_tile))  # [R, M]
    lora_b_tile = tl.load(
        lora_b_ptr + n[:, None] * R + r, mask=(n[:, None] < N) & (r < R), other=0.0
    )  # [N, R]
    lora_a_product_total = lora_a_product  # [R, M]
    lora_a_product_total_kept = lora_a_product_total.to(x_ptr.dtype.element_ty)  # [R, M]
    lora_a_product_product = tl.dot(lora_b_tile, lora_a_product_total_kept)  # [N, M]
    bias_tile = tl.load(bias_ptr + n, mask=n < N, other=0.0)  # [N]
    weight_product_total = weight_product  # [N, M]
    weight_product_plus_bias = bias_tile[:, None] + weight_product_total  # [N, M]
    scaled_lora_a_product_product = scale * lora_a_product_product  # [N, M]
    scaled_lora_a_product_product_plus = weight_product_plus_bias + scaled_lora_a_product_product
    tl.store(
        out_ptr + m * N + n[:, None],
        scaled_lora_a_product_product_plus.to(out_ptr.dtype.element_ty),
        mask=(n[:, None] < N) & (m < M),
    )  # [N, M]


def lora_linear_full(
    x: torch.Tensor,
    weight: torch.Tensor,
    lora_a: torch.Tensor,
    lora_b: torch.Tensor,
    bias: torch.Tensor,
    scale: float,
) -> torch.Tensor:
    """Return out [M, N]."""
    M = x.shape[0]
    K = x.shape[1]
    N = weight.shape[0]
    R = lora_a.shape[0]
    BLOCK_N = 32
    BLOCK_M = 16
    BLOCK_K = 128
    BLOCK_R = max(triton.next_power_of_2(R), 16)
    out = torch.empty(M, N, dtype=x.dtype, device=x.device)
    grid = (triton.cdiv(N, BLOCK_N), triton.cdiv(M, BLOCK_M))
    _lora_linear_full[grid](
        x,
        weight,
        lora_a,
        lora_b,
        bias,
        out,
        M,
        x.stride(0),
        scale,
        N,
        K,
        R,
        BLOCK_N,
        BLOCK_M,
        BLOCK_K,
        BLOCK_R,
    )
    return out
