"""Which op of the library serves a recipe, and how it is called with the recipe's inputs.

Most recipes have the name of their op. Others are an op with an activation (`geglu_mlp` is
`gated_mlp(..., activation="gelu_tanh")`) or a norm, or with its options as inputs
(`rms_norm_linear_full`), or an overload of it (`rms_norm_linear_residual`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from inspect import signature

import mirage_kernels
from mirage_kernels.generator.recipe import Recipe

_ENDINGS = ("_full", "_residual")
_VARIANTS = {
    "gated_mlp_gelu": ("gated_mlp", {"activation": "gelu"}),
    "geglu_mlp": ("gated_mlp", {"activation": "gelu_tanh"}),
    "gated_mlp_relu": ("gated_mlp", {"activation": "relu"}),
    "rms_norm_gated_mlp_gelu": ("rms_norm_gated_mlp", {"activation": "gelu"}),
    "rms_norm_geglu_mlp": ("rms_norm_gated_mlp", {"activation": "gelu_tanh"}),
    "rms_norm_gated_mlp_relu": ("rms_norm_gated_mlp", {"activation": "relu"}),
    "silu_and_mul": ("act_and_mul", {"activation": "silu"}),
    "gelu_and_mul": ("act_and_mul", {"activation": "gelu"}),
    "gelu_tanh_and_mul": ("act_and_mul", {"activation": "gelu_tanh"}),
    "relu_and_mul": ("act_and_mul", {"activation": "relu"}),
    "qk_layer_norm_attention": ("qk_norm_attention", {"norm": "layer"}),
}


@dataclass(frozen=True)
class OpCall:
    """An op of the library and the keywords that a recipe fixes."""

    op: str
    keywords: dict[str, str] = field(default_factory=dict)


def op_call(recipe_name: str) -> OpCall | None:
    """Return the op that serves a recipe, None if the library has none."""
    name = recipe_name
    for ending in _ENDINGS:
        name = name.removesuffix(ending)
    op, keywords = _VARIANTS.get(name, (name, {}))
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

    by_name = {p.name for p in signature(op).parameters.values() if p.kind is p.KEYWORD_ONLY}

    def run(*inputs: object, **more: object) -> object:
        named = list(zip(recipe.inputs, inputs, strict=True))
        options = {name: value for name, value in named if name in by_name}
        given = (value for name, value in named if name not in by_name)
        return op(*given, **options, **fixed, **more)

    return run
