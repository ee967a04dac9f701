"""Products of one tensor by several weights are one kernel, whose rows come in parts."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache

import pytest
import torch
from cutting import cut, drawn, made, really_made, require_same, ways
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from mirage_kernels.generator.errors import PlanError
from mirage_kernels.generator.partition.again import cut_again
from mirage_kernels.generator.partition.program import Program
from mirage_kernels.generator.pipeline import Result
from mirage_kernels.generator.recipe import Recipe
from mirage_kernels.generator.records.sources import files_of

K, ROWS = 2048, (160, 96, 96)
SHAPES = {"x": (8, K), "n": (K,), **{f"w{i}": (rows, K) for i, rows in enumerate(ROWS)}}
Three = tuple[Tensor, Tensor, Tensor]


def projected(x: Tensor, n: Tensor, w0: Tensor, w1: Tensor, w2: Tensor) -> Three:
    y = F.rms_norm(x, x.shape[-1:], n, 1e-5)
    return F.linear(y, w0), F.linear(y, w1), F.linear(y, w2)


def with_biases(x: Tensor, w0: Tensor, w1: Tensor, b0: Tensor, b1: Tensor) -> tuple[Tensor, Tensor]:
    return F.linear(x, w0, b0), F.linear(x, w1, b1)


@cache
def program() -> Program:
    return cut(projected, "x", really_made, **SHAPES)


def test_a_norm_and_three_products_are_one_proved_kernel() -> None:
    assert ways(program())[0] == ["rms_norm, linear, linear, linear"]
    (result,) = (r for r in program().results if r.record.row_parts)
    assert result.record.row_parts == ROWS
    assert result.record.shape == {"K": K, "N": sum(ROWS)}
    assert result.record.proof.log2_failure < -40


def test_the_program_gives_every_weight_and_takes_every_result() -> None:
    given = {name: drawn(*shape) for name, shape in SHAPES.items()}
    require_same(program(), projected, **given | {"x": drawn(5, K)})


def spelled_out(x: Tensor, n: Tensor) -> Tensor:
    wide = x.float()
    normed = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
    return n * normed.to(x.dtype)


def test_norms_behind_products_are_spelled_out_in_kernels_of_their_own() -> None:
    def run(x: Tensor, n: Tensor, w0: Tensor, w1: Tensor, w2: Tensor) -> Three:
        y = spelled_out(x, n)
        q, k, v = (F.linear(y, w).view(-1, len(w) // 32, 32) for w in (w0, w1, w2))
        return spelled_out(q, n[:32]), spelled_out(k, n[:32]), v

    program = cut(run, "x", **SHAPES)
    norm = "pow, mean, add, rsqrt, mul, to, mul"
    assert ways(program)[0] == [f"{norm}, linear, linear, linear", norm, norm]
    require_same(program, run, **{name: drawn(*shape) for name, shape in SHAPES.items()})


def test_a_residual_joins_its_product_and_the_norm_behind_it_the_next_one() -> None:
    def run(x: Tensor, r: Tensor, n: Tensor, w: Tensor, g: Tensor, u: Tensor) -> tuple[Tensor, ...]:
        x = r + F.linear(x, w)
        y = spelled_out(x, n)
        return F.silu(F.linear(y, g)) * F.linear(y, u), x

    shapes = {"x": (8, K), "r": (8, K), "n": (K,), "w": (K, K), "g": (96, K), "u": (96, K)}
    program = cut(run, "xr", **shapes)
    norm = "pow, mean, add, rsqrt, mul, to, mul"
    assert ways(program)[0] == ["linear, add", f"{norm}, linear, silu, linear, mul"]
    require_same(program, run, **{name: drawn(*shape) for name, shape in shapes.items()})


def test_above_64_rows_pytorch_multiplies_by_each() -> None:
    assert ways(program())[-1] == ["rms_norm", "[linear]", "[linear]", "[linear]"]


def test_the_emitted_text_finds_the_part_of_a_block() -> None:
    (record,) = (r.record for r in program().results if r.record.row_parts)
    files = files_of(record)
    (shape,) = (text for path, text in files.items() if path.endswith(".cu"))
    assert "N = 352, N_0 = 160, N_1 = 96, N_2 = 96)" in shape
    for path, text in files.items():
        if path.endswith(".cuh"):
            assert "part.index" in text, path


def test_it_is_cut_the_same_again_and_otherwise_where_the_kernel_has_other_parts() -> None:
    known = {r.record.recipe: r.record for r in program().results}
    function, document = program().trace.function, json.loads(json.dumps(program().document))
    again = cut_again(function, document, known)
    assert again.document == program().document
    others = {n: replace(r, row_parts=r.row_parts and (96, 160, 96)) for n, r in known.items()}
    assert "PyTorch: linear" in " ".join(cut_again(function, document, others).lines())


def test_weights_with_biases_come_in_parts_too() -> None:
    shapes = {"x": (8, K), "w0": (64, K), "w1": (32, K), "b0": (64,), "b1": (32,)}
    found = cut(with_biases, "x", **shapes)
    assert ways(found)[0] == ["linear, linear"]
    require_same(found, with_biases, **{n: drawn(*s) for n, s in shapes.items()})


def test_a_norm_is_apart_where_the_products_are_faster_so() -> None:
    found = cut(projected, "x", really_made, **{n: (*s[:-1], 256) for n, s in SHAPES.items()})
    assert ways(found)[0] == ["rms_norm", "linear, linear, linear"]


def otherwise(recipe: Recipe) -> Result:
    if recipe.row_parts:
        raise PlanError("no kernel takes parts")
    return made(recipe)


def test_they_are_kernels_of_their_own_where_no_kernel_takes_parts() -> None:
    found = cut(projected, "x", otherwise, **SHAPES)
    assert ways(found)[0] == ["rms_norm", "linear", "linear", "linear"]
    assert any("no kernel takes parts" in line for line in found.reason_lines())


def of_two_tensors(x: Tensor, y: Tensor, w0: Tensor, w1: Tensor) -> tuple[Tensor, Tensor]:
    return F.linear(x, w0), F.linear(y, w1)


def with_one_bias(x: Tensor, w0: Tensor, w1: Tensor, b1: Tensor) -> tuple[Tensor, Tensor]:
    return F.linear(x, w0), F.linear(x, w1, b1)


def written_between(x: Tensor, w0: Tensor, w1: Tensor) -> tuple[Tensor, Tensor]:
    first = F.linear(x, w0)
    x.copy_(x * 2)
    return first, F.linear(x, w1)


def of_uneven_rows(x: Tensor, w0: Tensor, w1: Tensor) -> tuple[Tensor, Tensor]:
    return F.linear(x, w0), F.linear(x, w1[:30])


@pytest.mark.parametrize("run", [of_two_tensors, with_one_bias, written_between, of_uneven_rows])
def test_others_are_no_siblings(run: object) -> None:
    shapes = {"x": (8, K), "y": (8, K), "w0": (64, K), "w1": (32, K), "b1": (32,)}
    names = run.__code__.co_varnames[: run.__code__.co_argcount]  # type: ignore[attr-defined]
    given = {n: shapes[n] for n in names}
    found = cut(run, [n for n in names if n in "xy"], **given)  # type: ignore[arg-type]
    assert "linear, linear" not in str(ways(found)[0])


def test_weights_may_be_multiplied_in_front_of_what_writes_something_else() -> None:
    def run(x: Tensor, w0: Tensor, w1: Tensor, kept: Tensor) -> Tensor:
        kept.copy_(F.linear(x, w0))
        return F.linear(x, w1)

    shapes = {"x": (8, K), "w0": (64, K), "w1": (32, K), "kept": (8, 64)}
    found = cut(run, ["x", "kept"], **shapes)
    assert "linear, linear" in ways(found)[0]


def test_rows_of_a_static_number_have_the_same_kernel() -> None:
    found = cut(projected, "", **SHAPES)
    assert ways(found)[0] == ["rms_norm, linear, linear, linear"]
    given = {name: drawn(*shape) for name, shape in SHAPES.items()}
    require_same(found, projected, **given)
    (recipe,) = (r.request.recipe for r in found.results if r.request.recipe.row_parts)
    assert [*recipe.dynamic] == ["M"]


def test_blocks_have_other_rows_where_the_rules_do_not_find_the_parts() -> None:
    def three(x: Tensor, w0: Tensor, w1: Tensor, w2: Tensor) -> Three:
        return F.linear(x, w0), F.linear(x, w1), F.linear(x, w2)

    equal = dict.fromkeys(("w0", "w1", "w2"), (4096, 4096))
    found = cut(three, "x", really_made, x=(8, 4096), **equal)
    assert ways(found)[0] == ["linear, linear, linear"]
    (record, *_) = (r.record for r in found.results if r.record.row_parts)
    assert all(v.knobs.rows < 192 for v in record.variants)
