"""Fingerprints: values evaluated on small random tensors; terms forget indices, these do not.

Two ways to make a value are merged only if they agree in a finite field as well as in their terms,
and a program's result must agree with its spec's. So the search does not drown in programs whose
terms are right and whose sums run over the wrong thing; what is found is proved independently,
with other draws and really block by block (`verify.py`).

A value is evaluated for all blocks and steps at once. A dim that the loop cuts becomes two axes,
the step's and the tile's; so does one that blocks split.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import blake2b

import numpy as np

from mirage_kernels.generator.ir import DType, Graph, Node, Value, parts_of
from mirage_kernels.generator.ir.infer import SCALAR
from mirage_kernels.generator.meaning.arrays import Arithmetic, Array, Part, Parts, array_reading
from mirage_kernels.generator.meaning.field import (
    Field,
    field_arithmetic,
    inverse,
    random_parts,
    root_to_the,
)
from mirage_kernels.generator.meaning.walk import Reading, walk
from mirage_kernels.generator.search.settings import BOTH, GRID, LOOP

STEP, PART_AXIS = "@step", "@part"
_CUTS = 2  # steps of a loop, and parts of a split
_TILE = 2
_WHOLE = _CUTS * _CUTS * _TILE  # extent of a dim that may be cut
_SHORT = 3  # of the others
_PRIME = 65267  # (p - 1) / 2 is prime too; small, for these draws only sort, they do not prove
_SEED = 7

How = Iterable[tuple[str, str]]


@dataclass(frozen=True)
class Fingerprints:
    """One draw for a spec: its tensors, and how values follow from them."""

    spec: Graph
    long: frozenset[str]  # dims that may be cut

    @cached_property
    def field(self) -> Field:
        """The field of the draw."""
        exponents = any(n.op == "exp" for n in self.spec.nodes)
        return Field(_PRIME, 4, 0x5DEECE66D, exponents, total=True)

    @cached_property
    def sizes(self) -> dict[str, int]:
        """Extents of the draw."""
        dims = {d for n in self.spec.nodes for v in n.outs for d in v.type.names}
        return {d: _WHOLE if d in self.long else _SHORT for d in dims}

    @cached_property
    def tensors(self) -> dict[str, Array]:
        """The spec's inputs and sources."""
        rng = np.random.default_rng(_SEED)
        found = {n.name: self._input(n, rng) for n in self.spec.inputs}
        for node in self.spec.of("const", "size", "iota"):
            found[node.name] = self._reading[node.op](node, [])[0]
        return found

    def _input(self, node: Node, rng: np.random.Generator) -> Array:
        type_ = node.out.type
        shape = tuple(self.sizes[d] for d in type_.names)
        if type_.dtype is DType.INT32:
            return Array(type_.names, (rng.integers(1, _WHOLE, shape),), real=False)
        return Array(type_.names, random_parts(self.field, shape, rng))

    @cached_property
    def values(self) -> dict[str, Array]:
        """Every value of the spec."""
        inputs = [self.tensors[n.name] for n in self.spec.inputs]
        return walk(self.spec, inputs, self._reading)

    @cached_property
    def wanted(self) -> bytes:
        """The digest of the spec's result."""
        return digest(self.values[self.spec.outputs[0]])

    def spec_values(
        self, how: frozenset[tuple[str, str]], split: str | None
    ) -> dict[bytes, frozenset[str]]:
        """Return the spec's values that have these dims, cut like this, by their digests."""
        key = (how, split)
        if key not in self._spec_values:
            names = {d for d, _ in how}
            found: dict[bytes, frozenset[str]] = {}
            for name, value in self.values.items():
                if set(value.dims) == names:
                    seen = digest(self.view(value, how, split))
                    found[seen] = found.get(seen, frozenset()) | {name}
            self._spec_values[key] = found
        return self._spec_values[key]

    @cached_property
    def _spec_values(self) -> dict[tuple[How, str | None], dict[bytes, frozenset[str]]]:
        """What `spec_values` has found."""
        return {}

    def view(self, tensor: Array, how: How, split: str | None) -> Array:
        """Return a tensor with the axes of a loop and of a split."""
        for dim, cut in how:
            parts = (PART_AXIS,) if dim == split and cut in (GRID, BOTH) else ()
            steps = (STEP,) if cut in (LOOP, BOTH) else ()
            if parts or steps:
                tensor = _cut(tensor, dim, (*parts, *steps))
        return tensor

    @cached_property
    def arithmetic(self) -> Arithmetic:
        """How the field's elements compute; quotients and exp are looked up."""
        plain = field_arithmetic(self.field)
        moduli = (self.field.p, self.field.q)
        inverses = [np.append(0, inverse(np.arange(1, m), m)) for m in moduli]
        powers = root_to_the(np.arange(moduli[1]), self.field)

        def divide(a: Parts, b: Parts) -> Parts:
            parts = zip(a, b, inverses, moduli, strict=False)
            return tuple(np.asarray(x) * table[np.asarray(y)] % m for x, y, table, m in parts)

        def exp(x: Parts) -> Parts:
            if len(x) < len(moduli):
                return plain.elementwise["exp"](x)
            return (powers[np.asarray(x[1])],)

        return replace(plain, elementwise={**plain.elementwise, "div": divide, "exp": exp})

    @cached_property
    def _reading(self) -> Reading[Array]:
        return array_reading(self.arithmetic, self.sizes)

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


def stored(value: Array, split: str | None) -> Array:
    """Return the tensor that blocks store: their parts lie side by side."""
    dims = tuple(parts_of(split or "") if d == PART_AXIS else d for d in value.dims)
    return Array(dims, value.parts, value.real)


def digest(value: Array) -> bytes:
    """Return what equal values have in common, whatever the order of their axes."""
    dims = sorted(value.dims)
    ordered = value.over(dims)
    content = b"".join(_bytes(part) for part in ordered.parts)
    return blake2b(content, digest_size=8, person=repr(dims).encode()[:16]).digest()


def _bytes(part: Part) -> bytes:
    return np.ascontiguousarray(part, np.int64).tobytes()


def _cut(tensor: Array, dim: str, axes: tuple[str, ...]) -> Array:
    """Return a tensor with a dim cut into axes of two and what is left."""
    at = tensor.dims.index(dim)
    dims = (*tensor.dims[:at], *axes, *tensor.dims[at:])
    size = tensor.extent(dim)
    shape = tensor.parts[0].shape
    cut = (*(_CUTS,) * len(axes), size // _CUTS ** len(axes))
    parts = tuple(p.reshape(*shape[:at], *cut, *shape[at + 1 :]) for p in tensor.parts)
    return Array(dims, parts, tensor.real)
