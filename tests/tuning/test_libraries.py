"""Compiling candidates: one variant per source, each once; a failure costs one candidate."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from compilers import compiled
from pretended import REPORT

from mirage_kernels.generator.build.compile import ROOT
from mirage_kernels.generator.build.toolchain import Toolchain, find_nvcc
from mirage_kernels.generator.errors import FileError, ToolchainError
from mirage_kernels.generator.ir import DType
from mirage_kernels.generator.records.record import KernelRecord, load_record
from mirage_kernels.generator.schedules.loop import BUCKETS
from mirage_kernels.generator.tuning import candidates, libraries
from mirage_kernels.generator.tuning.candidates import candidates_of
from mirage_kernels.generator.tuning.catalog import (
    Section,
    Tried,
    Tuned,
    load_manifest,
    write_file,
)
from mirage_kernels.generator.tuning.libraries import (
    Shop,
    compiled_candidate,
    compiled_kernel,
    digest_of,
    prune,
)

GOLDEN = Path(__file__).parents[1] / "golden"
NOWHERE = Path("nowhere")
ERROR = ToolchainError("does not compile: error")


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


Compile = Callable[..., Tuned]


@pytest.fixture
def record(golden_record: Callable[[DType], KernelRecord]) -> KernelRecord:
    return golden_record(DType.FP16)


@pytest.fixture
def compile_with(tmp_path: Path, record: KernelRecord, monkeypatch: pytest.MonkeyPatch) -> Compile:
    def run(compiler: Compiler, of: KernelRecord = record, top: int = 1) -> Tuned:
        monkeypatch.setattr(libraries, "_ran", compiler)
        return compiled_kernel(candidates_of(of, top), shop_in(tmp_path), lambda event: None)

    return run


def shop_in(folder: Path, tools: str = "tools") -> Shop:
    paths = [Path(tools) / name for name in ("nvcc", "g++", "a", "b", "c")]
    return Shop(folder, "sm_90a", Toolchain(*paths, ()), 1)


def every(kernel: Tuned) -> list[Tried]:
    return [t for bucket in kernel.buckets for t in bucket.tried]


def test_every_bucket_has_candidates_and_every_source_one_variant(compile_with: Compile) -> None:
    compiler = Compiler()
    assert tuple(b.size for b in compile_with(compiler).buckets) == BUCKETS
    assert {len(re.findall(r"^using \w+M =", s, re.MULTILINE)) for s in compiler.sources} == {1}


@pytest.mark.parametrize(
    ("answer", "failed"),
    [(ERROR, ERROR.sentence), (REPORT.format(spilled=4), "spills 8 bytes")],
)
def test_a_failure_costs_one_candidate_and_nothing_is_compiled_twice(
    compile_with: Compile, tmp_path: Path, answer: str | ToolchainError, failed: str
) -> None:
    first, again = compile_with(Compiler(answer)), Compiler()
    assert [t.failed for t in every(first) if t.failed] == [failed]
    assert compile_with(again) == first
    assert again.sources == []
    made = Section("sm_90a", {"command": "tune"}, None, (first,))
    write_file(tmp_path / "manifest.json", made)
    assert load_manifest(tmp_path) == made


def test_a_change_of_the_device_vocabulary_makes_other_libraries(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def changed(name: str) -> str:
        text = (ROOT / "csrc" / name).read_text()
        return text + "// changed" if name == "tile/mma/wgmma.cuh" else text

    sources = ('#include "tile/register_operand/block.cuh"\n', "source")
    before, other = (digest_of(source, shop_in(NOWHERE)) for source in sources)
    monkeypatch.setattr(libraries, "_text", changed)
    assert digest_of(sources[0], shop_in(NOWHERE)) != before
    assert digest_of(sources[1], shop_in(NOWHERE)) == other  # it does not include that
    assert digest_of(sources[1], shop_in(NOWHERE, "elsewhere")) == other


def test_folders_that_cannot_be_are_errors(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(FileError, match="is a file, not a folder"):
        Shop.at(tmp_path / "file", "sm_90a", 1)
    with pytest.raises(FileError) as raised:
        load_manifest(tmp_path)
    assert "tune --compile" in raised.value.hint


@pytest.mark.parametrize(
    ("recipe", "says"),
    [("gqa", "mirage::tile::FewTiles<8, 128>::holds(*args)"), ("mla_decode", "return 0")],
)
def test_sources_of_rows_serve_any_number_and_are_compiled_once(
    compile_with: Compile, monkeypatch: pytest.MonkeyPatch, recipe: str, says: str
) -> None:
    monkeypatch.setattr(candidates, "tuned_kernel", lambda arch, key, **_: None)
    compiler = Compiler()
    kernel = compile_with(compiler, load_record(GOLDEN / f"attention_{recipe}.json"), 3)
    for source in compiler.sources:
        assert source.count("using AnyRows =") == 1
        assert "UpTo" not in source
        assert says in source.partition("int mirage_candidate_few_tiles")[2]
    distinct = {t.digest for t in every(kernel)}
    assert len(compiler.sources) == len(distinct) <= len(every(kernel))


def test_a_source_of_rows_compiles(tmp_path: Path) -> None:
    found = candidates_of(load_record(GOLDEN / "attention_gqa.json"), 0)
    text = found.source(found.kernel.buckets[0].tried[0].knobs)
    made = compiled(text, tmp_path, "-cubin", "-arch=sm_90a", "-o", "kernel.cubin")
    assert made.returncode == 0, made.stderr


def test_libraries_of_changed_sources_are_removed_and_nothing_else(
    compile_with: Compile, tmp_path: Path
) -> None:
    kept = [tmp_path / "measured.json", tmp_path / "notes.txt"]
    for file in (*kept, tmp_path / f"{'0' * 20}.so"):
        file.write_text("mine")
    kernel = compile_with(Compiler())
    prune(shop_in(tmp_path), Section("sm_90a", {}, None, (kernel,)))
    left = {f.stem for f in tmp_path.glob("*.so")}
    assert left == {t.digest for t in every(kernel)} != set()
    prune(shop_in(tmp_path), Section("sm_90a", {}, None, ()))
    assert sorted(tmp_path.iterdir()) == sorted(kept)


@pytest.mark.skipif(
    find_nvcc() is None or not (ROOT / "csrc").is_dir(), reason="needs nvcc and the sources"
)
def test_a_candidate_compiles_with_nvcc(record: KernelRecord, tmp_path: Path) -> None:
    found = candidates_of(record, 1)
    knobs, shop = found.kernel.buckets[0].tried[0].knobs, Shop.at(tmp_path, "sm_90a", 1)
    made = compiled_candidate(found.source, knobs, shop)
    assert made.failed == ""
    assert (tmp_path / f"{made.digest}.so").stat().st_size > 1000


def test_mugraphs_without_variants_by_query_rows_are_passed_over() -> None:
    record = load_record(GOLDEN / "attention_gqa.json")
    general = load_record(GOLDEN / "K72_N40_fp16.json").graph  # is planned in another way
    other = load_record(GOLDEN / "attention_qk_norm_attention.json").graph
    (form,) = candidates_of(record, 1, [general, record.graph, other]).others
    assert form.kernel.form != candidates_of(record, 0).kernel.form
