"""Hardware parameters: what one multiprocessor does per clock cycle, for the costs of layouts.

They extend `target.py` inside the multiprocessor. A number marked as a lead was neither measured
here nor found in a vendor's document: it orders choices, and no claim rests on it.
"""

from __future__ import annotations

from dataclasses import dataclass

from mirage_kernels.generator.target import Target

# Shared memory has 32 banks of 4 bytes, each serves one word per cycle: CUDA C++ Programming Guide,
# compute capability 5.x to 9.0. A warp's 16-byte accesses take four passes of eight lanes, 8-byte
# ones two of sixteen (Nsight Compute's documentation of shared wavefronts; seen in its counters).
WAVEFRONT_BYTES = 128

# Results per cycle and multiprocessor, CUDA C++ Programming Guide, arithmetic instructions, 9.0:
# fp32 add and multiply 128, special functions 16, fp32 to 2-byte types 64, warp shuffles 32.
_SIMPLE, _SPECIAL, _CONVERT, _SHUFFLE = 32 / 128, 32 / 16, 32 / 64, 32 / 32


@dataclass(frozen=True)
class HardwareParameters:
    """Costs in clock cycles of one multiprocessor, of a warp's instruction; defaults: sm_90a."""

    cycles_per_us: float = 1980.0  # the clock behind target.py's arithmetic rate
    # m16n8k16 has 2048 products. A tensor core of sm_90 makes 512 fp16 products per cycle, four of
    # them 2048 with their sums (989 TFLOP/s at 1.83 GHz on 132 multiprocessors, H100 data sheet);
    # mma.sync, the warp-wide one, reaches about 63 % of that (Luo et al., arXiv 2402.13499).
    mma_cycles: float = 2048 / 2048 / 0.63
    simple_cycles: float = _SIMPLE  # fp32 add, multiply, compare or move
    special_cycles: float = _SPECIAL  # ex2, reciprocal
    bulk_cycles: float = 8 * _SIMPLE  # issue a bulk copy and announce its bytes, a lead
    convert_cycles: float = _CONVERT  # two values from fp32 to fp16
    shuffle_cycles: float = _SHUFFLE
    barrier_cycles: float = 40.0  # a lead
    registers_per_thread: int = 250  # 240 do not spill, 264 do: docs/measurements.md
    spilled_cycles: float = 64.0  # per register, a lead: a store and a load of local memory
    # Per pass of a loop with loads straight to registers: docs/measurements.md, 14.8 against 13.9
    # us in 8 passes.
    exposed_cycles: float = 220.0


# mma.sync elsewhere: the 2048 products of m16n8k16 over those of a cycle, by target.py's rates at
# boost clocks: 1024 on sm_80, 256 on the GeForce parts. On sm_100 only tcgen05 reaches the
# datasheet's rate; for mma.sync Hopper's is taken, a lead. Latencies stand as measured on Hopper:
# leads for all others. fp32 add and multiply: 64 per cycle, the guide's column 8.0.
_PARAMETERS = {
    "sm_80": HardwareParameters(1410.0, 2048 / 1024, 32 / 64),
    "sm_86": HardwareParameters(1695.0, 2048 / 256),
    "sm_89": HardwareParameters(2520.0, 2048 / 256),
    "sm_90a": HardwareParameters(),
    "sm_100a": HardwareParameters(),
    "sm_120a": HardwareParameters(2407.0, 2048 / 256),
}


def hardware(on: Target) -> HardwareParameters:
    """Return the hardware parameters of an architecture."""
    return _PARAMETERS[on.arch]
