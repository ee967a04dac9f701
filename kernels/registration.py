"""The table of ops: what PyTorch must know of each beside its compiled code.

A row of the compiled table (csrc/torch/ops.cpp) says what an op is called, its arguments and what
serves it. Here each gets its fake and PyTorch's own programs.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import wraps

import torch
from torch import Tensor

from mirage_kernels import append_library, attention_library, checking, composite, fakes, library
from mirage_kernels.signatures import Signature, signatures

Program = Callable[..., None]

# Ops whose kernels may take fewer options than they do.
AROUND = (
    *("rms_norm_linear", "layer_norm_linear", "lora_linear"),
    *("rms_norm_gated_mlp", "rms_norm_gated_mlp.packed"),
)
# Ops whose kernels may take no residual.
BEHIND_A_SUM = (
    "rms_norm_linear.residual",
    *("rms_norm_gated_mlp.residual", "rms_norm_gated_mlp.packed_residual"),
)
# By op and overload. "library": the whole op, for CPU tensors and calls without a kernel;
# "composite": a kernel, and before and after it the options that it does not take.
PROGRAMS: Mapping[str, Mapping[str, Program]] = {
    "library": {
        "linear": library.linear,
        "rms_norm_linear": library.rms_norm_linear,
        "rms_norm_linear.residual": library.rms_norm_linear_residual,
        "layer_norm_linear": library.layer_norm_linear,
        "lora_linear": library.lora_linear,
        "lora_linear.batched": library.lora_linear_batched,
        "gated_mlp": library.gated_mlp,
        "gated_mlp.packed": library.gated_mlp_packed,
        "rms_norm_gated_mlp": library.rms_norm_gated_mlp,
        "rms_norm_gated_mlp.packed": library.rms_norm_gated_mlp_packed,
        "rms_norm_gated_mlp.residual": library.rms_norm_gated_mlp_residual,
        "rms_norm_gated_mlp.packed_residual": library.rms_norm_gated_mlp_packed_residual,
        "ntrans": library.ntrans,
        "rms_norm": library.rms_norm,
        "rms_norm.residual": library.rms_norm_residual,
        "rms_norm_add": library.rms_norm_add,
        "layer_norm": library.layer_norm,
        "layer_norm.residual": library.layer_norm_residual,
        "act_and_mul": library.act_and_mul,
        "gqa": attention_library.gqa,
        "gqa.lse": attention_library.gqa,
        "qk_norm_attention": attention_library.qk_norm_attention,
        "qk_norm_attention.lse": attention_library.qk_norm_attention,
        "mla_decode": attention_library.mla_decode,
        "mla_decode.lse": attention_library.mla_decode,
        "qk_norm_rope_append": append_library.qk_norm_rope_append,
    },
    "composite": {
        **{
            signature.key: made(
                signature.op, [p.name for p in signature.parameters], signature.overload
            )
            for made, keys in ((composite.around, AROUND), (composite.behind_a_sum, BEHIND_A_SUM))
            for signature in signatures()
            if signature.key in keys
        },
    },
}

# By op: what refuses its arguments and says how large its dims are; for others, NamedDims.
FAKES: Mapping[str, type[fakes.Dims]] = {
    "gqa": fakes.AttentionDims,
    "qk_norm_attention": fakes.AttentionDims,
    "mla_decode": fakes.AttentionDims,
    "qk_norm_rope_append": fakes.AppendDims,
}


class _Failure(threading.local):
    """What a program said when it failed last, for the compiled op to repeat."""

    text = ""


_failure = _Failure()


def own_types(x: Tensor) -> AbstractContextManager[object]:
    """Suspend autocast, under which programs would multiply in another type than that of x."""
    kind = x.device.type
    if kind in ("cpu", "cuda") and torch.is_autocast_enabled(kind):
        return torch.autocast(kind, enabled=False)
    return nullcontext()


def _run_by(program: Program) -> Program:
    @wraps(program)
    def run(x: Tensor, *args: object, **kwargs: object) -> None:
        try:
            with torch.no_grad(), own_types(x):
                program(x, *args, **kwargs)
        except Exception as error:  # whatever PyTorch raises: memory may be short
            _failure.text = str(error)
            raise

    return run


def _nothing(x: Tensor, *args: object) -> None:
    """Check no value."""


def _register(signature: Signature) -> None:
    dims = FAKES.get(signature.op, fakes.NamedDims)
    torch.library.register_fake(signature.name(), fakes.functional(signature, dims))
    torch.library.register_fake(signature.name("check"), fakes.checks(signature, dims))
    if not signature.is_in_place:
        torch.library.register_fake(signature.name("out"), fakes.into(signature, dims))
    for form, programs in PROGRAMS.items():
        if signature.key in programs:
            torch.library.impl(signature.name(form), "default", _run_by(programs[signature.key]))
    check = checking.program(signature)
    if checking.has_values(signature):
        torch.library.impl(signature.name("values"), "default", _run_by(check or _nothing))


for _signature in signatures():
    _register(_signature)
torch.library.impl("mirage_kernels::_failure", "default", lambda: _failure.text)
