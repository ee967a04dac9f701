"""Compiling candidates for calls over a cache: each once, whatever buckets it stands in."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from test_libraries import TOOLS, Compiler

from mirage_kernels.generator.records.record import KernelRecord, load_record
from mirage_kernels.generator.request import Event
from mirage_kernels.generator.tuning import libraries, sources
from mirage_kernels.generator.tuning.libraries import Shop, Wanted, compiled_kernel, prune
from mirage_kernels.generator.tuning.manifest import Compiled, Manifest

GOLDEN = Path(__file__).parents[1] / "golden"
Compile = Callable[..., Compiled]


def silent(event: Event) -> None:
    """Show no progress."""


@pytest.fixture
def compile_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Compile:
    monkeypatch.setattr(sources, "tuned_kernel", lambda arch, key, **_: None)

    def run(compiler: Compiler, recipe: str = "gqa") -> Compiled:
        monkeypatch.setattr(libraries, "_ran", compiler)
        record = load_record(GOLDEN / f"attention_{recipe}.json")
        assert isinstance(record, KernelRecord)
        return compiled_kernel(record, Shop(tmp_path, TOOLS, 1), Wanted(3), silent)

    return run


def test_every_source_has_one_variant_that_serves_any_number_of_rows(
    compile_with: Compile,
) -> None:
    compiler = Compiler()
    kernel = compile_with(compiler)
    for source in compiler.sources:
        assert source.count("struct AnyRows : Shape {") == 1
        assert "UpTo" not in source
        assert "return tile::has_few_work_tiles" not in source
        assert "mirage::tile::has_few_work_tiles<8, 128>(*args)" in source
    distinct = {b.digest for bucket in kernel.buckets for b in bucket.built}
    assert len(compiler.sources) == len(distinct)
    assert sum(len(bucket.built) for bucket in kernel.buckets) > len(distinct)


def test_a_kernel_without_a_variant_for_few_tiles_says_no(compile_with: Compile) -> None:
    compiler = Compiler()
    compile_with(compiler, "mla_decode")
    assert all("has_few_work_tiles" not in source for source in compiler.sources)
    assert all("int mirage_candidate_few_tiles" in source for source in compiler.sources)


def test_libraries_of_the_manifest_are_kept(compile_with: Compile, tmp_path: Path) -> None:
    kernel = compile_with(Compiler())
    shop = Shop(tmp_path, TOOLS, 1)
    prune(shop, Manifest("sm_90a", "", (kernel,)))
    assert len(list(tmp_path.glob("*.so"))) > 5
    prune(shop, Manifest("sm_90a", "", ()))
    assert list(tmp_path.glob("*.so")) == []
