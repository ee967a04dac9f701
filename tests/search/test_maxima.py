"""Maxima along dims: found whole, in loops and over blocks; what is no maximum is refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache

import pytest
from differs import refused
from small import Small

from mirage_kernels.generator.errors import PlanError, VerifyError
from mirage_kernels.generator.ir import DType, Graph, Phase, retile
from mirage_kernels.generator.language import amax, amin, contract, sum
from mirage_kernels.generator.search.cases import small_cases
from mirage_kernels.generator.search.lower import lower
from mirage_kernels.generator.search.sketch import Limits
from mirage_kernels.generator.search.superoptimizer import goal_of, superoptimize
from mirage_kernels.generator.search.verify import Prover
from mirage_kernels.generator.tiles.check import compare, shortened
from mirage_kernels.generator.tiles.clusters import without_clusters
from mirage_kernels.generator.tiles.lower import block_programs
from mirage_kernels.generator.tiles.statements import Clear

SMALLS = {
    "rows": Small({"x": "MK"}, lambda x: amax(x, "K")),
    "scaled by rows": Small({"x": "MK"}, lambda x: x / amax(x * x, "K")),
    "products": Small({"x": "MK", "w": "NK"}, lambda x, w: amin(contract(x, w, over="K"), "N")),
}
TILES = {"M": 2, "N": 24, "K": 32, "K_parts": 64, "N_parts": 48}


@cache
def found(name: str) -> list[Graph]:
    """Every muGraph that the search finds, cheapest first, with small tiles."""
    spec = SMALLS[name].spec()
    programs = superoptimize(spec, Limits(), "sm_90a").programs
    return [retile(lower(p, goal_of(spec, DType.FP16)), TILES) for p in programs]


def ops(graph: Graph) -> set[str]:
    return {n.op for block in graph.blocks if block.body is not None for n in block.body.nodes}


def first(name: str, wanted: Callable[[Graph], bool]) -> Graph:
    return next(g for g in found(name) if wanted(g))


FORMS: dict[str, Callable[[Graph], bool]] = {
    "in a loop": lambda g: "accum_max" in ops(g) and len(g.blocks) == 1,
    "over the blocks of a cluster": lambda g: "combine_max" in ops(g),
    "in two kernels, parts first": lambda g: len(g.blocks) == 2,
}


@pytest.mark.parametrize("form", FORMS)
def test_a_maximum_is_found_as_sums_are_and_its_tile_program_is_right(form: str) -> None:
    short, sizes = shortened(first("rows", FORMS[form]))
    compare(short, block_programs(short, 64, 3), sizes)


@pytest.mark.parametrize("name", ["scaled by rows", "products"])
def test_a_maximum_is_found_before_and_behind_other_operators(name: str) -> None:
    graph = first(name, lambda g: not g.of("contract"))
    Prover(SMALLS[name].spec()).prove(graph, small_cases(SMALLS[name].spec()), seed=1)
    short, sizes = shortened(graph)
    compare(short, block_programs(short, 64, 3), sizes)


def test_without_clusters_a_loop_carries_the_maximum() -> None:
    alone = without_clusters(first("rows", FORMS["over the blocks of a cluster"]))
    assert {"accum_max"} <= ops(alone)
    assert not {"combine_max"} & ops(alone)


WRONG: dict[str, Small] = {
    "the minimum": Small({"x": "MK"}, lambda x: amin(x, "K")),
    "the sum": Small({"x": "MK"}, lambda x: sum(x, "K")),
    "the largest magnitude": Small({"x": "MK"}, lambda x: amax(x * x, "K")),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_no_maximum_is_refused(name: str) -> None:
    spec = SMALLS["rows"].spec()
    with pytest.raises(VerifyError, match="not equal"):
        Prover(spec).prove(WRONG[name].spec(), small_cases(spec), seed=1)


def test_a_maximum_along_another_dim_is_refused() -> None:
    along_rows = Small({"x": "MN"}, lambda x: amax(amin(x, "M"), "N")).spec()
    spec = Small({"x": "MN"}, lambda x: amin(amax(x, "N"), "M")).spec()
    with pytest.raises(VerifyError, match="not equal"):
        Prover(spec).prove(along_rows, small_cases(spec), seed=1)


@pytest.mark.parametrize("form", FORMS)
def test_every_wrong_mutant_is_refused(form: str) -> None:
    """Missing steps and parts, sums for maxima, other cuts among them."""
    spec, graph = SMALLS["rows"].spec(), first("rows", FORMS[form])
    assert refused(spec, graph) > 20


def test_a_maximum_that_begins_at_zero_is_refused() -> None:
    below_zero = Small({"x": "MK"}, lambda x: amax(-x * x, "K"))
    spec = below_zero.spec()
    programs = superoptimize(spec, Limits(kernels=1), "sm_90a").programs
    graphs = (retile(lower(p, goal_of(spec, DType.FP16)), TILES) for p in programs)
    short, sizes = shortened(next(g for g in graphs if "accum_max" in ops(g)))
    (program,) = block_programs(short, 64, 3)
    before = program.statements[Phase.BEFORE]
    zeros = tuple(replace(s, value=0.0) if isinstance(s, Clear) else s for s in before)
    assert zeros != before
    compare(short, [program], sizes)
    wrong = replace(program, statements={**program.statements, Phase.BEFORE: zeros})
    with pytest.raises(PlanError, match="differs"):
        compare(short, [wrong], sizes)
