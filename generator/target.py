"""Facts per GPU architecture; every number says where it comes from."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from mirage_kernels.generator.errors import TargetError


class Evidence(Enum):
    """How far an architecture's kernels have been tried: what has not been run is said so."""

    MEASURED = "run and measured"
    THROUGH_PTX = "compiled; run on an H200 through its PTX"
    COMPILED = "compiled, never run"


@dataclass(frozen=True)
class Target:
    """What one architecture offers a kernel.

    Rates are what large simple kernels reach, not datasheet peaks, where a measurement exists. A
    number marked as a lead was neither measured here nor found in a vendor's document: it orders
    choices, and no claim rests on it.
    """

    arch: str  # name for the compiler: sm_90a
    capability: tuple[int, int]
    gpu: str  # the part whose counts and rates these are
    multiprocessors: int
    shared_bytes: int  # most dynamic shared memory of one block
    memory_bytes_per_us: float
    l2_bytes_per_us: float
    tensor_flops_per_us: float  # fp16 and bf16, sums in fp32, no sparsity
    alu_ops_per_us: float  # fp32 lanes x multiprocessors x clock
    evidence: Evidence = Evidence.COMPILED
    carries_ptx: bool = False  # builds hold PTX too, which later architectures can run
    registers: int = 65536  # 32-bit registers of one multiprocessor
    launch_us: float = 1.6  # one kernel in a CUDA graph, as on the H200; elsewhere a lead

    @property
    def has_clusters(self) -> bool:
        """Say whether blocks of a cluster read each other's shared memory."""
        return self.capability >= (9, 0)


# Capability, shared memory and registers of every architecture: CUDA programming guide, appendix
# "Compute Capabilities", technical specifications per compute capability.

# NVIDIA A100 80GB SXM: 108 multiprocessors (A100 whitepaper), 2,039 GB/s and 312 TFLOP/s (A100
# datasheet); alu: 64 fp32 lanes x 108 x 1.41 GHz (whitepaper's boost clock, 19.5 TFLOP/s); the L2
# rate is a lead: the whitepaper's 5,120 bytes per cycle are 7.2 TB/s, a kernel gets about half.
_A100 = Target(
    arch="sm_80",
    capability=(8, 0),
    gpu="NVIDIA A100 80GB SXM",
    multiprocessors=108,
    shared_bytes=163 * 1024,
    memory_bytes_per_us=2.039e6,
    l2_bytes_per_us=4.0e6,
    tensor_flops_per_us=3.12e8,
    alu_ops_per_us=9.75e6,
    evidence=Evidence.THROUGH_PTX,
    carries_ptx=True,
)

# GeForce RTX 3090: 82 multiprocessors, 936 GB/s, 71 TFLOP/s with sums in fp32 (GA102 whitepaper,
# appendix A; datasheet figures); alu: 128 fp32 lanes x 82 x 1.695 GHz (35.6 TFLOP/s there); the L2
# rate is a lead, twice device memory.
_RTX_3090 = Target(
    arch="sm_86",
    capability=(8, 6),
    gpu="NVIDIA GeForce RTX 3090",
    multiprocessors=82,
    shared_bytes=99 * 1024,
    memory_bytes_per_us=9.36e5,
    l2_bytes_per_us=1.9e6,
    tensor_flops_per_us=7.1e7,
    alu_ops_per_us=1.78e7,
)

# GeForce RTX 4090: 128 multiprocessors, 1,008 GB/s, 165.2 TFLOP/s with sums in fp32 (Ada
# whitepaper, appendix A; datasheet figures); alu: 128 fp32 lanes x 128 x 2.52 GHz (82.6 TFLOP/s
# there); the L2 rate is a lead.
_RTX_4090 = Target(
    arch="sm_89",
    capability=(8, 9),
    gpu="NVIDIA GeForce RTX 4090",
    multiprocessors=128,
    shared_bytes=99 * 1024,
    memory_bytes_per_us=1.008e6,
    l2_bytes_per_us=4.0e6,
    tensor_flops_per_us=1.652e8,
    alu_ops_per_us=4.13e7,
)

# sm_90a: counts from the guide's table (9.0) and from the device (132 multiprocessors). Rates
# measured on an H200 (docs/measurements.md): 4.3 TB/s for large reads, 790 TFLOP/s for a large bf16
# product on random data; the L2 rate is a lead (about 1.5 times device memory for reads that hit);
# alu: 128 fp32 lanes x 132 x 1.98 GHz.
_H200 = Target(
    arch="sm_90a",
    capability=(9, 0),
    gpu="NVIDIA H200",
    multiprocessors=132,
    shared_bytes=227 * 1024,
    memory_bytes_per_us=4.3e6,
    l2_bytes_per_us=6.5e6,
    tensor_flops_per_us=7.9e8,
    alu_ops_per_us=3.3e7,
    evidence=Evidence.MEASURED,
)

# NVIDIA B200: 8 TB/s and 2,250 TFLOP/s (an eighth of the DGX B200 datasheet's 64 TB/s and, without
# sparsity, 18 PFLOP/s; mma.sync, which the kernels use, stays below: how far is not known);
# alu: half of 75 TFLOP/s (HGX B200 datasheet). 148 multiprocessors and the L2 rate, which is 1.5
# times device memory as on the H200, are leads.
_B200 = Target(
    arch="sm_100a",
    capability=(10, 0),
    gpu="NVIDIA B200",
    multiprocessors=148,
    shared_bytes=227 * 1024,
    memory_bytes_per_us=8.0e6,
    l2_bytes_per_us=1.2e7,
    tensor_flops_per_us=2.25e9,
    alu_ops_per_us=3.75e7,
)

# GeForce RTX 5090: 170 multiprocessors, 1,792 GB/s, 209.5 TFLOP/s with sums in fp32 (RTX Blackwell
# whitepaper, appendix A; datasheet figures); alu: 128 fp32 lanes x 170 x 2.407 GHz (104.8 TFLOP/s
# there); the L2 rate is a lead.
_RTX_5090 = Target(
    arch="sm_120a",
    capability=(12, 0),
    gpu="NVIDIA GeForce RTX 5090",
    multiprocessors=170,
    shared_bytes=99 * 1024,
    memory_bytes_per_us=1.792e6,
    l2_bytes_per_us=5.5e6,
    tensor_flops_per_us=2.095e8,
    alu_ops_per_us=5.24e7,
)

TARGETS = {t.arch: t for t in (_A100, _RTX_3090, _RTX_4090, _H200, _B200, _RTX_5090)}


def target(arch: str) -> Target:
    """Return the facts of an architecture; raises TargetError for one without an entry."""
    if arch not in TARGETS:
        raise TargetError(
            f"there are no facts about architecture {arch!r}",
            f"architectures: {', '.join(TARGETS)}",
        )
    return TARGETS[arch]
