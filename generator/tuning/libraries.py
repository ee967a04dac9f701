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
from mirage_kernels.generator.build.ptxas import parse
from mirage_kernels.generator.build.toolchain import Toolchain, find_toolchain
from mirage_kernels.generator.errors import FileError, PlanError, ToolchainError
from mirage_kernels.generator.ir.text import dumps
from mirage_kernels.generator.records.files import write_whole
from mirage_kernels.generator.request import Event, Progress
from mirage_kernels.generator.schedules.schedule import Knobs
from mirage_kernels.generator.tuning.files import read_file, written
from mirage_kernels.generator.tuning.manifest import (
    FOLDER_HINT,
    Built,
    BuiltBucket,
    Compiled,
    Manifest,
)
from mirage_kernels.generator.tuning.sources import Candidates

DIGEST_LETTERS = 20
_OWN = re.compile(rf"[0-9a-f]{{{DIGEST_LETTERS}}}\.(cu|so|json|o|unfinished)")
_INCLUDED = re.compile(r'^#include "([^"]+)"', re.MULTILINE)
ERROR_LINES = 3


@dataclass(frozen=True)
class Shop:
    """Where libraries are made: the folder, for which architecture, by what, how many at once."""

    folder: Path
    arch: str
    toolchain: Toolchain
    jobs: int

    @staticmethod
    def at(folder: Path, arch: str, jobs: int) -> Shop:
        """Return the shop of a folder; raises ToolchainError, or FileError for a file."""
        if folder.exists() and not folder.is_dir():
            raise FileError(f"{folder} is a file, not a folder", FOLDER_HINT)
        folder.mkdir(parents=True, exist_ok=True)
        return Shop(folder, arch, find_toolchain(), jobs)


@dataclass(frozen=True)
class Report:
    """What the compiler said of a library: registers, or in `failed` why there is none."""

    registers: int
    failed: str = ""


def compiled_kernel(found: Candidates, shop: Shop, progress: Progress) -> Compiled:
    """Compile every candidate of a kernel; what the folder has already is not compiled again.

    An interrupt keeps what has not started from starting.
    """
    knobs = list(dict.fromkeys(b.knobs for bucket in found.kernel.buckets for b in bucket.built))
    made: dict[Knobs, Built] = {}
    pool = ThreadPoolExecutor(shop.jobs)
    try:
        for built in pool.map(lambda k: _built(found.source, k, shop), knobs):
            made[built.knobs] = built
            progress(Event("compile", len(made), len(knobs), found.kernel.key.name))
    finally:
        pool.shutdown(cancel_futures=True)

    def filled(bucket: BuiltBucket) -> BuiltBucket:
        built = (replace(made[b.knobs], predicted_us=b.predicted_us) for b in bucket.built)
        return replace(bucket, built=tuple(built))

    forms = tuple(compiled_kernel(form, shop, progress) for form in found.forms)
    buckets = tuple(filled(bucket) for bucket in found.kernel.buckets)
    return replace(found.kernel, buckets=buckets, forms=forms)


def prune(shop: Shop, manifest: Manifest) -> None:
    """Remove libraries that no kernel of the manifest has any more: their sources have changed."""
    named = {digest for kernel in manifest.kernels for digest in kernel.candidates}
    for file in shop.folder.iterdir():
        if _OWN.fullmatch(file.name) and file.stem not in named:
            file.unlink()


def _built(source: Callable[[Knobs], str], knobs: Knobs, shop: Shop) -> Built:
    """Compile a candidate, or find what the folder has of it."""
    try:
        text = source(knobs)
    except PlanError as error:
        return Built(digest_of("", shop.toolchain, shop.arch), knobs, 0, failed=error.sentence)
    digest = digest_of(text, shop.toolchain, shop.arch)
    file = shop.folder / f"{digest}.json"
    if not (file.is_file() and (shop.folder / f"{digest}.so").is_file()):
        write_whole(file, dumps(written(_compiled(text, digest, shop))), hint=FOLDER_HINT)
    hint = "remove it, compile again"
    report = read_file(file, Report, what="a compiler's report", hint=hint)
    return Built(digest, knobs, report.registers, failed=report.failed)


def _compiled(source: str, digest: str, shop: Shop) -> Report:
    """Compile and link one library; return its registers, or why it is not to be measured."""
    file, library = (shop.folder / f"{digest}{ending}" for ending in (".cu", ".so"))
    write_whole(file, source, hint=FOLDER_HINT)
    object_file, unfinished = file.with_suffix(".o"), file.with_suffix(".unfinished")
    compile_command = [
        *compiler(shop.toolchain, shop.arch),
        "-c",
        str(file),
        "-o",
        str(object_file),
    ]
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
