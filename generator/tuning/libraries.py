"""Compiling candidates: a source with one variant each, a small library each, without a GPU.

A library holds the kernel and one C function; it names no CUDA runtime, the process that loads it
brings PyTorch's. What fails to compile, or spills, costs that candidate only.
"""

from __future__ import annotations

import hashlib
import json
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
from mirage_kernels.generator.emit.cuda import Kernel, emit_cuda
from mirage_kernels.generator.emit.header import Header
from mirage_kernels.generator.emit.writer import Writer
from mirage_kernels.generator.errors import FileError, PlanError, ToolchainError
from mirage_kernels.generator.ir.text import Json
from mirage_kernels.generator.plan.program import TileProgram
from mirage_kernels.generator.records.files import write_whole
from mirage_kernels.generator.records.record import KernelRecord
from mirage_kernels.generator.request import Event, Progress
from mirage_kernels.generator.schedules.candidates import Candidate, Wanted, by_size, candidates
from mirage_kernels.generator.schedules.choose import member, programs_of
from mirage_kernels.generator.schedules.loop import BUCKETS
from mirage_kernels.generator.schedules.schedule import Variant
from mirage_kernels.generator.target import target
from mirage_kernels.generator.tuning.catalog import has_producers, tuned_kernel
from mirage_kernels.generator.tuning.entries import ARGS_BYTES, LAUNCH, WORKSPACE
from mirage_kernels.generator.tuning.fields import entry, integer, loaded, text
from mirage_kernels.generator.tuning.keys import Key
from mirage_kernels.generator.tuning.manifest import FOLDER_HINT, Built, Compiled, Manifest

DIGEST_LETTERS = 20
_OWN = re.compile(rf"[0-9a-f]{{{DIGEST_LETTERS}}}\.(cu|so|json|o|unfinished)")
_INCLUDED = re.compile(r'^#include "([^"]+)"', re.MULTILINE)
BEYOND, BEYOND_LINES = 128, (8, 128, 1024, 4096)  # tokens
ERROR_LINES = 3
COMMAND = "mirage-kernels tune"

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
class Made:
    """A compiled library: the name of its files, registers, or in `failed` why there is none."""

    digest: str
    registers: int
    failed: str = ""


@dataclass(frozen=True)
class Source:
    """A candidate's source, or in `failed` why there is none."""

    candidate: Candidate
    text: str
    failed: str = ""


def compiled_kernel(record: KernelRecord, shop: Shop, *, top: int, progress: Progress) -> Compiled:
    """Compile every candidate of a kernel; what the folder has already is not compiled again."""
    programs = programs_of(record.recipe, record.graph, record.arch)
    on, key = target(record.arch), Key(record.recipe, record.dtype, dict(record.shape))
    tuned = tuned_kernel(record.arch, key)
    known = {b.tokens: b.knobs for b in tuned.buckets} if tuned else {}
    by_bucket = {
        m: candidates(programs, m, on, Wanted(top, known.get(m))) for m in by_size(programs[0], on)
    }
    sources = [
        source_of(record, member(programs, producers=has_producers(c.knobs)), c)
        for found in by_bucket.values()
        for c in found
    ]
    built = iter(_all_built(sources, shop, record, progress))
    buckets = {m: tuple(next(built) for _ in found) for m, found in by_bucket.items()}
    return Compiled(key, record.roles.tokens, buckets, _beyond(programs[0], max(by_bucket)))


def _beyond(program: TileProgram, last: int) -> tuple[int, ...]:
    """Return where else the last bucket's choice is compared with PyTorch.

    Above the buckets of a kernel with results beside its output the library takes another kernel,
    not PyTorch, so nothing is compared there.
    """
    if not program.loop:
        return BEYOND_LINES
    return () if program.also else tuple(m for m in (*BUCKETS, BEYOND) if m > last)


def prune(shop: Shop, manifest: Manifest) -> None:
    """Remove libraries that no kernel of the manifest has any more: their sources have changed."""
    named = {b.digest for k in manifest.kernels for found in k.buckets.values() for b in found}
    named = named.union(*(k.digests for k in manifest.attention))
    for file in shop.folder.iterdir():
        if _OWN.fullmatch(file.name) and file.stem not in named:
            file.unlink()


def source_of(record: KernelRecord, program: TileProgram, candidate: Candidate) -> Source:
    """Return a candidate's source: the kernel as it is emitted, with one variant and C entries."""
    header = Header(f"{COMMAND} {record.recipe}", record.stem, [("Knobs", str(candidate.knobs))])
    kernel = Kernel(program, (Variant(0, candidate.knobs),), record.storage, header)
    entries = _entries(kernel.symbol, workspace=candidate.knobs.has_workspace)
    try:
        return Source(candidate, emit_cuda(kernel) + entries)
    except PlanError as error:
        return Source(candidate, "", error.sentence)


def _entries(symbol: str, *, workspace: bool) -> str:
    writer = Writer()
    writer.line()
    writer.line('#define VISIBLE __attribute__((visibility("default")))')
    signature = f'extern "C" VISIBLE int {LAUNCH}(const mirage::LaunchArgs* args, void* stream) {{'
    with writer.block(signature):
        writer.line(
            f"return mirage::generated::{symbol}(*args, static_cast<cudaStream_t>(stream));"
        )
    taken = "const mirage::LaunchArgs* args" if workspace else "const mirage::LaunchArgs*"
    with writer.block(f'extern "C" VISIBLE int64_t {WORKSPACE}({taken}) {{'):
        needed = f"mirage::generated::{symbol}_workspace(*args)" if workspace else "0"
        writer.line(f"return {needed};")
    with writer.block(f'extern "C" VISIBLE int {ARGS_BYTES}() {{'):
        writer.line("return static_cast<int>(sizeof(mirage::LaunchArgs));")
    return writer.text()


def _all_built(
    sources: Sequence[Source], shop: Shop, record: KernelRecord, progress: Progress
) -> list[Built]:
    def tell(done: int) -> None:
        progress(Event("compile", done, len(sources), f"{record.recipe} {record.stem}"))

    return each(lambda s: _built(s, shop, record.arch), sources, shop, tell)


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


def _built(source: Source, shop: Shop, arch: str) -> Built:
    candidate = source.candidate
    predicted = round(candidate.predicted_us, 3)
    if source.failed:
        digest = digest_of(source.text, shop.toolchain, arch)
        return Built(digest, candidate.knobs, predicted, 0, source.failed)
    made = library_of(source.text, shop, arch)
    return Built(made.digest, candidate.knobs, predicted, made.registers, made.failed)


def library_of(source: str, shop: Shop, arch: str) -> Made:
    """Compile a source, or find what the folder has of it."""
    digest = digest_of(source, shop.toolchain, arch)
    report = shop.folder / f"{digest}.json"
    if not (report.is_file() and (shop.folder / f"{digest}.so").is_file()):
        said = json.dumps(_compiled(source, digest, shop, arch))
        write_whole(report, said + "\n", hint=FOLDER_HINT)

    def read(data: Json) -> Made:
        said = entry(data)
        failed = text(said, "failed") if "failed" in said else ""
        return Made(digest, integer(said, "registers"), failed)

    return loaded(report, read, what="a compiler's report", hint="remove it, compile again")


def _compiled(source: str, digest: str, shop: Shop, arch: str) -> dict[str, Json]:
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
        return {"registers": 0, "failed": error.sentence}
    finally:
        object_file.unlink(missing_ok=True)
        unfinished.unlink(missing_ok=True)
    kernels = parse(report)
    registers: dict[str, Json] = {"registers": max(k.registers for k in kernels)}
    spilled = sum(k.spill_bytes for k in kernels)
    return registers | ({"failed": f"spills {spilled} bytes"} if spilled else {})


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
