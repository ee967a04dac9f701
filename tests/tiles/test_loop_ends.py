"""Loops that begin and end where conditions say: which do, and that no more is read."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import numpy as np
import pytest
from tiled_forms import programs

from mirage_kernels.generator.errors import PlanError
from mirage_kernels.generator.ir import DType, Graph
from mirage_kernels.generator.tiles import program as tile_programs
from mirage_kernels.generator.tiles.block_run import BlockRun
from mirage_kernels.generator.tiles.check import compare, drawn
from mirage_kernels.generator.tiles.cuda import KernelWriter
from mirage_kernels.generator.tiles.interpret import Interpreter
from mirage_kernels.generator.tiles.loop_ends import LoopEnd, loop_ends
from mirage_kernels.generator.tiles.program import BlockProgram

ENDS = {  # of a form: whether each bound is where its loop begins
    "gqa": [False],
    "gqa_full": [False, True],
    "mla_decode": [False],
    "sliding_window_attention": [False, True],
    "layer_norm_linear": [],
}


def looping(form: str) -> BlockProgram:
    """The program of a form that loops."""
    return next(p for p in programs(form)[1] if p.space.loop)


@pytest.mark.parametrize("form", ENDS)
def test_conditions_on_places_of_the_loop_end_it(form: str) -> None:
    assert sorted(end.begins for end in looping(form).ends) == ENDS[form]


def with_numbers(body: Graph, old: float, new: float) -> Graph:
    """A block graph with another number in place of one."""
    nodes = (replace(n, value=new) if n.op == "const" and n.value == old else n for n in body.nodes)
    return replace(body, nodes=tuple(nodes))


@pytest.mark.parametrize(("old", "new"), [(-inf, -50.0), (0.0, 1.0)])
def test_what_is_not_hidden_whole_needs_all_steps(old: float, new: float) -> None:
    program = looping("gqa")
    assert program.ends
    assert not loop_ends(with_numbers(program.body, old, new), program.iotas)


def test_what_lies_behind_the_last_length_is_not_read() -> None:
    graph, own, sizes = programs("gqa")
    rng = np.random.default_rng(0)
    inputs = {name: np.asarray(x.parts[0]) for name, x in drawn(graph, sizes, rng).items()}
    tensors = {name: x.astype(np.float64) for name, x in inputs.items()}
    tensors |= {n.name: np.arange(sizes[n.over], dtype=np.float64) for n in graph.of("iota")}
    lengths = next(n.name for n in graph.inputs if n.name in graph.whole)
    tile = next(p.space.loop.tile for p in own if p.space.loop)
    tensors[lengths] = np.minimum(tensors[lengths], tile)
    wanted = Interpreter(graph, sizes).run(own, tensors)
    for name in ("k", "v"):
        behind = np.arange(sizes["L"]) >= tile
        along = [-1 if d == "L" else 1 for d in graph.values[name].type.names]
        tensors[name] = np.where(behind.reshape(along), np.nan, tensors[name])
    found = Interpreter(graph, sizes).run(own, tensors)
    assert all(np.array_equal(found[o], wanted[o]) for o in graph.outputs)
    assert all(np.isfinite(found[o]).all() for o in graph.outputs)


@pytest.mark.parametrize("form", ["gqa", "sliding_window_attention"])
def test_a_wrong_end_is_seen(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    right = loop_ends

    def swapped(body: Graph, iotas: frozenset[str]) -> tuple[LoopEnd, ...]:
        return tuple(replace(end, low=end.high, high=end.low) for end in right(body, iotas))

    graph, own, sizes = programs(form)
    compare(graph, own, sizes)
    monkeypatch.setattr(tile_programs, "loop_ends", swapped)
    with pytest.raises(PlanError):
        compare(graph, [replace(p) for p in own], sizes)


@pytest.mark.parametrize("form", ["gqa", "sliding_window_attention"])
def test_blocks_that_share_a_loop_share_what_is_seen(
    form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph, own, sizes = programs(form)
    taken = dict[frozenset[tuple[str, int]], list[int]]()  # steps of blocks, by those that share
    right = BlockRun.steps

    def noted(run: BlockRun) -> range:
        turns, steps = run.program.turns, right(run)
        assert turns is not None
        others = frozenset((name, i) for name, i in run.block.at.items() if name != turns.name)
        taken.setdefault(others, []).append(len(steps))
        return steps

    monkeypatch.setattr(BlockRun, "steps", noted)
    compare(graph, own, sizes)
    assert all(len(steps) > 1 for steps in taken.values())
    assert all(max(steps) - min(steps) <= 1 for steps in taken.values())
    assert len({sum(steps) for steps in taken.values()}) > 1  # lengths differ


def written(program: BlockProgram) -> str:
    """The kernel of a program, its lines as one."""
    return " ".join(" ".join(KernelWriter(program, "it", DType.FP16).text()).split())


def test_the_kernel_s_loop_ends_so() -> None:
    text = written(looping("sliding_window_attention"))
    blocks = "((args.L + args.v_tile - 1) / args.v_tile)"
    assert f"int steps = steps_to(((args.L + 16 - 1) / 16) - v_index, {blocks});" in text
    assert f"steps = min(steps, steps_to(seen, {blocks} * 16));" in text
    assert f"first = max(first, steps_before({blocks} * 16 - 15 - seen, {blocks} * 16));" in text
    assert "for (int step = first; step < steps; ++step)" in text


def test_a_loop_of_one_block_or_one_piece_ends_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BlockProgram, "turns", None)
    text = written(looping("sliding_window_attention"))
    assert "steps = min(steps, steps_to(seen, 16));" in text
    assert "first = max(first, steps_before(1 - seen, 16));" in text
