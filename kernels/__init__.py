"""The library: ops proved equal to their recipes, compiled ahead of time, called on live tensors.

`from mirage_kernels import rms_norm_linear` loads PyTorch and the compiled extension. Importing
`mirage_kernels.generator` or `mirage_kernels.recipes` loads neither.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mirage_kernels.append import qk_norm_rope_append, rope_append
    from mirage_kernels.assumptions import constant_history, constant_weights
    from mirage_kernels.attention import gqa, qk_norm_attention
    from mirage_kernels.dispatch import KernelEntry, kernel_table
    from mirage_kernels.mla import mla_decode
    from mirage_kernels.model import optimize, report
    from mirage_kernels.norm_ops import act_and_mul, layer_norm, rms_norm, rms_norm_add
    from mirage_kernels.ops import (
        gated_mlp,
        layer_norm_linear,
        linear,
        lora_linear,
        ntrans,
        rms_norm_gated_mlp,
        rms_norm_linear,
    )
    from mirage_kernels.page_lists import block_table_from_csr, gqa_csr
    from mirage_kernels.program_library import load, program, programs
    from mirage_kernels.support import supports

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
    "linear",
    "load",
    "lora_linear",
    "mla_decode",
    "ntrans",
    "optimize",
    "program",
    "programs",
    "qk_norm_attention",
    "qk_norm_rope_append",
    "report",
    "rms_norm",
    "rms_norm_add",
    "rms_norm_gated_mlp",
    "rms_norm_linear",
    "rope_append",
    "supports",
]

_HOME = {
    name: f"mirage_kernels.{module}"
    for module, names in {
        "append": ["qk_norm_rope_append", "rope_append"],
        "assumptions": ["constant_history", "constant_weights"],
        "attention": ["gqa", "qk_norm_attention"],
        "dispatch": ["KernelEntry", "kernel_table"],
        "mla": ["mla_decode"],
        "model": ["optimize", "report"],
        "norm_ops": ["act_and_mul", "layer_norm", "rms_norm", "rms_norm_add"],
        "ops": [
            "gated_mlp",
            "layer_norm_linear",
            "linear",
            "lora_linear",
            "ntrans",
            "rms_norm_gated_mlp",
            "rms_norm_linear",
        ],
        "page_lists": ["block_table_from_csr", "gqa_csr"],
        "program_library": ["load", "program", "programs"],
        "support": ["supports"],
    }.items()
    for name in names
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
