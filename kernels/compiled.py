"""Overloads of the compiled ops as Python functions, which make their results or write `out`."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor
from torch._ops import OpOverload

from mirage_kernels import registration as registration  # registers all that the ops need
from mirage_kernels.argument_checks import compiled, refuse_grad, watches_grad
from mirage_kernels.assumptions import assumed
from mirage_kernels.errors import pair_sentence

Pair = tuple[Tensor, Tensor]

# Arguments that public functions call otherwise, and numbers, whose gradients nobody asks for.
_PUBLIC_NAMES = {"gate_up_weight": "gate_weight", "eps": "", "weight_offset": ""}


def compiled_op(op: str, name: str = "") -> Callable[..., Tensor]:
    """Return the overload `name` of an op with one result; it takes `out`, a tensor or None.

    `weights`: whether the call promises constant weights; None: what the thread promises.
    """
    make, write = _forms(op, name)
    made: Callable[..., Tensor] = compiled(op, make)
    into: Callable[..., None] = compiled(op, write)
    names = _public_names(make)

    def run(*args: object, out: Tensor | None, weights: bool | None = None) -> Tensor:
        if watches_grad():
            refuse_grad(op, **_named(names, args), out=out)
        assume = assumed(op, weights)
        if out is None:
            return made(*args, assume=assume)
        into(*args, out=out, assume=assume)
        return out

    return run


def compiled_pair(op: str, name: str = "residual") -> Callable[..., Pair]:
    """Return the overload of an op that adds a residual; its `out` is a pair or None."""
    make, write = _forms(op, name)
    made: Callable[..., Pair] = compiled(op, make)
    into: Callable[..., None] = compiled(op, write)
    names = _public_names(make)

    def run(*args: object, out: object, weights: bool | None = None) -> Pair:
        given = _named(names, args)
        if watches_grad():
            refuse_grad(op, **given, out=out)
        assume = assumed(op, weights)
        if out is None:
            return made(*args, assume=assume)
        if not isinstance(out, tuple | list) or len(out) != 2 or given["residual"] is None:
            raise RuntimeError(pair_sentence(op, given["residual"]))
        y, total = out
        if watches_grad():
            refuse_grad(op, out=y, total=total)
        into(*args, out=y, total=total, assume=assume)
        return y, total

    return run


def _forms(op: str, name: str) -> tuple[OpOverload, OpOverload]:
    overloads = getattr(torch.ops.mirage_kernels, op)
    into = f"{name}_out" if name else "out"
    return getattr(overloads, name or "default"), getattr(overloads, into)


def _public_names(form: OpOverload) -> tuple[str, ...]:
    names = (a.name for a in form._schema.arguments if a.name != "assume")
    return tuple(_PUBLIC_NAMES.get(name, name) for name in names)


def _named(names: Iterable[str], args: Iterable[object]) -> dict[str, object]:
    return {name: argument for name, argument in zip(names, args, strict=True) if name}
