"""What tests of cutting share: cutting a function, what its ways run, and running its program."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, cast

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten

from mirage_kernels.generator.ir import DType
from mirage_kernels.generator.partition.addressing import by_reference
from mirage_kernels.generator.partition.program import Program, partitioned
from mirage_kernels.generator.partition.trace import Function
from mirage_kernels.generator.pipeline import Result, generate
from mirage_kernels.generator.recipe import Recipe
from mirage_kernels.generator.request import Request
from mirage_kernels.program_steps import SteppedProgram

HEADS, DIM, ROWS, SLOTS = 2, 16, 20, 30
Given = dict[str, Tensor]


def made(recipe: Recipe, schedule: str = "streaming") -> Result:
    """Stand for what the pipeline makes of a recipe."""
    record = SimpleNamespace(
        recipe=recipe.name,
        stem="any",
        no_plan="",
        variants=[SimpleNamespace(schedule=schedule)],
        graph=SimpleNamespace(blocks=["one"]),
    )
    return cast("Result", SimpleNamespace(record=record, request=SimpleNamespace(recipe=recipe)))


def really_made(recipe: Recipe) -> Result:
    """Search, prove and plan the kernel of a recipe."""
    request = Request(recipe, recipe.shapes[0], DType.BF16, "sm_90a")
    return generate(request, jobs=1, progress=lambda event: None)


def cut(
    run: Callable[..., Any],
    rows: Sequence[str],
    make: Callable[[Recipe], Result] = made,
    dims: Sequence[str] = ("M",),
    **shapes: tuple[int, ...],
) -> Program:
    """Cut a function; the first dims of its inputs in `rows` are dynamic: `dims`."""
    given = {n: torch.empty(s, dtype=torch.bfloat16, device="meta") for n, s in shapes.items()}
    function = Function(run, given, {n: dict(enumerate(dims)) for n in rows}, "f")
    return partitioned(function, DType.BF16, "sm_90a", make)


def ways(program: Program) -> list[list[str]]:
    """Return what each way runs: a kernel's operators, or PyTorch's own in brackets."""
    lines = [line for line in program.lines() if line.startswith("  ")]
    said = iter(
        f"[{line.split(': ')[1]}]" if "PyTorch" in line else line.split(": ")[1] for line in lines
    )
    return [[next(said) for p in way.parts if p.runs] for way in program.ways]


def by_references(program: Program, given: Mapping[str, Tensor]) -> Any:
    """Run the document with every kernel computed by its recipe's reference."""
    named = ((f"{r.record.recipe}_{r.record.stem}", r.request.recipe) for r in program.results)
    recipes = {f"sm_90a/{name}": recipe for name, recipe in named}

    def kernel(
        key: str, tensors: Sequence[Tensor], into: Sequence[Tensor | None], _assume: int
    ) -> Sequence[Tensor]:
        return by_reference(recipes[key], tensors, into)

    document = json.loads(json.dumps(program.document))
    return SteppedProgram([document], kernel)(**{n: x.clone() for n, x in given.items()})


def require_same(program: Program, run: Callable[..., Any], **given: Tensor) -> None:
    """Compare what the document and the function return, which is None in the same places."""
    found, wanted = by_references(program, given), run(**given)
    leaves, shape = tree_flatten(found)
    others, wanted_shape = tree_flatten(wanted)
    assert shape == wanted_shape
    for mine, theirs in zip(leaves, others, strict=True):
        if theirs is None:
            assert mine is None
            continue
        assert mine.dtype is theirs.dtype
        if mine.is_floating_point() and mine.itemsize == 1:
            mine, theirs = mine.float(), theirs.float()
        torch.testing.assert_close(mine, theirs, atol=0.02, rtol=0.02)


def drawn(*shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(shape, generator=generator).bfloat16()


def rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    return x * cos + torch.cat((-x[..., half:], x[..., :half]), -1) * sin


def numbers(*shape: int, below: int, dtype: torch.dtype = torch.int64, first: int = 0) -> Tensor:
    """An index tensor that says no row twice."""
    count = int(torch.tensor(shape).prod())
    drawn_ = torch.randperm(below, generator=torch.Generator().manual_seed(count))[:count]
    return (drawn_ + first).reshape(shape).to(dtype)


def cut_given(
    run: Callable[..., Any],
    given: Given,
    rows: Sequence[str] = (),
    make: Callable[[Recipe], Any] = made,
) -> Program:
    """Cut a function, given its tensors; caches have a dynamic first dim of their own."""
    dynamic = {n: {0: "S" if n in ("keys", "values") else "M"} for n in rows}
    examples = {n: x.to("meta") for n, x in given.items()}
    return partitioned(Function(run, examples, dynamic, "f"), DType.BF16, "sm_90a", make)


def require_same_memory(program: Program, run: Callable[..., Any], given: Given) -> None:
    """Run the document with every kernel computed by its recipe's reference; compare all."""
    named = ((f"{r.record.recipe}_{r.record.stem}", r.request.recipe) for r in program.results)
    recipes = {f"sm_90a/{name}": recipe for name, recipe in named}
    document = json.loads(json.dumps(program.document))
    mine, theirs = ({n: x.clone() for n, x in given.items()} for _ in range(2))

    def kernel(
        key: str, tensors: Sequence[Tensor], into: Sequence[Tensor | None], _assume: int
    ) -> Sequence[Tensor]:
        return by_reference(recipes[key], tensors, into)

    found, wanted = SteppedProgram([document], kernel)(**mine), run(**theirs)
    for a, b in ((found, wanted), *((mine[n], theirs[n]) for n in given)):
        torch.testing.assert_close(a, b, atol=0.02, rtol=0.02)
