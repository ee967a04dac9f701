"""What the assembler makes of a source file: registers and spills of its kernels, without a GPU."""

from __future__ import annotations

import re
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from mirage_kernels.generator.build.compile import ROOT
from mirage_kernels.generator.build.toolchain import find_nvcc
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


def assembled(source: Path, arch: str) -> list[Assembled]:
    """Compile the kernels of a .cu file over csrc/ for an architecture; return ptxas's report.

    Raises ToolchainError where nvcc is missing or refuses the file.
    """
    nvcc = find_nvcc()
    if nvcc is None:
        raise ToolchainError("no CUDA compiler was found", "`mirage-kernels doctor` says more")
    target = f"-gencode=arch=compute_{arch.removeprefix('sm_')},code={arch}"
    with tempfile.TemporaryDirectory() as folder:
        flags = ("-O3", "-std=c++17", f"-I{ROOT / 'csrc'}", target, "-Xptxas=-v", "-cubin")
        command = [str(nvcc), *flags, str(source), "-o", f"{folder}/kernels.cubin"]
        ran = subprocess.run(command, capture_output=True, text=True, check=False)
    if ran.returncode:
        errors = [line for line in ran.stderr.splitlines() if "error" in line]
        raise ToolchainError(f"{source.name} does not compile for {arch}", "\n".join(errors[:30]))
    return parse(ran.stdout + ran.stderr)


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
