"""What schedules of warpgroup products (wgmma) share: TMA tiles, and what a block may take."""

from __future__ import annotations

from mirage_kernels.generator.target import Target

BOX_DEPTH = 64  # contracted elements of one TMA tile: 128 bytes, which the swizzle covers
BARRIER_BYTES = 8  # of one that counts what arrives
GROUP_WARPS = 4
GROUP_ROWS = 64  # rows of one instruction: a tile for each of its warps
REGISTERS = 65536  # of a multiprocessor
REGISTERS_BESIDE = 40  # sums and operands: addresses, vectors along the depth (ptxas)
ALONE_BYTES = 116 * 1024  # a block asks for so many, to be alone on its multiprocessor
WITH_WARPGROUPS = ("sm_90a",)  # architectures that have the vocabulary's wgmma


def reasons_against(on: Target) -> tuple[str, ...]:
    """Return why a target runs no such schedule."""
    return () if on.arch in WITH_WARPGROUPS else (f"{on.arch} has no wgmma",)
