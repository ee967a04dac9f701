"""`bench` of attention: what it chooses, measures and writes; the GPU is stood in by the CPU."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

import mirage_kernels as library
from mirage_kernels import KernelEntry
from mirage_kernels.generator.bench import measure
from mirage_kernels.generator.bench.measure import Clock, Environment
from mirage_kernels.generator.bench.workloads.cache import (
    APPEND,
    DECODE,
    PREFILL,
    CacheWorkload,
)
from mirage_kernels.generator.bench.workloads.lists import (
    MIXED,
    PAPER,
    cache_workloads,
    mixed_lengths,
)
from mirage_kernels.generator.commands import bench
from mirage_kernels.generator.ir.dtypes import DType

HERE = Environment("NVIDIA H200", "580.1", "13.0", "2.11.0", "2026-01-01", "abc", "mirage-kernels")
FP16 = cache_workloads([DType.FP16])


def pretended_time(timed: Sequence[Callable[[], object]]) -> float:
    for call in timed:
        call()
    return 10.0 / len(timed)


CPU = Clock("cpu", pretended_time, floor=lambda _: 2.0, matrix=lambda _: 1e-9, sets=lambda _: 2)


def small(workload: CacheWorkload) -> CacheWorkload:
    """Return it with few keys and heads."""
    lengths = tuple(1 + length // 64 for length in workload.lengths[:5])
    tokens = max(1, workload.tokens // 64)
    heads = (8, 1) if workload.more else (8, 2)
    return replace(workload, lengths=lengths, heads=heads, depth=32, tokens=tokens)


@pytest.fixture
def pretended(monkeypatch: pytest.MonkeyPatch, workplace: Path) -> None:
    """The CPU as the GPU, kernels for D 32, and small sizes."""
    recipes = ("gqa", "qk_norm_attention", "qk_layer_norm_attention", "gqa_full")
    table = [KernelEntry(f"{r}/D32", "sm_90a", r, "fp16", {"D": 32}, 0, "") for r in recipes]
    latent = {"C": 32, "P": 64}
    table.append(KernelEntry("mla_decode/C32_P64", "sm_90a", "mla_decode", "fp16", latent, 0, ""))
    monkeypatch.setattr(library, "kernel_table", lambda: tuple(table))
    monkeypatch.setattr(bench, "_require_gpu", lambda: None)
    monkeypatch.setattr(measure, "environment", lambda **_: HERE)
    monkeypatch.setattr(measure, "gpu_clock", lambda: CPU)
    tiny = {(w.recipe, w.setting, w.page_size): small(w) for w in FP16}
    monkeypatch.setattr(bench, "cache_workloads", lambda _: list(tiny.values()))


ALL = ("bench", "--attention", "--m", "1,5", "--json", "rows.json")


def test_all_settings_are_measured_and_right(mirage_kernels, pretended, workplace: Path) -> None:
    outcome = mirage_kernels(*ALL)
    assert outcome.code == 0, outcome.err
    document = json.loads((workplace / "rows.json").read_text())
    assert set(document["environment"]) == set(vars(HERE))
    found = document["rows"]
    assert {row["setting"] for row in found} == {DECODE, MIXED, PAPER, APPEND, PREFILL}
    for row in found:
        assert row["setting"] in outcome.out
        assert row["error_ours"] < 1e-3
        assert row["error_eager"] < 5e-3


def test_fused_attention_of_pytorch_is_a_peer(mirage_kernels, pretended) -> None:
    outcome = mirage_kernels("bench", "gqa", "--m", "1,5", "--only", "page=16", "--json", "-")
    assert outcome.code == 0, outcome.err
    found = json.loads(outcome.out)["rows"]
    assert {row["setting"] for row in found} == {DECODE, MIXED, APPEND}
    for row in found:
        assert row["best_peer"] in row["peers"]
        assert row["best_peer"].startswith("SDPA flash")


def test_the_longer_of_both_floors_is_the_yardstick(mirage_kernels, pretended) -> None:
    words = ("bench", "--attention", "--m", "1,5", "--only", "prefill", "--json", "-")
    (row,) = json.loads(mirage_kernels(*words).out)["rows"]
    assert row["floor_us"] == 2.0
    assert row["ratio"] == row["ours_us"] / max(2.0, row["compute_us"])


def test_a_recipe_without_listed_calls_gets_usual_ones(
    mirage_kernels, pretended, monkeypatch: pytest.MonkeyPatch
) -> None:
    def few(*asked: object) -> list[CacheWorkload]:
        return [replace(w, lengths=(70, 70)) for w in usual(*asked)]

    usual = bench.usual
    monkeypatch.setattr(bench, "usual", few)
    outcome = mirage_kernels("bench", "gqa_full", "--shape", "D=32", "--m", "2", "--json", "-")
    assert outcome.code == 0, outcome.err
    (row,) = json.loads(outcome.out)["rows"]
    assert row["dims"] | {"D": 32, "B": 2, "L": 70} == row["dims"]
    assert row["best_peer"] == ""
    assert row["best_peer_us"] is None


@pytest.mark.parametrize("measured", [0, 2])
def test_ctrl_c_keeps_what_was_measured(
    mirage_kernels, pretended, monkeypatch: pytest.MonkeyPatch, workplace: Path, measured: int
) -> None:
    every = measure.rows

    def stopped(*asked: Any, **options: Any) -> Iterator[object]:
        yield from islice(every(*asked, **options), measured)
        raise KeyboardInterrupt

    monkeypatch.setattr(measure, "rows", stopped)
    outcome = mirage_kernels(*ALL)
    if not measured:
        assert outcome.code == 130
        assert not (workplace / "rows.json").exists()
        return
    assert outcome.code == 0
    assert f"stopped: {measured} of" in outcome.out
    assert len(json.loads((workplace / "rows.json").read_text())["rows"]) == measured


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("gqa", "--shape", "D=72"), "no compiled kernel for gqa D72 fp16"),
        (("sliding_window_attention",), "nothing compiled to measure for sliding_window_attention"),
        (("--attention", "--only", "no such"), "nothing compiled to measure named no such"),
        (("--attention", "--compile"), "--compile is not for attention"),
        (("rms_norm_linear", "--attention"), "rms_norm_linear is no attention"),
        (("--only", "B=1"), "--only chooses among workloads of attention"),
    ],
)
def test_what_cannot_be_measured_is_refused(
    mirage_kernels, pretended, words: tuple[str, ...], sentence: str
) -> None:
    outcome = mirage_kernels("bench", *words)
    assert outcome.code == 2
    assert sentence in outcome.err
    assert "Traceback" not in outcome.err


def test_names_tell_workloads_apart() -> None:
    names = [w.name for w in cache_workloads([DType.FP16, DType.BF16])]
    assert len(names) == len(set(names))


def test_mixed_lengths_have_a_long_tail() -> None:
    lengths = mixed_lengths()
    assert (len(lengths), min(lengths), max(lengths)) == (64, 1, 16384)
    assert sorted(lengths)[32] < 200
    assert list(lengths) != sorted(lengths)


def test_bytes_are_those_of_keys_and_values() -> None:
    (long,) = (w for w in FP16 if w.setting == DECODE and "B=64 L=4096 page=16" in w.name)
    assert long.bytes_read == 2 * 64 * 4096 * 8 * 128 * 2
    assert replace(long, window_left=99).bytes_read == 2 * 64 * 100 * 8 * 128 * 2
