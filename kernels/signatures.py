"""What the compiled ops say of themselves: names of arguments, and the dims that these share."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache

import torch

from mirage_kernels.loading import load_extension

load_extension()

TOKENS = "M"  # stands for all leading dims of x


@dataclass(frozen=True)
class Axis:
    """One dim of a tensor as a signature writes it: `K`, or `2N`, twice as long as dim N."""

    letter: str
    factor: int


@dataclass(frozen=True)
class Parameter:
    """An argument or a result of an op; a tensor if it has axes."""

    name: str
    kind: str
    axes: tuple[Axis, ...]


@dataclass(frozen=True)
class Signature:
    """One overload of an op; the first parameter is x, whose dtype and device the others share."""

    op: str
    overload: str
    parameters: tuple[Parameter, ...]
    results: tuple[Parameter, ...]

    @property
    def static_dims(self) -> frozenset[str]:
        """Letters of the dims that kernels are compiled for."""
        letters = {axis.letter for p in self.parameters for axis in p.axes}
        return frozenset(letters - {TOKENS})

    def name(self, overload: str = "") -> str:
        """Return the op's full name; `overload` is "out" or nothing."""
        parts = "_".join(filter(None, (self.overload, overload)))
        return f"mirage_kernels::{self.op}" + (f".{parts}" if parts else "")


@cache
def signatures() -> tuple[Signature, ...]:
    """Return every overload that computes something; that with `out` has the same parameters."""
    rows = json.loads(torch.ops.mirage_kernels._signatures())
    return tuple(
        Signature(
            row["op"],
            row["overload"],
            tuple(_parameter(**p) for p in row["parameters"]),
            tuple(_parameter(**p) for p in row["results"]),
        )
        for row in rows
    )


def _parameter(name: str, dims: str, kind: str) -> Parameter:
    axes = tuple(Axis(word[-1], int(word[:-1] or 1)) for word in dims.split())
    return Parameter(name, kind, axes)
