# mirage-kernels generate silu_and_mul
# Schedule  tiles chosen for the extents of a call, any extents, any strides.
# Formula   [M, N] = silu(gate) * up

import triton
import triton.language as tl


@triton.jit
def _silu_and_mul(
    gate_ptr,
    up_ptr,
    out_ptr,
    gate_strides,
    up_strides,
    out_strides,
    M,
    N: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    block = tl.program_id(0).to(tl.int64)
    offs_n = block % tl.cdiv(N, BLOCK_N) * BLOCK_N + tl.arange(0, BLOCK_N)
    offs_m = block // tl.cdiv(N, BLOCK_N)
    up_tile = tl.load(
        up_ptr + offs_m * up_strides[0] + offs_n * up_strides[1], mask=offs_n < N, other=0
    )
    gate_tile = tl.load(
        gate_ptr + offs_m * gate_strides[0] + offs_n * gate_strides[1], mask=offs_n < N, other=0
    )
    wide = gate_tile.to(tl.float32)
    silu_gate = wide * tl.sigmoid(wide)
    up_times_silu_gate = up_tile.to(tl.float32) * silu_gate
    tl.store(
        out_ptr + offs_m * out_strides[0] + offs_n * out_strides[1],
        up_times_silu_gate.to(out_ptr.dtype.element_ty),
        mask=offs_n < N,
    )


def silu_and_mul(gate, up):
    """Return out [M, N]."""
    M, N = gate.shape
    for name, tensor, shape in (
        ("gate", gate, (M, N)),
        ("up", up, (M, N)),
    ):
        if tensor.shape != shape:
            raise ValueError(f"{name} is {tuple(tensor.shape)}; {shape} works")
    BLOCK_N = min(1024, triton.next_power_of_2(N))
    out = gate.new_empty((M, N))
    elements = BLOCK_N
    warps = 4 if elements <= 8192 else 8 if elements <= 32768 else 16
    grid = (triton.cdiv(N, BLOCK_N) * M,)
    tensors = (gate, up, out)
    numbers = (M, N, BLOCK_N)
    _silu_and_mul[grid](*tensors, *(t.stride() for t in tensors), *numbers, num_warps=warps)
    return out
