"""Whether a muGraph differs from its recipe, decided without checks and proofs: in float64."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import pytest
from mutation import mutants

from mirage_kernels.generator.errors import GraphError, VerifyError
from mirage_kernels.generator.ir import DType, Graph, TensorType, check, retile
from mirage_kernels.generator.meaning.arrays import Arithmetic, Array, Parts, array_reading
from mirage_kernels.generator.meaning.reals import FLOAT64
from mirage_kernels.generator.meaning.walk import results
from mirage_kernels.generator.search.cases import Case, small_cases
from mirage_kernels.generator.search.verify import Prover, RangeOf

CASES = slice(0, 3)


def _curve(x: Parts) -> Parts:
    with np.errstate(all="ignore"):
        return (1 + np.log1p(x[0]),)


def _inverse_curve(x: Parts) -> Parts:
    return (1 / _curve(x)[0],)


# Another function for the square root: what differs by it is right of square roots only.
OTHER_ROOT = replace(
    FLOAT64, elementwise={**FLOAT64.elementwise, "sqrt": _curve, "rsqrt": _inverse_curve}
)
FAR = 3.0  # stands for infinity: what overflows is the numeric gate's to say


@dataclass(frozen=True)
class Given:
    """What all cases share: ranges of the integers, and what the ops mean."""

    span_of: RangeOf
    arithmetic: Arithmetic


def differs(
    spec: Graph,
    graph: Graph,
    range_of: RangeOf | None = None,
    arithmetic: Arithmetic = FLOAT64,
) -> bool:
    """Return whether a muGraph's results are not the spec's, or cannot be computed.

    Lengths are between 1 and the number of positions where no range is given.
    """
    span_of = range_of or Prover(spec).any_length
    given = Given(span_of, arithmetic)
    return any(_differs(spec, finite(graph), case, given) for case in small_cases(spec)[CASES])


def _differs(spec: Graph, graph: Graph, case: Case, given: Given) -> bool:
    reading = array_reading(given.arithmetic, case.sizes)
    inputs = []
    for seed, node in enumerate(spec.inputs):
        type_ = node.out.type
        span = given.span_of(node.name, case.sizes) if type_.dtype is DType.INT32 else (0, 0)
        inputs.append(_drawn(seed, type_, tuple(case.sizes[d] for d in type_.names), span))
    wanted = results(spec, inputs, reading)
    try:
        with np.errstate(all="ignore"):
            made = results(retile(graph, case.tiles), inputs, reading)
        pairs = [(a.parts[0], b.over(a.dims).parts[0]) for a, b in zip(wanted, made, strict=True)]
        return not all(a.shape == b.shape and np.allclose(a, b, 1e-9, 0) for a, b in pairs)
    except (GraphError, KeyError, ValueError, IndexError, TypeError):
        return True  # not checked yet: anything may be wrong


@cache
def _drawn(seed: int, type_: TensorType, shape: tuple[int, ...], span: tuple[int, int]) -> Array:
    """Return numbers away from 0, of both signs where there are two dims; every length there is."""
    rng = np.random.default_rng(seed)
    if type_.dtype is DType.INT32:
        places = math.prod(shape)
        least, largest = span
        several = [rng.permutation(largest + 1 - least) + least for _ in range(places)]
        lengths = np.concatenate(several)
        return Array(type_.names, (lengths[:places].reshape(shape),), real=False)
    signs = rng.choice([-1, 1], shape) if len(shape) > 1 else 1
    return Array(type_.names, (rng.uniform(0.5, 1.5, shape) * signs,))


def finite(graph: Graph) -> Graph:
    """Return a muGraph with a number in place of infinities, which stand for any far away."""
    nodes = []
    for node in graph.nodes:
        if node.body is not None:
            node = replace(node, body=finite(node.body))
        if node.op == "const" and math.isinf(node.value):
            node = replace(node, value=math.copysign(FAR, node.value))
        nodes.append(node)
    return replace(graph, nodes=tuple(nodes))


def refused(spec: Graph, graph: Graph) -> int:
    """Have every wrong mutant of a muGraph refused, by checks or proofs; return how many."""
    prover, wrong = Prover(spec), 0
    for mutant in mutants(graph, 12):
        if differs(spec, mutant.graph):
            wrong += 1
            with pytest.raises((GraphError, VerifyError)):
                prover.prove(check(mutant.graph), small_cases(spec), seed=3)
    return wrong
