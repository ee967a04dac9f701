"""What ptxas reports of kernels: registers and spills, without a GPU."""

from __future__ import annotations

import re
from dataclasses import dataclass

from mirage_kernels.generator.errors import ToolchainError

_KERNEL = re.compile(r"Compiling entry function '(\w+)' for '(\w+)'")
_SPILLS = re.compile(r"(\d+) bytes spill stores, (\d+) bytes spill loads")
_REGISTERS = re.compile(r"Used (\d+) registers")


@dataclass(frozen=True)
class Assembled:
    """One kernel as ptxas reports it."""

    symbol: str  # mangled
    arch: str
    registers: int  # of a thread
    spill_bytes: int  # stored to and loaded from local memory, by a thread


def parse(report: str) -> list[Assembled]:
    """Read what `ptxas -v` prints."""
    _, *parts = re.split(r"(?=ptxas info\s*: Compiling entry function)", report)
    return [_kernel(part) for part in parts]


def _kernel(part: str) -> Assembled:
    kernel, spills, used = _KERNEL.search(part), _SPILLS.search(part), _REGISTERS.search(part)
    if kernel is None or spills is None or used is None:
        raise ToolchainError(f"ptxas reports something else than expected: {part[:200]}")
    stored, loaded = map(int, spills.groups())
    return Assembled(kernel[1], kernel[2], int(used[1]), stored + loaded)
