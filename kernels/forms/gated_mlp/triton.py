# mirage-kernels generate gated_mlp
# Schedule  a program per tile of the result, of any shape.
# Formula   [M, N] = silu(linear(x, gate_weight)) * linear(x, up_weight)

import torch
import triton
import triton.language as tl


@triton.jit
def _gated_mlp(
    x_ptr,
    gate_weight_ptr,
    up_weight_ptr,
    out_ptr,
    M,
    x_stride,
    N: tl.constexpr,
    K: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    n = tl.program_id(0).to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)
    m = tl.program_id(1).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    up_product = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
    gate_product = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
    for k0 in range(0, K, BLOCK_K):
        k = k0 + tl.arange(0, BLOCK_K)
        x_tile = tl.load(
            x_ptr + m[:, None] * x_stride + k, mask=(m[:, None] < M) & (k < K), other=0.0
        )  # [M, K]
        gate_weight_tile = tl.load(
            gate_weight_ptr + n[:, None] * K + k, mask=(n[:, None] < N) & (k < K), other=0.0
        )  # [N, K]
        up_weight_tile = tl.load(
            up_weight_ptr + n[:, None] * K + k, mask=(n[:, None] < N) & (k < K), other=0.0
        )  # [N, K]
        up_product += tl.dot(up_weight_tile, tl.trans(x_tile))  # [N, M]
        gate_product += tl.dot(gate_weight_tile, tl.trans(x_tile))  # [N, M]
    up_product_total = up_product  # [N, M]
    gate_product_total = gate_product  # [N, M]
    silu_gate_product = gate_product_total * tl.sigmoid(gate_product_total)  # [N, M]
    up_product_times_silu_gate_product = up_product_total * silu_gate_product  # [N, M]
    tl.store(
        out_ptr + m * N + n[:, None],
        up_product_times_silu_gate_product.to(out_ptr.dtype.element_ty),
        mask=(n[:, None] < N) & (m < M),
    )  # [N, M]


def gated_mlp(
    x: torch.Tensor,
    gate_weight: torch.Tensor,
    up_weight: torch.Tensor,
) -> torch.Tensor:
    """Return out [M, N]."""
    M = x.shape[0]
    K = x.shape[1]
    N = gate_weight.shape[0]
    BLOCK_N = 32
    BLOCK_M = 16
    BLOCK_K = 128
    out = torch.empty(M, N, dtype=x.dtype, device=x.device)
    grid = (triton.cdiv(N, BLOCK_N), triton.cdiv(M, BLOCK_M))
    _gated_mlp[grid](
        x,
        gate_weight,
        up_weight,
        out,
        M,
        x.stride(0),
        N,
        K,
        BLOCK_N,
        BLOCK_M,
        BLOCK_K,
    )
    return out
