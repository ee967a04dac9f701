"""What the tests of emitted CUDA run: clang-format and nvcc; where there are none, they skip."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest

from mirage_kernels.generator.build.ptxas import Assembled, parse
from mirage_kernels.generator.build.toolchain import find_nvcc
from mirage_kernels.generator.cli import main

ROOT = Path(__file__).parents[1]


def formatted(text: str, name: str = "kernel.cu") -> str:
    """Return a kernel's source as clang-format would write it."""
    return _clang_format(text, f"--assume-filename={name}")


def misformatted(files: Sequence[Path]) -> str:
    """Return what clang-format says of files that it would write in another way."""
    return _clang_format("", "--dry-run", *map(str, files))


def _clang_format(text: str, *options: str) -> str:
    beside = Path(sys.executable).parent / "clang-format"
    found = str(beside) if beside.is_file() else shutil.which("clang-format")
    command = found or pytest.skip("clang-format is not installed")
    style = f"--style=file:{ROOT / '.clang-format'}"
    made = subprocess.run(
        [command, style, *options], input=text, capture_output=True, text=True, check=True
    )
    return made.stdout + made.stderr


def nvcc() -> str:
    """Return the compiler's path."""
    found = find_nvcc()
    return str(found) if found else pytest.skip("nvcc is not installed")


def compiled(text: str, folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Compile a source in a folder of its own."""
    path = folder / "kernel.cu"
    path.write_text(text)
    command = [nvcc(), "-std=c++17", "-I", str(ROOT / "csrc"), *options, str(path)]
    return subprocess.run(command, capture_output=True, text=True, cwd=folder)


def programs(folder: Path, functions: Iterable[tuple[str, str]]) -> Path:
    """Generate and compile PyTorch functions in bf16, of names and files; return where they are."""
    nvcc()
    for name, text in functions:
        (folder / "mine.py").write_text(text)
        words = ["generate", f"{folder}/mine.py:{name}", "--dtype", "bf16", "--jobs", "1"]
        assert main([*words, "--out", f"{folder}/out", "--store", f"{folder}/store"]) == 0
    assert main(["compile", f"{folder}/out"]) == 0
    return folder / "out"


def assembled(source: Path, arch: str, folder: Path, *more: str) -> list[Assembled]:
    """Return what ptxas reports of the kernels in a source over csrc/, with `more` options."""
    options = ("-O3", "-std=c++17", f"-I{ROOT / 'csrc'}", "-Xptxas=-v", "-cubin", f"-arch={arch}")
    command = [nvcc(), *options, *more, str(source), "-o", str(folder / "kernels.cubin")]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    return parse(ran.stdout + ran.stderr)


def illegal_copies(cubin: Path) -> list[str]:
    """Return the copies that sm_90 refuses: with a cache policy, at a sum with a uniform register.

    ptxas 13.0 gives such a policy half a pair of registers. None where no disassembler is found.
    """
    triton = importlib.util.find_spec("triton")
    folders = triton.submodule_search_locations or [] if triton else []
    beside = (Path(folder) / "backends/nvidia/bin/cuobjdump" for folder in folders)
    command = next((str(p) for p in beside if p.is_file()), shutil.which("cuobjdump"))
    if command is None:
        return []
    made = subprocess.run([command, "-sass", cubin], capture_output=True, text=True, check=True)
    copies = (line for line in made.stdout.splitlines() if "LDGSTS" in line)
    return [line for line in copies if re.search(r"desc\[UR\d*[13579]\]", line)]
