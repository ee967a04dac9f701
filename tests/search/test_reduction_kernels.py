"""Split sums whose parts a kernel of its own joins: proved, safe, and right as tile programs."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from differs import refused
from small import Small, drawn, proved_programs

from mirage_kernels.generator.ir import (
    MOST_PARTS,
    Dim,
    DType,
    Graph,
    Space,
    numbered,
    parts_of,
    retile,
)
from mirage_kernels.generator.language import amax, contract, exp, log, sum
from mirage_kernels.generator.meaning.arrays import array_reading
from mirage_kernels.generator.meaning.reals import FLOAT64
from mirage_kernels.generator.meaning.walk import results
from mirage_kernels.generator.schedules.general.reduction_kernels import with_reduction_kernels
from mirage_kernels.generator.search.cases import small_cases
from mirage_kernels.generator.search.lower import lower
from mirage_kernels.generator.search.sketch import Limits
from mirage_kernels.generator.search.stabilise import stabilise
from mirage_kernels.generator.search.superoptimizer import goal_of
from mirage_kernels.generator.search.verify import LOG2_WANTED, Prover
from mirage_kernels.generator.tiles.check import compare, shortened
from mirage_kernels.generator.tiles.lower import block_programs
from mirage_kernels.generator.tiles.triton import emit_triton

HUGE = 1e4  # e to this power is beyond float64
SIZES = {"M": 3, "L": 11, "N": 2}
TILES = {"M": 2, "N": 2, "L": 2, parts_of("L"): 4}

PROGRAMS = {
    "a sum": Small({"x": "ML"}, lambda x: sum(x, "L")),
    "a maximum": Small({"x": "ML"}, lambda x: amax(x, "L")),
    "a product": Small({"x": "ML", "y": "NL"}, lambda x, y: contract(x, y, "L")),
    "attention": Small(
        {"x": "ML", "v": "LN"}, lambda x, v: contract(exp(x), v, "L") / sum(exp(x), "L")
    ),
    "with a gate": Small(
        {"x": "ML", "v": "LN", "g": "MN"},
        lambda x, v, g: contract(exp(x), v, "L") / sum(exp(x), "L") * g,
    ),
    "log of a sum of exp": Small({"x": "ML"}, lambda x: log(sum(exp(x), "L"))),
}


@cache
def split(name: str) -> Graph:
    """Return a muGraph whose blocks loop over parts and combine them in a cluster."""
    spec = PROGRAMS[name].spec()
    goal = goal_of(spec, DType.FP16)
    found = (lower(p, goal) for p in proved_programs(spec, Limits(block_ops=14, kernels=1)))
    wanted = "combine_rescaled" if spec.of("exp") else "combine"
    safe = (stabilise(graph, DType.FP16) for graph in found)
    return next(g for g in safe if g.spaces[0].loop and any(wanted in op for op in ops(g)))


def ops(graph: Graph) -> set[str]:
    return {n.op for block in graph.blocks if block.body for n in block.body.nodes}


def apart(name: str) -> Graph:
    graph = with_reduction_kernels(split(name), DType.FP16)
    assert graph is not None
    return graph


@pytest.mark.parametrize("name", PROGRAMS)
def test_two_kernels_are_proved_as_the_cluster_is(name: str) -> None:
    graph, spec = apart(name), PROGRAMS[name].spec()
    assert len(graph.blocks) == 2
    assert not any("combine" in op for op in ops(graph))
    assert with_reduction_kernels(graph, DType.FP16) is None
    proof = Prover(spec).prove(graph, small_cases(spec), seed=1)
    assert proof.log2_failure <= LOG2_WANTED


@pytest.mark.parametrize("name", PROGRAMS)
def test_their_tile_programs_are_right(name: str) -> None:
    short, sizes = shortened(retile(apart(name), {"L": 32, parts_of("L"): 64}))
    compare(short, block_programs(short, 64, 3), sizes)


@pytest.mark.parametrize("name", ["attention", "with a gate", "log of a sum of exp"])
def test_parts_are_relative_to_peaks_of_their_own(name: str) -> None:
    """A constant that is added to all scores changes nothing, or the logarithm by as much."""

    def run(by: float) -> np.ndarray:
        graph = retile(apart(name), TILES)
        inputs = [
            replace(x, parts=(x.parts[0] + by,)) if node.name == "x" else x
            for node, x in zip(graph.inputs, drawn(graph, SIZES), strict=True)
        ]
        with np.errstate(over="ignore", invalid="ignore"):
            (found,) = results(graph, inputs, array_reading(FLOAT64, SIZES))
        return np.asarray(found.parts[0])

    more = HUGE if name.startswith("log") else 0
    np.testing.assert_allclose(run(HUGE), run(0) + more, rtol=1e-9)


@pytest.mark.parametrize("name", ["a maximum", "attention"])
def test_every_wrong_mutant_is_refused(name: str) -> None:
    spec, graph = PROGRAMS[name].spec(), apart(name)
    assert refused(spec, graph) > 20


def test_parts_of_a_dim_of_any_extent_are_few() -> None:
    """They grow with it, so that the last kernel has room for all of them."""
    graph = retile(apart("attention"), {"L": 2, parts_of("L"): 4})
    body = graph.blocks[0].body
    assert body is not None
    assert body.space is not None
    (axis,), long = body.space.reduced, Dim("L", 2**20, dynamic=True)
    assert numbered(axis, body.space, long).size == MOST_PARTS
    assert numbered(axis, Space(body.space.grid), long).size == 2**18
    assert numbered(axis, body.space, replace(long, dynamic=False)).size == 2**18
    assert {v.type.dim(parts_of("L")).size for v in graph.blocks[0].outs} == {MOST_PARTS}


def test_parts_grow_in_triton_too() -> None:
    text = emit_triton(apart("attention"), "program")
    assert re.search(rf"PART_L = max\(\d+, .*triton.cdiv\(L, {MOST_PARTS}\)", text)
