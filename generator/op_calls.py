"""Which op of the library serves a recipe, and how it is called with the recipe's inputs.

Most recipes have the name of their op. Others are an op with an activation (`geglu_mlp` is
`gated_mlp(..., activation="gelu_tanh")`) or with its options as inputs (`rms_norm_linear_full`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import mirage_kernels
from mirage_kernels.generator.recipe import Recipe

_FULL = "_full"
_ACTIVATED = {
    "gated_mlp_gelu": ("gated_mlp", "gelu"),
    "geglu_mlp": ("gated_mlp", "gelu_tanh"),
    "gated_mlp_relu": ("gated_mlp", "relu"),
    "rms_norm_gated_mlp_gelu": ("rms_norm_gated_mlp", "gelu"),
    "rms_norm_geglu_mlp": ("rms_norm_gated_mlp", "gelu_tanh"),
    "rms_norm_gated_mlp_relu": ("rms_norm_gated_mlp", "relu"),
}


@dataclass(frozen=True)
class OpCall:
    """An op of the library and the keywords that a recipe fixes."""

    op: str
    keywords: dict[str, str] = field(default_factory=dict)


def op_call(recipe_name: str) -> OpCall | None:
    """Return the op that serves a recipe, None if the library has none."""
    op, keywords = recipe_name.removesuffix(_FULL), {}
    if op in _ACTIVATED:
        op, activation = _ACTIVATED[op]
        keywords = {"activation": activation}
    return OpCall(op, keywords) if op in mirage_kernels.__all__ else None


def function_of(recipe: Recipe) -> Callable[..., object]:
    """Return the op as a function of the recipe's inputs in their order, and of `out`.

    Raises LookupError where the library has no op for the recipe.
    """
    call = op_call(recipe.name)
    if call is None:
        raise LookupError(f"the library has no op for recipe {recipe.name}")
    op: Callable[..., object] = getattr(mirage_kernels, call.op)
    fixed: dict[str, object] = dict(call.keywords)

    def run(*inputs: object, **more: object) -> object:
        named = list(zip(recipe.inputs, inputs, strict=True))
        options = {n: v for n, v in named if n in recipe.optional}
        return op(*_given(named, recipe), **options, **fixed, **more)

    return run


def _given(named: list[tuple[str, object]], recipe: Recipe) -> Iterator[object]:
    return (value for name, value in named if name not in recipe.optional)
