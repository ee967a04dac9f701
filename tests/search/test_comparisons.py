"""Comparisons of numbers, and what is chosen by them: proved, and no other ones are."""

from __future__ import annotations

from dataclasses import replace

import pytest
from mutation import places
from small import Small, proved_programs

from mirage_kernels.generator.errors import VerifyError
from mirage_kernels.generator.ir import DType
from mirage_kernels.generator.language import (
    Tensor,
    greater,
    greater_equal,
    log,
    masked,
    round_half_even,
    sum,
)
from mirage_kernels.generator.search.cases import small_cases
from mirage_kernels.generator.search.lower import lower
from mirage_kernels.generator.search.sketch import Limits
from mirage_kernels.generator.search.superoptimizer import goal_of
from mirage_kernels.generator.search.verify import LOG2_WANTED, Prover

OTHERS = {"gt": "ge", "ge": "gt", "masked": "mul", "round": "floor"}


def chosen(x: Tensor, y: Tensor) -> Tensor:
    above = greater(x, y)
    return masked(above, log(x)) + masked(1 - above, y)


def counted(x: Tensor, y: Tensor) -> Tensor:
    return sum(masked(greater_equal(x, y), round_half_even(x)), "K")


PROGRAMS = {
    "chosen": Small({"x": "MK", "y": "MK"}, chosen),
    "counted": Small({"x": "MK", "y": "K"}, counted),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_are_proved_and_with_another_operator_they_are_not(name: str) -> None:
    spec = PROGRAMS[name].spec()
    goal, prover, cases = goal_of(spec, DType.FP16), Prover(spec), small_cases(spec)
    graphs = [lower(p, goal) for p in proved_programs(spec, Limits(block_ops=10))]
    assert graphs
    for graph in graphs[:3]:
        assert prover.prove(graph, cases, seed=1).log2_failure <= LOG2_WANTED
        found = [(place, n) for place in places(graph) for n in place.graph.of(*OTHERS)]
        assert found
        for place, node in found:
            mutant = place.with_node(node, replace(node, op=OTHERS[node.op]))
            with pytest.raises(VerifyError):
                prover.prove(mutant, cases, seed=1)
