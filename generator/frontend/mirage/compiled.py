"""Graphs on GPU tensors: the library's compiled op that computes the same, if there is one.

A recipe of the catalog may have inputs that the graph lacks: they are held at the value that makes
them do nothing (eps 0, a weight of 1). That graph and recipe are then equal is proved, not assumed.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from mirage_kernels.generator.errors import MirageError
from mirage_kernels.generator.frontend.declarations import dims_of
from mirage_kernels.generator.frontend.mirage.binding import Choice, Held, Terms
from mirage_kernels.generator.frontend.mirage.proofs import prove
from mirage_kernels.generator.frontend.positional.lower import Lowered
from mirage_kernels.generator.frontend.positional.program import Program
from mirage_kernels.generator.recipe import Recipe, catalog

if TYPE_CHECKING:
    import torch

# What inputs of the catalog's recipes do nothing at; L: every sequence is as long as its keys.
NEUTRAL: Held = {
    "eps": 0.0,
    "scale": 1.0,
    "norm_weight": 1.0,
    "q_weight": 1.0,
    "k_weight": 1.0,
    "seq_lens": "L",
}
Run = Callable[[Sequence["torch.Tensor"]], list["torch.Tensor"]]


@dataclass(frozen=True)
class Match:
    """A recipe that computes a graph, how its inputs are bound, and what the others are held at."""

    recipe: Recipe
    choice: Choice
    held: Held


def find_compiled(lowered: Lowered, program: Program) -> Run:
    """Return a function that runs a graph on GPU tensors; raise MirageError where none can."""
    import mirage_kernels

    for match in matches(lowered, catalog()):
        if match.recipe.name in mirage_kernels.__all__:
            return partial(call, match, program)
    raise MirageError(
        "no compiled kernel of this build computes the graph on GPU tensors",
        "CPU tensors run in the interpreter; `mirage-kernels list` shows the compiled kernels",
    )


def matches(lowered: Lowered, recipes: Mapping[str, Recipe]) -> Iterator[Match]:
    """Yield the recipes that a graph provably computes, inputs that it lacks held."""
    for recipe in recipes.values():
        lacking = len(recipe.inputs) - len(lowered.inputs)
        neutral = [name for name in recipe.inputs if name in NEUTRAL]
        for names in itertools.combinations(neutral, max(0, lacking)):
            held = {name: NEUTRAL[name] for name in names}
            with contextlib.suppress(MirageError):  # other numbers of inputs or dims
                for bound in list(Terms(recipe, held).bindings(lowered)):
                    with contextlib.suppress(MirageError):  # not equal
                        prove(bound)
                        yield Match(recipe, bound.choice, held)
                        break


def call(match: Match, program: Program, given: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Call a compiled op in place of a graph; the op raises for what its kernels do not cover."""
    import mirage_kernels

    recipe, choice = match.recipe, match.choice
    arguments: dict[str, torch.Tensor | float] = {}
    sizes: dict[str, int] = {}
    for x, tensor, (name, dims) in zip(given, program.inputs, choice.inputs, strict=True):
        stated = dims_of(recipe.inputs[name])
        arguments[name] = y = turned(x.reshape(tensor.extents), dims, stated).contiguous()
        sizes.update(zip(stated, y.shape, strict=True))
    for name, value in match.held.items():
        number = sizes[value] if isinstance(value, str) else value
        arguments[name] = _filled(recipe.inputs[name], number, sizes, given[0])
    made = getattr(mirage_kernels, recipe.name)(*(arguments[name] for name in recipe.inputs))
    (dims,), (tensor,) = choice.outputs, program.outputs
    wanted = [d for d in dims if d is not None]
    ours = [d if d in wanted else None for d in recipe.output.split()]
    return [turned(made, ours, wanted).reshape(tensor.extents)]


def _filled(
    text: str, number: float, sizes: Mapping[str, int], like: torch.Tensor
) -> torch.Tensor | float:
    """Return an input that the graph lacks: the same number everywhere."""
    import torch

    if not dims_of(text):
        return float(number)
    dtype = torch.int32 if text.endswith("int32") else like.dtype
    return torch.full([sizes[d] for d in dims_of(text)], number, dtype=dtype, device=like.device)


def turned(x: torch.Tensor, dims: Sequence[str | None], wanted: Sequence[str]) -> torch.Tensor:
    """Return a tensor with its dims in another order, those that it lacks of extent 1.

    `dims` are None where the extent is 1.
    """
    named = [d for d in dims if d is not None]
    x = x.reshape([n for n, d in zip(x.shape, dims, strict=True) if d is not None])
    index = tuple(slice(None) if d in named else None for d in wanted)
    return x.permute([named.index(d) for d in wanted if d in named])[index]
