"""Pruning loses nothing: with and without it, the same programs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest

from mirage_kernels.generator.ir import Builder, Dim, DType, Graph, Level, TensorType
from mirage_kernels.generator.language import Tensor, contract, exp, mean, sqrt, sum
from mirage_kernels.generator.meaning.terms import Terms
from mirage_kernels.generator.search.blocks import _Occurrences
from mirage_kernels.generator.search.kernels import Counts, Limits, ProgramSketch, search

SIZES = {"M": Dim("M", 64, dynamic=True), "K": Dim("K", 32), "N": Dim("N", 48)}


@dataclass(frozen=True)
class Small:
    """A program small enough to search without pruning, and the most ops to search with."""

    inputs: dict[str, str]
    program: Callable[..., Tensor]
    ops: int = 4

    def spec(self) -> Graph:
        builder = Builder(Level.KERNEL)
        made = []
        for name, dims in self.inputs.items():
            type_ = TensorType(tuple(SIZES[d] for d in dims), DType.FP16)
            made.append(Tensor(builder, builder.input(name, type_)))
        return builder.graph([self.program(*made).name])


def k(x: Tensor, y: Tensor) -> Tensor:
    return contract(x, y, over="K")


X, XW = {"x": "MK"}, {"x": "MK", "w": "NK"}
SMALL = {
    "scaled sum": Small(X | {"s": "M"}, lambda x, s: sum(x * s, "K")),
    "linear": Small(XW, k),
    "mean": Small(X, lambda x: mean(x, "K")),
    "scaled linear": Small(XW | {"g": "K"}, lambda x, w, g: k(x * g, w)),
    "divided linear": Small(XW | {"d": "M"}, lambda x, w, d: k(x / d, w)),
    "linear with bias": Small(XW | {"b": "N"}, lambda x, w, b: k(x, w) + b),
    "root of a mean square": Small(X, lambda x: sqrt(mean(x * x, "K"))),
    "sum of ratios": Small(X | {"y": "MK", "c": "M"}, lambda x, y, c: sum(x / c + y / c, "K")),
    "norm": Small(X, lambda x: x / sqrt(sum(x * x, "K"))),
    "two linears": Small(XW | {"v": "NK"}, lambda x, w, v: k(x, w) * k(x, v)),
    "a ratio of sums": Small(X | {"y": "MK"}, lambda x, y: sum(x * y, "K") / sum(y, "K")),
    "softmax": Small(X, lambda x: exp(x) / sum(exp(x), "K")),
    "a product of exponentials": Small(X | {"y": "MK"}, lambda x, y: sum(exp(x) * exp(y), "K")),
    "a product of roots": Small({"a": "M", "b": "M"}, lambda a, b: sqrt(a) * sqrt(b) + a),
    "a common denominator": Small(
        {"a": "M", "b": "M", "c": "M"}, lambda a, b, c: a / (b * c) + b / (b * c)
    ),
}


def found(spec: Graph, limits: Limits, jobs: int = 1) -> tuple[list[ProgramSketch], Counts]:
    return search(spec, limits, jobs=jobs, progress=lambda done, tasks, counts: None)


@pytest.mark.parametrize("name", SMALL)
def test_abstract_pruning_loses_no_program(name: str) -> None:
    small = SMALL[name]
    limits = Limits(kernels=1, block_ops=small.ops)
    pruned, _ = found(small.spec(), limits)
    whole, _ = found(small.spec(), replace(limits, prune_abstract=False))
    assert pruned == whole


@pytest.mark.parametrize("name", SMALL)
def test_there_is_something_to_lose(name: str) -> None:
    assert found(SMALL[name].spec(), Limits(kernels=1, block_ops=5))[0]


def test_abstract_pruning_visits_fewer_states() -> None:
    spec = SMALL["root of a mean square"].spec()
    limits = Limits(kernels=1, block_ops=4)
    _, pruned = found(spec, limits)
    _, whole = found(spec, replace(limits, prune_abstract=False))
    assert 20 * pruned.states < whole.states


def test_more_ops_find_no_fewer_programs() -> None:
    spec = SMALL["norm"].spec()
    fewer, more = (set(found(spec, Limits(kernels=1, block_ops=n))[0]) for n in (4, 5))
    assert fewer < more


def test_no_program_is_found_twice() -> None:
    programs, _ = found(SMALL["norm"].spec(), Limits(kernels=1, block_ops=6))
    assert len(set(programs)) == len(programs)


def test_an_input_that_occurs_very_often_is_not_counted() -> None:
    terms = Terms()
    powers = [terms.leaf("input", "x")]
    for _ in range(7):
        powers.append(terms.mul(powers[-1], powers[-1]))
    target = terms.mul(powers[7], powers[6])  # x^128 * x^64: more than a byte counts
    occurrences = _Occurrences(terms, target)
    assert occurrences.fit(occurrences.of(powers[7]) + occurrences.of(powers[6]))


def test_an_input_that_occurs_too_often_does_not_fit() -> None:
    terms = Terms()
    x, y = terms.leaf("input", "x"), terms.leaf("input", "y")
    occurrences = _Occurrences(terms, terms.mul(x, y))
    assert not occurrences.fit(occurrences.of(x) + occurrences.of(x))
