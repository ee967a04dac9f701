"""Recipes that the vocabulary cannot carry are refused: they would be compiled, and wrong."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from handmade_lines import written as handmade

from mirage_kernels.generator.errors import PlanError
from mirage_kernels.generator.ir import OPS, Graph, ops_of_kind
from mirage_kernels.generator.ir.ops import Kind
from mirage_kernels.generator.language import contract, exp, silu, square
from mirage_kernels.generator.language import sum as total
from mirage_kernels.generator.meaning.reals import ELEMENTWISE
from mirage_kernels.generator.plan.lower import tile_program
from mirage_kernels.generator.plan.program import Do, Layout
from mirage_kernels.generator.plan.tail import EVEN_DEPTH, PAST
from mirage_kernels.generator.recipe import Program, Recipe, Shape, recipe
from mirage_kernels.generator.search.sketch import BlockSketch, Setting, Step, View

X, WEIGHT = View("x", (None, "M"), "K"), View("weight", ("N", None), "K")
LINEAR = {"x": "M K", "weight": "N K"}


def written(program: Program, inputs: dict[str, str], output: str = "M N") -> Recipe:
    """Return a recipe called mine; its reference is never run."""
    program.__name__ = "mine"
    return recipe(inputs=inputs, output=output, dynamic={"M": 64}, shapes=(), reference=max)(
        program
    )


def mugraph(source: Recipe, views: tuple[View, ...], *steps: Step, depth: int = 72) -> Graph:
    """Return a muGraph of one kernel, whose last step is its result."""
    static = {"K": depth, "N": 40}
    shape = Shape("a test", {d: static[d] for d in source.static_dims})
    setting = Setting(("N", "M"), "K") if WEIGHT in views else Setting(("M",), None)
    result = (len(views) + len(steps) - 1, tuple(source.output.split()))
    sketch = BlockSketch(setting, views, steps, (result,))
    return handmade(source, sketch, shape)


def refusal(graph: Graph) -> PlanError:
    with pytest.raises(PlanError) as caught:
        tile_program("mine", graph)
    return caught.value


def divided(depth: int) -> Graph:
    """(x / s) weight^T: past the depth 0 / 0, which the zeros of the weight do not mend."""
    source = written(
        lambda x, s, weight: contract(x / s, weight, over="K"),
        {"x": "M K", "s": "K", "weight": "N K"},
    )
    views = (X, View("s", (None, None), "K"), WEIGHT)
    steps = (Step("div", (0, 1)), Step("contract", (3, 2), "K"), Step("accum", (4,)))
    return mugraph(source, views, *steps, depth=depth)


def summed(depth: int) -> Graph:
    """x weight^T / sum(exp(x)): past the depth exp(0) = 1."""
    source = written(
        lambda x, weight: contract(x, weight, over="K") / total(exp(x), over="K"), LINEAR
    )
    steps = (
        *(Step("exp", (0,)), Step("sum", (2,), "K"), Step("accum", (3,))),
        *(Step("contract", (0, 1), "K"), Step("accum", (5,)), Step("div", (6, 4))),
    )
    return mugraph(source, (X, WEIGHT), *steps, depth=depth)


def exponentials(depth: int) -> Graph:
    """exp(x) exp(weight)^T: past the depth 1 * 1."""
    source = written(lambda x, weight: contract(exp(x), exp(weight), over="K"), LINEAR)
    steps = (Step("exp", (0,)), Step("exp", (1,)), Step("contract", (2, 3), "K"))
    return mugraph(source, (X, WEIGHT), *steps, Step("accum", (4,)), depth=depth)


def one_exponential(depth: int) -> Graph:
    """exp(x) weight^T: past the depth 1 * 0."""
    source = written(lambda x, weight: contract(exp(x), weight, over="K"), LINEAR)
    steps = (Step("exp", (0,)), Step("contract", (2, 1), "K"), Step("accum", (3,)))
    return mugraph(source, (X, WEIGHT), *steps, depth=depth)


@pytest.mark.parametrize("made", [divided, summed, exponentials])
def test_a_sum_that_goes_on_past_the_depth_has_no_plan(made: Callable[[int], Graph]) -> None:
    error = refusal(made(EVEN_DEPTH + 8))
    assert error.sentence.endswith("what need not end with the depth")
    assert error.hint == "choose K as a multiple of 128"
    assert tile_program("mine", made(2 * EVEN_DEPTH)).loop  # of whole steps


def test_zeros_of_one_operand_end_a_product() -> None:
    assert tile_program("mine", one_exponential(72)).loop


@pytest.mark.parametrize(
    "op", [o for o in ops_of_kind(Kind.ELEMENTWISE) if o not in ("less", "both", "where")]
)
@pytest.mark.parametrize("number", [0.0, 1.5])
@pytest.mark.filterwarnings("ignore:divide by zero", "ignore:invalid value")
def test_what_is_said_to_be_zero_past_the_depth_is(op: str, number: float) -> None:
    operands = [np.float64(number)] * OPS[op].arity
    (exact,) = ELEMENTWISE[op](*((n,) for n in operands))
    assert (PAST[op](*operands) == 0) == (exact == 0)


SCALED = {"x": "M K", "scale": "M", "weight": "N K"}
SCALE = View("scale", (None, "M"), None)


def in_the_loop() -> Graph:
    source = written(lambda x, scale, weight: contract(silu(x * scale), weight, over="K"), SCALED)
    steps = (Step("mul", (0, 1)), Step("silu", (3,)), Step("contract", (4, 2), "K"))
    return mugraph(source, (X, SCALE, WEIGHT), *steps, Step("accum", (5,)))


def after_the_loop() -> Graph:
    source = written(lambda x, scale, weight: contract(x, weight, over="K") * scale, SCALED)
    steps = (Step("contract", (0, 2), "K"), Step("accum", (3,)), Step("mul", (1, 4)))
    return mugraph(source, (X, SCALE, WEIGHT), *steps)


def of_lines() -> Graph:
    source = written(lambda x, scale: square(x) * scale, {"x": "M K", "scale": "M"}, "M K")
    views = (View("x", ("M",), None), View("scale", ("M",), None))
    return mugraph(source, views, Step("square", (0,)), Step("mul", (1, 2)))


def computed_in_the_loop() -> Graph:
    source = written(
        lambda x, scale, weight: contract(silu(x * square(scale)), weight, over="K"), SCALED
    )
    steps = (Step("square", (1,)), Step("mul", (0, 3)), Step("silu", (4,)))
    product = Step("contract", (5, 2), "K")
    return mugraph(source, (X, SCALE, WEIGHT), *steps, product, Step("accum", (6,)))


def test_a_number_per_token_is_read_by_the_epilogue() -> None:
    program = tile_program("mine", after_the_loop())
    read = [s for s in program.epilogue if s.do is Do.READ]
    assert [(s.args, s.layout) for s in read] == [(("scale",), Layout.TOKEN_SUMS)]


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (in_the_loop, "is not cut by the loop"),
        (computed_in_the_loop, "is not cut by the loop"),
        (of_lines, "has a number per token, which no plan reads yet"),
    ],
)
def test_elsewhere_a_number_per_token_has_no_plan(made: Callable[[], Graph], words: str) -> None:
    assert refusal(made()).sentence.endswith(words)


def test_a_number_per_row_in_the_loop_has_no_plan() -> None:
    source = written(
        lambda x, scale, weight: contract(x, silu(weight * scale), over="K"),
        {"x": "M K", "scale": "N", "weight": "N K"},
    )
    views = (X, View("scale", ("N", None), None), WEIGHT)
    steps = (Step("mul", (2, 1)), Step("silu", (3,)), Step("contract", (0, 4), "K"))
    graph = mugraph(source, views, *steps, Step("accum", (5,)))
    assert refusal(graph).sentence.endswith("is not cut by the loop")


@pytest.mark.parametrize(
    ("inputs", "output", "complaint"),
    [
        ({"x": "K M", "weight": "N K"}, "M N", "x [K, M] has contiguous M"),
        ({"x": "M K", "weight": "N K"}, "N M", "[N, M] has contiguous M"),
    ],
    ids=["tokens", "result"],
)
def test_a_tensor_along_another_dim_has_no_plan(
    inputs: dict[str, str], output: str, complaint: str
) -> None:
    source = written(lambda x, weight: contract(square(x), weight, over="K"), inputs, output)
    steps = (Step("square", (0,)), Step("contract", (2, 1), "K"), Step("accum", (3,)))
    error = refusal(mugraph(source, (X, WEIGHT), *steps))
    assert complaint in error.sentence
    assert error.hint.startswith("give it as ")


def test_a_weight_whose_rows_lie_side_by_side_has_tiles_of_columns() -> None:
    inputs = {"x": "M K", "weight": "K N"}
    source = written(lambda x, weight: contract(square(x), weight, over="K"), inputs)
    steps = (Step("square", (0,)), Step("contract", (2, 1), "K"), Step("accum", (3,)))
    program = tile_program("mine", mugraph(source, (X, WEIGHT), *steps))
    assert len(program.columns) == 1
    assert {s.out: s.args for s in program.loads}[program.columns[0]] == ("weight",)


def test_a_line_along_tokens_has_no_plan() -> None:
    source = written(lambda x: square(x), {"x": "K M"}, "M K")
    error = refusal(mugraph(source, (View("x", ("M",), None),), Step("square", (0,))))
    assert "x [K, M] has contiguous M" in error.sentence
    assert error.hint == 'give it as "M K"'
