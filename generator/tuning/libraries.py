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
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TypeVar

from mirage_kernels.generator.build.compile import ROOT, gencode
from mirage_kernels.generator.build.ptxas import parse
from mirage_kernels.generator.build.toolchain import Toolchain, find_toolchain
from mirage_kernels.generator.errors import FileError, ToolchainError
from mirage_kernels.generator.ir import Graph
from mirage_kernels.generator.ir.text import dumps
from mirage_kernels.generator.records.files import write_whole
from mirage_kernels.generator.records.record import KernelRecord
from mirage_kernels.generator.request import Event, Progress
from mirage_kernels.generator.tuning.files import Kind, read_file, written
from mirage_kernels.generator.tuning.keys import Key
from mirage_kernels.generator.tuning.manifest import (
    FOLDER_HINT,
    Built,
    BuiltBucket,
    Compiled,
    Manifest,
)
from mirage_kernels.generator.tuning.sources import Candidates, Source, candidates_of

DIGEST_LETTERS = 20
_OWN = re.compile(rf"[0-9a-f]{{{DIGEST_LETTERS}}}\.(cu|so|json|o|unfinished)")
_INCLUDED = re.compile(r'^#include "([^"]+)"', re.MULTILINE)
ERROR_LINES = 3

R = TypeVar("R")
S = TypeVar("S")


@dataclass(frozen=True)
class Shop:
    """Where libraries are made: the folder, the compilers, how many at once."""

    folder: Path
    toolchain: Toolchain
    jobs: int

    @staticmethod
    def at(folder: Path, jobs: int) -> Shop:
        """Return the shop of a folder; raises ToolchainError, or FileError for a file."""
        if folder.exists() and not folder.is_dir():
            raise FileError(f"{folder} is a file, not a folder", FOLDER_HINT)
        folder.mkdir(parents=True, exist_ok=True)
        return Shop(folder, find_toolchain(), jobs)


@dataclass(frozen=True)
class Report:
    """What the compiler said of a library: registers, or in `failed` why there is none."""

    registers: int
    failed: str = ""


@dataclass(frozen=True)
class Wanted:
    """How many candidates beside the rule's, and other muGraphs of which there are some too."""

    top: int
    forms: Sequence[Graph] = ()


def compiled_kernel(
    record: KernelRecord, shop: Shop, wanted: Wanted, progress: Progress
) -> Compiled:
    """Compile every candidate of a kernel; what the folder has already is not compiled again."""
    found = candidates_of(record, wanted.top, wanted.forms)
    key = Key(record.recipe, record.dtype, dict(record.shape))
    return _compiled_form(key, found, shop, (record, progress))


def _compiled_form(
    key: Key, found: Candidates, shop: Shop, by: tuple[KernelRecord, Progress]
) -> Compiled:
    record, progress = by
    knobs = list(dict.fromkeys(k for b in found.buckets for k in b.predicted_us))

    def tell(done: int) -> None:
        progress(Event("compile", done, len(knobs), f"{record.recipe} {record.stem}"))

    sources = [found.source(k) for k in knobs]
    made = each(lambda s: _built(s, shop, record.arch), sources, shop, tell)
    by_knobs = dict(zip(knobs, made, strict=True))
    buckets = tuple(
        BuiltBucket(
            bucket.size,
            tuple(
                Built(by_knobs[k][0], k, by_knobs[k][1].registers, us, by_knobs[k][1].failed)
                for k, us in bucket.predicted_us.items()
            ),
            bucket.rule,
            bucket.rule_of_few,
        )
        for bucket in found.buckets
    )
    forms = tuple(_compiled_form(key, form, shop, by) for form in found.forms)
    return Compiled(key, buckets, found.dim, found.beyond, found.form, forms)


def prune(shop: Shop, manifest: Manifest) -> None:
    """Remove libraries that no kernel of the manifest has any more: their sources have changed."""
    named = {digest for kernel in manifest.kernels for digest in kernel.candidates}
    for file in shop.folder.iterdir():
        if _OWN.fullmatch(file.name) and file.stem not in named:
            file.unlink()


def each(
    work: Callable[[S], R], items: Sequence[S], shop: Shop, tell: Callable[[int], None]
) -> list[R]:
    """Do the work of all items, so many at once as the shop does; `tell` hears how many are done.

    An interrupt keeps what has not started from starting.
    """
    made: list[R] = []
    pool = ThreadPoolExecutor(shop.jobs)
    try:
        for done, one in enumerate(pool.map(work, items), 1):
            tell(done)
            made.append(one)
    finally:
        pool.shutdown(cancel_futures=True)
    return made


def _built(source: Source, shop: Shop, arch: str) -> tuple[str, Report]:
    """Compile a source, or find what the folder has of it; return its name and the report."""
    digest = digest_of(source.text, shop.toolchain, arch)
    if source.failed:
        return digest, Report(0, source.failed)
    report = shop.folder / f"{digest}.json"
    if not (report.is_file() and (shop.folder / f"{digest}.so").is_file()):
        said = _compiled(source.text, digest, shop, arch)
        write_whole(report, dumps(written(said)), hint=FOLDER_HINT)
    named = Kind("a compiler's report", "remove it, compile again")
    return digest, read_file(report, Report, named)


def _compiled(source: str, digest: str, shop: Shop, arch: str) -> Report:
    """Compile and link one library; return its registers, or why it is not to be measured."""
    file, library = (shop.folder / f"{digest}{ending}" for ending in (".cu", ".so"))
    write_whole(file, source, hint=FOLDER_HINT)
    object_file, unfinished = file.with_suffix(".o"), file.with_suffix(".unfinished")
    compile_command = [*compiler(shop.toolchain, arch), "-c", str(file), "-o", str(object_file)]
    link = [str(shop.toolchain.cxx), "-shared", "-s", str(object_file), "-o", str(unfinished)]
    try:
        report = _ran(compile_command)
        _ran(link)
        unfinished.replace(library)
    except ToolchainError as error:
        library.write_bytes(b"")  # so that it is not tried again
        return Report(0, error.sentence)
    finally:
        object_file.unlink(missing_ok=True)
        unfinished.unlink(missing_ok=True)
    kernels = parse(report)
    spilled = sum(k.spill_bytes for k in kernels)
    failed = f"spills {spilled} bytes" if spilled else ""
    return Report(max(k.registers for k in kernels), failed)


def compiler(toolchain: Toolchain, arch: str) -> list[str]:
    """Return the command that compiles a source as the library's are, and says what it took."""
    host = ("-fPIC", "-fvisibility=hidden", "-fno-gnu-unique")
    return [
        *(*toolchain.launcher, str(toolchain.nvcc), f"-ccbin={toolchain.cxx}"),
        *("-O3", "-std=c++17", f"-I{ROOT / 'csrc'}", gencode(arch), "-Xptxas=-v"),
        *("-Xfatbin=-compress-all", "--compress-mode=size"),
        *(f"-Xcompiler={flag}" for flag in host),
    ]


def _ran(command: Sequence[str]) -> str:
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    said = ran.stdout + ran.stderr
    if ran.returncode:
        errors = [line for line in said.splitlines() if "error" in line] or said.splitlines()
        first = " / ".join(errors[:ERROR_LINES]).replace(f"{ROOT}/", "")
        raise ToolchainError(f"does not compile: {first}")
    return said


def digest_of(source: str, toolchain: Toolchain, arch: str) -> str:
    """Return a name for a source with all that it includes and how it is compiled."""
    # The toolchain's folders are no part of it: another machine makes the same library.
    flags = [word for word in compiler(toolchain, arch) if "/" not in word]
    contents = "\0".join([source, *map(_file_digest, _included(source)), *flags])
    return hashlib.sha256(contents.encode()).hexdigest()[:DIGEST_LETTERS]


def _included(source: str) -> list[str]:
    """Return the files of csrc that a source includes, and they in turn."""
    found, left = set[str](), _INCLUDED.findall(source)
    while left:
        name = left.pop()
        if name not in found:
            found.add(name)
            left += _INCLUDED.findall(_text(name))
    return sorted(found)


@cache
def _text(name: str) -> str:
    return (ROOT / "csrc" / name).read_text()


def _file_digest(name: str) -> str:
    return hashlib.sha256(_text(name).encode()).hexdigest()
