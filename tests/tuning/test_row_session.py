"""Kernels over query rows: each once, whatever fails or interrupts; then the same choice."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from pretended_rows import KEY, OTHER, RULE, THIRD, WIDE, PretendedRows, built, compiled

from mirage_kernels.generator.errors import ToolchainError
from mirage_kernels.generator.tuning.calls import bucket_of, dense_calls, workloads_of
from mirage_kernels.generator.tuning.catalog import Tuned
from mirage_kernels.generator.tuning.keys import Key
from mirage_kernels.generator.tuning.knobs import attention_knobs, values_of
from mirage_kernels.generator.tuning.manifest import Candidates, Compiled, Manifest, load_manifest
from mirage_kernels.generator.tuning.results import load_results
from mirage_kernels.generator.tuning.session import Tuning

OTHER_GRAPH = (built("second", WIDE),)
KERNELS = (
    KEY,
    Key("qk_norm_attention", "bf16", {"D": 64}),
    Key("sliding_window_attention", "fp16", {"D": 256}),
    Key("gqa_full", "fp16", {"D": 64}),
    Key("mla_decode", "fp16", {"C": 512, "P": 64}),
)
each_kernel = pytest.mark.parametrize("key", KERNELS, ids=[k.name for k in KERNELS])


def tuning(folder: Path, measurer: PretendedRows, kernel: Compiled | None = None) -> Tuning:
    manifest = Manifest("sm_90a", "mirage-kernels tune", (kernel or compiled(),))
    return Tuning(manifest, load_results(folder / "measured.json"), measurer, "tune")


def measured(made: Tuning) -> Tuned:
    made.measure(lambda event: None)
    (kernel,) = made.section().kernels
    return kernel


@each_kernel
def test_workloads_have_names_of_their_own_and_few_to_many_rows(key: Key) -> None:
    found = workloads_of(key)
    assert len({n.name for n in found}) == len(found)
    assert {n.call.recipe for n in found} == {key.recipe}
    assert all(n.call.kernel_dims == key.shape for n in found)
    assert {bucket_of(n.rows, (8, 16)) for n in found} >= {16, 0}
    assert {n.call.sequences for n in found} >= {1, 8}


def test_dense_calls_are_compared_where_a_recipe_serves_them() -> None:
    assert {n.call.tokens for n in dense_calls(KEY)} >= {16, 128, 1024}
    assert dense_calls(KERNELS[1]) == ()
    causal = dense_calls(KERNELS[2])
    assert {n.call.longest == n.call.tokens for n in causal} == {True, False}


def test_everything_is_asked_once(tmp_path: Path) -> None:
    measurer = PretendedRows()
    kernel = measured(tuning(tmp_path, measurer))
    questions = [json.dumps(q) for q in measurer.asked]
    few = [n for n in workloads_of(KEY) if n.rows <= 8]
    many = [n for n in workloads_of(KEY) if n.rows > 8]
    expected = len(few) * (1 + 2 * 3) + len(many) * (1 + 2 * 2) + 2 * len(dense_calls(KEY))
    assert len(questions) == len(set(questions)) == expected
    assert [b.size for b in kernel.buckets] == [8, 0]
    assert [len(b.calls) for b in kernel.buckets] == [len(few), len(many)]


def test_an_interrupted_tuning_goes_on_where_it_was(tmp_path: Path) -> None:
    measurer = PretendedRows(stops_after=20)
    with pytest.raises(KeyboardInterrupt):
        measured(tuning(tmp_path, measurer))
    again = PretendedRows()
    measured(tuning(tmp_path, again))
    questions = [json.dumps(q) for q in (*measurer.asked, *again.asked)]
    assert len(questions) == len(set(questions)) > 20


def test_calls_of_few_tiles_have_a_choice_of_their_own(tmp_path: Path) -> None:
    times = {("large", "B=1 "): 15.0, ("short", "B=8 "): 10.0, ("short", "B=64 "): 10.0}
    bucket = measured(tuning(tmp_path, PretendedRows(times))).buckets[0]
    chosen = {few: bucket.choice(few=few) for few in (True, False)}
    assert {few: attention_knobs(c.knobs) for few, c in chosen.items() if c} == {
        True: OTHER,
        False: THIRD,
    }
    assert [w.few_tiles for w in bucket.calls] == [w.name.startswith("B=1 ") for w in bucket.calls]


def test_where_nothing_is_faster_the_rules_choices_stay(tmp_path: Path) -> None:
    few, many = measured(tuning(tmp_path, PretendedRows())).buckets
    assert {c.few_tiles: attention_knobs(c.knobs) for c in few.chosen} == {False: RULE, True: OTHER}
    assert [attention_knobs(c.knobs) for c in many.chosen] == [WIDE]


def test_a_candidate_that_fails_once_is_not_asked_again(tmp_path: Path) -> None:
    measurer = PretendedRows(fails={"large": "no answer within 30 s"})
    kernel = measured(tuning(tmp_path, measurer))
    assert sum(q.get("library") == "large.so" for q in measurer.asked) == 1
    (failed,) = (t for t in kernel.buckets[0].tried if t.failed)
    assert (attention_knobs(failed.knobs), failed.failed) == (OTHER, "no answer within 30 s")


def test_what_does_not_compile_is_not_asked(tmp_path: Path) -> None:
    measurer = PretendedRows()
    kernel = measured(tuning(tmp_path, measurer, compiled("spills 8 bytes")))
    assert not any(q.get("library") == "short.so" for q in measurer.asked)
    assert [t.failed for t in kernel.buckets[0].tried] == ["", "", "spills 8 bytes"]


def test_where_all_fail_there_is_no_catalog(tmp_path: Path) -> None:
    fails = dict.fromkeys(("usual", "large", "short", "wide"), "wrong")
    with pytest.raises(ToolchainError, match="no candidate could be measured"):
        measured(tuning(tmp_path, PretendedRows(fails=fails)))


def test_dense_calls_are_measured_with_the_choice_for_many_rows(tmp_path: Path) -> None:
    measurer = PretendedRows({("usual", "B="): 5.0})
    kernel = measured(tuning(tmp_path, measurer))
    names = {n.name for n in dense_calls(KEY)}
    asked = {q["library"] for q in measurer.asked if q["call"] in names and "library" in q}
    assert asked == {"usual.so"}
    assert {(d.default_us, d.library_us) for d in kernel.beyond} == {(5.0, 9.0)}
    assert kernel.beyond[0].peers == {"SDPA flash": 8.0}


def test_buckets_measured_in_part_are_left(tmp_path: Path) -> None:
    measurer = PretendedRows(stops_after=6)
    with pytest.raises(KeyboardInterrupt):
        measured(tuning(tmp_path, measurer))
    assert tuning(tmp_path, PretendedRows()).whole().manifest.kernels == ()
    few = sum(n.rows <= 8 for n in workloads_of(KEY))
    with pytest.raises(KeyboardInterrupt):
        measured(tuning(tmp_path, PretendedRows(stops_after=7 * few - 6)))
    made = tuning(tmp_path, PretendedRows())
    assert made.whole().manifest.kernels == (compiled(),)
    (kernel,) = made.whole().section().kernels
    assert [b.size for b in kernel.buckets] == [8]


def test_the_manifest_is_read_as_it_was_written(tmp_path: Path) -> None:
    manifest = Manifest("sm_90a", "tune", (compiled("spills 8 bytes"),))
    manifest.write(tmp_path)
    assert load_manifest(tmp_path) == manifest
    assert manifest.without({KEY.name}).names == set()


def test_the_same_measurements_are_read_again(tmp_path: Path) -> None:
    made = tuning(tmp_path, PretendedRows())
    first = measured(made)
    known = load_results(tmp_path / "measured.json")
    assert known == made.results
    assert measured(tuning(tmp_path, PretendedRows(stops_after=0))) == first


def test_mugraphs_are_compared_at_all_workloads_by_the_rules_variants(tmp_path: Path) -> None:
    other = replace(
        compiled(), mugraph="second", buckets=(Candidates(0, OTHER_GRAPH, values_of(WIDE)),)
    )
    kernel = replace(compiled(), mugraphs=(other,))
    measurer = PretendedRows({("second", "B="): 15.0})
    made = measured(tuning(tmp_path, measurer, kernel))
    assert [(g.name, g.ratio) for g in made.mugraphs] == [("first", 2.0), ("second", 1.5)]
    assert made.mugraph == "second"
    asked = [q["call"] for q in measurer.asked if q.get("library") == "second.so"]
    assert asked == [n.name for n in workloads_of(KEY) for _ in range(2)]


def test_a_mugraph_that_fails_is_not_chosen(tmp_path: Path) -> None:
    other = replace(
        compiled(), mugraph="second", buckets=(Candidates(0, OTHER_GRAPH, values_of(WIDE)),)
    )
    measurer = PretendedRows(fails={"second": "wrong"})
    made = measured(tuning(tmp_path, measurer, replace(compiled(), mugraphs=(other,))))
    assert (made.mugraph, made.mugraphs[1].ratio) == ("first", None)
