"""Softmax and logsumexp as recipes: chosen, proved, and right for scores of any size."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
import numpy.typing as npt
import pytest

from mirage_kernels.generator.ir import DType, Graph
from mirage_kernels.generator.language import Tensor, contract, exp, log, positions, softmax, sum
from mirage_kernels.generator.meaning.arrays import Array, array_reading
from mirage_kernels.generator.meaning.reals import STORAGE, round_to
from mirage_kernels.generator.meaning.walk import results
from mirage_kernels.generator.pipeline import Result, generate
from mirage_kernels.generator.recipe import Recipe, shape
from mirage_kernels.generator.request import Request
from mirage_kernels.generator.search.verify import LOG2_WANTED

Real = npt.NDArray[np.float64]
ROWS, K = 4, 512
N = {"softmax of a product": 64}  # experts of a router; 640 in the others


def torch_softmax(x, weight=None):
    return (x if weight is None else x @ weight.T).softmax(-1)


def torch_logsumexp(x, weight=None):
    return (x if weight is None else x @ weight.T).logsumexp(-1)


def logsumexp(x: Tensor) -> Tensor:
    return log(sum(exp(x), "N"))


def columns(name: str) -> int:
    return N.get(name, 640)


def declared(program: Callable[..., Tensor], reference: Callable, output: str) -> Recipe:
    """Return a recipe of rows x, or of x weight where the program takes both."""
    of_product = program.__name__.endswith("linear")
    inputs = {"x": "M K", "weight": "N K"} if of_product else {"x": "M N"}
    made = Recipe(
        inputs=inputs,
        output=output,
        dynamic={"M": 64},
        reference=reference,
    )
    return made(program)


def softmax_rows(x: Tensor) -> Tensor:
    return softmax(x, over="N")


def softmax_linear(x: Tensor, weight: Tensor) -> Tensor:
    return softmax(contract(x, weight, over="K"), over="N")


def logsumexp_rows(x: Tensor) -> Tensor:
    return logsumexp(x)


def logsumexp_linear(x: Tensor, weight: Tensor) -> Tensor:
    return logsumexp(contract(x, weight, over="K"))


RECIPES = {
    "softmax": declared(softmax_rows, torch_softmax, "M N"),
    "softmax of a product": declared(softmax_linear, torch_softmax, "M N"),
    "logsumexp": declared(logsumexp_rows, torch_logsumexp, "M"),
    "logsumexp of a product": declared(logsumexp_linear, torch_logsumexp, "M"),
}


@cache
def made(name: str, dtype: DType) -> Result:
    recipe, sizes = RECIPES[name], {"N": columns(name), "K": K}
    chosen = shape("a test", **{d: sizes[d] for d in recipe.static_dims})
    return generate(Request(recipe, chosen, dtype), jobs=1, progress=lambda event: None)


def drawn(name: str, mean: float, deviation: float, dtype: DType) -> list[Real]:
    """Return inputs whose scores have that mean and standard deviation, as stored."""
    rng, n = np.random.default_rng(1), columns(name)
    if not name.endswith("product"):
        return [_stored(mean + deviation * rng.standard_normal((ROWS, n)), dtype)]
    # Along one direction x is constant, and the weights there make the mean.
    x, weight = rng.standard_normal((ROWS, K)), rng.standard_normal((n, K)) * deviation / K**0.5
    x[:, 0], weight[:, 0] = 8.0, mean / 8
    return [_stored(x, dtype), _stored(weight, dtype)]


def _stored(x: Real, dtype: DType) -> Real:
    return np.asarray(round_to(x, dtype), np.float64)


def run(graph: Graph, inputs: list[Real]) -> Real:
    """Return a muGraph's result in the storage type of its inputs, fp32 in between."""
    sizes = {d.name: d.size for n in graph.inputs for d in n.out.type.dims} | {"M": ROWS}
    arrays = [
        Array(node.out.type.names, (np.asarray(x, np.float32),))
        for node, x in zip(graph.inputs, inputs, strict=True)
    ]
    found = results(graph, arrays, array_reading(STORAGE, sizes))[0]
    order = [d for d in ("M", "N") if d in found.dims]
    return np.asarray(found.over(order).parts[0], np.float64)


def exact(name: str, inputs: list[Real]) -> Real:
    scores = inputs[0] if len(inputs) == 1 else inputs[0] @ inputs[1].T
    highest = scores.max(-1, keepdims=True)
    total = np.exp(scores - highest).sum(-1, keepdims=True)
    if name.startswith("logsumexp"):
        return np.asarray((highest + np.log(total))[:, 0])
    return np.asarray(np.exp(scores - highest) / total)


@pytest.mark.parametrize("dtype", [DType.FP16, DType.BF16], ids=lambda dtype: dtype.value)
@pytest.mark.parametrize(("mean", "deviation"), [(0, 30), (500, 1), (1000, 1), (-1000, 1)])
@pytest.mark.parametrize("name", RECIPES)
def test_it_is_right_for_scores_of_any_size(
    name: str, mean: float, deviation: float, dtype: DType
) -> None:
    inputs = drawn(name, mean, deviation, dtype)
    found, wanted = run(made(name, dtype).record.graph, inputs), exact(name, inputs)
    rounding = 2.0**-11 if dtype is DType.FP16 else 2.0**-8
    assert np.linalg.norm(found - wanted) <= 2 * rounding * np.linalg.norm(wanted)


@pytest.mark.parametrize("name", RECIPES)
def test_it_is_proved_with_a_peak(name: str) -> None:
    record = made(name, DType.FP16).record
    assert record.proof.log2_failure <= LOG2_WANTED
    assert all(m.error < 1e-3 for m in record.accuracy)
    assert any(n.body.of("peak") for n in record.graph.blocks if n.body)


@pytest.mark.parametrize("name", ["softmax", "softmax of a product"])
def test_softmax_is_one_kernel(name: str) -> None:
    graph = made(name, DType.FP16).record.graph
    assert [n.op for n in graph.nodes if n.op != "input"] == ["block"]


def test_rows_that_no_product_takes_are_cut_into_single_ones() -> None:
    (block,) = made("softmax", DType.FP16).record.graph.blocks
    assert block.body is not None
    assert block.body.space is not None
    assert {axis.dim: axis.tile for axis in block.body.space.grid}["M"] == 1


def masked_softmax(x: Tensor, n: Tensor) -> Tensor:
    return softmax(x, over="N", mask=positions(x, "N") < n)


def test_a_masked_softmax_is_proved_in_the_order_of_dims_that_the_recipe_stores() -> None:
    """The mask has the keys first, and so has what it hides."""
    recipe = Recipe(
        inputs={"x": "B H N", "n": "B:int32"},
        output="B H N",
        dynamic={"B": 64, "N": 131072},
        ranges={"n": "1..N"},
        reference=lambda x, n: x.masked_fill(beyond(x, n), -float("inf")).softmax(-1),
    )
    request = Request(recipe(masked_softmax), shape("a test", H=32), DType.FP16)
    record = generate(request, jobs=1, progress=lambda event: None).record
    assert record.graph.values[record.graph.outputs[0]].type.names == ("B", "H", "N")
    assert record.proof.log2_failure <= LOG2_WANTED


def beyond(x, n):
    import torch

    return torch.arange(x.shape[-1]) >= n[:, None, None]
