"""Safe exponentials: which programs become safe, how, and which stay as they were."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache

import numpy as np
import numpy.typing as npt
import pytest
from mutation import places
from small import Small, drawn, proved_programs

from mirage_kernels.generator.errors import VerifyError
from mirage_kernels.generator.ir import DType, Graph, Node, parts_of, retile
from mirage_kernels.generator.language import (
    Tensor,
    contract,
    exp,
    log,
    positions,
    softmax,
    sum,
    where,
)
from mirage_kernels.generator.meaning.arrays import array_reading
from mirage_kernels.generator.meaning.reals import FLOAT64
from mirage_kernels.generator.meaning.walk import results
from mirage_kernels.generator.recipe import catalog, trace
from mirage_kernels.generator.search.cases import small_cases
from mirage_kernels.generator.search.lower import lower
from mirage_kernels.generator.search.sketch import Limits
from mirage_kernels.generator.search.stabilise import stabilise
from mirage_kernels.generator.search.superoptimizer import goal_of
from mirage_kernels.generator.search.verify import LOG2_WANTED, Prover
from mirage_kernels.generator.tiles.check import compare, shortened
from mirage_kernels.generator.tiles.clusters import without_clusters
from mirage_kernels.generator.tiles.lower import block_programs

HUGE = 1e4  # e to this power is beyond float64
SIZES = {"M": 3, "L": 11, "N": 2, "J": 5}
TILES = {"M": 2, "N": 2, "L": 2, parts_of("L"): 4}


def attention(s: Tensor, v: Tensor) -> Tensor:
    return contract(exp(s), v, "L") / sum(exp(s), "L")


def masked_attention(s: Tensor, v: Tensor, n: Tensor) -> Tensor:
    weights = where(positions(s, "L") < n, exp(s), 0)
    return contract(weights, v, "L") / sum(weights, "L")


LATE = Small({"s": "ML", "v": "L"}, attention)
MASKED = Small({"s": "ML", "v": "L", "n": "M:int"}, masked_attention)


def safe(graph: Graph) -> Graph:
    return stabilise(graph, DType.FP16)


@cache
def programs() -> list[Graph]:
    """Return the programs that the search finds for attention, as they were found."""
    spec = LATE.spec()
    goal = goal_of(spec, DType.FP16)
    return [lower(p, goal) for p in proved_programs(spec, Limits(block_ops=14, kept_of_two=60))]


def forms() -> dict[str, Graph]:
    """Return one program of every form that the search finds for attention."""
    return {form(g): g for g in reversed(programs())}


def form(graph: Graph) -> str:
    bodies = [n.body for n in graph.blocks if n.body and n.body.space]
    words = ["library"] if graph.of("contract") else []
    for body in bodies:
        assert body.space is not None
        loop, split = "looped" if body.space.loop else "", "split" if body.space.reduced else ""
        words.append(" ".join(filter(None, (split, loop))) or "plain")
    stored = "and stores two" if len(graph.blocks[0].outs) > 1 else ""
    return " ".join(filter(None, (", ".join(words), stored)))


def run(
    graph: Graph, scores: float, tiles: dict[str, int] = TILES, **fixed: npt.ArrayLike
) -> np.ndarray:
    """Return a graph's float64 result; a constant is added to all scores."""
    inputs = [
        replace(x, parts=(x.parts[0] + scores,)) if node.name == "s" else x
        for node, x in zip(graph.inputs, drawn(graph, SIZES, **fixed), strict=True)
    ]
    with np.errstate(over="ignore", invalid="ignore"):
        found = results(retile(graph, TILES), inputs, array_reading(FLOAT64, SIZES))[0]
    return np.asarray(found.over(graph.values[graph.outputs[0]].type.names).parts[0])


TWO_KERNELS = "split looped, plain and stores two"
FORMS = ("plain", "looped", "split", "split looped", TWO_KERNELS)


def test_every_form_of_attention_is_found() -> None:
    assert set(FORMS) <= set(forms())


@pytest.mark.parametrize("name", FORMS)
def test_an_unsafe_program_overflows_and_the_safe_one_does_not(name: str) -> None:
    graph = forms()[name]
    assert not np.isfinite(run(graph, HUGE)).all()
    np.testing.assert_allclose(run(safe(graph), HUGE), run(LATE.spec(), 0), rtol=1e-9)


def nodes(graph: Graph, *ops: str) -> list[Node]:
    inner = [n for b in graph.blocks if b.body for n in b.body.of(*ops)]
    return [*graph.of(*ops), *inner]


def test_sums_of_a_loop_are_rescaled_by_one_running_peak() -> None:
    graph = safe(forms()["looped"])
    assert len(nodes(graph, "accum_rescaled")) == 2
    assert len(nodes(graph, "accum")) == 0
    assert len(nodes(graph, "peak")) == 1


def test_blocks_combine_relative_to_their_common_peak() -> None:
    graph = safe(forms()["split looped"])
    assert len(nodes(graph, "combine_rescaled")) == 2
    assert len(nodes(graph, "combine")) == 0


def test_partial_sums_are_stored_with_their_peak() -> None:
    before, after = (f(forms()[TWO_KERNELS]) for f in (lambda g: g, safe))
    assert len(after.blocks[0].outs) == len(before.blocks[0].outs) + 1
    assert set(after.blocks[1].args) >= {v.name for v in after.blocks[0].outs}


def test_the_parts_that_a_second_kernel_sums_are_made_relative_to_one_peak() -> None:
    graph = safe(forms()[TWO_KERNELS])
    last = graph.blocks[1].body
    assert last is not None
    assert [n.over for n in last.of("peak")] == [parts_of("L")]
    assert len(last.of("exp")) == 1


def test_what_is_masked_does_not_raise_the_peak() -> None:
    spec = safe(MASKED.spec())
    scores = np.zeros((3, 11))
    scores[:, 4:] = HUGE  # beyond every length
    found = run(spec, 0, s=scores, n=np.full(3, 4))
    np.testing.assert_allclose(found, run(spec, 0, s=scores * 0, n=np.full(3, 4)), rtol=1e-12)


@pytest.mark.parametrize("at", ["first", "last"])
def test_a_mask_may_be_computed_before_exp_or_after_it(at: str) -> None:
    spec = MASKED.spec()
    (mask,) = spec.of("less")
    (place,) = (
        i for i, n in enumerate(spec.nodes) if n.op == ("exp" if at == "first" else "where")
    )
    others = [n for n in spec.nodes if n is not mask]
    place -= at == "last"  # the mask itself stands before it
    moved = replace(spec, nodes=(*others[:place], mask, *others[place:]))
    np.testing.assert_allclose(run(safe(moved), HUGE), run(safe(spec), HUGE), rtol=1e-12)
    assert np.isfinite(run(safe(moved), HUGE)).all()


def of_exp(program: Callable[[Tensor], Tensor]) -> Small:
    """Return a program of exp(s), computed once."""
    return Small({"s": "ML"}, lambda s: program(exp(s)))


UNCHANGED = {
    "no exp": Small({"x": "ML"}, lambda x: sum(x, "L")),
    "a sum that nothing divides": Small({"s": "ML"}, lambda s: sum(exp(s), "L")),
    "the logarithm of a square of a sum": of_exp(lambda e: log(sum(e, "L") * sum(e, "L"))),
    "squares over a sum": of_exp(lambda e: sum(e * e, "L") / sum(e, "L")),
    "a number below 0 beside the sum": of_exp(lambda e: e / (sum(e, "L") + -1)),
    "a sum over squares": of_exp(lambda e: sum(e, "L") / e / e),
}


@pytest.mark.parametrize("name", UNCHANGED)
def test_what_nothing_cancels_stays_as_it_was(name: str) -> None:
    spec = UNCHANGED[name].spec()
    assert safe(spec) is spec


def test_an_exp_that_is_not_summed_stays_as_it_was() -> None:
    spec = Small({"s": "ML", "t": "ML"}, lambda s, t: exp(s) * t).spec()
    assert safe(spec) == spec


CANCELLED = {
    "softmax": Small({"s": "ML"}, lambda s: softmax(s, "L")),
    "a softmax that is negated": Small({"s": "ML"}, lambda s: -softmax(s, "L")),
    "a softmax written out": Small({"s": "ML", "v": "NL"}, attention),
    "two sums of one degree": of_exp(lambda e: (sum(e, "L") - e) / sum(e, "L")),
    "squares over a square": of_exp(lambda e: e * e / (sum(e, "L") * sum(e, "L"))),
    "two softmaxes": Small(
        {"s": "ML", "t": "MJ"}, lambda s, t: sum(softmax(t, "J"), "J") * softmax(s, "L")
    ),
    "a softmax upside down": of_exp(lambda e: sum(e, "L") / e),
}


@pytest.mark.parametrize("name", CANCELLED)
def test_degrees_that_cancel_make_a_program_safe(name: str) -> None:
    spec = CANCELLED[name].spec()
    np.testing.assert_allclose(run(safe(spec), HUGE), run(spec, 0), rtol=1e-9)


def logsumexp(s: Tensor) -> Tensor:
    return log(sum(exp(s), "L"))


@pytest.mark.parametrize("at", [-HUGE, HUGE])
def test_a_logarithm_gets_the_peak_back(at: float) -> None:
    spec = Small({"s": "ML"}, logsumexp).spec()
    np.testing.assert_allclose(run(safe(spec), at), run(spec, 0) + at, rtol=1e-12)


def log_softmax(s: Tensor) -> Tensor:
    return s - logsumexp(s)


SOME_STAY = {
    "powers of a log_softmax": lambda s, t: exp(log_softmax(s)) * t,
    "their sum": lambda s, t: sum(exp(log_softmax(s)) * t, "L"),
    "their sum beside a softmax": lambda s, t: sum(exp(log_softmax(s)) * softmax(t, "L"), "L"),
}


@pytest.mark.parametrize("name", SOME_STAY)
def test_an_exp_that_nothing_cancels_leaves_the_others_safe(name: str) -> None:
    spec = Small({"s": "ML", "t": "ML"}, SOME_STAY[name]).spec()
    np.testing.assert_allclose(run(safe(spec), HUGE), run(spec, 0), rtol=1e-9)


OF_ONE = {
    "one key": (lambda s, t: exp(s) / exp(s) + t, 1.0),
    "one key and a sink": (lambda s, t: exp(s) / (exp(s) + exp(s)) + t, 0.5),
}


@pytest.mark.parametrize("at", [-HUGE, HUGE])
@pytest.mark.parametrize("name", OF_ONE)
def test_an_exp_that_divides_is_relative_to_its_own_exponent(name: str, at: float) -> None:
    made, wanted = OF_ONE[name]
    spec = Small({"s": "ML", "t": "ML"}, made).spec()
    found = run(safe(spec), at, t=np.zeros((SIZES["M"], SIZES["L"])))
    np.testing.assert_allclose(found, wanted)


ROWS_SUMMED = {
    "logarithms": Small({"s": "ML"}, lambda s: sum(logsumexp(s), "M")),
    "shares": Small({"s": "ML"}, lambda s: sum(sum(softmax(s, "L") * s, "L"), "M")),
}


@pytest.mark.parametrize("name", ROWS_SUMMED)
def test_rows_that_are_summed_up_have_peaks_of_their_own(name: str) -> None:
    graph = safe(ROWS_SUMMED[name].spec())
    assert {n.over for n in nodes(graph, "peak")} == {"L"}
    levels = HUGE * np.arange(3)
    found = run(graph, 0, s=np.tile(levels[:, None], (1, 11)))
    wanted = levels.sum() + (3 * np.log(11) if name == "logarithms" else 0)
    np.testing.assert_allclose(found, wanted, rtol=1e-12)


def test_of_sums_along_two_dims_the_peak_runs_along_the_loop_first() -> None:
    spec = Small({"s": "ML"}, lambda s: log(sum(sum(exp(s), "L"), "M"))).spec()
    goal = goal_of(spec, DType.FP16)
    found = [lower(p, goal) for p in proved_programs(spec, Limits(block_ops=10))]
    looped = [g for g in found if any(b.body and b.body.space.loop for b in g.blocks)]
    assert looped
    for graph in map(safe, looped):
        np.testing.assert_allclose(run(graph, HUGE), run(safe(spec), 0) + HUGE, rtol=1e-9)
    for graph in {form(g): safe(g) for g in looped}.values():
        short, sizes = shortened(retile(graph, {"L": 32, "M": 16, parts_of("L"): 64}))
        compare(short, block_programs(short, 64, 3), sizes)


@pytest.mark.parametrize("log_of", [logsumexp, lambda s: s - logsumexp(s)])
def test_what_the_search_finds_for_a_logarithm_of_a_sum_is_proved(
    log_of: Callable[[Tensor], Tensor],
) -> None:
    spec = Small({"s": "ML"}, log_of).spec()
    prover, goal = Prover(spec), goal_of(spec, DType.FP16)
    found = [lower(p, goal) for p in proved_programs(spec, Limits(block_ops=10))]
    with_peak = [graph for graph in map(safe, found) if nodes(graph, "peak")]
    assert {len(graph.blocks) for graph in with_peak} == {1, 2}
    for graph in with_peak:
        proof = prover.prove(graph, small_cases(spec), seed=1)
        assert proof.log2_failure <= LOG2_WANTED
        with pytest.raises(VerifyError):
            prover.prove(forgotten(graph), small_cases(spec), seed=1)


def with_sink(s: Tensor, v: Tensor, sink: Tensor) -> Tensor:
    return contract(exp(s), v, "L") / (sum(exp(s), "L") + exp(sink))


SINK = Small({"s": "ML", "v": "L", "sink": "M"}, with_sink)


@cache
def sinks() -> list[Graph]:
    """Return safe programs that the search finds for attention with a sink."""
    spec = SINK.spec()
    goal = goal_of(spec, DType.FP16)
    found = (lower(p, goal) for p in proved_programs(spec, Limits(block_ops=14, kept_of_two=60)))
    return [graph for graph in map(safe, found) if nodes(graph, "peak")]


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("above", [-HUGE, 0, HUGE])
def test_a_sink_may_be_far_above_scores_and_far_below(name: str, above: float) -> None:
    wanted = run(SINK.spec(), 0, sink=np.full(3, above))
    graph = next(g for g in sinks() if form(g) == name)
    for each in (graph, without_clusters(graph)):
        found = run(each, HUGE, sink=np.full(3, HUGE + above))
        np.testing.assert_allclose(found, wanted, rtol=1e-9)


@pytest.mark.parametrize("name", FORMS)
def test_a_tile_program_adds_the_sink_to_the_sum_of_all_blocks(name: str) -> None:
    graph = next(g for g in sinks() if form(g) == name)
    short, sizes = shortened(retile(graph, {"L": 32, parts_of("L"): 64}))
    compare(short, block_programs(short, 64, 3), sizes)


def test_attention_with_a_sink_is_proved_and_not_without_it() -> None:
    spec = SINK.spec()
    prover, cases = Prover(spec), small_cases(spec)
    assert {len(graph.blocks) for graph in sinks()} == {1, 2}
    for graph in sinks():
        assert prover.prove(graph, cases, seed=1).log2_failure <= LOG2_WANTED
        with pytest.raises(VerifyError):
            prover.prove(unlifted(graph), cases, seed=1)


def unlifted(graph: Graph) -> Graph:
    """Return a muGraph whose sum stays relative to the scores' peak beside a sink's."""
    for place in places(graph):
        for node in place.graph.of("add"):
            made = [place.graph.producers[a] for a in node.args]
            args = [n.args[0] if n.name.startswith("lifted") else n.name for n in made]
            if args != [*node.args]:
                return place.with_node(node, replace(node, args=tuple(args)))
    raise AssertionError("no sum is lifted")


def test_scores_that_are_all_hidden_leave_the_sink_alone() -> None:
    def masked(s: Tensor, v: Tensor, n: Tensor, sink: Tensor) -> Tensor:
        weights = where(positions(s, "L") < n, exp(s), 0)
        return contract(weights, v, "L") / (sum(weights, "L") + exp(sink))

    spec = Small({"s": "ML", "v": "L", "n": "M:int", "sink": "M"}, masked).spec()
    assert (run(safe(spec), 0, n=np.zeros(3)) == 0).all()


BESIDE = {
    "a sum that an exp is added to": lambda s, t: log(sum(exp(s), "L") + exp(t)),
    "a sum that several are added to": lambda s, t: log(exp(t) + sum(exp(s), "L") + exp(t + 1)),
    "two sums": lambda s, t: log(sum(exp(s), "L") + sum(exp(s + t), "L")),
    "a sum that a number is added to": lambda s, t: log(sum(exp(s), "L") + 2) + t,
    "quotients of two divisors": lambda s, t: sum(
        exp(s) / (sum(exp(s), "L") + exp(t)) + exp(s) / (sum(exp(s), "L") + 1), "L"
    ),
}


@pytest.mark.parametrize("name", BESIDE)
@pytest.mark.parametrize("at", [-HUGE, HUGE])
def test_terms_beside_a_sum_are_relative_to_the_largest(name: str, at: float) -> None:
    spec = Small({"s": "ML", "t": "M"}, BESIDE[name]).spec()
    near = run(spec, 0)
    np.testing.assert_allclose(run(safe(spec), 0), near, rtol=1e-9)
    assert np.isfinite(run(safe(spec), at)).all()


def forgotten(graph: Graph) -> Graph:
    """Return a muGraph that does not add the peak to the logarithm."""
    for place in places(graph):
        for node in place.graph.of("add"):
            if place.graph.producers[node.args[0]].op == "log":
                doubled = replace(node, args=(node.args[0], node.args[0]), op="max")
                return place.with_node(node, doubled)
    raise AssertionError("no logarithm gets its peak back")


def attentions() -> list[str]:
    specs = {name: trace(r, r.shapes[0], DType.FP16) for name, r in catalog().items()}
    return [name for name, spec in specs.items() if spec.of("exp")]


@pytest.mark.parametrize("name", attentions())
def test_every_recipe_with_exp_becomes_safe(name: str) -> None:
    recipe = catalog()[name]
    spec = safe(trace(recipe, recipe.shapes[0], DType.FP16))
    (lowered_argument,) = {n.args[0] for n in spec.of("exp")}
    assert spec.producers[lowered_argument].op == "sub"
    assert len(spec.of("peak")) >= 1
