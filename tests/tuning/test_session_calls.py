"""Measurements at several calls: each once, whatever fails or interrupts; then the same choice."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from pretended_calls import KEY, OTHER, RULE, THIRD, WIDE, PretendedCalls, built, compiled

from mirage_kernels.generator.bench.workloads import lists
from mirage_kernels.generator.bench.workloads.cache import CacheWorkload
from mirage_kernels.generator.ir.dtypes import DType
from mirage_kernels.generator.tuning.catalog import (
    Bucket,
    Key,
    Section,
    Tuned,
    load_manifest,
    write_file,
)
from mirage_kernels.generator.tuning.measurements import Results, bucket_of
from mirage_kernels.generator.tuning.session import Tuning

OTHER_FORM = (built("second", WIDE),)
KERNELS = (
    KEY,
    Key("qk_norm_attention", "bf16", {"D": 64}),
    Key("sliding_window_attention", "fp16", {"D": 256}),
    Key("gqa_full", "fp16", {"D": 64}),
    Key("mla_decode", "fp16", {"C": 512, "P": 64}),
)
each_kernel = pytest.mark.parametrize("key", KERNELS, ids=[k.name for k in KERNELS])


def named_calls(key: Key) -> dict[str, CacheWorkload]:
    return lists.kernel_calls(key.recipe, DType(key.dtype), key.shape)


def dense_calls(key: Key) -> list[CacheWorkload]:
    return list(lists.dense_calls(key.recipe, DType(key.dtype), key.shape).values())


def tuning(folder: Path, measurer: PretendedCalls, kernel: Tuned | None = None) -> Tuning:
    manifest = Section("sm_90a", {}, None, (kernel or compiled(),))
    return Tuning(manifest, Results.at(folder / "measured.json"), measurer, "tune")


def measured(made: Tuning) -> Tuned:
    made.measure(lambda event: None)
    (kernel,) = made.section().kernels
    return kernel


@each_kernel
def test_workloads_have_few_to_many_rows(key: Key) -> None:
    found = list(named_calls(key).values())
    assert {w.recipe for w in found} == {key.recipe}
    assert all(w.kernel_dims == key.shape for w in found)
    assert {bucket_of(w.rows, [8, 16]) for w in found} >= {16, 0}
    assert {w.sequences for w in found} >= {1, 8}


def test_dense_calls_are_compared_where_a_recipe_serves_them() -> None:
    assert {w.tokens for w in dense_calls(KEY)} >= {16, 128, 1024}
    assert not any(w.is_causal for w in dense_calls(KEY))
    assert dense_calls(KERNELS[1]) == []
    causal = dense_calls(KERNELS[2])
    assert {w.longest == w.tokens for w in causal} == {True, False}


def test_everything_is_asked_once(tmp_path: Path) -> None:
    measurer = PretendedCalls()
    kernel = measured(tuning(tmp_path, measurer))
    questions = [json.dumps(q) for q in measurer.asked]
    few = [w for w in named_calls(KEY).values() if w.rows <= 8]
    many = [w for w in named_calls(KEY).values() if w.rows > 8]
    expected = len(few) * (1 + 2 * 3) + len(many) * (1 + 2 * 2) + 2 * len(dense_calls(KEY))
    assert len(questions) == len(set(questions)) == expected
    assert [b.size for b in kernel.buckets] == [8, 0]
    assert [len(b.points) for b in kernel.buckets] == [len(few), len(many)]


def test_an_interrupted_tuning_goes_on_where_it_was(tmp_path: Path) -> None:
    measurer = PretendedCalls(stops_after=20)
    with pytest.raises(KeyboardInterrupt):
        measured(tuning(tmp_path, measurer))
    again = PretendedCalls()
    measured(tuning(tmp_path, again))
    questions = [json.dumps(q) for q in (*measurer.asked, *again.asked)]
    assert len(questions) == len(set(questions)) > 20


def test_calls_of_few_tiles_have_a_choice_of_their_own(tmp_path: Path) -> None:
    times = {("large", "B=1 "): 15.0, ("short", "B=8 "): 10.0, ("short", "B=64 "): 10.0}
    bucket = measured(tuning(tmp_path, PretendedCalls(times))).buckets[0]
    chosen = {few: bucket.choice(few=few) for few in (True, False)}
    assert {few: c.knobs for few, c in chosen.items() if c} == {True: OTHER, False: THIRD}
    assert [p.few_tiles for p in bucket.points] == [
        p.name.startswith("B=1 ") for p in bucket.points
    ]


def test_where_nothing_is_faster_the_rules_choices_stay(tmp_path: Path) -> None:
    few, many = measured(tuning(tmp_path, PretendedCalls())).buckets
    assert {c.few_tiles: c.knobs for c in few.chosen} == {False: RULE, True: OTHER}
    assert [c.knobs for c in many.chosen] == [WIDE]


def test_a_candidate_that_fails_once_is_not_asked_again(tmp_path: Path) -> None:
    measurer = PretendedCalls(fails={"large": "no answer within 30 s"})
    kernel = measured(tuning(tmp_path, measurer))
    assert sum(q.get("library") == "large.so" for q in measurer.asked) == 1
    (failed,) = (t for t in kernel.buckets[0].tried if t.failed)
    assert (failed.knobs, failed.failed) == (OTHER, "no answer within 30 s")


def test_dense_calls_are_measured_with_the_choice_for_many_rows(tmp_path: Path) -> None:
    measurer = PretendedCalls({("usual", "B="): 5.0})
    kernel = measured(tuning(tmp_path, measurer))
    above = [q for q in measurer.asked if "heads" not in str(q["at"]) and "library" in q]
    assert {q["library"] for q in above} == {"usual.so"}
    assert {d.served_by for d in kernel.dense} == {"SDPA"}
    assert kernel.dense[0].peers == {"SDPA flash": 8.0}


def test_buckets_measured_in_part_are_left(tmp_path: Path) -> None:
    measurer = PretendedCalls(stops_after=6)
    with pytest.raises(KeyboardInterrupt):
        measured(tuning(tmp_path, measurer))
    assert tuning(tmp_path, PretendedCalls()).whole().manifest.kernels == ()
    few = sum(w.rows <= 8 for w in named_calls(KEY).values())
    with pytest.raises(KeyboardInterrupt):
        measured(tuning(tmp_path, PretendedCalls(stops_after=7 * few - 6)))
    made = tuning(tmp_path, PretendedCalls())
    assert made.whole().manifest.kernels == (compiled(),)
    (kernel,) = made.whole().section().kernels
    assert [b.size for b in kernel.buckets] == [8]


def test_the_manifest_is_read_as_it_was_written(tmp_path: Path) -> None:
    manifest = Section("sm_90a", {"command": "tune"}, None, (compiled("spills 8 bytes"),))
    write_file(tmp_path / "manifest.json", manifest)
    assert load_manifest(tmp_path) == manifest
    assert manifest.without({KEY.name}).names == set()


def test_mugraphs_are_compared_at_all_workloads_by_the_rules_variants(tmp_path: Path) -> None:
    other = replace(compiled(), form="second", buckets=(Bucket(0, tried=OTHER_FORM),))
    kernel = replace(compiled(), others=(other,))
    measurer = PretendedCalls({("second", "B="): 15.0})
    made = measured(tuning(tmp_path, measurer, kernel))
    assert [(f.form, f.ratio) for f in made.forms] == [("first", 2.0), ("second", 1.5)]
    assert made.form == "second"
    asked = [q["at"] for q in measurer.asked if q.get("library") == "second.so"]
    assert list(dict.fromkeys(asked)) == list(named_calls(KEY))


def test_a_mugraph_that_fails_is_not_chosen(tmp_path: Path) -> None:
    other = replace(compiled(), form="second", buckets=(Bucket(0, tried=OTHER_FORM),))
    measurer = PretendedCalls(fails={"second": "wrong"})
    made = measured(tuning(tmp_path, measurer, replace(compiled(), others=(other,))))
    assert (made.form, made.forms[1].ratio) == ("first", None)
