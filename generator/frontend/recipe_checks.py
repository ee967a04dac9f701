"""What a recipe declares, checked where it is declared: kinds of values, sizes, names."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from mirage_kernels.generator.errors import RecipeError
from mirage_kernels.generator.frontend.names import ELEMENT, MODULES, TAKEN

if TYPE_CHECKING:
    from mirage_kernels.generator.recipe import Recipe

SHAPE_EXAMPLE = 'shape("my model", K=4096, N=6144)'
# What each argument of @recipe is, and how it is written.
_KINDS: dict[str, tuple[type | tuple[type, ...], str]] = {
    "inputs": (Mapping, '{"x": "M K", "weight": "N K", "eps": ""}'),
    "also": (Mapping, '{"total": "M K"}'),
    "output": (str, '"M N"'),
    "dynamic": (Mapping, '{"M": 4096}'),
    "scalars": (Mapping, '{"eps": 1e-6}'),
    "ranges": (Mapping, '{"seq_lens": "T..L"}'),
    "optional": ((tuple, list), '("bias",), with its comma'),
    "stacked": ((tuple, list), '("lora_a", "lora_b")'),
    "shapes": ((tuple, list), f"({SHAPE_EXAMPLE},), with its comma"),
}


def check_declaration(recipe: Recipe, shape_type: type) -> None:
    """Raise RecipeError for what no kernel could be made of, whatever the program computes."""
    for entry in recipe.shapes:
        if not isinstance(entry, shape_type):
            raise RecipeError(
                f"shapes of recipe {recipe.name} hold {entry!r}", f"write shapes=({SHAPE_EXAMPLE},)"
            )
    for name, size in recipe.dynamic.items():
        require_extent(f"dynamic dim {name} of recipe {recipe.name}", size)
    dims = {d for text in recipe.inputs.values() for d in text.partition(":")[0].split()}
    _check_names(recipe, dims)
    _check_dims(recipe, dims)
    _check_numbers(recipe)


def require_kinds(recipe: str, declared: Mapping[str, object]) -> None:
    """Refuse arguments of @recipe of another kind than they are written in, with what works."""
    for what, given in declared.items():
        kind, example = _KINDS[what]
        if not isinstance(given, kind):
            raise RecipeError(
                f"{what} of recipe {recipe} cannot be {given!r}", f"write {what}={example}"
            )
    for what in ("inputs", "also"):
        given = declared[what]
        for name, text in given.items() if isinstance(given, Mapping) else ():
            if not isinstance(name, str) or not isinstance(text, str):
                raise RecipeError(
                    f"{what} of recipe {recipe} gives {name} the dims {text!r}, which are no text",
                    f"write {what}={_KINDS[what][1]}",
                )


def require_extent(what: str, size: object) -> None:
    """Refuse an extent that is no whole number."""
    if not isinstance(size, int) or isinstance(size, bool):
        raise RecipeError(f"{what} must be a whole number, not {size!r}", "write it as K=4096")


def _check_names(recipe: Recipe, dims: set[str]) -> None:
    for kind, name in _named(recipe, dims):
        place = f"{kind} {name!r}" + ("" if kind == "recipe" else f" of recipe {recipe.name}")
        if not (name.isascii() and name.isidentifier()):
            raise RecipeError(
                f"{place} is no name: emitted files use it as one", "letters, digits and _ make one"
            )
        static = kind == "dim" and name not in recipe.dynamic
        taken = name in TAKEN or (kind == "dim" and name.lower() in MODULES)
        if taken or (name == ELEMENT and (static or kind == "input")):
            raise RecipeError(f"{place} has a name that emitted files need", "choose another name")
    numbers = (name for name, text in recipe.inputs.items() if not text.partition(":")[0].split())
    small = next((name for name in numbers if name in {d.lower() for d in dims}), None)
    if small is not None:
        raise RecipeError(
            f"input {small!r} of recipe {recipe.name} is a dim in small letters",
            "Triton programs call places along a dim so: choose another name",
        )
    both = sorted(dims & {*recipe.inputs, *recipe.also})
    if both:
        raise RecipeError(
            f"{both[0]!r} of recipe {recipe.name} is a dim and a tensor",
            "dims are upper case by custom: M, K, Hkv",
        )


def _named(recipe: Recipe, dims: set[str]) -> Iterator[tuple[str, str]]:
    yield "recipe", recipe.name
    yield from (("input", name) for name in recipe.inputs)
    yield from (("result", name) for name in recipe.also)
    yield from (("dim", name) for name in sorted(dims))


def _check_dims(recipe: Recipe, dims: set[str]) -> None:
    for name, text in recipe.inputs.items():
        own = text.partition(":")[0].split()
        twice = [d for d in own if own.count(d) > 1]
        if twice:
            raise RecipeError(
                f"input {name} of recipe {recipe.name} has dim {twice[0]} twice",
                "dims go by name: give the second one a name of its own",
            )
    absent = [d for d in recipe.dynamic if d not in dims]
    if absent:
        raise RecipeError(
            f"recipe {recipe.name} has no input with its dynamic dim {absent[0]}",
            f"dims of its inputs: {', '.join(sorted(dims))}",
        )


def _check_numbers(recipe: Recipe) -> None:
    numbers = [name for name, text in recipe.inputs.items() if not text.partition(":")[0].split()]
    for what, names in (("scalars", recipe.scalars), ("ranges", recipe.ranges)):
        known = numbers if what == "scalars" else list(recipe.inputs)
        unknown = [name for name in names if name not in known]
        if unknown:
            raise RecipeError(
                f"{what} of recipe {recipe.name} names {unknown[0]}, which is none of its inputs"
                + (" without dims" if what == "scalars" else ""),
                f"there are: {', '.join(known) or 'none'}",
            )
    for name, value in (*recipe.scalars.items(), ("tolerance", recipe.tolerance)):
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or not math.isfinite(value) or (name == "tolerance" and value <= 0):
            raise RecipeError(
                f"{name} of recipe {recipe.name} cannot be {value!r}", "write a number such as 1.1"
            )
