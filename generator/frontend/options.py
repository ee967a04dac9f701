"""Options of a recipe: one declaration yields a program for each combination that is wanted.

An option is an input such as `bias`, or a choice such as `activation=gelu` that the program and its
reference take as a word. What comes only with an option (further inputs, results, dims) is left
out of the forms that do not take it:

    options={"bias": "", "residual": "total", "norm=rms": "norm_weight eps", "norm=layer": "..."}
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import wraps
from typing import TYPE_CHECKING

from mirage_kernels.generator.errors import RecipeError

if TYPE_CHECKING:
    import torch

    from mirage_kernels.generator.recipe import Recipe, Reference, Shape

EXAMPLE = 'options={"bias": "", "residual": "total", "activation=gelu": ""}'


@dataclass(frozen=True)
class Form:
    """One program that a recipe's options yield: its name, the options it takes, its shapes.

    `scalars` and `optional`, where given, stand in place of the recipe's.
    """

    name: str
    takes: tuple[str, ...]
    summary: str
    shapes: tuple[Shape, ...]
    optional: tuple[str, ...] | None = None
    scalars: Mapping[str, float] = field(default_factory=dict)
    stacked: tuple[str, ...] = ()


def form(
    name: str,
    *takes: str,
    summary: str,
    shapes: tuple[Shape, ...],
    optional: tuple[str, ...] | None = None,
    scalars: Mapping[str, float] | None = None,
    stacked: tuple[str, ...] = (),
) -> Form:
    """Ask a recipe for a program: `form("linear_gelu", "bias", "activation=gelu", ...)`."""
    return Form(name, takes, summary, shapes, optional, dict(scalars or {}), stacked)


def recipes_of(
    source: Recipe, options: Mapping[str, str], forms: Iterable[Form]
) -> tuple[Recipe, ...]:
    """Return the recipe of every form, as if each were declared by itself.

    Raises RecipeError for a form that takes an option which the recipe does not declare.
    """
    return tuple(_recipe_of(source, options, asked) for asked in forms)


def _recipe_of(source: Recipe, options: Mapping[str, str], asked: Form) -> Recipe:
    unknown = [option for option in asked.takes if option not in options]
    if unknown:
        raise RecipeError(
            f"the form {asked.name} of recipe {source.name} takes {unknown[0]!r}, "
            "which is none of its options",
            f"it declares {', '.join(options) or 'none'}; write {EXAMPLE}",
        )
    taken = {name for option in asked.takes for name in _brought(option, options[option])}
    absent = {n for option, more in options.items() for n in _brought(option, more)} - taken
    inputs = _without(source.inputs, absent)
    optional = source.optional if asked.optional is None else asked.optional
    scalars = {name: v for name, v in source.scalars.items() if name in inputs}
    choices = dict(option.split("=", 1) for option in asked.takes if "=" in option)
    return replace(
        source,
        name=asked.name,
        family=source.name,
        choices=choices,
        reference=_of_inputs(source.reference, inputs, choices),
        inputs=inputs,
        output=_dims_left(source.output, absent),
        also=_without(source.also, absent),
        dynamic={dim: bound for dim, bound in source.dynamic.items() if dim not in absent},
        ranges={n: _range_left(r, absent) for n, r in source.ranges.items() if n in inputs},
        scalars={**scalars, **asked.scalars},
        optional=tuple(name for name in optional if name in inputs),
        stacked=asked.stacked,
        shapes=asked.shapes,
        summary=asked.summary,
    )


def _of_inputs(
    reference: Reference, inputs: Mapping[str, str], choices: Mapping[str, str]
) -> Reference:
    """Return a reference as a function of a form's inputs alone, in their order or by name."""
    if reference is None:
        return reference

    @wraps(reference)
    def of_inputs(*given: object, **named: object) -> torch.Tensor | tuple[torch.Tensor, ...]:
        return reference(**dict(zip(inputs, given, strict=False)), **named, **choices)

    return of_inputs


def _brought(option: str, more: str) -> list[str]:
    """Return the names that come with an option: its own input, and what it says."""
    return more.split() if "=" in option else [option, *more.split()]


def _without(declared: Mapping[str, str], absent: set[str]) -> dict[str, str]:
    return {n: _dims_left(text, absent) for n, text in declared.items() if n not in absent}


def _dims_left(text: str, absent: set[str]) -> str:
    names, colon, kind = text.partition(":")
    return " ".join(n for n in names.split() if n not in absent) + colon + kind


def _range_left(text: str, absent: set[str]) -> str:
    """Return a range in which a dim that a form does not have counts 1."""
    return "..".join("1" if end in absent else end for end in text.split(".."))


def check_parameters(source: Recipe) -> None:
    """Raise RecipeError unless the program's parameters are the recipe's inputs, in order.

    Where options yield the recipe there may be others, which those inputs leave at their defaults.
    """
    found = inspect.signature(source.program).parameters.values()
    marks: dict[object, str] = {inspect.Parameter.VAR_POSITIONAL: "*"}
    if not source.family:
        marks[inspect.Parameter.KEYWORD_ONLY] = "*, "
    left_out = {p.name for p in found if p.default is not inspect.Parameter.empty}
    left_out = left_out - set(source.inputs) if source.family else set()
    parameters = [
        marks.get(p.kind, "") + p.name
        for p in found
        if p.name not in left_out and p.name not in source.choices
    ]
    if parameters != list(source.inputs):
        raise RecipeError(
            f"recipe {source.name} takes ({', '.join(parameters)}), "
            f"but declares the inputs {', '.join(source.inputs)}",
            "name the function's parameters like the inputs, in the same order",
        )
    unstacked = [name for name in source.stacked if not source.is_weight(name)]
    if unstacked:
        raise RecipeError(
            f"recipe {source.name} stacks {unstacked[0]}, which is no weight",
            "weights are the tensors without the first of the dynamic dims",
        )
