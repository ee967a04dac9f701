"""Functions of a static number of rows: kernels of their rows, and where there are no rows."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
from cutting import cut, drawn, made, really_made, require_same, ways
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from mirage_kernels.early_weights import Early
from mirage_kernels.generator.errors import SearchError
from mirage_kernels.generator.partition.again import cut_again
from mirage_kernels.generator.partition.program import Program
from mirage_kernels.generator.pipeline import Result
from mirage_kernels.generator.recipe import Recipe
from mirage_kernels.generator.schedules.choose import programs_of
from mirage_kernels.generator.schedules.run import require_runs
from mirage_kernels.program_steps import SteppedProgram

K, N, FEW = 128, 80, 64
Shapes = dict[str, tuple[int, ...]]


def linear(x: Tensor, w: Tensor) -> Tensor:
    return F.linear(x, w)


def normed(x: Tensor, n: Tensor) -> Tensor:
    return F.rms_norm(x, x.shape[-1:], n, 1e-5)


def normed_linear(x: Tensor, n: Tensor, w: Tensor) -> Tensor:
    return F.linear(normed(x, n), w)


def gated_mlp(x: Tensor, g: Tensor, u: Tensor, d: Tensor) -> Tensor:
    return x + F.linear(F.silu(F.linear(x, g)) * F.linear(x, u), d)


def activated(x: Tensor, y: Tensor) -> Tensor:
    return F.silu(x) * y


def softmax(x: Tensor) -> Tensor:
    return torch.softmax(x, -1)


WEIGHTS: Shapes = {"n": (K,), "w": (N, K), "g": (N, K), "u": (N, K), "d": (K, N)}
ROWS = ("x", "y")
FUNCTIONS: dict[Callable[..., Any], str] = {
    linear: "xw",
    normed: "xn",
    normed_linear: "xnw",
    gated_mlp: "xgud",
    activated: "xy",
}


def shapes_of(run: Callable[..., Any], rows: int) -> Shapes:
    return {n: WEIGHTS.get(n, (rows, K)) for n in FUNCTIONS[run]}


@cache
def of_rows(run: Callable[..., Any]) -> Program:
    """Make the program of a function whose number of rows is known at run time."""
    return cut(run, [n for n in ROWS if n in FUNCTIONS[run]], really_made, **shapes_of(run, 8))


@cache
def of_static(run: Callable[..., Any], rows: int) -> Program:
    return cut(run, [], really_made, **shapes_of(run, rows))


def files(program: Program) -> dict[str, str]:
    return {path: text for result in program.results for path, text in result.files.items()}


def recipes(run: Callable[..., Any], **shapes: tuple[int, ...]) -> list[Recipe]:
    """Return the recipes of a function's kernels, made by nothing."""
    return [result.request.recipe for result in cut(run, [], **shapes).results]


@pytest.mark.parametrize("rows", [1, FEW])
@pytest.mark.parametrize("run", FUNCTIONS)
def test_up_to_64_rows_kernels_are_those_of_any_number(run: Callable[..., Any], rows: int) -> None:
    static, dynamic = of_static(run, rows), of_rows(run)
    assert ways(static) == ways(dynamic)[:1]
    assert files(static).items() <= files(dynamic).items()


@pytest.mark.parametrize("run", FUNCTIONS)
def test_no_kernel_of_few_rows_is_general(run: Callable[..., Any]) -> None:
    variants = (v for result in of_static(run, FEW).results for v in result.record.variants)
    assert "general" not in {v.schedule for v in variants}


@pytest.mark.parametrize("run", FUNCTIONS)
def test_above_64_rows_the_way_is_that_of_many(run: Callable[..., Any]) -> None:
    static, dynamic = of_static(run, FEW + 1), of_rows(run)
    assert ways(static) == ways(dynamic)[-1:]
    assert files(static).items() <= files(dynamic).items()


@pytest.mark.parametrize("rows", [1, FEW, FEW + 1])
@pytest.mark.parametrize("run", FUNCTIONS)
def test_the_program_computes_what_the_function_does(run: Callable[..., Any], rows: int) -> None:
    given = {n: drawn(*shape) for n, shape in shapes_of(run, rows).items()}
    require_same(of_static(run, rows), run, **given)


def test_a_norm_joins_its_product_at_the_sizes_of_a_model() -> None:
    shapes = {"x": (16, 4096), "n": (4096,), "w": (1024, 4096)}
    program = cut(normed_linear, [], really_made, **shapes)
    assert ways(program) == [["rms_norm, linear"]]
    (result,) = program.results
    assert {v.schedule for v in result.record.variants} >= {"sliced_k", "cluster_split_k"}


def test_kernels_run_in_the_interpreter_as_their_mugraphs_do() -> None:
    (result,) = of_static(linear, 16).results
    record = result.record
    for variant in record.variants:
        program = programs_of(record.recipe, record.graph, record.arch)[-1]
        require_runs(program, record.graph, variant.knobs)


def test_inputs_of_another_number_of_rows_are_refused() -> None:
    program = SteppedProgram([of_static(linear, 16).document], lambda *given: [])
    with pytest.raises(ValueError, match=re.escape("x is [8, 128]; [16, 128] works")):
        program(drawn(8, K), drawn(N, K))


def test_a_program_is_cut_again_with_the_kernels_that_there_are() -> None:
    program = of_static(normed_linear, FEW)
    records = {result.record.recipe: result.record for result in program.results}
    again = cut_again(program.trace.function, program.document, records)
    assert again.document == program.document


def test_several_dims_in_front_number_rows_together() -> None:
    (own,) = recipes(normed_linear, x=(2, 8, K), n=(K,), w=(N, K))
    assert (dict(own.inputs), own.output) == ({"x": "M K", "n": "K", "w": "N K"}, "M N")
    assert [*own.dynamic] == ["M"]


def test_rows_of_several_dims_come_back_as_the_function_has_them() -> None:
    program = cut(normed_linear, [], x=(2, 8, K), n=(K,), w=(N, K))
    require_same(program, normed_linear, x=drawn(2, 8, K), n=drawn(K), w=drawn(N, K))


def test_a_tensor_that_lacks_some_of_the_dims_in_front_ends_the_rows() -> None:
    def added(x: Tensor, table: Tensor) -> Tensor:
        return (x + table) * 2.0

    shapes = {"x": (4, 16, K), "table": (16, K)}
    (own,) = recipes(added, **shapes)
    assert {n: text.split()[0] for n, text in own.inputs.items()} == {"x": "M", "table": "D2"}
    require_same(cut(added, [], **shapes), added, **{n: drawn(*s) for n, s in shapes.items()})


def test_what_is_summed_along_numbers_no_rows() -> None:
    (own,) = recipes(lambda x: x.sum(0), x=(16, K))
    assert not own.dynamic


def test_rows_with_positions_are_not_alike() -> None:
    (own,) = recipes(lambda x: torch.tril(x) * 2.0, x=(16, K))
    assert not own.dynamic


def test_what_comes_back_transposed_has_no_rows_in_front() -> None:
    (own,) = recipes(lambda x, y: (x * y).t() + 1.0, x=(16, K), y=(16, K))
    assert not own.dynamic


def test_a_number_for_each_row_alone_is_no_row() -> None:
    (own,) = recipes(lambda x, s: x * s, x=(16, K), s=(16, 1))
    assert not own.dynamic


def test_rows_with_gaps_between_are_rows() -> None:
    def halves(x: Tensor) -> Tensor:
        return F.silu(x[:, :K]) * x[:, K:]

    (own,) = recipes(halves, x=(16, 2 * K))
    assert [*own.dynamic] == ["M"]
    require_same(cut(halves, [], x=(16, 2 * K)), halves, x=drawn(16, 2 * K))


def test_rows_of_several_dims_with_gaps_have_the_kernel_of_rows_of_one() -> None:
    def halves(x: Tensor) -> Tensor:
        return F.silu(x[..., :K]) * x[..., K:]

    for rows in ((16,), (2, 8)):
        (own,) = recipes(halves, x=(*rows, 2 * K))
        assert dict(own.inputs) == {"slice_1": "M D2", "slice_2": "M D2"}
        assert not own.strided
    require_same(cut(halves, [], x=(2, 8, 2 * K)), halves, x=drawn(2, 8, 2 * K))


def test_what_is_stored_in_fp32_stays_general() -> None:
    (own,) = recipes(lambda x: x.float() * 2.0, x=(16, K))
    assert not own.dynamic


def test_where_no_fast_schedule_takes_rows_extents_are_static() -> None:
    (own,) = cut(softmax, [], really_made, x=(16, K)).results
    assert own.record.shape == {"D": 16, "D2": K}
    assert {v.schedule for v in own.record.variants} == {"general"}


def test_where_the_search_by_rows_fails_extents_are_static() -> None:
    def make(recipe: Recipe) -> Result:
        if recipe.dynamic:
            raise SearchError("the search found nothing", "")
        return made(recipe, "general")

    program = cut(activated, [], make, x=(16, K), y=(16, K))
    assert ways(program) == [["silu, mul"]]
    assert not program.reasons


def test_a_product_that_only_general_kernels_take_is_pytorch_s_as_with_dynamic_rows() -> None:
    def make(recipe: Recipe) -> Result:
        assert recipe.dynamic
        return made(recipe, "general")

    for rows in ([], ["x"]):
        program = cut(linear, rows, make, x=(16, K), w=(N, K))
        assert ways(program)[0] == ["[linear]"]
        assert not program.reasons


def test_decode_attention_has_the_schedules_of_any_number_of_sequences() -> None:
    def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v)

    shapes = {"q": (8, 1, 16), "k": (8, 48, 16), "v": (8, 48, 16)}
    programs = [cut(attention, rows, really_made, **shapes) for rows in ([*shapes], [])]
    found = [[v.schedule for r in p.results for v in r.record.variants] for p in programs]
    assert {*found[0]} == {*found[1]}
    assert ways(programs[0])[0] == ways(programs[1])[0]
    require_same(programs[1], attention, **{n: drawn(*s) for n, s in shapes.items()})


@pytest.mark.parametrize("rows", [(4, 1), (1, 4), (1, 1)])
def test_a_dim_of_one_token_is_no_dim_of_a_kernel(rows: tuple[int, ...]) -> None:
    def run(x: Tensor, y: Tensor, w: Tensor) -> Tensor:
        return x + F.linear(y, w)

    program = cut(run, [], x=(*rows, N), y=(*rows, K), w=(N, K))
    assert ways(program) == [["linear, add"]]
    assert program.results[0].request.recipe.inputs["x"] == "M N"
    require_same(program, run, x=drawn(*rows, N), y=drawn(*rows, K), w=drawn(N, K))


def test_rows_that_an_earlier_step_made_are_no_weights() -> None:
    program = of_static(gated_mlp, FEW)
    document = program.document
    (way,) = document["ways"]
    kernels = {i for i, step in enumerate(way["steps"]) if "kernel" in step}
    assert len(kernels) > 1
    assert Early.of(document, way).steps == kernels


def test_static_rows_beside_a_dynamic_extent_of_other_inputs_are_rows() -> None:
    def run(x: Tensor, w: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
        return F.linear(x, w), keys.sum(-1)

    program = cut(run, ["keys"], x=(16, K), w=(N, K), keys=(20, 4, 8))
    product = next(r for r in program.results if "linear" in r.record.recipe)
    assert [*product.request.recipe.dynamic] == ["M"]
    assert product.request.recipe.static_dims == ("K", "N")


def test_a_step_says_which_inputs_have_the_rows() -> None:
    (way,) = of_static(linear, 16).document["ways"]
    assert [i.get("by_row", False) for i in way["steps"][0]["inputs"]] == [True, False]
