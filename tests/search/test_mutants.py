"""A prover is judged by what it rejects: every mutant of every golden muGraph that is wrong.

Golden are the committed kernels, the muGraphs found for the recipes, and attention by hand.
Whether a mutant is wrong is decided independently of checks and proofs, by running it in float64.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
from differs import OTHER_ROOT, differs
from mutation import MUTATIONS, Mutant, mutants

from mirage_kernels.generator.errors import GraphError, VerifyError
from mirage_kernels.generator.ir import DType, Graph, check, from_json, retile
from mirage_kernels.generator.recipe import Shape, catalog, trace
from mirage_kernels.generator.search.cases import small_cases
from mirage_kernels.generator.search.verify import Prover, RangeOf, require_signature

ROOT = Path(__file__).resolve().parents[2]
MOST_OF_A_KIND = 10  # of one muGraph, spread over all there are


@dataclass(frozen=True)
class Golden:
    """A muGraph that is right, and its recipe."""

    name: str
    spec: Graph
    graph: Graph
    range_of: RangeOf

    @property
    def prover(self) -> Prover:
        return _prover(self.name)

    @property
    def has_peaks(self) -> bool:
        return any(n.body is not None and n.body.of("peak") for n in self.graph.nodes)


@cache
def _prover(name: str) -> Prover:
    return Prover(golden(name).spec, range_of=golden(name).range_of)


def files() -> Iterator[Path]:
    yield from sorted((ROOT / "tests/golden/mugraphs").glob("*.json"))
    committed = (ROOT / "kernels").glob("sm_*/*/*.json")
    yield from {_without_sizes(path): path for path in sorted(committed)}.values()


def _without_sizes(path: Path) -> str:
    """Return what kernels of other shapes, types and architectures have in common."""
    data = json.loads(path.read_text())
    return re.sub(r"bf16|fp16|\d+", "", data["recipe"] + json.dumps(data["mugraph"]))


FILES = {str(p.relative_to(ROOT)): p for p in files()}


@cache
def golden(name: str) -> Golden:
    data = json.loads(FILES[name].read_text())
    graph, recipe = from_json(data["mugraph"]), catalog()[data["recipe"]]
    dims = {d.name: d.size for n in graph.inputs for d in n.out.type.dims}
    shape = Shape("a golden muGraph", {name: dims[name] for name in recipe.static_dims})
    return Golden(name, trace(recipe, shape, DType.FP16), graph, recipe.range_of)


@dataclass(frozen=True)
class Judged:
    """A mutant with the two verdicts: is it wrong, and what rejected it ("" for nothing)."""

    kind: str
    what: str
    graph: Graph
    wrong: bool
    rejected_by: str


def judged(of: Golden, mutant: Mutant) -> Judged:
    wrong = differs(of.spec, mutant.graph, of.range_of)
    rejected_by = rejection(of, mutant.graph, thorough=wrong)
    return Judged(mutant.kind, mutant.what, mutant.graph, wrong, rejected_by)


def rejection(of: Golden, graph: Graph, *, thorough: bool) -> str:
    """Return what refuses a muGraph: typing, the check, the proof, or nothing.

    Only where a proof must not be found is it worth all its draws.
    """
    cases = small_cases(of.spec)
    try:
        check(retile(graph, cases[0].tiles))
    except GraphError:
        return "check"
    try:
        require_signature(of.spec, graph)
        for seed, case in enumerate(cases, 1):
            of.prover.compare(graph, case, seed=seed)
        if thorough:
            of.prover.prove(graph, cases, seed=1)
    except VerifyError:
        return "proof"
    return ""


@cache
def verdicts(name: str) -> list[Judged]:
    of = golden(name)
    return [judged(of, m) for m in mutants(of.graph, MOST_OF_A_KIND)]


def test_at_least_a_thousand_mutants_are_tried() -> None:
    tried = {name: len(list(mutants(golden(name).graph, MOST_OF_A_KIND))) for name in FILES}
    assert sum(tried.values()) >= 1000
    assert min(tried.values()) >= 30


@pytest.mark.parametrize("name", FILES)
def test_the_golden_mugraph_is_accepted(name: str) -> None:
    of = golden(name)
    assert not differs(of.spec, of.graph, of.range_of)
    assert rejection(of, of.graph, thorough=True) == ""


@pytest.mark.parametrize("name", FILES)
def test_every_wrong_mutant_is_rejected(name: str) -> None:
    wrong = [v for v in verdicts(name) if v.wrong]
    assert [f"{v.kind}: {v.what}" for v in wrong if not v.rejected_by] == []
    assert len(wrong) > len(verdicts(name)) / 2
    assert sum(v.rejected_by == "proof" for v in wrong) >= 10


@pytest.mark.parametrize("name", FILES)
def test_a_mutant_that_is_right_is_not_refuted(name: str) -> None:
    """Peaks and roots excepted: what is right of them only is not right of what stands for them.

    Any number stands for a maximum, any function for the square root: sqrt(4 x) is not 2 sqrt(x).
    """
    of = golden(name)
    right = [v for v in verdicts(name) if not v.wrong and v.rejected_by == "proof"]
    refuted = [v for v in right if not differs(of.spec, v.graph, of.range_of, OTHER_ROOT)]
    assert [f"{v.kind}: {v.what}" for v in refuted] == [] or of.has_peaks


def test_the_golden_mugraphs_are_right_of_any_root() -> None:
    every = map(golden, FILES)
    assert [g.name for g in every if differs(g.spec, g.graph, g.range_of, OTHER_ROOT)] == []


SPLIT = "tests/golden/mugraphs/gqa-split_in_two_by_hand.json"
JOINED = "tests/golden/mugraphs/gqa-split_by_hand.json"


@pytest.mark.parametrize("kind", MUTATIONS)
def test_every_kind_of_mutation_makes_wrong_mutants(kind: str) -> None:
    assert any(v.wrong for v in verdicts(SPLIT) if v.kind == kind)


@pytest.mark.parametrize("op", ["accum", "combine"])
def test_forgetting_to_rescale_is_well_formed_and_the_proof_rejects_it(op: str) -> None:
    of = golden(JOINED)
    forgotten = [
        judged(of, m) for m in mutants(of.graph, 1000) if f"{op} instead of {op}_rescaled" in m.what
    ]
    assert [(v.wrong, v.rejected_by) for v in forgotten] == [(True, "proof")] * 2
