"""A tuning's measurements: each once, whatever crashes or interrupts; then the same choice."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from pretended import (
    HERE,
    KEY,
    OTHER,
    RULE,
    THIRD,
    WIDE,
    MakeTuning,
    Pretended,
    knobs,
    of_calls,
    of_rows,
    of_schedules,
    of_tokens,
)

from mirage_kernels.generator.bench.workloads import lists
from mirage_kernels.generator.bench.workloads.cache import CacheWorkload
from mirage_kernels.generator.errors import FileError, MirageError, ToolchainError
from mirage_kernels.generator.ir.dtypes import DType
from mirage_kernels.generator.request import Event
from mirage_kernels.generator.schedules.loop import producers_of
from mirage_kernels.generator.schedules.schedule import Knobs
from mirage_kernels.generator.tuning.catalog import Bucket, Key, Tried, Tuned, read, written
from mirage_kernels.generator.tuning.measurements import bucket_of
from mirage_kernels.generator.tuning.session import Tuning

KERNELS = (
    KEY,
    Key("qk_norm_attention", "bf16", {"D": 64}),
    Key("sliding_window_attention", "fp16", {"D": 256}),
    Key("gqa_full", "fp16", {"D": 64}),
    Key("mla_decode", "fp16", {"C": 512, "P": 64}),
)


def silent(event: Event) -> None:
    """Show no progress."""


def measured(tuning: Tuning) -> Tuned:
    tuning.measure(silent)
    (kernel,) = tuning.section().kernels
    return kernel


def choices(kernel: Tuned) -> dict[int, Knobs]:
    return {b.size: b.chosen[0].knobs for b in kernel.buckets}


def named_calls(key: Key = KEY) -> dict[str, CacheWorkload]:
    return lists.kernel_calls(key.recipe, DType(key.dtype), key.shape)


def dense_calls(key: Key = KEY) -> list[CacheWorkload]:
    return list(lists.dense_calls(key.recipe, DType(key.dtype), key.shape).values())


def questions(kernel: Tuned) -> int:
    """Return how many there are if all candidates are equally fast."""
    if kernel.dim:  # of each bucket the peers, three candidates both ways; the choice above
        return 2 * (1 + 3 + 3) + 2
    few = sum(w.rows <= 8 for w in named_calls().values())
    return few * (1 + 2 * 3) + (len(named_calls()) - few) * (1 + 2 * 2) + 2 * len(dense_calls())


@pytest.mark.parametrize("kernel", [of_tokens(), of_calls()], ids=["tokens", "calls"])
def test_everything_is_asked_once_also_after_an_interrupt(
    tuning: MakeTuning, kernel: Tuned, tmp_path: Path
) -> None:
    for stops_after in (1, 2, 3, 10):
        (tmp_path / "measured.json").unlink(missing_ok=True)
        before, after = Pretended(stops_after=stops_after), Pretended()
        with pytest.raises(KeyboardInterrupt):
            tuning(before, kernel).measure(silent)
        kept = json.loads((tmp_path / "measured.json").read_text())
        assert len(kept.get("outcomes", ())) + len(kept["peers"]) == stops_after
        tuning(after, kernel).measure(silent)
        asked = [json.dumps(q) for q in (*before.asked, *after.asked)]
        assert len(asked) == len(set(asked)) == questions(kernel)


def test_an_interrupted_tuning_chooses_the_same(tuning: MakeTuning) -> None:
    times = {"b8@M=8": 12.0, "c64@M=64": 15.0}
    with pytest.raises(KeyboardInterrupt):
        tuning(Pretended(times=times, stops_after=3)).measure(silent)
    measurer = Pretended(times=times)
    assert choices(measured(tuning(measurer))) == {8: knobs(8, 32), 64: knobs(64, 48)}
    beyond = [q["library"] for q in measurer.asked if q["at"] == "M=128" and "library" in q]
    assert beyond == ["c64.so"]


def test_the_choice_is_measured_without_assumptions_too(tuning: MakeTuning) -> None:
    measurer = Pretended(times={"b8@M=8": 12.0, "b8@M=8 by default": 14.0})
    bucket = measured(tuning(measurer)).buckets[0]
    assert bucket.best is not None
    assert (bucket.best.assumed_us, bucket.best.us) == ((12.0,), (14.0,))


def test_a_crash_costs_one_candidate_which_is_not_tried_again(tuning: MakeTuning) -> None:
    kernel = measured(tuning(Pretended(fails={"a8@M=8": "the process died: SIGSEGV"})))
    tried = kernel.buckets[0].tried
    assert [t.failed for t in tried] == ["the process died: SIGSEGV", "", ""]
    assert choices(kernel)[8] == knobs(8, 32)
    again = Pretended()
    tuning(again).measure(silent)
    assert again.asked == []


def test_a_candidate_that_did_not_compile_is_not_measured(tuning: MakeTuning) -> None:
    measurer = Pretended()
    kernel = measured(tuning(measurer, of_tokens("a")))
    assert "a8.so" not in {q.get("library") for q in measurer.asked}
    assert kernel.buckets[0].tried[0].failed == "spills 8 bytes"


def test_where_nothing_could_be_measured_there_is_no_section(tuning: MakeTuning) -> None:
    made = tuning(Pretended(), of_tokens("a", "b", "c"))
    made.measure(silent)
    with pytest.raises(ToolchainError, match="no candidate could be measured"):
        made.section()


def test_a_kernel_is_compared_with_what_would_run_in_its_place(tuning: MakeTuning) -> None:
    kernel = measured(tuning(Pretended(library_us=19.9)))
    assert kernel.max_tokens == 64  # 20 us: at a bucket that is noise, above it is not
    points = (b.points[0] for b in kernel.buckets)
    assert [p.library_us for p in (*points, *kernel.beyond)] == [19.9, 19.9, 19.9]
    assert read(Tuned, written(kernel)) == kernel


def test_measurements_of_two_gpus_do_not_mix(tuning: MakeTuning) -> None:
    with pytest.raises(KeyboardInterrupt):
        tuning(Pretended(stops_after=3)).measure(silent)
    with pytest.raises(FileError, match="begun with gpu pretended, this is another"):
        tuning(Pretended(here=HERE | {"gpu": "another"})).measure(silent)


def test_pytorch_s_own_failure_ends_the_tuning_with_a_sentence(tuning: MakeTuning) -> None:
    class Broken(Pretended):
        def ask(self, question, *, seconds):  # type: ignore[no-untyped-def]
            answer = super().ask(question, seconds=seconds)
            return answer if "environment" in answer else {"failed": "out of memory"}

    with pytest.raises(MirageError, match="at M=8: out of memory"):
        tuning(Broken()).measure(silent)


def test_the_overall_correlation_compares_within_buckets(tuning: MakeTuning) -> None:
    times = {f"{c}{m}@M={m}": m + i for m in (8, 64) for i, c in enumerate("abc")}
    made = tuning(Pretended(times=times))
    made.measure(silent)
    section = made.section()
    assert section.kernels[0].buckets[0].correlation == 1.0
    assert section.correlation is not None
    assert section.correlation > 0.8  # the buckets spread differently


# -- schedules -------------------------------------------------------------------------------------


def test_the_fastest_schedule_is_chosen_and_the_times_of_all_kept(tuning: MakeTuning) -> None:
    kernel = measured(tuning(Pretended(times={"b64@M=64": 15.0}), of_schedules()))
    assert [b.chosen[0].knobs.label for b in kernel.buckets] == ["sliced_k", "register_operand"]
    assert kernel.buckets[1].plans == {
        "register_operand": 15.0,
        "sliced_k": 20.0,
        "sliced_k, producer blocks": 20.0,
        "register_operand, producer blocks": 20,
    }


def test_all_variants_of_a_kernel_have_producer_blocks_or_none(tuning: MakeTuning) -> None:
    times = {"c8@M=8": 10.0, "d64@M=64": 18.0, "b64@M=64": 15.0}
    kernel = measured(tuning(Pretended(times=times), of_schedules()))
    few, many = (bucket.tried for bucket in of_schedules().buckets)
    assert choices(kernel) == {8: few[2].knobs, 64: many[3].knobs}


def test_what_has_no_time_in_some_bucket_is_not_chosen_for_a_kernel(tuning: MakeTuning) -> None:
    times = {"c8@M=8": 2.0, "d8@M=8": 2.0}
    fails = {f"{name}64@M=64": "the launch failed" for name in "cd"}
    kernel = measured(tuning(Pretended(times=times, fails=fails), of_schedules()))
    assert {producers_of(b.chosen[0].knobs) for b in kernel.buckets} == {None}


def test_nothing_is_measured_above_where_pytorch_is_faster(tuning: MakeTuning) -> None:
    measurer = Pretended(times={"a64@M=128 by default": 40.0})
    kernel = measured(tuning(measurer, of_schedules((128, 256))))
    assert {q["at"] for q in measurer.asked} == {"M=8", "M=64", "M=128"}
    assert kernel.max_tokens == 64


def test_rows_serve_any_number_of_tokens_or_what_is_below_where_they_are_behind(
    tuning: MakeTuning, tmp_path: Path
) -> None:
    kernel = measured(tuning(Pretended(times={"b64@M=64": 15.0}), of_rows()))
    assert kernel.max_tokens == 0
    assert kernel.buckets[0].chosen[0].knobs.warps == 8
    assert [b.tokens for b in kernel.beyond] == [8, 128, 4096]
    (tmp_path / "measured.json").unlink()
    measurer = Pretended(times={"a64@M=4096 by default": 40.0})
    assert measured(tuning(measurer, of_rows())).max_tokens == 128


# -- several calls of a bucket ---------------------------------------------------------------------


@pytest.mark.parametrize("key", KERNELS, ids=[k.name for k in KERNELS])
def test_calls_have_few_to_many_rows(key: Key) -> None:
    found = list(named_calls(key).values())
    assert all((w.recipe, w.kernel_dims) == (key.recipe, key.shape) for w in found)
    assert {bucket_of(w.rows, [8, 16]) for w in found} >= {16, 0}
    assert {w.sequences for w in found} >= {1, 8}


def test_dense_calls_are_compared_where_a_recipe_serves_them() -> None:
    assert {w.tokens for w in dense_calls()} >= {16, 128, 1024}
    assert not any(w.is_causal for w in dense_calls())
    assert dense_calls(KERNELS[1]) == []
    causal = dense_calls(KERNELS[2])
    assert {w.longest == w.tokens for w in causal} == {True, False}


def test_calls_of_few_tiles_have_a_choice_of_their_own(tuning: MakeTuning) -> None:
    times = {"large@B=1 ": 15.0, "short@B=8 ": 10.0, "short@B=64 ": 10.0}
    bucket = measured(tuning(Pretended(times), of_calls())).buckets[0]
    assert {c.few_tiles: c.knobs for c in bucket.chosen} == {True: OTHER, False: THIRD}
    assert all(p.few_tiles == p.name.startswith("B=1 ") for p in bucket.points)


def test_where_nothing_is_faster_the_rules_choices_stay(tuning: MakeTuning) -> None:
    few, many = measured(tuning(Pretended(), of_calls())).buckets
    assert {c.few_tiles: c.knobs for c in few.chosen} == {False: RULE, True: OTHER}
    assert [c.knobs for c in many.chosen] == [WIDE]
    assert (few.size, many.size) == (8, 0)


def test_a_candidate_that_fails_at_a_call_is_not_asked_again(tuning: MakeTuning) -> None:
    measurer = Pretended(fails={"large": "no answer within 30 s"})
    kernel = measured(tuning(measurer, of_calls()))
    assert sum(q.get("library") == "large.so" for q in measurer.asked) == 1
    (failed,) = (t for t in kernel.buckets[0].tried if t.failed)
    assert (failed.knobs, failed.failed) == (OTHER, "no answer within 30 s")


def test_dense_calls_are_measured_with_the_choice_for_many_rows(tuning: MakeTuning) -> None:
    measurer = Pretended({"usual@B=": 5.0})
    kernel = measured(tuning(measurer, of_calls()))
    above = [q for q in measurer.asked if "heads" not in str(q["at"]) and "library" in q]
    assert {q["library"] for q in above} == {"usual.so"}
    assert {d.served_by for d in kernel.dense} == {"SDPA"}
    assert kernel.dense[0].peers == {"SDPA flash": 8.0}


def test_buckets_measured_in_part_are_left(tuning: MakeTuning) -> None:
    few = sum(w.rows <= 8 for w in named_calls().values())
    for stops_after, kernels in ((6, ()), (7 * few - 6, (of_calls(),))):
        with pytest.raises(KeyboardInterrupt):
            measured(tuning(Pretended(stops_after=stops_after), of_calls()))
        made = tuning(Pretended(), of_calls()).whole()
        assert made.manifest.kernels == kernels
    assert [b.size for b in made.section().kernels[0].buckets] == [8]


def test_mugraphs_are_compared_at_all_calls_by_the_rules_variants(
    tuning: MakeTuning, tmp_path: Path
) -> None:
    second = Bucket(0, tried=(Tried(WIDE, digest="second"),))
    other = replace(of_calls(), form="second", buckets=(second,))
    kernel = replace(of_calls(), others=(other,))
    measurer = Pretended({"second@B=": 15.0})
    made = measured(tuning(measurer, kernel))
    assert [(f.form, f.ratio) for f in made.forms] == [("first", 2.0), ("second", 1.5)]
    assert made.form == "second"
    asked = [q["at"] for q in measurer.asked if q.get("library") == "second.so"]
    assert list(dict.fromkeys(asked)) == list(named_calls())
    (tmp_path / "measured.json").unlink()
    made = measured(tuning(Pretended(fails={"second": "wrong"}), kernel))
    assert (made.form, made.forms[1].ratio) == ("first", None)
