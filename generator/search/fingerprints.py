"""Fingerprints: values evaluated on small random tensors; terms forget indices, these do not.

Two ways to make a value are merged only if they agree in a finite field as well as in their terms,
and a program's result must agree with its spec's. So the search does not drown in programs whose
terms are right and whose sums run over the wrong thing; what is found is proved independently,
with other draws and really block by block (`verify.py`).

A value is evaluated for all blocks and steps at once. A dim that the loop cuts becomes two axes,
the step's and the tile's; so does one that blocks split.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from hashlib import blake2b

import numpy as np

from mirage_kernels.generator.ir import DType, Graph, Node, Value, parts_of
from mirage_kernels.generator.ir.infer import SCALAR
from mirage_kernels.generator.meaning.arrays import Arithmetic, Array, Parts, array_reading
from mirage_kernels.generator.meaning.field import (
    Field,
    field_arithmetic,
    inverse,
    random_parts,
    root_to_the,
)
from mirage_kernels.generator.meaning.walk import walk
from mirage_kernels.generator.search.cases import seen_dims
from mirage_kernels.generator.search.settings import BOTH, GRID, LOOP, Dims

STEP, PART_AXIS = "@step", "@part"
_CUTS = 2  # steps of a loop, and parts of a split
_TILE = 2
_WHOLE = _CUTS * _CUTS * _TILE  # extent of a dim that may be cut
_SHORT = 3  # of the others
_PRIME = 65267  # (p - 1) / 2 is prime too; small, for these draws only sort, they do not prove
_SEED = 7


class Fingerprints:
    """One draw for a spec: its tensors, and how values follow from them.

    `tensors` holds the spec's inputs and sources, `values` every value of it, `wanted` the digest
    of its result; dims in `long` may be cut.
    """

    def __init__(self, spec: Graph, long: frozenset[str]) -> None:
        exponents = any(n.op == "exp" for n in spec.nodes)
        self.spec, self.field = spec, Field(_PRIME, 4, 0x5DEECE66D, exponents, total=True)
        self.arithmetic = _looked_up(self.field)
        sizes = {d: _WHOLE if d in long else _SHORT for d in seen_dims(spec)}
        self._reading = array_reading(self.arithmetic, sizes)
        rng = np.random.default_rng(_SEED)
        self.tensors: dict[str, Array] = {}
        for node in spec.inputs:
            names, real = node.out.type.names, node.out.type.dtype is not DType.INT32
            shape = tuple(sizes[d] for d in names)
            whole = (rng.integers(1, _WHOLE, shape),) if not real else ()
            drawn = whole or random_parts(self.field, shape, rng)
            self.tensors[node.name] = Array(names, drawn, real=real)
        inputs = list(self.tensors.values())
        for node in spec.of("const", "size", "iota"):
            self.tensors[node.name] = self._reading[node.op](node, [])[0]
        self.values = walk(spec, inputs, self._reading)
        self.wanted = digest(self.values[spec.outputs[0]])
        self.spec_values = cache(self._spec_values)

    def _spec_values(self, dims: Dims, split: str | None) -> dict[bytes, frozenset[str]]:
        """Return the spec's values that have these dims, cut like this, by their digests."""
        found: dict[bytes, frozenset[str]] = {}
        for name, value in self.values.items():
            if set(value.dims) == {d for d, _ in dims}:
                seen = digest(self.view(value, dims, split))
                found[seen] = found.get(seen, frozenset()) | {name}
        return found

    def view(self, tensor: Array, dims: Dims, split: str | None) -> Array:
        """Return a tensor; dims that a loop or a split cuts have axes of two, then the rest."""
        for dim, cut in dims:
            parts = (PART_AXIS,) if dim == split and cut in (GRID, BOTH) else ()
            axes = (*parts, STEP) if cut in (LOOP, BOTH) else parts
            if axes:
                at, shape = tensor.dims.index(dim), tensor.parts[0].shape
                rest = tensor.extent(dim) // _CUTS ** len(axes)
                shape = (*shape[:at], *(_CUTS,) * len(axes), rest, *shape[at + 1 :])
                names = (*tensor.dims[:at], *axes, *tensor.dims[at:])
                tensor = Array(names, tuple(p.reshape(shape) for p in tensor.parts), tensor.real)
        return tensor

    def result(self, op: str, args: Sequence[Array], over: str) -> Array:
        """Return what an op makes of evaluated operands."""
        if op == "contract":
            return self.result("sum", [self.result("mul", args, "")], over)
        if op in ("sum", "accum", "combine"):
            axis = {"sum": over, "accum": STEP, "combine": PART_AXIS}[op]
            (x,) = args
            parts = self.arithmetic.total(x.parts, x.dims.index(axis))
            return Array(tuple(d for d in x.dims if d != axis), parts, x.real)
        return self._reading[op](Node(op, (), (Value(op, SCALAR),)), args)[0]


def _looked_up(field: Field) -> Arithmetic:
    """Return how the field's elements compute; quotients and exp are looked up."""
    plain = field_arithmetic(field)
    moduli = (field.p, field.q)
    inverses = [np.append(0, inverse(np.arange(1, m), m)) for m in moduli]
    powers = root_to_the(np.arange(moduli[1]), field)

    def divide(a: Parts, b: Parts) -> Parts:
        parts = zip(a, b, inverses, moduli, strict=False)
        return tuple(np.asarray(x) * table[np.asarray(y)] % m for x, y, table, m in parts)

    def exp(x: Parts) -> Parts:
        if len(x) < len(moduli):
            return plain.elementwise["exp"](x)
        return (powers[np.asarray(x[1])],)

    return replace(plain, elementwise={**plain.elementwise, "div": divide, "exp": exp})


def stored(value: Array, split: str | None) -> Array:
    """Return the tensor that blocks store: their parts lie side by side."""
    dims = tuple(parts_of(split or "") if d == PART_AXIS else d for d in value.dims)
    return Array(dims, value.parts, value.real)


def digest(value: Array) -> bytes:
    """Return what equal values have in common, whatever the order of their axes."""
    dims = sorted(value.dims)
    ordered = value.over(dims)
    content = b"".join(np.ascontiguousarray(p, np.int64).tobytes() for p in ordered.parts)
    return blake2b(content, digest_size=8, person=repr(dims).encode()[:16]).digest()
