"""Compile: emitted kernels, floor kernels and bindings become one extension, `_C.abi3.so`.

Object files are kept in a cache, keyed by compiler, options and contents of a source and of all
files that it includes, never by a folder's path. So a moved or fresh checkout takes its objects
from the cache, and an interrupted build goes on where it was.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from mirage_kernels.generator.build.toolchain import Toolchain, find_toolchain, versions
from mirage_kernels.generator.errors import FileError, ToolchainError
from mirage_kernels.generator.settings import OBJECTS_VARIABLE, objects_folder
from mirage_kernels.generator.target import TARGETS

ROOT = Path(__file__).resolve().parents[2]
DEFAULT_ARCH = "sm_90a"
EXTENSION_NAME = "_C.abi3.so"

# The oldest torch that the binary serves: 2.10, as torch's headers write it.
TORCH_TARGET_VERSION = "0x020a000000000000"
# An nvcc job over CUTLASS headers takes up to this much.
JOB_MEMORY_BYTES = 3 << 30
FAILURE_LINES = 30
OBJECTS_BYTES = 2 << 30  # of all objects together; those that were used last are kept
_INCLUDE = re.compile(r'^\s*#\s*include\s+"(.+)"', re.MULTILINE)

# What is told on the way: the stage, how many of its steps are done, of how many, a short line.
Progress = Callable[[str, int, int, str], None]


@dataclass(frozen=True)
class Sources:
    """What an extension is made of: the kernels' CUDA files and the table that lists them."""

    arch: str
    cuda: tuple[Path, ...]
    table: Path


@dataclass(frozen=True)
class Wanted:
    """One object file to find or to make: its source, and the compiler with what the key names."""

    source: str  # relative to the root
    compiler: tuple[str, ...]  # with options that only name folders of this machine
    options: tuple[str, ...]


@dataclass
class ObjectCache:
    """Object files in a folder that checkouts share; `root` is where relative paths start."""

    folder: Path
    root: Path
    compilers: str  # names and versions
    _files: dict[str, tuple[str, list[str]]] = field(default_factory=dict)

    def path(self, wanted: Wanted) -> Path:
        """Return where the object file made from these very contents lies, if it was made."""
        digest = hashlib.sha256(self.key(wanted).encode()).hexdigest()
        return self.folder / digest[:2] / f"{digest[2:]}.o"

    def key(self, wanted: Wanted) -> str:
        """Return all that an object file is made of, as text without a folder's path."""
        digests: dict[str, str] = {}
        waiting = [wanted.source]
        while waiting:
            name = waiting.pop()
            if name not in digests:
                digests[name], included = self._read(name)
                waiting += included
        return json.dumps([self.compilers, wanted.options, wanted.source, sorted(digests.items())])

    def _file(self, name: str) -> Path:
        """Return where a file lies: below the root, or in this package's csrc."""
        own = self.root / name
        return own if own.is_file() or not name.startswith("csrc/") else ROOT / name

    def _read(self, name: str) -> tuple[str, list[str]]:
        """Return the digest of a file, and the files of this tree that it includes."""
        if name not in self._files:
            content = self._file(name).read_bytes()
            near = [os.path.dirname(name), "csrc"]
            found = []
            for written in _INCLUDE.findall(content.decode(errors="replace")):
                paths = [os.path.normpath(os.path.join(folder, written)) for folder in near]
                found += [path for path in paths if self._file(path).is_file()][:1]
            self._files[name] = hashlib.sha256(content).hexdigest(), found
        return self._files[name]

    def find(self, wanted: Wanted) -> Path | None:
        """Return the object file made from these very contents, or None."""
        path = self.path(wanted)
        with suppress(OSError):
            os.utime(path)  # it is in use: others are removed first
            return path
        return None

    def shrink(self, largest_bytes: int = OBJECTS_BYTES) -> None:
        """Remove the objects that were used longest ago until the rest is small enough."""
        files = [(path, path.stat()) for path in self.folder.glob("??/*") if path.is_file()]
        total = sum(stat.st_size for _, stat in files)
        for path, stat in sorted(files, key=lambda file: file[1].st_mtime_ns):
            if total <= largest_bytes:
                return
            total -= stat.st_size
            path.unlink(missing_ok=True)


def all_sources(arch: str, kernels_dir: Path) -> Sources:
    """Return everything emitted below `kernels_dir/arch`, with its committed table."""
    folder = kernels_dir.resolve() / arch
    table = folder / "table.cpp"
    if not re.fullmatch(r"sm_[0-9]{2,3}[af]?", arch):
        raise ToolchainError(
            f"{arch!r} is no GPU architecture",
            "write one as nvcc does, for instance sm_90a; a wheel holds the kernels of one",
        )
    if not table.is_file():
        present = sorted(found.parent.name for found in kernels_dir.glob("sm_*/table.cpp"))
        raise ToolchainError(
            f"{kernels_dir}/{arch} holds no emitted kernels",
            f"there are some for: {', '.join(present) or 'nothing'}; "
            "`mirage-kernels generate RECIPE --arch ARCH` makes more",
        )
    return Sources(arch, tuple(sorted(folder.rglob("*.cu"))), table)


def build_extension(
    sources: Sources, out: Path, *, jobs: int | None = None, progress: Progress
) -> Path:
    """Compile sources with the bindings into the file `out`, which is written whole or not at all.

    Object files of unchanged contents come from the cache. Raises ToolchainError with the failing
    command.
    """
    toolchain, folder = find_toolchain(), objects_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        hint = f"name a folder that can be written: {OBJECTS_VARIABLE}=DIR"
        raise FileError(f"{folder} cannot be made: {error.strerror}", hint) from error
    cache = ObjectCache(folder, ROOT, versions(toolchain))
    objects = _objects(_wanted(toolchain, sources), cache, jobs or default_jobs(), progress)
    started = time.monotonic()
    _link(toolchain, objects, out)
    progress("link", 1, 1, f"{out.name}  {time.monotonic() - started:.1f} s")
    cache.shrink()
    return out


def _wanted(toolchain: Toolchain, sources: Sources) -> list[Wanted]:
    """List the object files, slowest kind first, each with its source and command."""
    by_hand = [path for name in ("append", "bench") for path in (ROOT / "csrc" / name).glob("*.cu")]
    host = [*sorted((ROOT / "csrc/torch").glob("*.cpp")), sources.table]
    torch = toolchain.torch_dir
    nvcc = (str(toolchain.nvcc), f"-ccbin={toolchain.cxx}")
    cxx = (
        *(str(toolchain.cxx), "-isystem", str(toolchain.cuda_include_dir)),
        # No path of the building machine may end in the binary; those of this tree are relative.
        *("-isystem", f"{torch}/include", f"-ffile-prefix-map={torch}/=torch/"),
    )
    kinds = (
        ((*sources.cuda, *sorted(by_hand)), nvcc, _nvcc_options(sources.arch)),
        (host, cxx, _cxx_options(sources.arch)),
    )
    return [
        Wanted(str(source.relative_to(ROOT)), compiler, tuple(options))
        for files, compiler, options in kinds
        for source in files
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


def carries_ptx(arch: str) -> bool:
    """Say whether builds for an architecture also hold PTX, which later GPUs can run."""
    return arch in TARGETS and TARGETS[arch].carries_ptx


def gencode(arch: str) -> str:
    """Return nvcc's option for the code of an architecture."""
    virtual = f"compute_{arch.removeprefix('sm_')}"
    code = f"[{arch},{virtual}]" if carries_ptx(arch) else arch
    return f"-gencode=arch={virtual},code={code}"


_HOST_OPTIONS = ("-fPIC", "-fvisibility=hidden", "-fvisibility-inlines-hidden", "-Wall")


def _nvcc_options(arch: str) -> list[str]:
    return [
        *("-O3", "-std=c++17", "-Icsrc", gencode(arch)),
        *("-Xfatbin=-compress-all", "--compress-mode=size"),
        *(f"-Xcompiler={option}" for option in _HOST_OPTIONS),
    ]


def _cxx_options(arch: str) -> list[str]:
    return [
        *("-O2", "-std=c++17", "-Icsrc", *_HOST_OPTIONS),
        *(f"-DTORCH_TARGET_VERSION={TORCH_TARGET_VERSION}", "-DTORCH_STABLE_ONLY"),
        *(["-DMIRAGE_CARRIES_PTX"] if carries_ptx(arch) else []),
    ]


def _objects(
    work: Sequence[Wanted], cache: ObjectCache, jobs: int, progress: Progress
) -> list[Path]:
    """Return an object file for each source: those of the cache, the others compiled."""
    found = {wanted: path for wanted in work if (path := cache.find(wanted))}
    stale = [wanted for wanted in work if wanted not in found]
    if found:
        progress("cached", len(found), len(work), "of the objects are unchanged")
    started = time.monotonic()
    with ThreadPoolExecutor(max_workers=jobs) as pool:
        futures = {pool.submit(_compiled, wanted, cache): wanted for wanted in stale}
        try:
            for done, future in enumerate(as_completed(futures), 1):
                wanted = futures[future]
                found[wanted] = future.result()
                elapsed = time.monotonic() - started
                left = elapsed / done * (len(stale) - done)
                text = f"{wanted.source}  {elapsed:.0f} s"
                text += f", about {left:.0f} s left" if done < len(stale) else ""
                progress("compile", done, len(stale), text)
        except BaseException:  # an interrupt too: what has not started must not
            pool.shutdown(cancel_futures=True)
            raise
    return [found[wanted] for wanted in work]


def _compiled(wanted: Wanted, cache: ObjectCache) -> Path:
    """Compile one source in a folder of its own; return the object file in the cache."""
    path = cache.path(wanted)
    with tempfile.TemporaryDirectory(dir=cache.folder, prefix="unfinished.") as folder:
        made = Path(folder, "made.o")
        command = (*wanted.compiler, *wanted.options, "-c", wanted.source, "-o", str(made))
        _run(command, wanted.source)
        path.parent.mkdir(exist_ok=True)
        return made.replace(path)


def _run(command: tuple[str, ...], name: str) -> None:
    # Relative paths in the command, from one folder: the same bytes wherever the clone lies.
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if ran.returncode == 0:
        return
    lines = (ran.stdout + ran.stderr).splitlines()[-FAILURE_LINES:]
    raise ToolchainError(f"{name} does not build", "\n".join([" ".join(command), *lines]))


def _link(toolchain: Toolchain, objects: list[Path], out: Path) -> None:
    out.parent.mkdir(parents=True, exist_ok=True)
    unfinished = out.with_name(f".{out.name}.{os.getpid()}")
    # --no-as-needed: the registrations need libtorch loaded though no symbol of it is named.
    # Never torch_cuda or torch_python: the same file then imports on a PyTorch without CUDA.
    libraries = "-Wl,--no-as-needed -ltorch -Wl,--as-needed -ltorch_cpu -lcudart_static"
    command = (
        *(str(toolchain.cxx), "-shared", "-s", "-o", str(unfinished)),
        *map(str, objects),
        *(f"-L{toolchain.torch_dir}/lib", f"-L{toolchain.cuda_lib_dir}"),
        *f"{libraries} -ldl -lrt -lpthread".split(),
        *("-Wl,--exclude-libs,ALL", f"-Wl,-soname,{EXTENSION_NAME}"),
    )
    try:
        _run(command, out.name)
        os.replace(unfinished, out)
    finally:
        unfinished.unlink(missing_ok=True)
