# mirage-kernels generate silu_and_mul --arch sm_90a --dtype bf16 --shape N=14336
#
# Formula   [M, N] = silu(gate) * up
# Shape     Llama-3-8B, TP 1
# muGraph   one kernel, no loop. Its grid, in the muGraph: x cuts N, y cuts M (a launch numbers its
#           blocks as its plan needs).
# Found     the one proved muGraph; it passes the numeric gate and has a plan (4 states, 1
#           candidate).
# Proved    equal to the recipe on 4 random draws over finite fields, for the tiles of its one
#           variant, at full extents and uneven edges; a wrong muGraph passes with probability at
#           most 2^-58.8.
# Accuracy  emulated error against float64 (unfused program's): unit 1.9e-03 (1.9e-03), tiny 1.3e-03
#           (1.3e-03), outliers 1.8e-03 (1.8e-03), wide 1.0e-03 (1.0e-03).
# Expects   gate [M, N] rows 16-byte aligned, any row stride, up [M, N] rows 16-byte aligned, any
#           row stride, out [M, N] contiguous; any M >= 0.
# Launch    a program per block of the grid, BLOCK_M 1, BLOCK_N_whole 1024; what was proved are the
#           tiles of CUDA's.

import torch
import triton
import triton.language as tl

N = 14336
BLOCK_M = 1
BLOCK_N_whole = 1024


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
        gate_ptr + m[:, None] * gate_stride + n_whole[None, :],
        mask=(m[:, None] < M) & (n_whole[None, :] < N),
        other=0.0,
    )  # [M, N]
    up_tile = tl.load(
        up_ptr + m[:, None] * up_stride + n_whole[None, :],
        mask=(m[:, None] < M) & (n_whole[None, :] < N),
        other=0.0,
    )  # [M, N]
    silu_gate = gate_tile.to(tl.float32) * tl.sigmoid(gate_tile.to(tl.float32))  # [M, N]
    up_times_silu_gate = up_tile.to(tl.float32) * silu_gate  # [M, N]
    tl.store(
        out_ptr + m[:, None] * N + n_whole[None, :],
        up_times_silu_gate.to(out_ptr.dtype.element_ty),
        mask=(n_whole[None, :] < N) & (m[:, None] < M),
    )  # [M, N]


def silu_and_mul(
    gate: torch.Tensor,
    up: torch.Tensor,
) -> torch.Tensor:
    """Return out [M, N]."""
    M = gate.shape[0]
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
