"""Compiles kernels that are programs, free of torch, to shared objects beside their sources."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

from mirage_kernels.generator.build.compile import ROOT, default_jobs, gencode
from mirage_kernels.generator.build.toolchain import require_nvcc
from mirage_kernels.generator.errors import ToolchainError

Progress = Callable[[str, int, int, str], None]


def cute_folder() -> Path:
    """Return the folder of CuTe's headers; raises ToolchainError if nvidia-cutlass is missing."""
    found = importlib.util.find_spec("cutlass_library")
    for place in (found and found.submodule_search_locations) or ():
        if (Path(place) / "source/include/cute/layout.hpp").is_file():
            return Path(place) / "source/include"
    raise ToolchainError(
        "general kernels are written on CuTe, whose headers are not installed",
        "`pip install nvidia-cutlass` brings them",
    )


def compile_programs(
    texts: Mapping[Path, str], *, jobs: int | None = None, progress: Progress
) -> list[Path]:
    """Compile texts to the shared objects that they are given by, each written whole.

    One that is newer than all sources beside it and in csrc stays as it is. Raises ToolchainError
    with the failing command, and for a missing nvcc or nvidia-cutlass.
    """
    nvcc, include, started = require_nvcc(), cute_folder(), time.monotonic()
    headers = max(path.stat().st_mtime for path in (ROOT / "csrc").rglob("*.*h"))
    stale = [out for out in texts if _time(out) <= max(headers, _time(out.with_suffix(".cu")))]
    with ThreadPoolExecutor(jobs or default_jobs()) as pool:
        futures = {pool.submit(_compiled, nvcc, include, out, texts[out]): out for out in stale}
        try:
            for done, future in enumerate(as_completed(futures), 1):
                future.result()
                progress("compile", done, len(stale), f"{futures[future].parent.name}")
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    progress("compiled", len(stale), len(texts), f"{time.monotonic() - started:.1f} s")
    return [*texts]


def _time(path: Path) -> float:
    return path.stat().st_mtime if path.is_file() else 0.0


def _compiled(nvcc: Path, include: Path, out: Path, text: str) -> None:
    source, made = (out.with_suffix(f".{os.getpid()}{end}") for end in (".cu", ".tmp"))
    arch = out.parent.parent.name
    command = [str(nvcc), "-O3", "-std=c++17", f"-I{ROOT / 'csrc'}", "-isystem", str(include)]
    command += [gencode(arch), "--expt-relaxed-constexpr", "-shared", "-Xcompiler=-fPIC"]
    command += ["-o", str(made), str(source)]
    try:
        source.write_text(text)
        ran = subprocess.run(command, capture_output=True, text=True, check=False)
        if ran.returncode:
            said = "\n".join((ran.stderr or ran.stdout).strip().splitlines()[:20])
            raise ToolchainError(f"{' '.join(command)} failed:\n{said}", "see what nvcc says")
        made.replace(out)
    finally:
        source.unlink(missing_ok=True)
        made.unlink(missing_ok=True)
