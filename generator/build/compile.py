"""Compile: emitted kernels, floor kernels and bindings become one extension, `_C.abi3.so`."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from mirage_kernels.generator.build.toolchain import Toolchain, find_toolchain
from mirage_kernels.generator.errors import ToolchainError
from mirage_kernels.generator.target import TARGETS

ROOT = Path(__file__).resolve().parents[2]
DEFAULT_ARCH = "sm_90a"
EXTENSION_NAME = "_C.abi3.so"

# The oldest torch that the binary serves: 2.10, as torch's headers write it.
TORCH_TARGET_VERSION = "0x020a000000000000"
# An nvcc job over CUTLASS headers takes up to this much.
JOB_MEMORY_BYTES = 3 << 30
FAILURE_LINES = 30

Progress = Callable[[str], None]


@dataclass(frozen=True)
class Job:
    """One source file and the command that makes its object file."""

    name: str
    command: tuple[str, ...]
    object_file: Path

    @property
    def dependency_file(self) -> Path:
        return self.object_file.with_suffix(".d")

    @property
    def key_file(self) -> Path:
        return self.object_file.with_suffix(".key")


def build_extension(
    arch: str, kernels_dir: Path, out: Path, *, jobs: int | None, progress: Progress
) -> Path:
    """Compile everything emitted below `kernels_dir/arch` with the bindings into the file `out`.

    Sources whose content, headers and command are unchanged are not compiled again. `out` is
    written whole or not at all. Raises ToolchainError with the failing command.
    """
    toolchain = find_toolchain()
    work = plan_jobs(toolchain, arch, kernels_dir)
    _run_stale(work, jobs or default_jobs(), progress)
    objects = [job.object_file for job in work]
    started = time.monotonic()
    _link(toolchain, objects, out)
    progress(f"link      {out.name}  {time.monotonic() - started:.1f} s")
    return out


def plan_jobs(toolchain: Toolchain, arch: str, kernels_dir: Path) -> list[Job]:
    """List the compile jobs, slowest kind first, each source its own job."""
    if not re.fullmatch(r"sm_[0-9]{2,3}[af]?", arch):
        raise ToolchainError(
            f"{arch!r} is no GPU architecture",
            "write one as nvcc does, for instance sm_90a; a wheel holds the kernels of one",
        )
    emitted = kernels_dir.resolve() / arch
    if not (emitted / "table.cpp").is_file():
        present = sorted(table.parent.name for table in kernels_dir.glob("sm_*/table.cpp"))
        raise ToolchainError(
            f"{kernels_dir}/{arch} holds no emitted kernels",
            f"there are some for: {', '.join(present) or 'nothing'}; "
            "`mirage-kernels generate RECIPE --arch ARCH` makes more",
        )
    by_hand = [
        *sorted((ROOT / "csrc/append").glob("*.cu")),
        *sorted((ROOT / "csrc/bench").glob("*.cu")),
    ]
    cuda_sources = [*sorted(emitted.rglob("*.cu")), *by_hand]
    host_sources = [*sorted((ROOT / "csrc/torch").glob("*.cpp")), emitted / "table.cpp"]
    objects = ROOT / "build" / arch
    nvcc = _nvcc_command(toolchain, arch)
    cxx = _cxx_command(toolchain, arch)
    return [
        *(_job(source, nvcc, objects) for source in cuda_sources),
        *(_job(source, cxx, objects) for source in host_sources),
    ]


def default_jobs() -> int:
    """Return how many compile jobs this machine's cores and free memory carry."""
    cores = len(os.sched_getaffinity(0))
    return max(1, min(cores, _free_memory_bytes() // JOB_MEMORY_BYTES))


def _free_memory_bytes() -> int:
    meminfo = Path("/proc/meminfo")
    if not meminfo.is_file():
        return JOB_MEMORY_BYTES
    found = re.search(r"^MemAvailable:\s+(\d+) kB", meminfo.read_text(), re.MULTILINE)
    return int(found.group(1)) * 1024 if found else JOB_MEMORY_BYTES


def _host_flags(toolchain: Toolchain) -> list[str]:
    # No path of the building machine may end in the binary; those of this tree are relative.
    torch_map = f"-ffile-prefix-map={toolchain.torch_dir}/=torch/"
    return ["-fPIC", "-fvisibility=hidden", "-fvisibility-inlines-hidden", "-Wall", torch_map]


def carries_ptx(arch: str) -> bool:
    """Say whether builds for an architecture also hold PTX, which later GPUs can run."""
    return arch in TARGETS and TARGETS[arch].carries_ptx


def gencode(arch: str) -> str:
    """Return nvcc's option for the code of an architecture."""
    virtual = f"compute_{arch.removeprefix('sm_')}"
    code = f"[{arch},{virtual}]" if carries_ptx(arch) else arch
    return f"-gencode=arch={virtual},code={code}"


def _nvcc_command(toolchain: Toolchain, arch: str) -> list[str]:
    return [
        *toolchain.launcher,
        str(toolchain.nvcc),
        *("-O3", "-std=c++17", "-Icsrc"),
        gencode(arch),
        "-Xfatbin=-compress-all",
        "--compress-mode=size",
        f"-ccbin={toolchain.cxx}",
        *(f"-Xcompiler={flag}" for flag in _host_flags(toolchain)),
    ]


def _cxx_command(toolchain: Toolchain, arch: str) -> list[str]:
    return [
        *toolchain.launcher,
        str(toolchain.cxx),
        *("-O2", "-std=c++17", "-Icsrc"),
        *("-isystem", str(toolchain.cuda_include_dir)),
        *("-isystem", f"{toolchain.torch_dir}/include"),
        f"-DTORCH_TARGET_VERSION={TORCH_TARGET_VERSION}",
        "-DTORCH_STABLE_ONLY",
        *(["-DMIRAGE_CARRIES_PTX"] if carries_ptx(arch) else []),
        *_host_flags(toolchain),
    ]


def _job(source: Path, compiler: list[str], objects: Path) -> Job:
    inside = source.is_relative_to(ROOT)
    path = source.relative_to(ROOT) if inside else source
    named = "_".join(path.parts[-3:])
    digest = hashlib.sha256("\0".join([*compiler, str(path)]).encode()).hexdigest()[:12]
    object_file = objects / f"{named}.{digest}.o"
    command = (*compiler, "-MMD", "-c", str(path), "-o")
    return Job(name=str(path), command=command, object_file=object_file)


def _run_stale(work: list[Job], jobs: int, progress: Progress) -> None:
    _file_digest.cache_clear()
    stale = [job for job in work if not _is_fresh(job)]
    if len(stale) < len(work):
        progress(f"compile   {len(work) - len(stale)} of {len(work)} unchanged")
    with ThreadPoolExecutor(max_workers=jobs) as pool:
        futures = {pool.submit(_compile, job): job for job in stale}
        try:
            for done, future in enumerate(as_completed(futures), 1):
                seconds = future.result()
                progress(f"compile   {done}/{len(stale)} {futures[future].name}  {seconds:.1f} s")
        except BaseException:  # an interrupt too: what has not started must not
            pool.shutdown(cancel_futures=True)
            raise


def _compile(job: Job) -> float:
    started = time.monotonic()
    job.object_file.parent.mkdir(parents=True, exist_ok=True)
    unfinished = job.object_file.with_suffix(f".{os.getpid()}.o")
    unfinished_dependencies = unfinished.with_suffix(".d")
    try:
        _run((*job.command, str(unfinished), "-MF", str(unfinished_dependencies)), job.name)
        os.replace(unfinished_dependencies, job.dependency_file)
        os.replace(unfinished, job.object_file)
    finally:
        unfinished.unlink(missing_ok=True)
        unfinished_dependencies.unlink(missing_ok=True)
    job.key_file.write_text(_content_key(job))
    return time.monotonic() - started


def _run(command: tuple[str, ...], name: str) -> None:
    # Relative paths in the command, from one folder: the same bytes wherever the clone lies.
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if ran.returncode == 0:
        return
    lines = (ran.stdout + ran.stderr).splitlines()[-FAILURE_LINES:]
    raise ToolchainError(f"{name} does not build", "\n".join([" ".join(command), *lines]))


def _is_fresh(job: Job) -> bool:
    """Say whether the object file was made by this command from these very contents."""
    files = (job.object_file, job.dependency_file, job.key_file)
    if not all(file.is_file() for file in files):
        return False
    return job.key_file.read_text() == _content_key(job)


def _content_key(job: Job) -> str:
    contents = [[path, _file_digest(path)] for path in _dependencies(job.dependency_file)]
    return hashlib.sha256(json.dumps([job.command, contents]).encode()).hexdigest()


def _dependencies(dependency_file: Path) -> Iterator[str]:
    """Yield the paths of a Makefile rule `object : source header \\ header ...`."""
    _, _, paths = dependency_file.read_text().replace("\\\n", " ").partition(":")
    for path in re.split(r"(?<!\\)\s+", paths.strip()):
        yield path.replace("\\ ", " ")


@lru_cache(maxsize=4096)
def _file_digest(path: str) -> str:
    file = ROOT / path
    return hashlib.sha256(file.read_bytes()).hexdigest() if file.is_file() else "missing"


def _link(toolchain: Toolchain, objects: list[Path], out: Path) -> None:
    out.parent.mkdir(parents=True, exist_ok=True)
    unfinished = out.with_name(f".{out.name}.{os.getpid()}")
    # --no-as-needed: the registrations need libtorch loaded though no symbol of it is named.
    # Never torch_cuda or torch_python: the same file then imports on a PyTorch without CUDA.
    libraries = "-Wl,--no-as-needed -ltorch -Wl,--as-needed -ltorch_cpu -lcudart_static"
    command = (
        *(str(toolchain.cxx), "-shared", "-s", "-o", str(unfinished)),
        *(str(file.relative_to(ROOT)) for file in objects),
        *(f"-L{toolchain.torch_dir}/lib", f"-L{toolchain.cuda_lib_dir}"),
        *f"{libraries} -ldl -lrt -lpthread".split(),
        *("-Wl,--exclude-libs,ALL", f"-Wl,-soname,{EXTENSION_NAME}"),
    )
    try:
        _run(command, out.name)
        os.replace(unfinished, out)
    finally:
        unfinished.unlink(missing_ok=True)
