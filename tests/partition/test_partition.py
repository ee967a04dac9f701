"""PyTorch functions cut into kernels and PyTorch's own operators: what goes where, and equality."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

import pytest
import torch
from cutting import cut, drawn, made, really_made, require_same, ways
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from mirage_kernels.early_weights import Early
from mirage_kernels.generator.errors import RecipeError, SearchError
from mirage_kernels.generator.ir import DType
from mirage_kernels.generator.partition.program import partitioned
from mirage_kernels.generator.partition.trace import Function
from mirage_kernels.generator.pipeline import Result
from mirage_kernels.generator.recipe import Recipe, trace
from mirage_kernels.generator.schedules.general import form_of
from mirage_kernels.program_steps import SteppedProgram


def layer(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return torch.logsumexp(F.relu(F.linear(x, w, b)) * 2, dim=1, keepdim=True)


def test_products_of_many_rows_are_pytorch_s() -> None:
    program = cut(layer, ["x"], x=(8, 96), w=(160, 96), b=(160,))
    assert [dict(way.most) for way in program.ways] == [{"M": 64}, {}]
    assert ways(program) == [
        ["linear, relu, mul", "logsumexp"],
        ["[linear]", "relu, mul, logsumexp"],
    ]
    for rows in (1, 64, 65):
        require_same(program, layer, x=drawn(rows, 96), w=drawn(160, 96), b=drawn(160))


def mlp(x: Tensor, n: Tensor, g: Tensor, u: Tensor, d: Tensor) -> Tensor:
    h = F.rms_norm(x, (96,), n, 1e-5)
    return x + F.linear(F.silu(F.linear(h, g)) * F.linear(h, u), d)


def test_a_gated_mlp_is_one_kernel_with_its_norm() -> None:
    shapes = {"x": (4, 96), "n": (96,), "g": (160, 96), "u": (160, 96), "d": (96, 160)}
    program = cut(mlp, ["x"], **shapes)
    assert ways(program)[0] == ["rms_norm, linear, silu, linear, mul", "linear, add"]
    for rows in (3, 70):
        require_same(
            program,
            mlp,
            **{n: drawn(rows if n == "x" else s[0], *s[1:]) for n, s in shapes.items()},
        )


def attention(q: Tensor, k: Tensor, v: Tensor, slopes: Tensor, gate: Tensor) -> Tensor:
    distance = torch.tanh(slopes)
    scores = torch.einsum("hd,hld->hl", q, k) * 0.1 - distance
    return torch.einsum("hl,hld->hd", torch.softmax(scores, -1), v) * torch.sigmoid(gate)


def test_attention_is_one_kernel_with_its_bias_and_gate() -> None:
    shapes = {"q": (4, 16), "k": (4, 72, 16), "v": (4, 72, 16), "slopes": (4, 1), "gate": (4, 16)}
    program = cut(attention, [], **shapes)
    (only,) = ways(program)
    assert len(only) == 1
    require_same(program, attention, **{n: drawn(*s) for n, s in shapes.items()})


def cached(x: Tensor, w: Tensor, cache: Tensor, at: Tensor, one: Tensor) -> tuple[Tensor, Tensor]:
    rows = F.linear(x, w)
    turned = torch.cat((-rows[:, 40:], rows[:, :40]), -1) * one
    cache.index_copy_(1, at, turned.unsqueeze(1))
    return cache.sum(-1), torch.relu(rows)


def test_an_input_may_have_the_name_of_an_operator() -> None:
    def run(x: Tensor, t: Tensor, select: Tensor) -> Tensor:
        return F.linear(x, t) + select.to(x.dtype)

    program = cut(run, ["x"], x=(8, 64), t=(32, 64), select=(32,))
    assert ways(program)[0] == ["linear, to, add"]
    require_same(program, run, x=drawn(3, 64), t=drawn(32, 64), select=drawn(32))


def test_a_general_kernel_reads_one_element_for_a_vector_of_one() -> None:
    def run(x: Tensor, scale: Tensor) -> Tensor:
        return (x * scale).sum(0) + scale

    program = cut(run, [], really_made, x=(48, 64), scale=(1,))
    (result,) = program.results
    assert result.record.broadcast == ("scale",)
    (cuda,) = (text for name, text in result.files.items() if name.endswith(".cu"))
    assert "const auto* from = args.scale_in;" in cuda or "args.scale_tile_in;" in cuda
    assert "x_tensor.aligned" in cuda
    assert "scale_tensor.aligned" not in cuda  # its stride of 0 keeps no other from being read fast
    require_same(program, run, x=drawn(48, 64), scale=drawn(1))


def test_a_product_takes_what_others_stored_as_it_lies() -> None:
    def run(x: Tensor, w: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        heads = torch.softmax(x, dim=-1)
        lines = heads.unsqueeze(2).transpose(1, 2).reshape(-1, 64)
        return F.linear(lines, w) + residual, heads

    shapes = {"x": (8, 4, 16), "w": (32, 64), "residual": (8, 32)}
    program = cut(run, ["x", "residual"], **shapes)
    assert ways(program)[0] == ["softmax", "linear, add"]
    product = next(r for r in program.results if "linear" in r.record.recipe)
    assert {*product.request.recipe.static_dims} == {"K", "N"}
    require_same(program, run, **{n: drawn(*shape) for n, shape in shapes.items()})


def test_what_no_kernel_has_runs_in_pytorch_in_order_and_in_place() -> None:
    given = {"x": drawn(4, 96), "w": drawn(80, 96), "cache": drawn(4, 8, 80), "one": drawn(1)}
    whole = given | {"at": torch.tensor([3])}
    examples = {n: torch.empty_like(x, device="meta") for n, x in whole.items()}
    rows = {n: {0: "M"} for n in ("x", "cache")}
    program = partitioned(Function(cached, examples, rows, "f"), DType.BF16, "sm_90a", made)
    assert ways(program)[0] == [
        "linear",
        "neg, mul, mul",
        "[index_copy]",
        "sum",
        "relu",
    ]
    assert program.trace.refused
    require_same(program, cached, **whole)


def test_where_no_kernel_is_found_pytorch_runs() -> None:
    def make(recipe: Recipe) -> Result:
        if "logsumexp" in recipe.name:
            raise SearchError("the search found nothing", "")
        return made(recipe)

    program = cut(layer, ["x"], make, x=(8, 96), w=(160, 96), b=(160,))
    few, many = ways(program)
    assert few == ["linear, relu, mul", "[logsumexp]"]
    assert many == ["[linear]", "relu, mul", "[logsumexp]"]
    assert {*program.reasons.values()} == {"the search found nothing"}


def test_a_product_that_only_the_general_schedule_has_goes_alone_then_to_pytorch() -> None:
    names = list[str]()

    def make(recipe: Recipe) -> Result:
        names.append(recipe.name)
        return made(recipe, "general" if "linear" in recipe.name else "streaming")

    program = cut(layer, ["x"], make, x=(8, 96), w=(160, 96), b=(160,))
    assert names[:2] == ["f_linear_mul", "f_linear"]
    assert ways(program) == [["[linear]", "relu, mul, logsumexp"]]


@pytest.mark.parametrize("apart", [False, True])
def test_what_slows_a_product_down_goes_alone_and_what_is_behind_it_does_not(apart: bool) -> None:
    def run(x: Tensor, w: Tensor, r: Tensor) -> Tensor:
        return F.linear(F.rms_norm(x, (96,)) if apart else x, w) + r

    def make(recipe: Recipe) -> Result:
        return made(recipe, "sliced_k")

    program = cut(run, ["x", "r"], make, x=(8, 96), w=(160, 96), r=(8, 160))
    assert ways(program)[0] == (["rms_norm", "linear, add"] if apart else ["linear, add"])


def test_extents_are_those_of_the_call() -> None:
    def folded(x: Tensor) -> Tensor:
        return torch.softmax(x.reshape(x.shape[0] * 4, 24), -1).reshape(x.shape[0], 96)

    program = cut(folded, ["x"], x=(8, 96))
    require_same(program, folded, x=drawn(5, 96))


def test_an_extent_that_is_no_multiple_is_pytorch_s() -> None:
    def longer(x: Tensor) -> Tensor:
        return torch.relu(torch.cat((x, x[:1])))

    program = cut(longer, ["x"], x=(8, 96))
    assert ways(program) == [["[cat]", "[relu]"]]
    assert "where M is 8 and 15" in next(iter(program.reasons.values()))
    require_same(program, longer, x=drawn(5, 96))


def test_a_tensor_that_does_not_fit_is_named() -> None:
    program = cut(layer, ["x"], x=(8, 96), w=(160, 96), b=(160,))
    document = cast("Mapping[str, Any]", program.document)
    call = SteppedProgram([document], lambda key, tensors, into, assume: [])
    with pytest.raises(ValueError, match=r"f: w is \[160, 95\]; \[160, 96\] works"):
        call(drawn(2, 96), drawn(160, 95), drawn(160))
    with pytest.raises(ValueError, match=r"b is missing; a tensor \[160\] works"):
        call(drawn(2, 96), drawn(160, 96))
    with pytest.raises(TypeError, match="f takes x, w, b, each once"):
        call(drawn(2, 96), x=drawn(2, 96))


def test_one_of_several_results_is_a_kernel_s_unless_the_others_are_wanted() -> None:
    def largest(x: Tensor) -> Tensor:
        return torch.max(x, dim=1)[0] * 2

    def position(x: Tensor) -> Tensor:
        values, positions = torch.max(x, dim=1)
        return values * positions

    program = cut(largest, ["x"], x=(8, 96))
    assert ways(program) == [["max, mul"]]
    require_same(program, largest, x=drawn(5, 96))
    program = cut(position, ["x"], x=(8, 96))
    assert ways(program)[0][0] == "[max]"
    require_same(program, position, x=drawn(5, 96))


def divergence(x: Tensor, y: Tensor) -> Tensor:
    x, y = torch.softmax(x, dim=1), torch.softmax(y, dim=1)
    return F.kl_div(torch.log(x), y, reduction="batchmean")


def test_a_chain_for_which_nothing_is_found_is_cut_in_front_of_its_last_sum() -> None:
    def make(recipe: Recipe) -> Result:
        if len(trace(recipe, recipe.shapes[0], DType.BF16).of("sum")) > 2:
            raise SearchError("the search found nothing", "")
        return made(recipe)

    program = cut(divergence, ["x", "y"], make, x=(8, 96), y=(8, 96))
    assert ways(program)[0] == ["softmax, log_softmax, kl_div", "sum, sum, div"]
    require_same(program, divergence, x=drawn(5, 96), y=drawn(5, 96))


def test_a_chain_for_which_nothing_is_found_is_cut_in_halves() -> None:
    def chain(x: Tensor) -> Tensor:
        return torch.sin(torch.tanh(torch.relu(torch.abs(x)))).mean()

    def make(recipe: Recipe) -> Result:
        if {"abs", "sin"} <= {n.op for n in trace(recipe, recipe.shapes[0], DType.BF16).nodes}:
            raise SearchError("the search found nothing", "")
        return made(recipe)

    program = cut(chain, ["x"], make, x=(8, 96))
    assert ways(program)[0] == ["abs, relu", "tanh, sin", "mean"]
    require_same(program, chain, x=drawn(5, 96))


def test_a_small_softmax_in_front_of_attention_is_a_kernel_of_its_own() -> None:
    def tempered(q: Tensor, k: Tensor, v: Tensor, t: Tensor) -> Tensor:
        shares = torch.softmax(t, 0)[:, None, None]
        return torch.softmax((q @ k.transpose(-1, -2)) * shares, -1) @ v

    def make(recipe: Recipe) -> Result:
        if len(trace(recipe, recipe.shapes[0], DType.BF16).of("exp")) > 1:
            raise SearchError("exp of a value that depends on another exp", "")
        return made(recipe)

    sizes = {"q": (2, 4, 8, 16), "k": (2, 4, 24, 16), "v": (2, 4, 24, 16), "t": (4,)}
    program = cut(tempered, [], make, **sizes)
    assert ways(program)[0] == ["softmax", "matmul, mul, softmax, matmul"]
    require_same(program, tempered, **{name: drawn(*size) for name, size in sizes.items()})


def test_a_temperature_that_is_an_exp_is_part_of_attention() -> None:
    def tempered(q: Tensor, k: Tensor, v: Tensor, t: Tensor) -> Tensor:
        return torch.softmax((q @ k.transpose(-1, -2)) * t.exp()[:, None, None], -1) @ v

    sizes = {"q": (2, 4, 8, 16), "k": (2, 4, 24, 16), "v": (2, 4, 24, 16), "t": (4,)}
    program = cut(tempered, [], really_made, **sizes)
    assert ways(program)[0] == ["matmul, exp, mul, softmax, matmul"]
    require_same(program, tempered, **{name: drawn(*size) for name, size in sizes.items()})


def test_a_norm_of_two_sums_stays_in_front_of_two_products() -> None:
    def centred(x: Tensor, n: Tensor, g: Tensor, u: Tensor) -> Tensor:
        h = F.layer_norm(x, (96,), n)
        return F.silu(F.linear(h, g)) * F.linear(h, u)

    program = cut(centred, ["x"], x=(4, 96), n=(96,), g=(160, 96), u=(160, 96))
    assert ways(program)[0] == ["layer_norm", "linear, silu, linear, mul"]


def test_a_kernel_without_a_plan_is_pytorch_s_with_the_reason() -> None:
    def make(recipe: Recipe) -> Result:
        result = made(recipe)
        result.record.no_plan = "no block has room"
        return result

    program = cut(lambda x: torch.relu(x), ["x"], make, x=(8, 96))
    assert ways(program) == [["[relu]"]]
    assert [*program.reasons.values()] == ["f_relu: no block has room"]


# Sums over more than a cluster's blocks hold, of which two also go on to what they are sums of.
LONG_SUMS: dict[str, Callable[[Tensor], Tensor]] = {
    "a mean of everything": lambda x: torch.mean(F.relu(x) * x),
    "a norm of everything": lambda x: x / torch.norm(x, p="fro"),
    "a norm of rows that no cluster holds": lambda x: F.normalize(x.view(1, -1), p=2.0),
}


@pytest.mark.parametrize("name", LONG_SUMS)
def test_sums_of_more_than_a_block_holds_are_added_by_a_second_kernel(name: str) -> None:
    program = cut(lambda x: LONG_SUMS[name](x), ["x"], really_made, x=(8, 2**17))
    assert not program.reasons
    (result,) = program.results
    record = result.record
    forms = {form_of(record.graph, variant.knobs) for variant in record.variants}
    assert {len(form.blocks) for form in forms} == {2}
    assert record.proof.log2_failure <= -40


def wide_norm(x: Tensor, w: Tensor) -> Tensor:
    """RMSNorm as model code writes it, in fp32."""
    h = x.to(torch.float32)
    h = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-6)
    return w * h.to(x.dtype)


def test_a_cast_is_part_of_the_kernel_that_takes_it() -> None:
    program = cut(wide_norm, ["x"], x=(4, 256), w=(256,))
    assert ways(program) == [["pow, mean, add, rsqrt, mul, to, mul"]]
    require_same(program, wide_norm, x=drawn(3, 256), w=drawn(256))


def test_values_of_fp32_are_inputs_of_fp32() -> None:
    def sorted_mean(x: Tensor) -> Tensor:
        return torch.sort(x.float(), dim=-1).values.square().mean(-1).to(x.dtype)

    program = cut(sorted_mean, ["x"], x=(4, 256))
    (own,) = program.results
    assert [t.split(":")[1:] for t in own.request.recipe.inputs.values()] == [["fp32"]]


def test_sums_that_a_result_runs_along_are_stored_in_front_of_it() -> None:
    def spread(x: Tensor, s: Tensor) -> Tensor:
        return x.amax(dim=1) + s

    program = cut(spread, ["x"], x=(4, 256), s=(80, 1))
    assert ways(program) == [["amax", "add"]]
    require_same(program, spread, x=drawn(3, 256), s=drawn(80, 1))


def test_sums_that_go_to_their_own_rows_stay_in_their_kernel() -> None:
    def added(x: Tensor, y: Tensor) -> Tensor:
        return x.amax(dim=1, keepdim=True) + y

    program = cut(added, ["x", "y"], x=(4, 256), y=(4, 80))
    assert ways(program) == [["amax, add"]]


def test_an_input_of_one_element_is_broadcast() -> None:
    def scaled(x: Tensor, s: Tensor) -> Tensor:
        return torch.softmax(x, dim=1) * s

    (own,) = cut(scaled, ["x"], x=(4, 256), s=(1,)).results
    assert own.request.recipe.broadcast == ("s",)


def test_only_inputs_that_a_program_keeps_are_read_early_as_weights() -> None:
    def chained(x: Tensor, w: Tensor, v: Tensor) -> Tensor:
        return torch.softmax(torch.softmax(x @ w, -1) @ (v @ v).relu(), -1)

    program = cut(chained, ["x"], x=(8, 96), w=(96, 80), v=(80, 80))
    document = cast("Mapping[str, Any]", program.document)
    way = document["ways"][0]
    early = Early.of(document, way).steps
    names = {i["name"] for i in document["inputs"]}
    for i, step in enumerate(way["steps"]):
        if "kernel" in step:
            still = [w for w in step["inputs"] if all(isinstance(n, int) for n in w["shape"])]
            assert (i in early) == all(w["value"] in names for w in still)
    assert early != {i for i, step in enumerate(way["steps"]) if "kernel" in step}


def test_an_input_that_a_step_writes_is_no_weight_any_more() -> None:
    still: dict[str, Any] = {"value": "w", "shape": [8, 8]}
    kernel: dict[str, Any] = {"kernel": "k", "inputs": [still], "results": [], "last": []}
    view = {"call": "aten.view.default", "args": [{"value": "w"}, [64]], "result": "seen"}
    copy = {"call": "aten.copy_.default", "args": [{"value": "seen"}, 0], "result": "done"}
    document: dict[str, Any] = {"inputs": [{"name": "w"}]}
    assert Early.of(document, {"steps": [view, kernel]}).steps == {1}
    assert Early.of(document, {"steps": [view, copy, kernel]}).steps == frozenset()


def test_a_view_of_an_input_is_read_early_as_the_input_is() -> None:
    def kernel(name: str) -> dict[str, Any]:
        return {"kernel": "k", "inputs": [{"value": name, "shape": [4, 8]}], "results": []}

    half = {"call": "aten.slice.Tensor", "args": [{"value": "w"}, 0, 4, 8], "result": "half"}
    twice = {"call": "aten.mul.Tensor", "args": [{"value": "half"}, 2], "result": "twice"}
    copy = {"call": "aten.copy_.default", "args": [{"value": "w"}, 0], "result": "done"}
    document: dict[str, Any] = {"inputs": [{"name": "w"}]}
    steps = [half, kernel("half"), twice, kernel("twice")]
    early = Early.of(document, {"steps": steps})
    assert (early.steps, early.weights) == ({1}, {"w"})
    assert Early.of(document, {"steps": [*steps, copy]}).steps == frozenset()


def test_a_single_element_goes_through_functions_to_what_it_is_as_wide_as() -> None:
    def scaled(x: Tensor, s: Tensor, t: Tensor) -> Tensor:
        return x * s.exp() + torch.sigmoid(t)

    program = cut(scaled, ["x"], x=(8, 96), s=(), t=(1,))
    assert ways(program) == [["exp, mul, sigmoid, add"]]
    require_same(program, scaled, x=drawn(5, 96), s=drawn(), t=drawn(1))


def test_a_product_by_a_vector_is_one_kernel_with_what_comes_behind_it() -> None:
    def value_head(x: Tensor, w: Tensor) -> Tensor:
        return torch.sigmoid(x @ w)

    program = cut(value_head, ["x"], make=really_made, x=(8, 256), w=(256,))
    assert ways(program) == [["matmul, sigmoid"]]
    require_same(program, value_head, x=drawn(5, 256), w=drawn(256))


def test_a_single_element_beside_single_columns_is_pytorch_s() -> None:
    def head(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        return torch.sigmoid(F.linear(x, w, b)).squeeze(-1)

    program = cut(head, ["x"], x=(8, 96), w=(1, 96), b=(1,))
    assert "b has one element, and no one width" in program.reasons.values()
    require_same(program, head, x=drawn(5, 96), w=drawn(1, 96), b=drawn(1))


def greedy(x: Tensor, n: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    """The last layer: the next token of each sequence, and its logits."""
    logits = F.linear(F.rms_norm(x, (96,), n, 1e-5), w)
    return torch.argmax(logits, -1), logits


def test_the_next_token_is_pytorch_s_argmax_of_a_kernel_s_logits() -> None:
    program = cut(greedy, ["x"], x=(4, 96), n=(96,), w=(200, 96))
    assert ways(program) == [
        ["rms_norm, linear", "[argmax]"],
        ["rms_norm", "[linear]", "[argmax]"],
    ]
    for rows in (1, 64, 65):
        given = {"x": drawn(rows, 96), "n": drawn(96), "w": drawn(200, 96)}
        require_same(program, greedy, **given)


@pytest.mark.parametrize("keep", [False, True])
def test_a_program_may_have_positions_alone_as_its_result(keep: bool) -> None:
    def token(x: Tensor, n: Tensor, w: Tensor) -> Tensor:
        return greedy(x, n, w)[1].argmax(-1, keepdim=keep)

    program = cut(token, ["x"], x=(4, 96), n=(96,), w=(200, 96))
    require_same(program, token, x=drawn(7, 96), n=drawn(96), w=drawn(200, 96))  # int64 too


def test_an_input_that_lacks_its_dynamic_dim_is_pointed_at(
    caplog: pytest.LogCaptureFixture,
) -> None:
    given = {n: torch.empty(8, 32, device="meta", dtype=torch.bfloat16) for n in ("x", "y")}
    function = Function(lambda x, y: x * y, given, {"x": {0: "M"}}, "f")
    with pytest.raises(RecipeError, match="cannot trace") as caught:
        partitioned(function, DType.BF16, "sm_90a", made)
    assert "name a dynamic dim in all inputs that have it" in caught.value.hint
    assert not [r for r in caplog.records if r.levelname == "ERROR"]


def test_one_element_may_go_to_what_has_a_dynamic_last_dim() -> None:
    def scored(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        return torch.sigmoid((x * w).sum(-1) + b)

    program = cut(scored, ["x"], really_made, x=(8, 96), w=(96,), b=())
    assert ways(program) == [["mul, sum, add, sigmoid"]]
    for rows in (2, 8, 70):
        require_same(
            program, scored, x=drawn(rows, 96), w=drawn(96), b=torch.tensor(0.5).bfloat16()
        )


def test_what_takes_no_tensor_may_be_summed_up_with_what_is_chosen() -> None:
    def kept(x: Tensor) -> Tensor:
        return torch.where(torch.ones(8, 96).tril() > 0, x, torch.zeros_like(x)).sum(-1)

    program = cut(kept, [], really_made, x=(8, 96))
    require_same(program, kept, x=drawn(8, 96))


def test_pytorch_runs_what_has_more_elements_than_kernels_count() -> None:
    def doubled(x: Tensor) -> Tensor:
        return F.silu(x) * 2

    program = cut(doubled, [], really_made, x=(2**21 + 1,))
    assert ways(program) == [["[silu]", "[mul]"]]
    assert any("must be at most 2097152" in line for line in program.reason_lines())
