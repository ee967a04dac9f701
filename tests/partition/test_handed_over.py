"""Functions as users hand them over: what of them went wrong once."""

from __future__ import annotations

import math
from typing import Any

import torch
from cutting import cut, drawn, made, really_made, require_same, ways
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from mirage_kernels.generator.ir import DType
from mirage_kernels.generator.partition.program import partitioned
from mirage_kernels.generator.partition.trace import Function
from mirage_kernels.generator.recipe import Recipe, shape, trace
from mirage_kernels.generator.tiles.check import require_same as require_tiles


def geglu(x: Tensor, wi: Tensor, wo: Tensor) -> Tensor:
    gate, up = F.linear(x, wi).chunk(2, -1)
    hidden = F.dropout(F.gelu(gate) * up, 0.1, training=False)
    return x + F.dropout(F.linear(hidden, wo), 0.1, training=False)


def test_dropout_that_does_not_train_stands_between_nothing() -> None:
    shapes = {"x": (8, 64), "wi": (256, 64), "wo": (64, 128)}
    program = cut(geglu, ["x"], **shapes)
    assert ways(program)[0] == ["linear, linear, gelu, mul", "linear, add"]
    require_same(program, geglu, x=drawn(5, 64), wi=drawn(256, 64), wo=drawn(64, 128) / 16)


def normed(x: Tensor, v: Tensor, g: Tensor) -> Tensor:
    return F.linear(x, torch._weight_norm(v, g, 0))


def test_a_weight_is_normed_in_front_of_its_product_or_by_itself() -> None:
    program = cut(normed, ["x"], x=(8, 64), v=(32, 64), g=(32, 1))
    assert ways(program)[0] == ["weight_norm, linear"]
    require_same(program, normed, x=drawn(5, 64), v=drawn(32, 64), g=drawn(32, 1))


def test_parametrized_modules_are_functions_too() -> None:
    module = nn.utils.parametrizations.weight_norm(nn.Linear(64, 32)).bfloat16()
    examples = {"input": torch.empty(8, 64, dtype=torch.bfloat16)}
    program = partitioned(
        Function(module, examples, {"input": {0: "M"}}, "f"), DType.BF16, "sm_90a", made
    )
    assert not any("[" in step for step in ways(program)[0])


def test_products_of_many_rows_of_a_static_number_are_pytorch_s_without_a_search() -> None:
    def normed_first(x: Tensor, w: Tensor) -> Tensor:
        return F.linear(F.layer_norm(x, (64,)), w)

    def make(recipe: Recipe) -> Any:
        assert "linear" not in recipe.name
        return made(recipe)

    program = cut(normed_first, [], make, x=(65, 64), w=(32, 64))
    assert ways(program) == [["layer_norm", "[linear]"]]
    (reason,) = {*program.reasons.values()}
    assert "name them in `dynamic`" in reason


def state_step(x: Tensor, A: Tensor, a: Tensor, H: Tensor) -> Tensor:  # noqa: N803
    H.copy_(H * A + x * a)
    return H.sum(-1)


def test_inputs_are_called_as_the_function_calls_them() -> None:
    names = ("x", "A", "a", "H")
    program = cut(state_step, [], **dict.fromkeys(names, (4, 16)))
    given = {n: drawn(4, 16 + i)[:, :16] for i, n in enumerate(names)}
    require_same(program, state_step, **given)
    called = [i.get("called", i["name"]) for i in program.document["inputs"]]
    assert called == [*names]


def scores(x: Tensor) -> Tensor:
    later = torch.ones(x.shape[-2:], dtype=torch.bool).triu(1)
    return x.masked_fill(later, -math.inf) * 0.5


def test_scores_that_are_hidden_are_stored_as_minus_infinity() -> None:
    program = cut(scores, [], really_made, x=(4, 24, 24))
    assert ways(program) == [["masked_fill, mul"]]
    require_same(program, scores, x=drawn(4, 24, 24))
    require_tiles(program.results[0].record.graph, 64, 2)


def test_each_result_of_several_has_its_own_dims() -> None:
    def program(x: Any) -> tuple[Any, ...]:
        return x + 1.0, x * 2.0, x * 3.0

    declared = Recipe(
        inputs={"x": "M K"},
        output="M K",
        also={"second": "K M", "third": "M K"},
        dynamic={"M": 8},
        reference=lambda x: (x + 1, x.t() * 2, x * 3),
        shapes=(shape("none", K=4),),
    )
    spec = trace(declared(program), declared.shapes[0], DType.FP16)
    assert spec.outputs[1:] == ("second", "third")
    types = [spec.values[o].type.names for o in spec.outputs]
    assert types == [("M", "K"), ("K", "M"), ("M", "K")]


def two_views(x: Tensor, w: Tensor) -> Tensor:
    y = F.linear(x, w)
    return y * torch.rsqrt(y.float().pow(2).mean(-1, keepdim=True) + 1e-6).to(y.dtype)


def test_a_value_and_its_cast_are_one_to_a_kernel() -> None:
    program = cut(two_views, ["x"], x=(8, 64), w=(32, 64))
    assert not program.reasons
    require_same(program, two_views, x=drawn(5, 64), w=drawn(32, 64))
