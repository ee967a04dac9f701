"""Options of a recipe: one declaration yields a program for each combination that is wanted.

An option is an input such as `bias`, or a choice such as `activation=gelu` that the program and its
reference take as a word. What comes only with an option (further inputs, results, dims) is left
out of the forms that do not take it:

    options={"bias": "", "residual": "total", "norm=rms": "norm_weight eps", "norm=layer": "..."}
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import wraps
from typing import TYPE_CHECKING

from mirage_kernels.generator.errors import RecipeError

if TYPE_CHECKING:
    import torch

    from mirage_kernels.generator.recipe import Recipe, Reference, Shape

EXAMPLE = 'options={"bias": "", "residual": "total", "activation=gelu": ""}'
Form = Callable[["Recipe", Mapping[str, str]], "Recipe"]  # of a recipe and what its options bring


def form(
    name: str,
    *takes: str,
    summary: str,
    shapes: tuple[Shape, ...],
    optional: tuple[str, ...] | None = None,
    scalars: Mapping[str, float] | None = None,
    stacked: tuple[str, ...] = (),
) -> Form:
    """Ask a recipe for a program: `form("linear_gelu", "bias", "activation=gelu", ...)`.

    `scalars` and `optional`, where given, stand in place of the recipe's. The form raises
    RecipeError for an option that the recipe does not declare.
    """

    def of(source: Recipe, options: Mapping[str, str]) -> Recipe:
        unknown = [option for option in takes if option not in options]
        if unknown:
            raise RecipeError(
                f"the form {name} of recipe {source.name} takes {unknown[0]!r}, "
                "which is none of its options",
                f"it declares {', '.join(options) or 'none'}; write {EXAMPLE}",
            )
        brought = {  # the names that come with an option: its own input, and what it says
            option: more.split() if "=" in option else [option, *more.split()]
            for option, more in options.items()
        }
        absent = {name for names in brought.values() for name in names}
        absent -= {name for option in takes for name in brought[option]}
        inputs = _without(source.inputs, absent)
        ranges = {n: r.split("..") for n, r in source.ranges.items() if n in inputs}
        made = replace(
            source,
            name=name,
            family=source.name,
            choices=dict(option.split("=", 1) for option in takes if "=" in option),
            inputs=inputs,
            output=_dims_left(source.output, absent),
            also=_without(source.also, absent),
            dynamic={dim: bound for dim, bound in source.dynamic.items() if dim not in absent},
            typical={dim: usual for dim, usual in source.typical.items() if dim not in absent},
            # in a range, a dim that the form does not have counts 1
            ranges={n: "..".join("1" if e in absent else e for e in r) for n, r in ranges.items()},
            scalars={n: v for n, v in source.scalars.items() if n in inputs} | {**(scalars or {})},
            optional=tuple(
                n for n in (source.optional if optional is None else optional) if n in inputs
            ),
            stacked=stacked,
            shapes=shapes,
            summary=summary,
        )

        return replace(made, reference=_of_inputs(made))

    return of


def _of_inputs(form: Recipe) -> Reference:
    """Return a form's reference as a function of its own inputs, in their order or by name."""
    reference = form.reference
    if reference is None:
        return reference

    @wraps(reference)
    def of_inputs(*given: object, **named: object) -> torch.Tensor | tuple[torch.Tensor, ...]:
        return reference(**dict(zip(form.inputs, given, strict=False)), **named, **form.choices)

    return of_inputs


def _without(declared: Mapping[str, str], absent: set[str]) -> dict[str, str]:
    return {n: _dims_left(text, absent) for n, text in declared.items() if n not in absent}


def _dims_left(text: str, absent: set[str]) -> str:
    names, colon, kind = text.partition(":")
    return " ".join(n for n in names.split() if n not in absent) + colon + kind
