"""Proof by random evaluation: what is accepted, what is refused and how, what the record says."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

import pytest
from handmade import edited, handmade, named
from small import Small

from mirage_kernels.generator.errors import VerifyError
from mirage_kernels.generator.ir import Dim, DType, Graph, Value
from mirage_kernels.generator.language import (
    Tensor,
    contract,
    exp,
    extent,
    positions,
    sum,
    where,
)
from mirage_kernels.generator.recipe import Recipe, Shape, catalog, trace
from mirage_kernels.generator.search.cases import Case, small_cases
from mirage_kernels.generator.search.gate import Gate
from mirage_kernels.generator.search.verify import LOG2_WANTED, Prover, prove

SHAPE = Shape("a test", {"K": 72, "N": 40})
FUSED = """
    grid N M
    loop K
    load x norm_weight weight eps
    size_K = size over K
    scaled = mul norm_weight weight
    part = contract x scaled over K
    product = accum part
    squares = contract x x over K
    total = accum squares
    mean = div total size_K
    shifted = add eps mean
    norm = sqrt shifted
    out = div product norm
    store out as result: M N fp16
"""
RIGHT = named("""
    scaled weight

    scaled x
    scaled = mul norm_weight weight -> scaled = mul x norm_weight
    part = contract x scaled -> part = contract weight scaled

    operands turned round
    contract x scaled -> contract scaled x
    add eps mean -> add mean eps

    the mean inside the loop
    total = accum squares -> share = div squares size_K
    mean = accum share
    mean = div total size_K ->

    squares as a product and a sum
    squares = contract x x over K -> each = mul x x
    squares = sum each over K

    a product with 1 / sqrt
    norm = sqrt shifted -> norm = rsqrt shifted
    div product norm -> mul product norm
""")
WRONG = named("""
    division before the sum is complete
    product = accum part ->
    total = accum squares ->
    div total size_K -> div squares size_K
    out = div product norm -> early = div part norm
    out = accum early

    no norm weight
    contract x scaled -> contract x weight

    the norm weight twice
    contract x scaled -> contract x twice
    part = -> twice = mul scaled norm_weight
    part =

    no eps
    sqrt shifted -> sqrt mean

    eps beside the root
    norm = sqrt shifted -> root = sqrt mean
    norm = add root eps

    eps added in every step
    total = accum squares -> raised = add squares eps
    total = accum raised
    sqrt shifted -> sqrt mean

    a sum in place of a mean
    add eps mean -> add eps total

    squares of the scaled x
    contract x x -> contract xw xw
    squares = -> xw = mul x norm_weight
    squares =

    a product in place of the division
    div product norm -> mul product norm

    the square of the sum
    squares = contract x x over K -> squares = sum x over K
    mean = div total size_K -> all = mul total total
    mean = div all size_K

    a difference that is nothing below
    out = div product norm -> nothing = sub mean mean
    bad = div eps nothing
    good = div product norm
    out = add good bad
""")


@pytest.fixture(scope="module")
def spec(rms_norm_linear: Recipe) -> Graph:
    return trace(rms_norm_linear, SHAPE, DType.FP16)


@pytest.fixture(scope="module")
def fused_by_hand(spec: Graph) -> Callable[[str], Graph]:
    return lambda edits: handmade(spec, edited(FUSED, edits))


Make = Callable[[str], Graph]


@pytest.mark.parametrize("what", RIGHT)
def test_a_correct_rewrite_is_accepted(spec: Graph, fused_by_hand: Make, what: str) -> None:
    assert prove(spec, fused_by_hand(RIGHT[what]), small_cases(spec), seed=1)


@pytest.mark.parametrize("what", WRONG)
def test_a_planted_wrong_candidate_is_rejected(spec: Graph, fused_by_hand: Make, what: str) -> None:
    with pytest.raises(VerifyError, match=r"not equal to its recipe|divided by 0"):
        prove(spec, fused_by_hand(WRONG[what]), small_cases(spec), seed=1)


OVERWRITING = """
    grid K M
    load x position_K
    zero = const 0
    two = int 2
    size_K = length of K
    beyond = sub size_K two
    is_last = less beyond position_K
    chosen = where is_last x zero
    total = sum chosen over K
    store total as result: M fp16
"""


def test_blocks_that_store_different_values_in_one_place_are_refused() -> None:
    """The last to store wins, whichever that is: in order it is the block with the last key."""

    def last_key(x: Tensor) -> Tensor:
        is_last = extent(x, "K") - 2 < positions(x, "K")
        return sum(where(is_last, x, 0), "K")

    spec = Small({"x": "MK"}, last_key).spec()
    with pytest.raises(VerifyError, match="blocks store different values in one place"):
        prove(spec, handmade(spec, OVERWRITING), small_cases(spec), seed=1)


def test_large_factors_leave_a_bound() -> None:
    """A mean over images divides by such a number, and its square is in a variance."""

    def product(x: Tensor) -> Tensor:
        made = x
        for _ in range(12):
            made = made * 262144 + x
        return made

    spec = Small({"x": "MK"}, product).spec()
    assert prove(spec, spec, small_cases(spec), seed=1).log2_failure <= LOG2_WANTED


def test_equal_values_without_a_bound_prove_nothing() -> None:
    def product(x: Tensor) -> Tensor:
        made = x
        for _ in range(40):
            made = made * 255 + x
        return made

    spec = Small({"x": "MK"}, product).spec()
    with pytest.raises(VerifyError, match=r"would pass with a probability of up to 2\^"):
        prove(spec, spec, small_cases(spec), seed=1)


@pytest.mark.parametrize("huge", [1e20, -1e30, 2.0**53])
def test_huge_constants_are_told_apart(huge: float) -> None:
    shifted, other = (
        Small({"x": "MK"}, lambda x, c=c: sum(x, "K") + c).spec() for c in (huge, 1e38)
    )
    with pytest.raises(VerifyError, match="not equal to its recipe"):
        prove(shifted, other, small_cases(shifted), seed=1)
    assert prove(shifted, shifted, small_cases(shifted), seed=1).log2_failure <= LOG2_WANTED


@pytest.fixture(scope="module")
def right(spec: Graph, fused_by_hand: Make) -> tuple[Graph, Graph]:
    return spec, fused_by_hand("")


@pytest.mark.parametrize("tile", range(1, 9))
def test_no_tile_size_changes_the_meaning(right: tuple[Graph, Graph], tile: int) -> None:
    spec, candidate = right
    sizes = {"M": 3, "K": 7, "N": 5}
    for dim in sizes:
        case = Case({"M": 2, "K": 3, "N": 4} | {dim: tile}, sizes)
        Prover(spec).compare(candidate, case, seed=1)


def test_a_refusal_names_the_first_difference_and_how_to_repeat_it(
    spec: Graph, fused_by_hand: Make
) -> None:
    case = Case({"M": 2, "K": 3, "N": 4}, {"M": 5, "K": 7, "N": 9})
    with pytest.raises(VerifyError) as caught:
        prove(spec, fused_by_hand(WRONG["no eps"]), [case], seed=7)
    assert caught.value.sentence == (
        "not equal to its recipe: 45 of 45 results differ, first at M=0, N=0 "
        "(extents M=5, K=7, N=9, tiles M=2, K=3, N=4, seed 7)"
    )


def test_a_result_with_other_dims_is_refused(spec: Graph) -> None:
    total = Small({"x": "MK", "g": "K", "w": "NK", "e": ""}, lambda x, g, w, e: sum(x, "K")).spec()
    with pytest.raises(VerifyError, match="a result has dims M, not M, N"):
        Prover(spec).compare(total, small_cases(spec)[0], seed=1)


def test_a_record_says_what_was_compared_and_how_often(right: tuple[Graph, Graph]) -> None:
    spec, candidate = right
    cases = small_cases(spec)
    proof = prove(spec, candidate, cases, seed=5)
    assert [(c.sizes, c.seed, c.draws) for c in proof.cases] == [
        (cases[0].sizes, 5, 1),
        (cases[1].sizes, 6, 2),
        (cases[2].sizes, 8, 1),
    ]
    assert proof.cases[0].tiles == {"M": 2, "K": 3, "N": 4}
    assert [c.log2_failure <= LOG2_WANTED for c in proof.cases] == [c.bounded for c in cases]
    assert -70 < proof.log2_failure < -40
    assert prove(spec, candidate, cases, seed=5) == proof


SOFTMAX = Small(
    {"x": "MK", "v": "NK"}, lambda x, v: contract(exp(x) / sum(exp(x), "K"), v, "K")
).spec()
LATE = Small(
    {"x": "MK", "v": "NK"}, lambda x, v: contract(exp(x), v, "K") / sum(exp(x), "K")
).spec()


def test_a_proof_with_exp_reaches_the_bound_with_many_draws() -> None:
    proof = prove(SOFTMAX, LATE, small_cases(SOFTMAX), seed=1)
    assert proof.log2_failure <= LOG2_WANTED
    assert [c.draws for c in proof.cases] == [1, 18, 1, 1]


TWO_SUMS = Small(
    {"x": "MK", "y": "MK", "v": "NK"},
    lambda x, y, v: contract(exp(x) / sum(exp(x), "K") * (exp(y) / sum(exp(y), "K")), v, "K"),
).spec()


def test_sums_of_more_terms_are_bounded_at_smaller_extents() -> None:
    proof = prove(TWO_SUMS, TWO_SUMS, small_cases(TWO_SUMS), seed=1)
    extents = [c.sizes["K"] for c in proof.cases if c.log2_failure <= LOG2_WANTED]
    assert extents == [3]
    assert proof.log2_failure <= LOG2_WANTED


def test_a_candidate_without_a_law_in_the_field_is_refused() -> None:
    twice = Small({"x": "MK", "v": "NK"}, lambda x, v: contract(exp(exp(x)), v, "K")).spec()
    with pytest.raises(VerifyError, match="cannot be evaluated: exp of a value"):
        prove(SOFTMAX, twice, small_cases(SOFTMAX), seed=1)


def test_a_draw_on_which_the_recipe_divides_by_zero_is_made_anew() -> None:
    def mean_of_some(x: Tensor, lengths: Tensor) -> Tensor:
        seen = where(positions(x, "K") < lengths, x, 0)
        ones = where(positions(x, "K") < lengths, x / x, 0)
        return sum(seen, "K") / sum(ones, "K")

    spec = Small({"x": "MK", "lengths": "M:int32"}, mean_of_some).spec()
    prover = Prover(spec, range_of=lambda name, sizes: (0, sizes["K"]))  # 0 leaves nothing
    reference = prover.reference({"M": 30, "K": 4}, 1)
    (lengths,) = (a for a in reference.inputs if not a.real)
    assert lengths.parts[0].min() >= 1


def test_a_recipe_that_always_divides_by_zero_is_refused() -> None:
    spec = Small({"x": "MK"}, lambda x: x / (x - x)).spec()
    with pytest.raises(VerifyError, match="the recipe divides by zero on 8 draws"):
        prove(spec, spec, small_cases(spec), seed=1)


@pytest.mark.parametrize("name", catalog())
def test_every_recipe_proves_equal_to_itself(name: str) -> None:
    recipe = catalog()[name]
    spec = trace(recipe, recipe.shapes[0], DType.FP16)
    prover = Prover(spec, range_of=recipe.range_of)
    assert prover.prove(spec, small_cases(spec), seed=3).log2_failure <= LOG2_WANTED


@pytest.fixture(scope="module")
def recipe() -> Recipe:
    return catalog()["rms_norm_linear_full"]


@pytest.fixture(scope="module")
def whole(recipe: Recipe) -> Graph:
    """Return a spec with every option."""
    return trace(recipe, Shape("a test", {"K": 16, "N": 8}), DType.FP16)


def changed(graph: Graph, name: str, **fields: object) -> Graph:
    """Return the graph with another declaration of one input, or of its type."""
    node = next(n for n in graph.nodes if n.name == name)
    type_ = {f: fields.pop(f) for f in ("dims", "dtype") if f in fields}
    new = replace(node, outs=(Value(name, replace(node.out.type, **type_)),), **fields)
    return replace(graph, nodes=tuple(new if n is node else n for n in graph.nodes))


def refused(spec: Graph, candidate: Graph) -> str:
    with pytest.raises(VerifyError) as caught:
        prove(spec, candidate, small_cases(spec), seed=1)
    return caught.value.sentence


def test_another_extent_is_refused(whole: Graph) -> None:
    """A draw has extents of its own: it does not see those that a kernel would be made for."""
    assert refused(whole, changed(whole, "norm_weight", dims=(Dim("K", 8),))) == (
        "its input norm_weight [K=8] is norm_weight [K=16] in the recipe"
    )


@pytest.mark.parametrize("name", ["norm_weight", "bias"])
def test_another_choice_of_what_may_be_left_out_is_refused(whole: Graph, name: str) -> None:
    optional = next(n for n in whole.inputs if n.name == name).optional
    flipped = changed(whole, name, optional=not optional)
    assert re.search(rf"optional {name} \[", refused(whole, flipped))


def test_inputs_in_another_order_are_refused(whole: Graph) -> None:
    """Both are numbers: the proof alone would give each the other's."""
    names = {"eps": "weight_offset", "weight_offset": "eps"}
    nodes = tuple(
        replace(
            n,
            args=tuple(names.get(a, a) for a in n.args),
            outs=tuple(replace(v, name=names.get(v.name, v.name)) for v in n.outs),
        )
        for n in whole.nodes
    )
    exchanged = replace(whole, nodes=nodes)
    for node in whole.inputs:
        exchanged = changed(exchanged, node.name, optional=node.optional)
    assert "in the recipe" in refused(whole, exchanged)


def test_a_result_that_is_stored_in_another_order_is_refused(whole: Graph) -> None:
    (name,) = whole.outputs
    said = refused(whole, changed(whole, name, dims=whole.values[name].type.dims[::-1]))
    assert said.startswith(f"its result {name} has dims N=8, M<=4096, in the recipe M<=4096, N=8")


def test_too_few_inputs_are_refused(whole: Graph) -> None:
    unused = whole.inputs[-1]
    fewer = replace(whole, nodes=tuple(n for n in whole.nodes if n is not unused))
    assert refused(whole, fewer) == f"{len(whole.inputs) - 1} inputs instead of {len(whole.inputs)}"


@pytest.mark.parametrize("dtype", [DType.BF16, DType.FP32])
def test_the_gate_refuses_inputs_that_are_stored_otherwise(
    recipe: Recipe, whole: Graph, dtype: DType
) -> None:
    words = f"its input norm_weight is {dtype.value}, in the recipe fp16"
    with pytest.raises(VerifyError, match=words):
        Gate(whole, recipe, DType.FP16).measure(changed(whole, "norm_weight", dtype=dtype))


def test_the_gate_refuses_results_that_are_stored_otherwise(recipe: Recipe, whole: Graph) -> None:
    assert whole.values[whole.outputs[0]].type.dtype is DType.FP32
    with pytest.raises(VerifyError, match=r"its result \w+ is fp32, not fp16"):
        Gate(whole, recipe, DType.FP16).measure(whole)
