# mirage-kernels generate silu_and_mul
# Schedule  a program per tile of the result, of any shape.
# Formula   [M, N] = silu(gate) * up

import torch
import triton
import triton.language as tl


@triton.jit
def _silu_and_mul(
    gate_ptr,
    up_ptr,
    out_ptr,
    M,
    gate_stride,
    up_stride,
    N: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N_whole: tl.constexpr,
):
    m = tl.program_id(0).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    n_whole = tl.program_id(1).to(tl.int64) * BLOCK_N_whole + tl.arange(0, BLOCK_N_whole)
    gate_tile = tl.load(
        gate_ptr + m[:, None] * gate_stride + n_whole,
        mask=(m[:, None] < M) & (n_whole < N),
        other=0.0,
    )  # [M, N]
    up_tile = tl.load(
        up_ptr + m[:, None] * up_stride + n_whole, mask=(m[:, None] < M) & (n_whole < N), other=0.0
    )  # [M, N]
    silu_gate = gate_tile.to(tl.float32) * tl.sigmoid(gate_tile.to(tl.float32))  # [M, N]
    up_times_silu_gate = up_tile.to(tl.float32) * silu_gate  # [M, N]
    tl.store(
        out_ptr + m[:, None] * N + n_whole,
        up_times_silu_gate.to(out_ptr.dtype.element_ty),
        mask=(n_whole < N) & (m[:, None] < M),
    )  # [M, N]


def silu_and_mul(
    gate: torch.Tensor,
    up: torch.Tensor,
) -> torch.Tensor:
    """Return out [M, N]."""
    M = gate.shape[0]
    N = gate.shape[1]
    BLOCK_M = 1
    BLOCK_N_whole = min(triton.next_power_of_2(N), 1024)
    out = torch.empty(M, N, dtype=gate.dtype, device=gate.device)
    grid = (triton.cdiv(M, BLOCK_M), triton.cdiv(N, BLOCK_N_whole))
    _silu_and_mul[grid](
        gate,
        up,
        out,
        M,
        gate.stride(0),
        up.stride(0),
        N,
        BLOCK_M,
        BLOCK_N_whole,
    )
    return out
