"""A tuning's measurements: each once, whatever crashes or interrupts; then the same choice."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pretended_tuning import HERE, MakeTuning, Pretended, compiled, knobs, of_lines, of_plans

from mirage_kernels.generator.errors import FileError, MirageError, ToolchainError
from mirage_kernels.generator.request import Event
from mirage_kernels.generator.schedules.loop import producers_of
from mirage_kernels.generator.schedules.schedule import Knobs
from mirage_kernels.generator.tuning.catalog import Tried, Tuned, read, written
from mirage_kernels.generator.tuning.session import Tuning

# Per bucket the peers, three candidates that are equally fast, each by default, too; beyond, peers
# and the choice.
QUESTIONS = 2 * (1 + 3 + 3) + 2


def silent(event: Event) -> None:
    """Show no progress."""


def measured(tuning: Tuning) -> Tuned:
    tuning.measure(silent)
    return tuning.section().kernels[0]


def choices(kernel: Tuned) -> dict[int, Knobs]:
    return {b.size: b.chosen[0].knobs for b in kernel.buckets}


def test_everything_is_asked_once(tuning: MakeTuning) -> None:
    measurer = Pretended()
    tuning(measurer).measure(silent)
    asked = [json.dumps(q) for q in measurer.asked]
    assert len(asked) == len(set(asked)) == QUESTIONS


def test_the_last_bucket_s_choice_is_measured_above_it(tuning: MakeTuning) -> None:
    measurer = Pretended(times={"c64.so@64": 15.0})
    tuning(measurer).measure(silent)
    beyond = [q["library"] for q in measurer.asked if q["at"] == "M=128" and "library" in q]
    assert beyond == ["c64.so"]


def test_the_choice_is_measured_without_assumptions_too(tuning: MakeTuning) -> None:
    measurer = Pretended(times={"b8.so@8": 12.0, "b8.so@8 by default": 14.0})
    bucket = measured(tuning(measurer)).buckets[0]
    assert bucket.best is not None
    assert (bucket.best.assumed_us, bucket.best.us) == ((12.0,), (14.0,))


def test_an_interrupted_tuning_asks_for_the_rest_and_chooses_the_same(tuning: MakeTuning) -> None:
    times = {"b8.so@8": 12.0, "c64.so@64": 15.0}
    before, after = Pretended(times=times, stops_after=3), Pretended(times=times)
    with pytest.raises(KeyboardInterrupt):
        tuning(before).measure(silent)
    assert choices(measured(tuning(after))) == {8: knobs(8, 32), 64: knobs(64, 48)}
    asked = [json.dumps(q) for q in (*before.asked, *after.asked)]
    assert len(asked) == len(set(asked))


def test_the_results_are_whole_after_every_answer(tuning: MakeTuning, tmp_path: Path) -> None:
    for stops_after in range(1, 4):
        (tmp_path / "measured.json").unlink(missing_ok=True)
        with pytest.raises(KeyboardInterrupt):
            tuning(Pretended(stops_after=stops_after)).measure(silent)
        kept = json.loads((tmp_path / "measured.json").read_text())
        assert len(kept.get("outcomes", ())) + len(kept["peers"]) == stops_after


def test_a_crash_costs_one_candidate_which_is_not_tried_again(tuning: MakeTuning) -> None:
    kernel = measured(tuning(Pretended(fails={"a8.so@8": "the process died: SIGSEGV"})))
    tried = kernel.buckets[0].tried
    assert [t.failed for t in tried] == ["the process died: SIGSEGV", "", ""]
    assert choices(kernel)[8] == knobs(8, 32)
    again = Pretended()
    tuning(again).measure(silent)
    assert again.asked == []


def test_a_candidate_that_did_not_compile_is_not_measured(tuning: MakeTuning) -> None:
    measurer = Pretended()
    kernel = measured(tuning(measurer, compiled("a")))
    assert "a8.so" not in {q.get("library") for q in measurer.asked}
    assert kernel.buckets[0].tried[0].failed == "spills 8 bytes"


def test_where_nothing_could_be_measured_there_is_no_section(tuning: MakeTuning) -> None:
    made = tuning(Pretended(), compiled("a", "b", "c"))
    made.measure(silent)
    with pytest.raises(ToolchainError, match="no candidate could be measured"):
        made.section()


@pytest.mark.parametrize(("us", "most"), [(40.0, 64), (20.0, 128)])
def test_a_kernel_behind_pytorch_above_the_buckets_leaves_that_to_the_library(
    tuning: MakeTuning, us: float, most: int
) -> None:
    measurer = Pretended(times={"a64.so@128 by default": us})
    assert measured(tuning(measurer)).max_tokens == most


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
    times = {f"{c}{m}.so@{m}": m + i for m in (8, 64) for i, c in enumerate("abc")}
    made = tuning(Pretended(times=times))
    made.measure(silent)
    section = made.section()
    assert section.kernels[0].buckets[0].correlation == 1.0
    assert section.correlation is not None
    assert section.correlation > 0.8  # the buckets spread differently


def test_the_fastest_plan_is_chosen_and_the_times_of_every_plan_kept(tuning: MakeTuning) -> None:
    kernel = measured(tuning(Pretended(times={"b64.so@64": 15.0}), of_plans()))
    assert [b.chosen[0].knobs.label for b in kernel.buckets] == ["sliced_k", "register_operand"]
    assert kernel.buckets[1].plans == {
        "register_operand": 15.0,
        "sliced_k": 20.0,
        "sliced_k, producer blocks": 20.0,
        "register_operand, producer blocks": 20,
    }


def test_all_variants_of_a_kernel_compute_something_apart_or_none(tuning: MakeTuning) -> None:
    times = {"c8.so@8": 10.0, "d64.so@64": 18.0, "b64.so@64": 15.0}
    kernel = measured(tuning(Pretended(times=times), of_plans()))
    assert choices(kernel) == {
        m: k.knobs for m, k in zip((8, 64), picked("c8", "d64"), strict=True)
    }


def picked(*names: str) -> list[Tried]:
    found = {b.digest: b for bucket in of_plans().buckets for b in bucket.tried}
    return [found[name] for name in names]


def test_what_has_no_time_in_some_bucket_is_not_chosen_for_a_kernel(tuning: MakeTuning) -> None:
    times = {"c8.so@8": 2.0, "d8.so@8": 2.0}
    fails = {f"{name}64.so@64": "the launch failed" for name in "cd"}
    kernel = measured(tuning(Pretended(times=times, fails=fails), of_plans()))
    assert {producers_of(b.chosen[0].knobs) for b in kernel.buckets} == {None}


def test_nothing_is_measured_above_where_pytorch_is_faster(tuning: MakeTuning) -> None:
    measurer = Pretended(times={"a64.so@128 by default": 40.0})
    kernel = measured(tuning(measurer, of_plans((128, 256))))
    assert {q["at"] for q in measurer.asked} == {"M=8", "M=64", "M=128"}
    assert kernel.max_tokens == 64


def test_lines_serve_any_number_of_tokens_or_what_is_below_where_they_are_behind(
    tuning: MakeTuning, tmp_path: Path
) -> None:
    kernel = measured(tuning(Pretended(times={"b64.so@64": 15.0}), of_lines()))
    assert kernel.max_tokens == 0
    assert kernel.buckets[0].chosen[0].knobs.warps == 8
    assert [b.tokens for b in kernel.beyond] == [8, 128, 4096]
    (tmp_path / "measured.json").unlink()
    measurer = Pretended(times={"a64.so@4096 by default": 40.0})
    assert measured(tuning(measurer, of_lines())).max_tokens == 128
