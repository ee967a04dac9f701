"""Compiling candidates: a source with one variant each, a small library each, without a GPU.

A library holds the kernel and C functions; it names no CUDA runtime, the process that loads it
brings PyTorch's. What fails to compile, or spills, costs that candidate only.
"""

from __future__ import annotations

import hashlib
import re
import subprocess
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from mirage_kernels.generator.build.compile import ROOT, gencode
from mirage_kernels.generator.build.programs import cute_folder
from mirage_kernels.generator.build.ptxas import parse
from mirage_kernels.generator.build.toolchain import Toolchain, find_toolchain
from mirage_kernels.generator.errors import FileError, PlanError, ToolchainError
from mirage_kernels.generator.records.files import write_whole
from mirage_kernels.generator.request import Event, Progress
from mirage_kernels.generator.schedules.schedule import Knobs
from mirage_kernels.generator.tuning.candidates import Candidates
from mirage_kernels.generator.tuning.catalog import (
    FOLDER_HINT,
    Section,
    Tried,
    Tuned,
    read_file,
    write_file,
)

DIGEST_LETTERS = 20
_OWN = re.compile(rf"[0-9a-f]{{{DIGEST_LETTERS}}}\.(cu|so|json|o|unfinished)")
_INCLUDED = re.compile(r'^#include "([^"]+)"', re.MULTILINE)
ERROR_LINES = 3
HIDDEN = ("-fPIC", "-fvisibility=hidden", "-fno-gnu-unique")
SOURCES = "sources.txt"
SCRIPT = """\
#!/bin/sh
# Compiles the candidates here that have no library: CSRC=... CUTE=... sh compile.sh
# CSRC: csrc of mirage-kernels; CUTE: the folder with cute/ and cutlass/; NVCC, JOBS: as they are.
cd "$(dirname "$0")" || exit 1
export NVCC="${{NVCC:-nvcc}}" CSRC CUTE
while read -r name; do [ -s "$name.so" ] || echo "$name"; done < {sources} |
  xargs -P "${{JOBS:-$(nproc)}}" -I{{}} sh -c '"$NVCC" -I"$CSRC" -isystem "$CUTE" {flags} \
    -shared -cudart=none -o {{}}.unfinished {{}}.cu > {{}}.log 2>&1 && mv {{}}.unfinished {{}}.so'
"""


@dataclass(frozen=True)
class Shop:
    """Where libraries are made: the folder, for which architecture, by what, how many at once."""

    folder: Path
    arch: str
    toolchain: Toolchain
    jobs: int
    of_programs: bool = False  # of functions and recipes, which are written on CuTe
    only_sources: bool = False  # another machine compiles them, by the script beside them

    @staticmethod
    def at(folder: Path, arch: str, jobs: int, *, only_sources: bool = False) -> Shop:
        """Return the shop of a folder; raises ToolchainError, or FileError for a file."""
        if folder.exists() and not folder.is_dir():
            raise FileError(f"{folder} is a file, not a folder", FOLDER_HINT)
        folder.mkdir(parents=True, exist_ok=True)
        return Shop(folder, arch, find_toolchain(), jobs, only_sources=only_sources)


def compiled_kernel(found: Candidates, shop: Shop, progress: Progress) -> Tuned:
    """Compile every candidate of a kernel; what the folder has already is not compiled again.

    An interrupt keeps what has not started from starting.
    """
    kernel, made = found.kernel, dict[Knobs, Tried]()
    shop = replace(shop, of_programs=bool(kernel.symbol))
    knobs = list(dict.fromkeys(t.knobs for bucket in kernel.buckets for t in bucket.tried))
    pool = ThreadPoolExecutor(shop.jobs)
    try:
        for one in pool.map(lambda k: compiled_candidate(found.source, k, shop), knobs):
            made[one.knobs] = one
            progress(Event("compile", len(made), len(knobs), kernel.key.name))
    finally:
        pool.shutdown(cancel_futures=True)
    buckets = []
    for bucket in kernel.buckets:
        tried = (replace(made[t.knobs], predicted_us=t.predicted_us) for t in bucket.tried)
        buckets.append(replace(bucket, tried=tuple(tried)))
    others = tuple(compiled_kernel(other, shop, progress) for other in found.others)
    return replace(kernel, buckets=tuple(buckets), others=others)


def prune(shop: Shop, manifest: Section) -> None:
    """Remove libraries that no kernel of the manifest has any more: their sources have changed."""
    named = {digest for kernel in manifest.kernels for digest in kernel.candidates}
    for file in shop.folder.iterdir():
        if _OWN.fullmatch(file.name) and file.stem not in named:
            file.unlink()


def compiled_candidate(source: Callable[[Knobs], str], knobs: Knobs, shop: Shop) -> Tried:
    """Compile and link a candidate's library, or find what the folder has of it."""
    try:
        text = source(knobs)
    except PlanError as error:
        return Tried(knobs, failed=error.sentence, digest=digest_of("", shop))
    digest = digest_of(text, shop)
    made = Tried(knobs, digest=digest)
    file, library = (shop.folder / f"{digest}{ending}" for ending in (".cu", ".so"))
    report, object_file = file.with_suffix(".json"), file.with_suffix(".o")
    unfinished = file.with_suffix(".unfinished")
    if report.is_file() and library.is_file():
        hint = "remove it, compile again"
        return read_file(report, Tried, what="a compiler's report", hint=hint)
    write_whole(file, text, hint=FOLDER_HINT)
    if shop.only_sources:
        return made
    compile_command = [*compiler(shop), "-c", str(file), "-o", str(object_file)]
    link = [str(shop.toolchain.cxx), "-shared", "-s", str(object_file), "-o", str(unfinished)]
    try:
        kernels = parse(_ran(compile_command))
        _ran(link)
        unfinished.replace(library)
        spilled = sum(k.spill_bytes for k in kernels)
        failed = f"spills {spilled} bytes" if spilled else ""
        made = replace(made, registers=max(k.registers for k in kernels), failed=failed)
    except ToolchainError as error:
        library.write_bytes(b"")  # so that it is not tried again
        made = replace(made, failed=error.sentence)
    finally:
        object_file.unlink(missing_ok=True)
        unfinished.unlink(missing_ok=True)
    write_file(report, made)
    return made


def compiler(shop: Shop) -> list[str]:
    """Return the command that compiles a source as the library's are, and says what it took."""
    toolchain = shop.toolchain
    nvcc = (*toolchain.launcher, str(toolchain.nvcc), f"-ccbin={toolchain.cxx}")
    cute = ("-isystem", str(cute_folder())) if shop.of_programs else ()
    return [*nvcc, f"-I{ROOT / 'csrc'}", *cute, *flags(shop)]


def flags(shop: Shop) -> list[str]:
    """Return how a source is compiled, wherever."""
    host = ("-fPIC", "-fno-gnu-unique") if shop.of_programs else HIDDEN
    more = ("--expt-relaxed-constexpr",) if shop.of_programs else ()
    return [
        *("-O3", "-std=c++17", gencode(shop.arch), "-Xptxas=-v", *more),
        *("-Xfatbin=-compress-all", "--compress-mode=size"),
        *(f"-Xcompiler={flag}" for flag in host),
    ]


def write_script(shop: Shop, manifest: Section) -> Path:
    """Write the shell script that compiles a folder's sources where nothing else is installed.

    It goes on where it was; candidates come in the order of the kernels.
    """
    every = (t for k in manifest.kernels for t in k.candidates.values() if not t.failed)
    names = "".join(f"{digest}\n" for digest in dict.fromkeys(t.digest for t in every))
    write_whole(shop.folder / SOURCES, names, hint=FOLDER_HINT)
    text = SCRIPT.format(flags=" ".join(flags(replace(shop, of_programs=True))), sources=SOURCES)
    return write_whole(shop.folder / "compile.sh", text, hint=FOLDER_HINT)


def _ran(command: Sequence[str]) -> str:
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    said = ran.stdout + ran.stderr
    if ran.returncode:
        errors = [line for line in said.splitlines() if "error" in line] or said.splitlines()
        first = " / ".join(errors[:ERROR_LINES]).replace(f"{ROOT}/", "")
        raise ToolchainError(f"does not compile: {first}")
    return said


def digest_of(source: str, shop: Shop) -> str:
    """Return a name for a source with all that it includes and how it is compiled."""
    included, left = dict[str, str](), _INCLUDED.findall(source)
    while left:
        name = left.pop()
        if name not in included:
            included[name] = _text(name)
            left += _INCLUDED.findall(included[name])
    # The toolchain's folders are no part of it: another machine makes the same library.
    texts = (included[name] for name in sorted(included))
    contents = "\0".join([source, *texts, *flags(shop)])
    return hashlib.sha256(contents.encode()).hexdigest()[:DIGEST_LETTERS]


@cache
def _text(name: str) -> str:
    return (ROOT / "csrc" / name).read_text()
