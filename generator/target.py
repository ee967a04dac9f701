"""Facts per GPU architecture; every number says where it comes from."""

from __future__ import annotations

from dataclasses import dataclass

from mirage_kernels.generator.errors import TargetError


@dataclass(frozen=True)
class Target:
    """What one architecture offers a kernel.

    Rates are what large simple kernels reach, not datasheet peaks, where a measurement exists.
    """

    arch: str  # name for the compiler: sm_90a
    capability: tuple[int, int]
    gpu: str  # the part whose counts and rates these are
    multiprocessors: int
    shared_bytes: int  # most dynamic shared memory of one block
    registers: int  # 32-bit registers of one multiprocessor
    memory_bytes_per_us: float
    l2_bytes_per_us: float
    tensor_flops_per_us: float
    alu_ops_per_us: float
    launch_us: float  # fixed time of one kernel in a CUDA graph


# sm_90a: counts from the CUDA C++ Programming Guide's compute-capability table (9.0) and from the
# device (132 multiprocessors). Rates measured on an H200 (docs/measurements.md): 4.3 TB/s for
# large reads, 790 TFLOP/s for a large bf16 product on random data; the L2 rate is a lead (about
# 1.5 times device memory for reads that hit); alu: 128 fp32 lanes x 132 x 1.98 GHz.
_H200 = Target(
    arch="sm_90a",
    capability=(9, 0),
    gpu="NVIDIA H200",
    multiprocessors=132,
    shared_bytes=227 * 1024,
    registers=65536,
    memory_bytes_per_us=4.3e6,
    l2_bytes_per_us=6.5e6,
    tensor_flops_per_us=7.9e8,
    alu_ops_per_us=3.3e7,
    launch_us=1.6,
)

TARGETS = {t.arch: t for t in (_H200,)}


def target(arch: str) -> Target:
    """Return the facts of an architecture; raises TargetError for one without an entry."""
    if arch not in TARGETS:
        raise TargetError(
            f"there are no facts about architecture {arch!r}",
            f"architectures: {', '.join(TARGETS)}",
        )
    return TARGETS[arch]
