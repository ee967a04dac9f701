"""Which op of the library serves a recipe.

Most recipes have the name of their op. Others are an op with an activation (`geglu_mlp` is
`gated_mlp(..., activation="gelu_tanh")`) or a norm, or with its options as inputs
(`rms_norm_linear_full`), or an overload of it (`rms_norm_linear_residual`).
"""

from __future__ import annotations

import mirage_kernels

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


def op_call(recipe_name: str) -> tuple[str, dict[str, str]] | None:
    """Return the op that serves a recipe and the keywords that the recipe fixes.

    None if the library has no such op.
    """
    name = recipe_name.removesuffix("_full").removesuffix("_residual")
    op, keywords = _VARIANTS.get(name, (name, {}))
    return (op, keywords) if op in mirage_kernels.__all__ else None
