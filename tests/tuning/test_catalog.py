"""The catalog: it round-trips, a new tuning replaces what it measured, `generate` takes from it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from pretended import KEY as ROWS_KEY
from pretended import OTHER as LARGE
from pretended import POINTS, RULE, WIDE, dense, tried
from pretended import TOKENS_KEY as KEY

from mirage_kernels.generator import pipeline
from mirage_kernels.generator.build.compile import ROOT
from mirage_kernels.generator.errors import FileError, PlanError
from mirage_kernels.generator.ir import DType, Graph
from mirage_kernels.generator.plan.lower import tile_program
from mirage_kernels.generator.plan.program import TileProgram
from mirage_kernels.generator.records.record import KernelRecord, load_record
from mirage_kernels.generator.records.sources import files_of, plan_of, table_of
from mirage_kernels.generator.schedules import RANKED
from mirage_kernels.generator.schedules.choose import by_size, programs_of, untuned, variants
from mirage_kernels.generator.schedules.loop import producers_of
from mirage_kernels.generator.schedules.register_operand import RegisterOperand
from mirage_kernels.generator.schedules.row_wise import COMPARED_AT, RowWise
from mirage_kernels.generator.schedules.schedule import Knobs
from mirage_kernels.generator.schedules.sliced_k import SlicedK
from mirage_kernels.generator.target import target
from mirage_kernels.generator.tuning import catalog as catalog_module
from mirage_kernels.generator.tuning import variants as variants_module
from mirage_kernels.generator.tuning.catalog import (
    Beyond,
    Bucket,
    Catalog,
    Chosen,
    Key,
    Point,
    Section,
    Tried,
    TriedForm,
    Tuned,
    load_catalog,
    read,
    tuned_kernel,
    write_catalog,
    written,
)
from mirage_kernels.generator.tuning.variants import chosen_variants

Programs = tuple[TileProgram, ...]
OTHER = replace(KEY, dtype="bf16")
KNOBS = SlicedK(16, 16, 8, 1, 2)
ON = target("sm_90a")


def tuned(key: Key = KEY, knobs: SlicedK = KNOBS) -> Tuned:
    crashed = Tried(knobs, 12.0, failed="the process died: SIGSEGV")
    bucket = bucket_of(knobs.tokens, knobs, Tried(knobs, 11.5, (11.5,), (10.25,)), crashed)
    return Tuned(key, (bucket,), 128, (Beyond(128, 15.0, 20.0),))


def bucket_of(tokens: int, knobs: Knobs, *tries: Tried) -> Bucket:
    return Bucket(tokens, (Chosen(knobs, 1.1),), (Point(f"M={tokens}", 9.0, 20.0),), tries)


def of_rows(key: Key = ROWS_KEY) -> Tuned:
    """Return a kernel measured at several calls, with everything that such a one may have."""
    few = (tried(RULE, 10, 20, 40), tried(LARGE, 11, 21, 41), Tried(WIDE, failed="hung"))
    rows = Bucket(8, (Chosen(RULE, 1.05, 1.05),), POINTS, few)
    many = Bucket(0, (Chosen(WIDE, 1.5),), POINTS[:1], (tried(WIDE, 15),))
    forms = (TriedForm("first", 1.2), TriedForm("second", None))
    return Tuned(key, (rows, many), dense=(dense(128, 9, 10),), form="first", forms=forms)


def section(*kernels: Tuned, arch: str = "sm_90a", gpu: str = "NVIDIA H200") -> Section:
    return Section(arch, {"gpu": gpu, "date": "2026-11-21"}, 0.75, kernels or (tuned(),))


@pytest.mark.parametrize("made", [Catalog(), Catalog((section(tuned(), of_rows()),))])
def test_a_catalog_is_read_as_it_was_written(tmp_path: Path, made: Catalog) -> None:
    file = tmp_path / "catalog.json"
    assert load_catalog(file) == Catalog()
    write_catalog(file, made)
    assert load_catalog(file) == made


@pytest.mark.parametrize("text", ["", "[]", '{"sections": [{}]}', '{"sections": 3}'])
def test_another_file_is_no_catalog(tmp_path: Path, text: str) -> None:
    file = tmp_path / "catalog.json"
    file.write_text(text)
    with pytest.raises(FileError, match="is not a catalog"):
        load_catalog(file)


def test_a_new_tuning_replaces_what_it_measured_and_keeps_the_rest() -> None:
    old = Catalog((section(tuned(KEY), tuned(OTHER)),))
    made = old.with_section(section(tuned(KEY, replace(KNOBS, stages=3)), gpu="another"))
    assert [[k.key for k in s.kernels] for s in made.sections] == [[OTHER], [KEY]]
    (found,) = (k for k in made.of("sm_90a") if k.key == KEY)
    assert found.buckets[0].chosen[0].knobs.stages == 3
    made = Catalog((section(),)).with_section(section(gpu="another"))
    assert [s.measured["gpu"] for s in made.sections] == ["another"]
    made = Catalog((section(),)).with_section(section(arch="sm_80"))
    assert [s.arch for s in made.sections] == ["sm_90a", "sm_80"]


def test_what_is_left_of_a_tuning_has_a_correlation_of_its_own() -> None:
    kernels = []
    for key, times in ((KEY, (1.0, 2.0, 3.0)), (OTHER, (3.0, 2.0, 1.0))):
        tries = (Tried(KNOBS, i, assumed_us=(us,)) for i, us in enumerate(times, 1))
        kernels.append(Tuned(key, (bucket_of(KNOBS.tokens, KNOBS, *tries),), 64))
    old = Catalog((replace(section(*kernels), correlation=0.0),))
    left, new = old.with_section(section(tuned(KEY))).sections
    assert (left.correlation, new.correlation) == (-1.0, 0.75)


def test_a_kernel_is_found_by_architecture_and_shape_and_perhaps_of_the_other_type(
    tmp_path: Path,
) -> None:
    path, brain = tmp_path / "catalog.json", replace(ROWS_KEY, dtype="bf16")
    write_catalog(path, Catalog((section(of_rows()),)))
    assert tuned_kernel("sm_90a", ROWS_KEY, path=path) == of_rows()
    assert tuned_kernel("sm_80", ROWS_KEY, path=path) is None
    assert tuned_kernel("sm_90a", replace(ROWS_KEY, shape={"D": 64}), path=path) is None
    assert tuned_kernel("sm_90a", brain, path=path, of_any_type=True) == of_rows()
    assert tuned_kernel("sm_90a", brain, path=path) is None
    part = replace(of_rows(brain), buckets=of_rows().buckets[:1], dense=())
    write_catalog(path, Catalog((section(of_rows(), part),)))
    assert tuned_kernel("sm_90a", ROWS_KEY, path=path) == of_rows()
    whole = tuned_kernel("sm_90a", brain, path=path, of_any_type=True)
    assert whole == replace(part, buckets=of_rows().buckets)
    more = replace(tuned(), buckets=(*tuned().buckets, bucket_of(128, KNOBS)), max_tokens=128)
    brain = replace(KEY, dtype="bf16")
    write_catalog(path, Catalog((section(more, replace(tuned(brain), max_tokens=64)),)))
    known = tuned_kernel("sm_90a", brain, path=path, of_any_type=True)
    assert known is not None
    assert ([b.size for b in known.buckets], known.max_tokens) == ([KNOBS.tokens, 128], 128)


# -- variants --------------------------------------------------------------------------------------


@pytest.fixture
def program(fused: Callable[..., Graph]) -> Programs:
    return (tile_program("rms_norm_linear", fused()),)


def test_a_tuned_bucket_has_the_measured_knobs_and_the_others_the_rules(program: Programs) -> None:
    rule = variants(program[0], ON)
    assert chosen_variants(program, ON, None) == rule
    chosen = {v.bucket: v.knobs for v in chosen_variants(program, ON, tuned())}
    assert chosen == {v.bucket: v.knobs for v in rule} | {16: KNOBS}


def test_a_kernel_that_holds_fewer_buckets_has_variants_for_those(
    program: Programs, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = variants(program[0], ON)[:2]
    few = {8: first, 16: replace(second, bucket=0)}
    monkeypatch.setattr(variants_module, "by_size", lambda *_, **__: few)
    chosen = chosen_variants(program, ON, tuned())
    assert [(v.bucket, v.knobs) for v in chosen] == [(8, first.knobs), (0, KNOBS)]


@pytest.mark.parametrize("most", [64, 96, 128])
def test_many_tokens_have_a_variant_where_a_kernel_serves_them(most: int) -> None:
    programs, rule = of_kernel("gated_mlp/K4096_N4096")
    many = by_size(programs[0], ON, many=True)[128].knobs
    made = replace(measured({64: rule[-1], 128: many}, rule[-1], many), max_tokens=most)
    found = chosen_variants(programs, ON, made)
    assert [v.bucket for v in found] == [8, 16, 32, *([64] if most > 64 else []), 0]
    assert found[-1].knobs == (many if most > 64 else rule[-1])


def test_buckets_never_measured_have_what_a_kernel_never_tuned_has() -> None:
    programs, rule = of_kernel("rms_norm_linear/K8192_N1280")
    found = chosen_variants(programs, ON, measured({8: replace(rule[0], stages=4)}, rule[0]))
    assert [v.knobs for v in found[1:]] == [v.knobs for v in untuned(programs[0], ON)[1:]]
    assert found[0].knobs == replace(rule[0], stages=4)


def test_measured_knobs_that_no_longer_fit_are_an_error(program: Programs) -> None:
    with pytest.raises(PlanError, match="do not fit the kernel of today") as raised:
        chosen_variants(program, ON, tuned(knobs=replace(KNOBS, rows=512)))
    assert "mirage-kernels tune" in raised.value.hint


def test_knobs_of_a_schedule_that_does_not_fit_the_program_are_passed_over() -> None:
    programs, rule = of_kernel("gated_mlp/K4096_N4096")
    rows = RowWise(8, 2)
    assert RANKED[rows.schedule].fits(programs[0], ON)
    made = chosen_variants(programs, ON, measured({8: rows, 64: rule[-1]}, rule[0], rule[-1]))
    assert [v.knobs for v in made] == rule


def kernel(name: str) -> KernelRecord:
    """Return the record of a committed kernel."""
    return load_record(ROOT / "kernels" / "sm_90a" / f"{name}_fp16.json")


def of_kernel(name: str) -> tuple[Programs, list[Knobs]]:
    """Return the programs of a committed kernel, and the rule's choice for every bucket."""
    record = kernel(name)
    programs = programs_of(record.recipe, record.graph, "sm_90a")
    return programs, [v.knobs for v in variants(programs[0], ON)]


def measured(chosen: dict[int, Knobs], *others: Knobs) -> Tuned:
    """Return a kernel with a choice for buckets, after others were tried too."""
    tries = tuple(Tried(k, 10.0, assumed_us=(9.0,)) for k in others)
    buckets = (bucket_of(m, k, Tried(k, 9.0, assumed_us=(8.0,)), *tries) for m, k in chosen.items())
    return Tuned(KEY, tuple(buckets), 64)


def test_a_measured_schedule_takes_the_place_of_the_rule_s_if_that_was_measured_too() -> None:
    programs, rule = of_kernel("gated_mlp/K4096_N4096")
    sliced = SlicedK(64, 32, 8, 1, 3)
    assert rule[-1].label == "register_operand"
    assert chosen_variants(programs, ON, measured({64: sliced}, rule[-1]))[-1].knobs == sliced
    assert chosen_variants(programs, ON, measured({64: sliced}))[-1].knobs == rule[-1]


def without_producers(knobs: Knobs) -> Knobs:
    assert isinstance(knobs, SlicedK | RegisterOperand)
    return replace(knobs, producers=None)


def test_all_variants_follow_a_choice_without_producer_blocks() -> None:
    programs, rule = of_kernel("lora_linear/K4096_N4096_R64")
    own = without_producers(rule[0])
    chosen = chosen_variants(programs, ON, measured({8: own}, rule[0]))
    others = untuned(programs[1], ON)[1:]  # buckets never measured
    assert [v.knobs for v in chosen] == [own, *(v.knobs for v in others)]
    assert not any(producers_of(v.knobs) for v in chosen)


def test_a_bucket_whose_choice_does_not_go_with_the_others_keeps_the_rule() -> None:
    programs, rule = of_kernel("lora_linear/K4096_N4096_R64")
    chosen = {8: replace(rule[0], stages=3), 16: without_producers(rule[1])}
    made = chosen_variants(programs, ON, measured(chosen, *rule[:2]))
    assert [v.knobs for v in made] == [chosen[8], *rule[1:]]


def test_a_record_without_producer_blocks_is_emitted_so() -> None:
    record = kernel("lora_linear/K4096_N4096_R16")
    programs, _ = of_kernel("lora_linear/K4096_N4096_R16")
    own = tuple(replace(v, knobs=without_producers(v.knobs)) for v in variants(programs[1], ON))
    texts = files_of(replace(record, variants=own))
    assert "forms/lora_linear/producers.cuh" not in texts
    assert "_workspace" not in texts[record.path.replace(".json", ".cu")]


def test_rows_have_the_choice_of_their_one_bucket() -> None:
    programs, rule = of_kernel("ntrans/K4096")
    other = RowWise(8, 2)
    chosen = chosen_variants(programs, ON, measured({COMPARED_AT: other}, rule[0]))
    assert [(v.bucket, v.knobs) for v in chosen] == [(0, other)]


def test_a_bucket_says_what_every_schedule_takes() -> None:
    held = RegisterOperand(64, 32, 6, groups=2)
    made = measured({64: held}, SlicedK(64, 32, 8, 1, 3), SlicedK(64, 32, 8, 1, 2)).buckets[0]
    assert made.plans == {"register_operand": 8.0, "sliced_k": 9.0}
    assert read(Bucket, written(made)) == made


def test_generate_takes_from_the_catalog_and_a_committed_record_does_not_depend_on_it(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    golden_record: Callable[[DType], KernelRecord],
) -> None:
    file, record = tmp_path / "catalog.json", golden_record(DType.FP16)
    monkeypatch.setattr(catalog_module, "committed_path", lambda: file)
    before = table_of("sm_90a", [record])
    write_catalog(file, Catalog((section(),)))
    assert table_of("sm_90a", [record]) == before
    about = {n: getattr(record, n) for n in pipeline.About.__dataclass_fields__}
    made = plan_of(record).record(pipeline.About(**about), record.graph)
    assert {v.bucket: v.knobs for v in made.variants}[16] == KNOBS
    assert made.max_tokens == 128


def test_a_catalog_that_is_named_goes_before_the_packages(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    golden_record: Callable[[DType], KernelRecord],
) -> None:
    record, files = golden_record(DType.FP16), [tmp_path / "ours.json", tmp_path / "named.json"]
    monkeypatch.setattr(catalog_module, "committed_path", lambda: files[0])
    for file, knobs in zip(files, (KNOBS, replace(KNOBS, stages=3)), strict=True):
        write_catalog(file, Catalog((section(tuned(knobs=knobs)),)))
    about = pipeline.About(**{n: getattr(record, n) for n in pipeline.About.__dataclass_fields__})
    for catalogs, stages in (((), 2), ((files[1],), 3), ((tmp_path / "others.json",), 2)):
        made = plan_of(record).record(about, record.graph, catalogs)
        assert {v.bucket: v.knobs for v in made.variants}[16] == replace(KNOBS, stages=stages)
