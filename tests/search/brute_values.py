"""What brute force's expressions are worth: whole tensors in a small field, cut into axes.

Every dim becomes three axes: the block, the loop's step, the tile. What runs block by block and
step by step on a GPU is computed here for all of them at once; an axis along which a value does not
vary has the extent 1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from mirage_kernels.generator.ir import OPS, DType, Graph, Kind, Node
from mirage_kernels.generator.meaning.arrays import _INTEGER as COUNTING
from mirage_kernels.generator.search.fingerprints import Fingerprints
from mirage_kernels.generator.search.settings import Setting

EXTENT = 8  # of every dim: 4 tiles of 2, or 2 blocks of 2 such steps
TILE = 2

Ints = npt.NDArray[np.int64]
Parts = tuple[Ints, ...]  # residues mod p and, before an exp, mod q; or whole numbers


@dataclass(frozen=True)
class Worth:
    """One spec's tensors, drawn at random, as the blocks and steps of one setting see them."""

    spec: Graph
    setting: Setting
    order: tuple[str, ...]  # names of all dims

    @cached_property
    def numbers(self) -> Fingerprints:
        """The small field."""
        return Fingerprints(self.spec, frozenset())

    @cached_property
    def moduli(self) -> tuple[int, int]:
        """Of a number's parts: p and q."""
        return self.numbers.field.p, self.numbers.field.q

    def elementwise(self, op: str, args: Sequence[Parts], *, counts: bool = False) -> Parts:
        """Return the result of an op on numbers, or what counts; nothing for an exp of an exp."""
        if op == "where":
            condition, a, b = args
            return tuple(np.where(condition[0], x, y) for x, y in zip(a, b, strict=False))
        if counts:
            return (COUNTING[op](*(a[0] for a in args)),)
        if op == "exp" and len(args[0]) < 2:
            return ()
        return self.numbers.arithmetic.elementwise[op](*args)

    @cached_property
    def axes(self) -> list[tuple[str, str]]:
        """The axes of all arrays."""
        return [(d, part) for d in self.order for part in ("block", "step", "tile")]

    @cached_property
    def tensors(self) -> dict[str, Parts]:
        """The spec's inputs, constants and positions, their axes in the order of their dims."""
        return {n.name: self._drawn(n, i) for i, n in enumerate(self.spec.nodes) if not n.args}

    def _drawn(self, node: Node, number: int) -> Parts:
        rng = np.random.default_rng((number, 7))
        shape = tuple(EXTENT for _ in node.out.type.dims)
        whole = node.out.type.dtype is DType.INT32
        moduli = self.moduli if self.spec.of("exp") else self.moduli[:1]
        if node.op == "iota":
            return (np.arange(EXTENT),)
        if node.op in ("const", "size"):
            value = np.asarray(EXTENT if node.op == "size" else int(node.value))
            return (value,) if whole else tuple(value % m for m in moduli)
        if whole:
            return (rng.integers(1, EXTENT, shape),)
        return tuple(rng.integers(0, m, shape) for m in moduli)

    def tile(self, tensor: str, how: Mapping[str, str]) -> Parts:
        """Return a tensor whose dims have the axes `how` says, such as "block tile"."""
        return self._laid_out(self.tensors[tensor], list(how), how)

    def _laid_out(self, data: Parts, dims: Sequence[str], how: Mapping[str, str]) -> Parts:
        turned = [dims.index(d) for d in self.order if d in dims]
        extents = {d: self._extents(d, how[d]) for d in dims}
        shape = [extents[d][part] if d in extents else 1 for d, part in self.axes]
        return tuple(x.transpose(turned).reshape(shape) for x in data)

    def _extents(self, dim: str, how: str) -> dict[str, int]:
        looped = dim == self.setting.loop == self.setting.split  # its parts may be cut further
        blocks = EXTENT // TILE // (2 if looped else 1) if "block" in how else 1
        steps = EXTENT // TILE // blocks if "step" in how else 1
        return {"block": blocks, "step": steps, "tile": EXTENT // blocks // steps}

    def total(self, x: Parts, dim: str, part: str) -> Parts:
        """Sum along one axis."""
        axis = self.axes.index((dim, part))
        return tuple(a.sum(axis, keepdims=True) % m for m, a in zip(self.moduli, x, strict=False))

    def wanted(self) -> Parts:
        """Return the spec's result, cut as this setting's blocks do."""
        known: dict[str, Parts] = {}
        for node in self.spec.nodes:
            if not node.args:
                how = dict.fromkeys(node.out.type.names, "tile")
                known[node.name] = self.tile(node.name, how)
            else:
                known[node.name] = self._result(node, [known[a] for a in node.args])
        type_ = self.spec.values[self.spec.outputs[0]].type
        names = [d for d in self.order if d in type_.names]
        whole = tuple(x.reshape([EXTENT] * len(names)) for x in known[self.spec.outputs[0]])
        how = {d: "block tile" if d in self.setting.grid else "tile" for d in names}
        return self._laid_out(whole, names, how)

    def _result(self, node: Node, args: Sequence[Parts]) -> Parts:
        if OPS[node.op].kind is not Kind.ELEMENTWISE:
            product = args[0] if len(args) == 1 else self.elementwise("mul", args)
            return self.total(product, node.over, "tile")
        counts = all(not self.spec.values[a].type.dtype.is_real for a in node.args)
        return self.elementwise(node.op, args, counts=counts)
