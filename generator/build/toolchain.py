"""What compiling needs and where it was found: nvcc, a C++ compiler, torch's and CUDA's files."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from mirage_kernels.generator.errors import ToolchainError

OLDEST_RELEASE = (12, 8)  # the first with --compress-mode, and with sm_100a and sm_120a
TARGET = "targets/x86_64-linux"  # where some toolkits keep headers and libraries


@dataclass(frozen=True)
class Toolchain:
    """The programs and folders of one build."""

    nvcc: Path
    cxx: Path
    torch_dir: Path
    cuda_lib_dir: Path  # holds libcudart_static.a
    cuda_include_dir: Path  # holds cuda_runtime.h
    launcher: tuple[str, ...]  # ("/usr/bin/ccache",) or nothing


def find_toolchain() -> Toolchain:
    """Find all that a build needs. Raises ToolchainError naming the first thing that is missing."""
    nvcc = require_nvcc()
    cxx = shutil.which(os.environ.get("CXX", "g++"))
    if cxx is None:
        raise ToolchainError("no C++ compiler (g++) was found", "`apt-get install g++` brings one")
    torch_dirs = _package_dirs("torch")
    if not torch_dirs:
        raise ToolchainError("torch is not installed", "`pip install 'torch>=2.10'` brings it")
    _require_release(nvcc)
    toolkit = _toolkit_dir(nvcc)
    ccache = shutil.which("ccache")
    return Toolchain(
        nvcc=nvcc,
        cxx=Path(cxx),
        torch_dir=torch_dirs[0],
        cuda_lib_dir=_first_with(toolkit, ("lib64", "lib", f"{TARGET}/lib"), "libcudart_static.a"),
        cuda_include_dir=_first_with(toolkit, ("include", f"{TARGET}/include"), "cuda_runtime.h"),
        launcher=(ccache,) if ccache else (),
    )


def require_nvcc() -> Path:
    """Find nvcc as `find_nvcc` does; raises ToolchainError where there is none."""
    nvcc = find_nvcc()
    if nvcc is None:
        raise ToolchainError(
            "no CUDA compiler: nvcc is not in $CUDA_HOME, PATH, /usr/local/cuda or a pip package",
            "`pip install 'mirage-kernels[nvcc]'` brings one",
        )
    return nvcc


def find_nvcc() -> Path | None:
    """Find nvcc: $CUDA_HOME, PATH, /usr/local/cuda, then NVIDIA's pip packages."""
    cuda_home = os.environ.get("CUDA_HOME")
    on_path = shutil.which("nvcc")
    candidates = [
        *([Path(cuda_home, "bin/nvcc")] if cuda_home else []),
        *([Path(on_path)] if on_path else []),
        Path("/usr/local/cuda/bin/nvcc"),
        *sorted(p for root in _package_dirs("nvidia") for p in root.glob("cu[0-9]*/bin/nvcc")),
    ]
    return next((path for path in candidates if path.is_file()), None)


def nvcc_release(nvcc: Path) -> str:
    """Return the release line of nvcc, for instance 'release 13.0, V13.0.88'."""
    ran = subprocess.run([str(nvcc), "--version"], capture_output=True, text=True, check=False)
    lines = [line for line in ran.stdout.splitlines() if "release" in line]
    return lines[0].partition("tools, ")[2] if lines else "unknown release"


def versions(toolchain: Toolchain) -> str:
    """Return the names and versions of all that an object file depends on beside its sources."""
    ran = subprocess.run(
        [str(toolchain.cxx), "--version"], capture_output=True, text=True, check=False
    )
    host = ran.stdout.partition("\n")[0]
    torch = importlib.metadata.version("torch")
    return f"nvcc {nvcc_release(toolchain.nvcc)}; {host}; torch {torch}"


def _require_release(nvcc: Path) -> None:
    """Refuse an nvcc that lacks an option of ours; one that does not say what it is may try."""
    found = re.match(r"release (\d+)\.(\d+)", nvcc_release(nvcc))
    if found and (int(found[1]), int(found[2])) < OLDEST_RELEASE:
        oldest = ".".join(map(str, OLDEST_RELEASE))
        raise ToolchainError(
            f"{nvcc} is of CUDA {found[1]}.{found[2]}, kernels are compiled by {oldest} or newer",
            "set CUDA_HOME to a newer toolkit, or put its nvcc first in PATH",
        )


def _package_dirs(name: str) -> list[Path]:
    found = importlib.util.find_spec(name)
    return list(map(Path, (found and found.submodule_search_locations) or ()))


def _toolkit_dir(nvcc: Path) -> Path:
    """Ask nvcc for the folder it belongs to: on PATH it may be a link or a wrapper script."""
    command = [str(nvcc), "--dryrun", "-c", "none.cu"]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    for line in ran.stderr.splitlines():
        if line.startswith("#$ TOP="):
            return Path(line.removeprefix("#$ TOP=").strip()).resolve()
    raise ToolchainError(
        f"{nvcc} does not work: {ran.stderr.strip()[:200] or 'it prints nothing'}",
        "set CUDA_HOME to a CUDA toolkit that does",
    )


def _first_with(toolkit: Path, folders: tuple[str, ...], name: str) -> Path:
    for folder in folders:
        if (toolkit / folder / name).is_file():
            return toolkit / folder
    raise ToolchainError(
        f"{name} is missing beside nvcc (looked in {', '.join(folders)} of {toolkit})",
        "install the pip package nvidia-cuda-runtime, or a complete CUDA toolkit",
    )
