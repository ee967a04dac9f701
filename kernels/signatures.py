"""What the compiled ops say of themselves: names of arguments, and the dims that these share."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache

import torch

from mirage_kernels.loading import load_extension

load_extension()

TOKENS = "M"  # stands for all leading dims of x
SLICES = "A"  # of stacks, as many as a call brings


@dataclass(frozen=True)
class Axis:
    """One dim of a tensor as a signature writes it: `K`, or `2N`, twice as long as dim N."""

    letter: str
    factor: int


@dataclass(frozen=True)
class Parameter:
    """An argument or a result of an op. Kind "own": its op alone knows what it may be."""

    name: str
    kind: str
    axes: tuple[Axis, ...]
    label: str  # what sentences call it


@dataclass(frozen=True)
class Signature:
    """One overload of an op; the first parameter is x, whose dtype and device the others share."""

    op: str
    overload: str
    parameters: tuple[Parameter, ...]
    results: tuple[Parameter, ...]
    static_dims: frozenset[str]  # that kernels are compiled for
    is_in_place: bool  # writes into its arguments: there is no form with `out`
    only_own: bool  # kernels of the overload's own recipe alone serve it

    @property
    def has_named_dims(self) -> bool:
        """Say whether dims of the same letter are alike in all tensors: no argument is "own"."""
        return all(parameter.kind != "own" for parameter in self.parameters)

    @property
    def key(self) -> str:
        """Return "op" or "op.overload"."""
        return self.op + (f".{self.overload}" if self.overload else "")

    def name(self, form: str = "") -> str:
        """Return the full name of the op (no form), of "out", or of "library" and the like."""
        if form == "out":
            return f"mirage_kernels::{self.op}.{'_'.join(filter(None, (self.overload, form)))}"
        op = f"_{self.op}_{form}" if form else self.op
        return f"mirage_kernels::{op}" + (f".{self.overload}" if self.overload else "")


@cache
def signatures() -> tuple[Signature, ...]:
    """Return every overload that computes something; that with `out` has the same parameters."""
    return tuple(_signature(**row) for row in json.loads(torch.ops.mirage_kernels._signatures()))


def _signature(
    op: str,
    overload: str,
    static_dims: str,
    in_place: bool,
    only_own: bool,
    **tensors: list[dict[str, str]],
) -> Signature:
    parameters, results = (
        tuple(_parameter(**row) for row in tensors[name]) for name in ("parameters", "results")
    )
    letters = {axis.letter for p in parameters for axis in p.axes}
    static = frozenset(static_dims.split() or letters - {TOKENS, SLICES})
    return Signature(op, overload, parameters, results, static, in_place, only_own)


def _parameter(name: str, dims: str, kind: str, label: str) -> Parameter:
    axes = tuple(Axis(word[-1], int(word[:-1] or 1)) for word in dims.split())
    return Parameter(name, kind, axes, label)
