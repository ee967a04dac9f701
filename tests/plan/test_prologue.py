"""Tokens made in front: when, by which program, and what is left to follow."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from handmade_lines import mugraph

from mirage_kernels.generator.plan.lower import tile_program
from mirage_kernels.generator.plan.program import Do, Layout, TileProgram
from mirage_kernels.generator.records.record import About, KernelRecord, load_record
from mirage_kernels.generator.schedules import streaming
from mirage_kernels.generator.schedules.choose import predicted_us, variants
from mirage_kernels.generator.schedules.loop import prologue_warps
from mirage_kernels.generator.schedules.prologue import (
    has_prologue,
    main_program,
    prologue_program,
    prologue_statement,
)
from mirage_kernels.generator.schedules.register_operand import RegisterOperand, can_run
from mirage_kernels.generator.schedules.sliced_k import BUCKETS_WITH_STATISTICS
from mirage_kernels.generator.target import TARGETS, target
from mirage_kernels.generator.tuning.catalog import Key, tuned_kernel

KERNELS = Path(__file__).resolve().parents[2] / "kernels" / "sm_90a"
ON = target("sm_90a")
WIDE = "layer_norm_linear/K4096_N4096_fp16"


def recorded(name: str) -> TileProgram:
    record = load_record(KERNELS / f"{name}.json")
    assert isinstance(record, KernelRecord)
    return tile_program(record.recipe, record.graph)


@pytest.fixture(scope="module")
def program() -> TileProgram:
    return tile_program("layer_norm_linear", mugraph("layer_norm_linear"))


def test_no_order_of_the_inputs_matters(program: TileProgram) -> None:
    vectors_first = replace(
        program, inputs=tuple(sorted(program.inputs, key=lambda o: len(o.type.dims)))
    )
    last = program.inputs[-1]
    rows = replace(last, name="bias", type=replace(last.type, dims=(last.type.dim("N"),)))
    first = replace(vectors_first, inputs=(rows, *vectors_first.inputs))
    assert variants(first, ON) == variants(program, ON)


def test_what_a_loop_makes_of_tokens_alone_may_be_made_in_front(program: TileProgram) -> None:
    made = prologue_statement(program)
    assert made is not None
    (product,) = (s for s in program.loop if s.do is Do.CONTRACT)
    assert product.args[1] == made.out
    assert has_prologue(program, ON)
    first, *rest = program.epilogue  # but not what the epilogue needs
    reads = replace(first, args=(*first.args, "root_kept"))
    assert prologue_statement(replace(program, epilogue=(reads, *rest))) is None


@pytest.mark.parametrize(
    "name",
    [
        "rms_norm_linear/K4096_N4096_fp16",  # weights are scaled, sums of tokens meet
        "rms_norm_linear_residual/K3584_N4608_fp16",
        "gated_mlp/K4096_N4096_fp16",  # nothing is made of tokens
        "lora_linear/K4096_N4096_R16_fp16",
        "ntrans/K4096_fp16",
    ],
)
def test_other_loops_keep_their_tokens(name: str) -> None:
    program = recorded(name)
    assert prologue_statement(program) is None
    assert not has_prologue(program, ON)
    assert main_program(program) is program


@pytest.mark.parametrize("arch", sorted(set(TARGETS) - {"sm_90a"}))
def test_elsewhere_nothing_is_made_in_front(arch: str) -> None:
    graph = mugraph("layer_norm_linear")
    program = tile_program("layer_norm_linear", graph, arch)
    assert not has_prologue(program, target(arch))
    assert all(prologue_warps(v.knobs) == 0 for v in variants(program, target(arch)))


def test_the_launch_in_front_has_lines_alone(program: TileProgram) -> None:
    front = prologue_program(program)
    assert front.loop == front.reductions == front.epilogue == ()
    assert (front.roles.rows, front.roles.tokens, front.roles.depth) == ("", "M", "K")
    assert [o.name for o in front.inputs] == ["x", "norm_weight", "norm_bias"]
    assert (front.output.name, front.output.index) == ("x_made", 0)
    held = {s.layout for s in front.lines}
    assert held <= {Layout.LINE, Layout.LINE_VECTOR, Layout.TOKEN_SUMS, Layout.SCALAR}
    assert {s.do for s in front.lines} == {Do.LOAD, Do.MAP, Do.SUM, Do.STORE}
    known = {o.name for o in front.inputs} | {*front.scalars, *front.literals, front.output.name}
    for s in front.lines:
        assert set(s.args) <= known, s
        assert s.out not in known or s.do is Do.STORE
        known.add(s.out)
    loaded = [s.args[0] for s in front.lines if s.do is Do.LOAD]
    assert sorted(loaded) == ["norm_bias", "norm_weight", "x"]  # each once


def test_what_follows_only_multiplies(program: TileProgram) -> None:
    rest = main_program(program)
    assert can_run(rest)
    assert not can_run(program)
    assert [o.name for o in rest.inputs] == ["x_made", "weight"]
    assert rest.inputs[0].index == next(o.index for o in program.inputs if o.name == "x")
    assert rest.lines == ()
    assert rest.epilogue == program.epilogue


def test_from_9_tokens_on_they_are_made_in_front() -> None:
    program = recorded(WIDE)
    found = {v.knobs.tokens: v.knobs.label for v in variants(program, ON)}
    pairs = dict.fromkeys((16, 32, 64), "register_operand in pairs, prologue")
    assert found == {8: "sliced_k"} | pairs
    short = tile_program("layer_norm_linear", mugraph("layer_norm_linear"))  # for boxes
    few = {v.knobs.tokens: v.knobs.label for v in variants(short, ON)}
    assert few == dict.fromkeys(BUCKETS_WITH_STATISTICS, "sliced_k")


def test_they_are_predicted_to_pay_for_the_launch_in_front() -> None:
    program = recorded(WIDE)
    knobs = variants(program, ON)[-1].knobs
    assert isinstance(knobs, RegisterOperand)
    alone = predicted_us(main_program(program), replace(knobs, prologue_warps=0), 64, ON)
    assert alone < predicted_us(program, knobs, 64, ON) < alone + 3


def test_what_was_measured_without_them_does_not_limit_the_tokens_served(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    record = load_record(KERNELS / f"{WIDE}.json")
    assert isinstance(record, KernelRecord)
    key = Key(record.recipe, record.dtype, record.shape)
    tuned = tuned_kernel(record.arch, key)
    assert tuned is not None
    few = tuple(b for b in tuned.buckets if b.size <= max(BUCKETS_WITH_STATISTICS))
    before = replace(tuned, buckets=few, max_tokens=32)
    monkeypatch.setattr(streaming, "tuned_kernel", lambda arch, key: before)
    about = {n: getattr(record, n) for n in About.__dataclass_fields__}
    assert streaming.planned(About(**about), record.graph).max_tokens == 64
