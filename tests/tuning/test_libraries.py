"""Compiling candidates: one variant per source, each once; a failure costs one candidate."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from compilers import compiled

from mirage_kernels.generator.build.compile import ROOT
from mirage_kernels.generator.build.toolchain import Toolchain, find_nvcc
from mirage_kernels.generator.errors import FileError, ToolchainError
from mirage_kernels.generator.ir import DType
from mirage_kernels.generator.records.record import KernelRecord, load_record
from mirage_kernels.generator.request import Event
from mirage_kernels.generator.schedules.loop import BUCKETS
from mirage_kernels.generator.tuning import candidates, libraries
from mirage_kernels.generator.tuning.candidates import candidates_of
from mirage_kernels.generator.tuning.catalog import Section, Tried, Tuned, load_manifest, write_file
from mirage_kernels.generator.tuning.libraries import (
    Shop,
    compiled_candidate,
    compiled_kernel,
    digest_of,
    prune,
)

REPORT = """ptxas info    : Compiling entry function '_Z1k' for 'sm_90a'
    0 bytes stack frame, {spilled} bytes spill stores, {spilled} bytes spill loads
ptxas info    : Used 96 registers, used 1 barriers
"""
GOLDEN = Path(__file__).parents[1] / "golden"
NOWHERE = Path("nowhere")
TOOLS = Toolchain(NOWHERE / "nvcc", NOWHERE / "g++", NOWHERE, NOWHERE, NOWHERE, ())
Compile = Callable[..., Tuned]


class Compiler:
    """In place of nvcc and the linker; `answers` by the order of the sources."""

    def __init__(self, *answers: str | ToolchainError) -> None:
        self.answers = list(answers)
        self.sources: list[str] = []

    def __call__(self, command: Sequence[str]) -> str:
        if "-shared" in command:
            Path(command[-1]).write_bytes(b"a library")
            return ""
        self.sources.append(Path(command[command.index("-c") + 1]).read_text())
        answer = self.answers.pop(0) if self.answers else REPORT.format(spilled=0)
        if isinstance(answer, ToolchainError):
            raise answer
        return answer


@pytest.fixture
def record(golden_record: Callable[[DType], KernelRecord]) -> KernelRecord:
    return golden_record(DType.FP16)


@pytest.fixture
def compile_with(tmp_path: Path, record: KernelRecord, monkeypatch: pytest.MonkeyPatch) -> Compile:
    def run(compiler: Compiler) -> Tuned:
        monkeypatch.setattr(libraries, "_ran", compiler)
        return compiled_kernel(candidates_of(record, 1), shop_in(tmp_path), silent)

    return run


def shop_in(folder: Path, tools: Toolchain = TOOLS) -> Shop:
    return Shop(folder, "sm_90a", tools, 1)


def silent(event: Event) -> None:
    """Show no progress."""


def all_built(kernel: Tuned) -> list[Tried]:
    return [t for bucket in kernel.buckets for t in bucket.tried]


def test_every_bucket_has_candidates_and_every_source_one_variant(compile_with: Compile) -> None:
    compiler = Compiler()
    assert tuple(b.size for b in compile_with(compiler).buckets) == BUCKETS
    assert {len(re.findall(r"^using \w+M =", s, re.MULTILINE)) for s in compiler.sources} == {1}


@pytest.mark.parametrize(
    ("answer", "failed"),
    [
        (ToolchainError("does not compile: error"), "does not compile: error"),
        (REPORT.format(spilled=4), "spills 8 bytes"),
    ],
)
def test_a_compile_error_or_a_spill_costs_one_candidate(
    compile_with: Compile, answer: str | ToolchainError, failed: str
) -> None:
    built = all_built(compile_with(Compiler(answer)))
    assert [b.failed for b in built if b.failed] == [failed]


def test_nothing_is_compiled_twice(compile_with: Compile) -> None:
    first = compile_with(Compiler(ToolchainError("does not compile: error")))
    again = Compiler()
    assert compile_with(again) == first
    assert again.sources == []


def test_a_change_of_the_device_vocabulary_makes_other_libraries(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source = '#include "tile/register_operand/block.cuh"\n'
    before, other = (digest_of(text, shop_in(NOWHERE)) for text in (source, "source"))
    monkeypatch.setattr(libraries, "_text", changed("tile/mma/wgmma.cuh"))
    assert digest_of(source, shop_in(NOWHERE)) != before
    assert digest_of("source", shop_in(NOWHERE)) == other  # it does not include that


def changed(file: str) -> Callable[[str], str]:
    """Return a reader of csrc in which one file is another."""

    def text(name: str) -> str:
        return (ROOT / "csrc" / name).read_text() + ("// changed" if name == file else "")

    return text


def test_the_compilers_folder_makes_no_other_libraries() -> None:
    elsewhere = Toolchain(*[Path("else") / p for p in "abcde"], ())
    assert digest_of("source", shop_in(NOWHERE)) == digest_of("source", shop_in(NOWHERE, elsewhere))


def test_a_file_in_place_of_the_folder_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(FileError, match="is a file, not a folder"):
        Shop.at(tmp_path / "file", "sm_90a", 1)


def test_sources_of_rows_serve_any_number_and_are_compiled_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(candidates, "tuned_kernel", lambda arch, key, **_: None)
    few_tiles = {"gqa": "mirage::tile::FewTiles<8, 128>::holds(*args)", "mla_decode": "return 0"}
    for recipe, says in few_tiles.items():
        compiler = Compiler()
        monkeypatch.setattr(libraries, "_ran", compiler)
        golden = load_record(GOLDEN / f"attention_{recipe}.json")
        kernel = compiled_kernel(candidates_of(golden, 3), shop_in(tmp_path), silent)
        for source in compiler.sources:
            assert source.count("using AnyRows =") == 1
            assert "UpTo" not in source
            assert says in source.partition("int mirage_candidate_few_tiles")[2]
        distinct = {b.digest for b in all_built(kernel)}
        assert len(compiler.sources) == len(distinct) <= len(all_built(kernel))


def test_a_source_of_rows_compiles(tmp_path: Path) -> None:
    found = candidates_of(load_record(GOLDEN / "attention_gqa.json"), 0)
    text = found.source(found.kernel.buckets[0].tried[0].knobs)
    made = compiled(text, tmp_path, "-cubin", "-arch=sm_90a", "-o", "kernel.cubin")
    assert made.returncode == 0, made.stderr


def test_libraries_of_changed_sources_are_removed(compile_with: Compile, tmp_path: Path) -> None:
    kernel = compile_with(Compiler())
    (tmp_path / f"{'0' * 20}.so").write_bytes(b"old")
    prune(shop_in(tmp_path), Section("sm_90a", {}, None, (kernel,)))
    left = {f.stem for f in tmp_path.glob("*.so")}
    assert left == {b.digest for b in all_built(kernel)} != set()


def test_nothing_but_libraries_is_removed(compile_with: Compile, tmp_path: Path) -> None:
    kept = [tmp_path / "measured.json", tmp_path / "mine.so", tmp_path / "notes.txt"]
    for file in kept:
        file.write_text("mine")
    prune(shop_in(tmp_path), Section("sm_90a", {}, None, ()))
    assert all(file.is_file() for file in kept)


def test_a_manifest_is_read_as_it_was_written(compile_with: Compile, tmp_path: Path) -> None:
    compiler = Compiler(ToolchainError("does not compile: error"))
    made = Section("sm_90a", {}, None, (compile_with(compiler),))
    write_file(tmp_path / "manifest.json", made)
    assert load_manifest(tmp_path) == made


def test_a_folder_without_a_manifest_is_an_error_with_the_command(tmp_path: Path) -> None:
    with pytest.raises(FileError) as raised:
        load_manifest(tmp_path)
    assert "tune --compile" in raised.value.hint


@pytest.mark.skipif(
    find_nvcc() is None or not (ROOT / "csrc").is_dir(), reason="needs nvcc and the sources"
)
def test_a_candidate_compiles_with_nvcc(record: KernelRecord, tmp_path: Path) -> None:
    shop = Shop.at(tmp_path, "sm_90a", 1)
    found = candidates_of(record, 1)
    rule = found.kernel.buckets[0].tried[0].knobs
    built = compiled_candidate(found.source, rule, shop)
    assert built.failed == ""
    assert (tmp_path / f"{built.digest}.so").stat().st_size > 1000
