"""What users add to attention is found as an online softmax: proved, and accurate."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from mirage_kernels.generator.ir import DType
from mirage_kernels.generator.language import (
    Tensor,
    contract,
    exp,
    positions,
    sigmoid,
    soft_cap,
    softmax,
    sum,
    where,
)
from mirage_kernels.generator.recipe import Recipe, Shape, output_type, trace
from mirage_kernels.generator.search.cases import small_cases
from mirage_kernels.generator.search.gate import Gate
from mirage_kernels.generator.search.lower import Goal
from mirage_kernels.generator.search.select import choose, mugraphs, rank
from mirage_kernels.generator.search.sketch import Limits
from mirage_kernels.generator.search.superoptimizer import run_search, search_job
from mirage_kernels.generator.search.verify import LOG2_WANTED, Prover
from mirage_kernels.generator.target import target

SHAPE = Shape("a test", {"D": 64})


def seen(k: Tensor, n: Tensor) -> Tensor:
    return positions(k, "L") < n


def attend(scores: Tensor, k: Tensor, v: Tensor, n: Tensor) -> Tensor:
    return contract(softmax(scores, over="L", mask=seen(k, n)), v, over="L")


def alibi(q: Tensor, k: Tensor, v: Tensor, n: Tensor, slope: Tensor) -> Tensor:
    distance = positions(k, "L") - n + 1
    return attend(contract(q, k, over="D") + slope * distance, k, v, n)


def biased(q: Tensor, k: Tensor, v: Tensor, n: Tensor, bias: Tensor) -> Tensor:
    return attend(contract(q, k, over="D") + bias, k, v, n)


def gated(q: Tensor, k: Tensor, v: Tensor, n: Tensor, gate: Tensor) -> Tensor:
    return attend(contract(q, k, over="D"), k, v, n) * sigmoid(gate)


def capped(q: Tensor, k: Tensor, v: Tensor, n: Tensor, cap: Tensor) -> Tensor:
    return attend(soft_cap(contract(q, k, over="D"), cap), k, v, n)


def with_sink(q: Tensor, k: Tensor, v: Tensor, n: Tensor, sink: Tensor) -> Tensor:
    weights = where(seen(k, n), exp(contract(q, k, over="D")), 0)
    return contract(weights, v, over="L") / (sum(weights, "L") + exp(sink))


FORMS: dict[Callable[..., Tensor], dict[str, str]] = {
    alibi: {"slope": "H"},
    biased: {"bias": "H L"},
    gated: {"gate": "B H D"},
    capped: {"cap": ""},
    with_sink: {"sink": "H"},
}


def recipe(program: Callable[..., Tensor]) -> Recipe:
    inputs = {"q": "B H D", "k": "B L H D", "v": "B L H D", "n": "B:int32"}
    declared = Recipe(
        inputs=inputs | FORMS[program],
        output="B H D",
        dynamic={"B": 256, "H": 256, "L": 131072},
        ranges={"n": "1..L"},
        scalars={"cap": 30.0} if program is capped else {},
        reference=lambda *inputs: inputs[0],
    )
    return declared(program)


@pytest.mark.parametrize("program", FORMS, ids=lambda program: program.__name__)
def test_what_is_chosen_rescales_in_a_loop_over_keys(program: Callable[..., Tensor]) -> None:
    source, dtype = recipe(program), DType.BF16
    spec = trace(source, SHAPE, dtype)
    job = search_job(source, SHAPE, Limits(kernels=1), arch="sm_90a")
    found = run_search(job, jobs=1, progress=lambda event: None)
    goal = Goal(spec, output_type(source, SHAPE, dtype), dtype, {})
    ranked = rank(mugraphs(found.programs, goal), spec, target("sm_90a"))
    chosen, _ = choose(ranked, [Gate(spec, source, dtype).measure])
    (block,) = chosen.graph.blocks
    assert block.body is not None
    assert block.body.space is not None
    assert block.body.space.loop is not None
    assert block.body.space.loop.dim == "L"
    assert len(block.body.of("accum_rescaled")) == 2
    proof = Prover(spec, range_of=source.range_of).prove(chosen.graph, small_cases(spec), seed=1)
    assert proof.log2_failure <= LOG2_WANTED
