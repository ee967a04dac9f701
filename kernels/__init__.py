"""The library: ops proved equal to their recipes, compiled ahead of time, called on live tensors.

`from mirage_kernels import rms_norm_linear` loads PyTorch and the compiled extension. Importing
`mirage_kernels.generator` or `mirage_kernels.recipes` loads neither.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mirage_kernels.append import qk_norm_rope_append
    from mirage_kernels.assumptions import constant_history, constant_weights
    from mirage_kernels.attention import gqa, qk_norm_attention
    from mirage_kernels.dispatch import KernelEntry, kernel_table, supports
    from mirage_kernels.mla import mla_decode
    from mirage_kernels.norm_ops import act_and_mul, layer_norm, rms_norm
    from mirage_kernels.ops import (
        gated_mlp,
        layer_norm_linear,
        lora_linear,
        ntrans,
        rms_norm_gated_mlp,
        rms_norm_linear,
    )
    from mirage_kernels.page_lists import block_table_from_csr, gqa_csr

__version__ = "0.1.0"
__all__ = [
    "KernelEntry",
    "act_and_mul",
    "block_table_from_csr",
    "constant_history",
    "constant_weights",
    "gated_mlp",
    "gqa",
    "gqa_csr",
    "kernel_table",
    "layer_norm",
    "layer_norm_linear",
    "lora_linear",
    "mla_decode",
    "ntrans",
    "qk_norm_attention",
    "qk_norm_rope_append",
    "rms_norm",
    "rms_norm_gated_mlp",
    "rms_norm_linear",
    "supports",
]

_HOME = {
    "KernelEntry": "mirage_kernels.dispatch",
    "constant_history": "mirage_kernels.assumptions",
    "constant_weights": "mirage_kernels.assumptions",
    "kernel_table": "mirage_kernels.dispatch",
    "supports": "mirage_kernels.dispatch",
    "block_table_from_csr": "mirage_kernels.page_lists",
    "gqa": "mirage_kernels.attention",
    "gqa_csr": "mirage_kernels.page_lists",
    "qk_norm_attention": "mirage_kernels.attention",
    "mla_decode": "mirage_kernels.mla",
    "qk_norm_rope_append": "mirage_kernels.append",
    "act_and_mul": "mirage_kernels.norm_ops",
    "layer_norm": "mirage_kernels.norm_ops",
    "rms_norm": "mirage_kernels.norm_ops",
    "gated_mlp": "mirage_kernels.ops",
    "layer_norm_linear": "mirage_kernels.ops",
    "lora_linear": "mirage_kernels.ops",
    "ntrans": "mirage_kernels.ops",
    "rms_norm_gated_mlp": "mirage_kernels.ops",
    "rms_norm_linear": "mirage_kernels.ops",
}


def __getattr__(name: str) -> object:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
