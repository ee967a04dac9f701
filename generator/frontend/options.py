"""Options of a recipe: one declaration yields a program for each combination that is wanted.

An option is an input such as `bias`, or a choice such as `activation=gelu` that the program and its
reference take as a word. What comes only with an option (further inputs, results, dims) is left
out of the forms that do not take it:

    options={"bias": "", "residual": "total", "norm=rms": "norm_weight eps", "norm=layer": "..."}
"""

from __future__ import annotations

from collections.abc import Mapping
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

    def of(self, source: Recipe, options: Mapping[str, str]) -> Recipe:
        """Return the recipe of this form, as if it were declared by itself.

        Raises RecipeError for an option that the recipe does not declare.
        """
        unknown = [option for option in self.takes if option not in options]
        if unknown:
            raise RecipeError(
                f"the form {self.name} of recipe {source.name} takes {unknown[0]!r}, "
                "which is none of its options",
                f"it declares {', '.join(options) or 'none'}; write {EXAMPLE}",
            )
        brought = {option: _brought(option, more) for option, more in options.items()}
        absent = {name for names in brought.values() for name in names}
        absent -= {name for option in self.takes for name in brought[option]}
        inputs = _without(source.inputs, absent)
        optional = source.optional if self.optional is None else self.optional
        choices = dict(option.split("=", 1) for option in self.takes if "=" in option)
        scalars = {name: v for name, v in source.scalars.items() if name in inputs}
        ranges = {name: r.split("..") for name, r in source.ranges.items() if name in inputs}
        return replace(
            source,
            name=self.name,
            family=source.name,
            choices=choices,
            reference=_of_inputs(source.reference, inputs, choices),
            inputs=inputs,
            output=_dims_left(source.output, absent),
            also=_without(source.also, absent),
            dynamic={dim: bound for dim, bound in source.dynamic.items() if dim not in absent},
            # in a range, a dim that the form does not have counts 1
            ranges={n: "..".join("1" if e in absent else e for e in r) for n, r in ranges.items()},
            scalars={**scalars, **self.scalars},
            optional=tuple(name for name in optional if name in inputs),
            stacked=self.stacked,
            shapes=self.shapes,
            summary=self.summary,
        )


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
    return Form(name, takes, summary, shapes, optional, scalars or {}, stacked)


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
