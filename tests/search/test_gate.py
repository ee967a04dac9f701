"""The numeric gate refuses proved muGraphs that overflow, lose accuracy or see the masked."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from attention import COVERS_THE_MASKED, FORMS, attention
from handmade import handmade
from small import Small, drawn

from mirage_kernels.generator.errors import VerifyError
from mirage_kernels.generator.ir import DType, Graph, Value, parts_of, retile
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
from mirage_kernels.generator.meaning.arrays import Array, array_reading
from mirage_kernels.generator.meaning.reals import FLOAT64
from mirage_kernels.generator.meaning.walk import results
from mirage_kernels.generator.recipe import Recipe, Shape, catalog, load_recipe, trace
from mirage_kernels.generator.search import peaks
from mirage_kernels.generator.search.cases import small_cases
from mirage_kernels.generator.search.distributions import DISTRIBUTIONS, STALE
from mirage_kernels.generator.search.gate import (
    Gate,
    Measured,
    hidden_positions,
)
from mirage_kernels.generator.search.scores import MIXED, TARGETS, near, scores_of
from mirage_kernels.generator.search.verify import Prover

Fused = Callable[..., Graph]
SHAPE = Shape("a test", {"K": 72, "N": 40})


def gate(recipe: Recipe, dtype: DType) -> Gate:
    return Gate(trace(recipe, SHAPE, dtype), recipe, dtype)


def test_fp16_refuses_x_times_the_norm_weight_because_it_overflows(
    rms_norm_linear: Recipe, fused: Fused
) -> None:
    with pytest.raises(VerifyError, match="error inf on the distribution 'outliers'"):
        gate(rms_norm_linear, DType.FP16).measure(fused("x", dtype=DType.FP16))


@pytest.mark.parametrize(("dtype", "scales"), [("fp16", "w"), ("bf16", "w"), ("bf16", "x")])
def test_other_forms_of_the_norm_are_accepted(
    rms_norm_linear: Recipe, fused: Fused, dtype: str, scales: str
) -> None:
    assert gate(rms_norm_linear, DType(dtype)).measure(fused(scales, dtype=DType(dtype)))


@pytest.mark.parametrize(("theirs", "refused"), [(0.05, False), (0.0, True)])
def test_errors_beside_an_overflow_of_the_unfused_program_are_held_against_its_own(
    rms_norm_linear: Recipe, fused: Fused, theirs: float, refused: bool
) -> None:
    own = gate(rms_norm_linear, DType.BF16)
    (usual,) = own.references[0].wanted["unit"]
    off = Array(usual.exact.dims, (usual.exact.parts[0] * 1.04,))  # what is made is 4 % away
    finite = usual.at & (np.arange(usual.at.size).reshape(usual.at.shape) % 2 == 0)
    wanted = replace(usual, exact=off, rounded=1.0, unfused=1.0, finite=finite)
    wanted = replace(wanted, unfused_there=theirs)
    own.__dict__["references"] = (replace(own.references[0], wanted={"unit": [wanted]}),)
    says = pytest.raises(VerifyError, match="where the unfused program is finite")
    with says if refused else nullcontext():
        own.measure(fused("w", dtype=DType.BF16))


def rounded(graph: Graph, name: str, dtype: DType) -> Graph:
    """Return a muGraph that stores one value of its block in another type."""
    block = graph.blocks[0]
    assert block.body is not None
    nodes = tuple(
        replace(n, outs=(Value(name, replace(n.out.type, dtype=dtype)),)) if n.name == name else n
        for n in block.body.nodes
    )
    body = replace(block.body, nodes=nodes)
    return replace(graph, nodes=(*graph.nodes[:-1], replace(block, body=body)))


@pytest.mark.parametrize(
    ("dtype", "sum_of", "reason"),
    [
        (DType.FP16, "x_squared_total", "times the unfused program's"),
        (DType.BF16, "scaled_product_total", "on the distribution 'unit'"),
    ],
)
def test_a_narrow_accumulator_is_refused(
    rms_norm_linear: Recipe, fused: Fused, dtype: DType, sum_of: str, reason: str
) -> None:
    careless = rounded(fused("w", dtype=dtype), sum_of, dtype)
    with pytest.raises(VerifyError, match=reason):
        gate(rms_norm_linear, dtype).measure(careless)


SCALED = """
    grid N M
    loop K
    load x gate_weight up_weight
    four = const 4
    larger = mul x four
    gate_part = contract larger gate_weight over K
    gate_four = accum gate_part
    gate = div gate_four four
    up_part = contract x up_weight over K
    up = accum up_part
    act = silu gate
    out = mul act up
    store out as result: M N fp16
"""


def test_where_the_unfused_program_overflows_elsewhere_nothing_else_may() -> None:
    """Half of its results are infinite for outliers; 4 x leaves no result a number."""
    source = load_recipe("gated_mlp")
    own = gate(source, DType.FP16)
    with pytest.raises(VerifyError, match="error inf on the distribution 'outliers', where the"):
        own.measure(handmade(own.spec, SCALED))
    careful = SCALED.replace("larger = mul x four", "larger = mul gate_weight four")
    careful = careful.replace("contract larger gate_weight", "contract x larger")
    assert own.measure(handmade(own.spec, careful))


def test_the_unfused_program_passes_its_own_gate(rms_norm_linear: Recipe) -> None:
    own = gate(rms_norm_linear, DType.FP16)
    assert all(m.error == m.unfused for m in own.measure(own.unfused()))


def test_errors_are_those_of_the_storage_type(rms_norm_linear: Recipe, fused: Fused) -> None:
    errors = {}
    for dtype in (DType.FP16, DType.BF16):
        found = gate(rms_norm_linear, dtype).measure(fused("w", dtype=dtype))
        errors[dtype] = found[0].error
    assert 5 < errors[DType.BF16] / errors[DType.FP16] < 12  # 8 bits of precision against 11


def test_tiles_of_the_gate_cut_every_dim_unevenly(rms_norm_linear: Recipe) -> None:
    own = gate(rms_norm_linear, DType.FP16)
    sizes = own.sizes()
    assert all(sizes[d.removesuffix(parts_of(""))] % tile for d, tile in own.tiles().items())


def test_tiles_of_the_mugraph_do_not_change_what_is_measured(
    rms_norm_linear: Recipe, fused: Fused
) -> None:
    own = gate(rms_norm_linear, DType.BF16)
    graph = fused("w", dtype=DType.BF16)
    assert own.measure(retile(graph, {"M": 2, "N": 3, "K": 5})) == own.measure(graph)


def test_a_measurement_keeps_the_digits_that_every_machine_agrees_on() -> None:
    assert Measured("unit", 0.000123456, 0.5).to_json() == {
        "distribution": "unit",
        "error": 0.00012,
        "unfused": 0.5,
    }


def test_rows_are_few_where_an_input_has_several_dims_of_them() -> None:
    source = load_recipe("causal_attention")
    sizes = Gate(trace(source, source.shapes[0], DType.FP16), source, DType.FP16).sizes()
    assert (sizes["T"], sizes["G"], sizes["Hkv"], sizes["B"]) == (8, 8, 2, 2)


def test_rows_are_few_where_an_input_would_have_millions_of_elements() -> None:
    """Two products make the scores, one of them over what all heads share: no dim is a batch's."""

    def heads(q: Tensor, k: Tensor, p: Tensor, r: Tensor) -> Tensor:
        return softmax(contract(q, k, "D") + contract(p, r, "R"), "L")

    inputs = {"q": "B H D", "k": "B L H D", "p": "B H R", "r": "B L R"}
    dynamic = {"B": 64, "H": 64, "L": 4096}
    source = Recipe(inputs=inputs, output="B H L", dynamic=dynamic, reference=lambda *_: None)
    spec = trace(source(heads), Shape("a test", {"D": 64, "R": 32}), DType.FP16)
    sizes = Gate(spec, source, DType.FP16).sizes()
    assert (sizes["B"], sizes["H"], sizes["L"]) == (2, 8, 256)


def test_weights_per_head_are_no_activations_though_heads_are_dynamic() -> None:
    source = load_recipe("qk_layer_norm_attention")
    own = Gate(trace(source, source.shapes[0], DType.FP16), source, DType.FP16)
    (outliers,) = [d for d in DISTRIBUTIONS if d.outlier]
    largest = dict(zip(source.inputs, map(_largest, own.inputs(outliers)), strict=True))
    assert largest["q"] == pytest.approx(outliers.outlier, rel=1e-3)
    assert max(largest["q_weight"], largest["k_weight"]) < 10


def _largest(array: Array) -> float:
    return float(np.abs(array.parts[0]).max())


@cache
def gqa() -> Gate:
    recipe = catalog()["gqa"]
    return Gate(trace(recipe, Shape("a test", {"D": 64}), DType.FP16), recipe, DType.FP16)


@pytest.mark.parametrize("form", FORMS)
def test_a_mugraph_that_masks_scores_passes(form: str) -> None:
    found = gqa().measure(attention(gqa().spec, form))
    usual, sided = [d.name for d in (*DISTRIBUTIONS, STALE)], [*map(near, TARGETS), MIXED]
    assert [m.distribution for m in found] == usual + sided


@pytest.mark.parametrize("edit", COVERS_THE_MASKED)
@pytest.mark.parametrize("form", FORMS)
def test_a_mugraph_whose_peak_covers_stale_positions_is_refused(form: str, edit: str) -> None:
    """Wide scores show it already, where the unfused program is finite."""
    graph = attention(gqa().spec, form, COVERS_THE_MASKED[edit])
    with pytest.raises(VerifyError, match=r"on the distribution '(wide|stale)'"):
        gqa().measure(graph)


@pytest.mark.parametrize("edit", COVERS_THE_MASKED)
def test_such_a_mugraph_is_equal_to_the_recipe_all_the_same(edit: str) -> None:
    spec = gqa().spec
    graph = attention(spec, "flash", COVERS_THE_MASKED[edit])
    prover = Prover(spec, range_of=catalog()["gqa"].range_of)
    assert prover.prove(graph, small_cases(spec), seed=1)


def attentions() -> list[Recipe]:
    return [r for r in catalog().values() if any(":int32" in t for t in r.inputs.values())]


@pytest.mark.parametrize("recipe", attentions(), ids=lambda recipe: recipe.name)
def test_what_every_attention_recipe_hides_is_keys_and_values(recipe: Recipe) -> None:
    gate = Gate(trace(recipe, recipe.shapes[0], DType.FP16), recipe, DType.FP16)
    names = [n.name for n in gate.spec.inputs]
    cached = {n.name for n in gate.spec.inputs if "L" in n.out.type.names}
    assert {names[i] for i in gate.hidden} == cached


def test_what_is_hidden_stands_beyond_the_length() -> None:
    lengths = gqa().inputs(STALE)[3].parts[0]
    for hidden in gqa().hidden.values():  # [B, L, Hkv, D]
        for sequence, length in zip(hidden, lengths, strict=True):
            assert not sequence[:length].any()
            assert sequence[length:].all()


def test_a_recipe_without_masks_hides_nothing(rms_norm_linear: Recipe) -> None:
    own = gate(rms_norm_linear, DType.FP16)
    assert not own.hidden
    assert [name for r in own.references for name in r.wanted] == [d.name for d in DISTRIBUTIONS]


def dense(program: Callable[..., Tensor], inputs: dict[str, str]) -> Recipe:
    """Return a recipe of rows that a call brings."""
    program.__name__ = "dense"
    declared = Recipe(inputs=inputs, output="M N", dynamic={"M": 64}, reference=lambda *_: None)
    return declared(program)


SCORED = {
    "softmax": (dense(lambda x: softmax(x, "N"), {"x": "M N"}), {"N": 512}),
    "softmax of a product": (
        dense(lambda x, w: softmax(contract(x, w, "K"), "N"), {"x": "M K", "w": "N K"}),
        {"N": 512, "K": 512},
    ),
    **{n: (catalog()[n], {"D": 64}) for n in ("gqa", "causal_attention")},
}


@pytest.mark.parametrize("name", SCORED)
def test_the_highest_score_that_a_row_sees_is_near_its_target(name: str) -> None:
    recipe, dims = SCORED[name]
    own = Gate(trace(recipe, Shape("a test", dims), DType.FP16), recipe, DType.FP16)
    (scores,) = scores_of(own.safe)
    found: dict[str, float] = {}
    for draw in own.one_sided():
        (made,) = results(scores.graph, draw.inputs, array_reading(FLOAT64, own.sizes()))
        keys = tuple(i for i, d in enumerate(made.dims) if d in scores.over)
        highest = np.max(made.parts[0], axis=keys, keepdims=True)
        for of, at in draw.rows.items():
            rows = np.broadcast_to(at.over(made.dims).parts[0], highest.shape)
            found[of] = float(np.mean(highest[rows]))
    assert [*found] == [*map(near, TARGETS), MIXED]
    assert [found[near(t)] for t in TARGETS] == pytest.approx(TARGETS, rel=0.15)


def test_scores_that_a_cap_bounds_are_far_from_0_where_the_cap_is() -> None:
    recipe = catalog()["soft_cap_attention"]
    own = Gate(trace(recipe, recipe.shapes[0], DType.FP16), recipe, DType.FP16)
    cap = [*recipe.inputs].index("cap")
    assert all(draw.inputs[cap].parts[0] > -min(TARGETS) / 2 for draw in own.one_sided())


def averaged(s: Tensor, v: Tensor, n: Tensor) -> Tensor:
    weights = where(positions(s, "L") < n, exp(s), 0)
    return contract(weights, v, "L") / sum(exp(s), "L")


def hidden_in(spec: Graph, lengths: list[int]) -> set[str]:
    sizes = {"M": len(lengths), "L": 6}
    found = hidden_positions(spec, drawn(spec, sizes, n=lengths), sizes, seed=0)
    return {spec.inputs[i].name for i in found}


def test_what_a_result_depends_on_past_a_mask_is_not_hidden() -> None:
    spec = Small({"s": "ML", "v": "ML", "n": "M:int"}, averaged).spec()
    assert hidden_in(spec, [2, 3]) == {"v"}


def test_what_one_row_sees_is_not_hidden_from_it_by_the_masks_of_others() -> None:
    spec = Small({"s": "ML", "v": "L", "n": "M:int"}, averaged).spec()
    assert hidden_in(spec, [2, 3]) == {"v"}  # beyond both lengths
    assert hidden_in(spec, [2, 6]) == set()


def of_rows(program: Callable[..., Tensor], reference: Callable, *inputs: str) -> Gate:
    shapes = dict.fromkeys(inputs, "M N")
    recipe = Recipe(inputs=shapes, output="", dynamic={"M": 64}, reference=reference)(program)
    return Gate(trace(recipe, Shape("a test", {"N": 40}), DType.BF16), recipe, DType.BF16)


def test_one_peak_for_rows_far_from_each_other_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def total(x: Tensor) -> Tensor:
        return sum(log(sum(exp(x), "N")), "M")

    own = of_rows(total, lambda x: x.logsumexp(-1).sum(), "x")
    assert own.measure(own.unfused())
    monkeypatch.setattr(peaks, "summed_along", lambda graph, name: {"M", "N"})
    with pytest.raises(VerifyError, match="outliers"):
        own.measure(replace(own).unfused())


def test_an_error_may_be_what_fp32_makes_of_differences() -> None:
    """Of numbers beside 1 logarithms are small, and cancel: no program in fp32 is accurate."""

    def divergence(x: Tensor, y: Tensor) -> Tensor:
        p, q = (softmax(v, "N") for v in (x, y))
        return sum(sum(p * (log(p) - log(q)), "N"), "M")

    def reference(x, y):
        p, q = x.softmax(-1), y.softmax(-1)
        return (p * (p.log() - q.log())).sum()

    own = of_rows(divergence, reference, "x", "y")
    usual = next(r for r in own.references if "tiny" in r.wanted)
    (tiny,) = usual.wanted["tiny"]
    off = replace(tiny, exact=Array((), (tiny.exact.parts[0] * 1.04,)), unfused=1.0)
    for wanted, refused in ((off, False), (replace(off, in_fp32=lambda: off.exact), True)):
        own.__dict__["references"] = (replace(usual, wanted={"tiny": [wanted]}),)
        with pytest.raises(VerifyError, match="a rounding") if refused else nullcontext():
            own.measure(own.unfused())


def test_what_refused_a_candidate_is_asked_first_of_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    own = replace(gqa())  # has refused nothing yet
    right = own.measure(attention(own.spec, min(FORMS)))
    asked, judged = list[str](), Gate._judged

    def wrong(self: Gate, name: str, *given: Any) -> Measured:
        asked.append(name)
        if name == "wide":
            raise VerifyError("wrong there")
        return judged(self, name, *given)

    monkeypatch.setattr(Gate, "_judged", wrong)
    for _ in range(2):
        with pytest.raises(VerifyError):
            own.measure(attention(own.spec, min(FORMS)))
    assert asked == ["unit", "tiny", "outliers", "wide", "wide"]
    monkeypatch.undo()
    assert own.measure(attention(own.spec, min(FORMS))) == right  # in the distributions' own order
