"""Compiles kernels, free of torch, to shared objects beside their sources.

A shared object holds a digest of all that it was made of, and is compiled again when that changes.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import os
import subprocess
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

from mirage_kernels.elf import is_cut_short
from mirage_kernels.generator.build.compile import (
    ROOT,
    ObjectCache,
    Wanted,
    default_jobs,
    gencode,
)
from mirage_kernels.generator.build.toolchain import nvcc_release, require_nvcc
from mirage_kernels.generator.errors import ToolchainError

Progress = Callable[[str, int, int, str], None]


@dataclass(frozen=True)
class SharedObject:
    """A file to make: its text, which includes the first source, and the sources."""

    out: Path  # folder/sm_90a/recipe/stem.so
    text: str
    sources: tuple[Path, ...]
    uses_cute: bool = False

    @property
    def arch(self) -> str:
        """The architecture that it is compiled for."""
        return self.out.parent.parent.name

    @property
    def folder(self) -> Path:
        """The folder that holds all kernels."""
        return self.out.parent.parent.parent


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
    wanted: Sequence[SharedObject], *, jobs: int | None = None, progress: Progress
) -> list[Path]:
    """Compile shared objects, each written whole; those that would be the same stay as they are.

    Raises ToolchainError with the failing command, and for a missing nvcc or nvidia-cutlass.
    """
    nvcc, started = require_nvcc(), time.monotonic()
    release = nvcc_release(nvcc)
    digests = {made.out: _digest(made, release) for made in wanted}
    stale = [made for made in wanted if not _holds(made.out, digests[made.out])]
    with ThreadPoolExecutor(jobs or default_jobs()) as pool:
        futures = {pool.submit(_compiled, nvcc, made, digests[made.out]): made for made in stale}
        try:
            for done, future in enumerate(as_completed(futures), 1):
                future.result()
                out = futures[future].out
                progress("compile", done, len(stale), f"{out.parent.name}/{out.stem}")
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    progress("compiled", len(stale), len(wanted), f"{time.monotonic() - started:.1f} s")
    return [made.out for made in wanted]


def _digest(made: SharedObject, release: str) -> str:
    """Return a number of all that a shared object is made of."""
    cute = importlib.metadata.version("nvidia-cutlass") if made.uses_cute else ""
    options = tuple(_options(made.arch))
    cache = ObjectCache(made.folder, made.folder, f"nvcc {release}; {cute}")
    # The text names headers of csrc that its source may not include.
    headers = [Wanted(f"csrc/{name}", (), options) for name in ("program.h", "table.h", "rows.h")]
    sources = [Wanted(os.path.relpath(path, made.folder), (), options) for path in made.sources]
    keys = [made.text, *(cache.key(each) for each in (*sources, *headers))]
    return hashlib.sha256("\n".join(keys).encode()).hexdigest()


def exported(name: str, text: str) -> str:
    """Return C++ that exports a text from a shared object under a name."""
    declared = f"const char {name}[]"
    return f'extern "C" {{\nextern {declared};\n{declared} = "{text}";\n}}\n'


def _holds(file: Path, digest: str) -> bool:
    """Say whether a file is a whole shared object with a digest."""
    return file.is_file() and not is_cut_short(file) and digest.encode() in file.read_bytes()


def _options(arch: str) -> list[str]:
    # -Bsymbolic: each object's launches and tables are its own, whatever else a process has loaded.
    linking = ["-shared", "-Xcompiler=-fPIC", "-Xlinker=-Bsymbolic"]
    return ["-O3", "-std=c++17", gencode(arch), "--expt-relaxed-constexpr", *linking]


def _compiled(nvcc: Path, made: SharedObject, digest: str) -> None:
    source, unfinished = (
        made.out.with_suffix(f".{os.getpid()}{ending}") for ending in (".cu", ".tmp")
    )
    cute = ["-isystem", str(cute_folder())] if made.uses_cute else []
    command = [str(nvcc), *_options(made.arch), f"-I{ROOT / 'csrc'}", *cute]
    command += ["-o", str(unfinished), str(source), *map(str, made.sources[1:])]
    try:
        source.write_text(made.text + exported("mirage_made_of", digest))
        ran = subprocess.run(command, capture_output=True, text=True, check=False)
        if ran.returncode:
            said = "\n".join((ran.stderr or ran.stdout).strip().splitlines()[:20])
            raise ToolchainError(f"{' '.join(command)} failed:\n{said}", "see what nvcc says")
        unfinished.replace(made.out)
    finally:
        source.unlink(missing_ok=True)
        unfinished.unlink(missing_ok=True)
