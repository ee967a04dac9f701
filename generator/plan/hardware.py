"""What one multiprocessor does per clock cycle: the numbers that layouts are priced with.

They extend `target.py` inside the multiprocessor. A number marked as a lead was neither measured
here nor found in a vendor's document: it orders choices, and no claim rests on it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from mirage_kernels.generator.errors import TargetError
from mirage_kernels.generator.target import Target


@dataclass(frozen=True)
class Facts:
    """Costs in clock cycles of one multiprocessor, sizes in bytes."""

    cycles_per_us: float
    wavefront_bytes: int  # of shared memory, per cycle
    bank_bytes: int
    mma_cycles: float  # m16n8k16
    simple_cycles: float  # one fp32 add, multiply, compare or move of a warp
    exp_cycles: float
    function_cycles: float  # a division, root or other function
    convert_cycles: float  # two values from fp32 to fp16
    shuffle_cycles: float  # one value of every lane
    transpose_cycles: float  # movmatrix, an 8 x 8 matrix of 2-byte elements
    copy_cycles: float  # issuing one cp.async of a warp
    bulk_cycles: float  # issuing one bulk copy
    barrier_cycles: float
    cluster_cycles: float  # barrier of a cluster
    cluster_bytes: float  # per cycle, from other blocks of the cluster
    registers_per_thread: int
    spilled_cycles: float  # per register of a thread that does not fit
    bytes_in_flight: int  # that keep device memory busy
    most_bytes_in_flight: int  # more only slow one another down
    exposed_cycles: float  # per pass of a loop with loads straight to registers
    cluster_blocks: int


# Shared memory has 32 banks of 4 bytes, each serves one word per cycle: CUDA C++ Programming Guide,
# compute capability 5.x to 9.0. A warp's 16-byte accesses take four passes of eight lanes, 8-byte
# ones two of sixteen (Nsight Compute's documentation of shared wavefronts; seen in its counters).
_BANK_BYTES, _BANKS = 4, 32

# Results per cycle and multiprocessor, CUDA C++ Programming Guide, arithmetic instructions, 9.0:
# fp32 add and multiply 128, special functions 16, fp32 to 2-byte types 64, warp shuffles 32.
_SIMPLE, _SPECIAL, _CONVERT, _SHUFFLE = 32 / 128, 32 / 16, 32 / 64, 32 / 32

# A tensor core of sm_90 makes 512 fp16 products per cycle, four of them 2048 with their sums
# (989 TFLOP/s at 1.83 GHz on 132 multiprocessors, H100 data sheet): m16n8k16 has 2048. mma.sync,
# the warp-wide one, reaches about 63 % of that (Luo et al., arXiv 2402.13499).
_MMA = 2048 / 2048 / 0.63

_HOPPER = Facts(
    cycles_per_us=1980.0,  # the clock behind target.py's arithmetic rate
    wavefront_bytes=_BANKS * _BANK_BYTES,
    bank_bytes=_BANK_BYTES,
    mma_cycles=_MMA,
    simple_cycles=_SIMPLE,
    exp_cycles=_SPECIAL + _SIMPLE,  # ex2 of a product
    function_cycles=_SPECIAL + 8 * _SIMPLE,  # a special function refined to fp32, a lead
    convert_cycles=_CONVERT,
    shuffle_cycles=_SHUFFLE,
    transpose_cycles=_SHUFFLE,  # a lead: it moves one register of every lane, as a shuffle does
    copy_cycles=3 * _SIMPLE,  # the instruction, its address and its predicate
    bulk_cycles=8 * _SIMPLE,  # a lead: one thread, with the bytes announced to an mbarrier
    barrier_cycles=40.0,  # a lead; the ablation on the GPU measures it
    cluster_cycles=400.0,  # a lead: arrive and wait across multiprocessors, twice the latency below
    # Distributed shared memory: latency 180 cycles (arXiv 2402.13499). In our own kernels sums
    # through it were 1.2 to 1.9 times slower than through shared memory (docs/measurements.md).
    cluster_bytes=32.0,  # a lead: a quarter of a block's own shared memory
    registers_per_thread=250,  # 240 do not spill, 264 do: docs/measurements.md
    spilled_cycles=64.0,  # a lead: a store and a load of local memory per step
    bytes_in_flight=48 * 1024,  # docs/measurements.md
    most_bytes_in_flight=96 * 1024,  # docs/measurements.md
    exposed_cycles=220.0,  # docs/measurements.md: 14.8 against 13.9 us in 8 passes
    cluster_blocks=8,  # the portable size, CUDA C++ Programming Guide, thread block clusters
)

# mma.sync elsewhere: the 2048 products of m16n8k16 over those of a cycle, by target.py's rates at
# boost clocks: 1024 on sm_80, 256 on the GeForce parts. On sm_100 only tcgen05 reaches the
# datasheet's rate; for mma.sync Hopper's is taken, a lead. Bytes in flight and latencies stand as
# measured on Hopper: leads for all others. Clusters, and bulk copies, which only layouts for other
# writers than ours are offered, begin with 9.0.
_AMPERE = replace(
    _HOPPER,
    cycles_per_us=1410.0,
    mma_cycles=2048 / 1024,
    simple_cycles=32 / 64,  # fp32 add and multiply: 64 per cycle, the guide's column 8.0
    exp_cycles=_SPECIAL + 32 / 64,
    function_cycles=_SPECIAL + 8 * 32 / 64,  # a lead
    copy_cycles=3 * 32 / 64,
    cluster_blocks=1,
)
_GEFORCE = replace(_HOPPER, mma_cycles=2048 / 256)
_UNCLUSTERED = replace(_GEFORCE, cluster_blocks=1)

_FACTS = {
    "sm_80": _AMPERE,
    "sm_86": replace(_UNCLUSTERED, cycles_per_us=1695.0),
    "sm_89": replace(_UNCLUSTERED, cycles_per_us=2520.0),
    "sm_90a": _HOPPER,
    "sm_100a": replace(_HOPPER, cycles_per_us=1980.0),
    "sm_120a": replace(_GEFORCE, cycles_per_us=2407.0),
}


def facts(on: Target) -> Facts:
    """Return the facts of an architecture's multiprocessor; raises TargetError without an entry."""
    if on.arch not in _FACTS:
        raise TargetError(
            f"there are no facts about a multiprocessor of {on.arch!r}",
            f"architectures: {', '.join(_FACTS)}",
        )
    return _FACTS[on.arch]
