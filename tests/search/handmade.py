"""MuGraphs written by hand as text, a line per node; what axes cut follows from names of dims.

    grid N M
    loop K
    load x weight
    product = contract x weight over K
    total = accum product
    store total as result: M N fp16

Each `grid` line starts a kernel. `split L` is a grid axis that cuts the sum along L into parts.
Tile sizes are placeholders: `retile` gives others.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from mirage_kernels.generator.ir import (
    Axis,
    Builder,
    Dim,
    DType,
    Graph,
    Level,
    Node,
    Space,
    TensorType,
    Value,
    check,
    parts_of,
    tile_type,
    with_precision,
)

SCALAR = TensorType((), DType.FP32)
TILE = 2


def handmade(spec: Graph, text: str) -> Graph:
    """Return the muGraph that `text` says, over the inputs and positions of `spec`."""
    kernels = Builder(Level.KERNEL)
    for node in spec.nodes:
        if node.op in ("input", "iota"):
            kernels.add(node)
    results: list[str] = []
    for lines in _blocks(text):
        results = _Block(kernels, lines).add()
    return check(kernels.graph(results))


def named(text: str) -> dict[str, str]:
    """Return the paragraphs of a text by their first lines."""
    paragraphs = (p.strip().partition("\n") for p in text.split("\n\n"))
    return {name: rest for name, _, rest in paragraphs}


def edited(text: str, edits: str) -> str:
    """Return a text with other words: `old -> new`, which may go on in lines without an arrow."""
    _, *words = re.split(r"^(.*)->", edits, flags=re.MULTILINE)
    for old, new in zip(words[::2], words[1::2], strict=True):
        assert old.strip() in text, f"{old!r} is not there"
        text = text.replace(old.strip(), new.strip())
    return text


def _blocks(text: str) -> Iterator[list[list[str]]]:
    lines = [line.split() for line in text.strip().splitlines() if line.strip()]
    starts = [i for i, words in enumerate(lines) if words[0] == "grid"]
    for start, stop in zip(starts, [*starts[1:], len(lines)], strict=True):
        yield lines[start:stop]


@dataclass
class _Block:
    """One kernel: its lines as words."""

    kernels: Builder
    lines: list[list[str]]

    def add(self) -> list[str]:
        """Append the kernel to the kernel graph; return the names of its results."""
        self.space = Space(tuple(self.axes()), self.loop())
        self.builder = Builder(Level.BLOCK, self.space)
        self.args = [name for words in self.of("load") for name in words[1:]]
        full = [self.kernels.types[a] for a in self.args]
        self.dims = {d.name: d for type_ in full for d in type_.dims}
        for words in self.lines:
            if words[1] == "=":
                self.builder.add(self.node(*words[:1], *words[2:]))
            elif words[0] == "load":
                for name in words[1:]:
                    self.builder.add(self.input(name))
        stored = [self.output(words) for words in self.of("store")]
        body = with_precision(self.builder.graph([n.name for n in stored]), DType.FP16)
        names = [words[3].rstrip(":") for words in self.of("store")]
        outs = tuple(Value(n, s.out.type) for n, s in zip(names, stored, strict=True))
        self.kernels.add(Node("block", tuple(self.args), outs, body=body))
        return names

    def of(self, word: str) -> list[list[str]]:
        return [words for words in self.lines if words[0] == word]

    def axes(self) -> Iterator[Axis]:
        for name, dim in zip("xyz", self.lines[0][1:], strict=False):
            yield Axis(name, dim, TILE)
        for _, dim in self.of("split"):
            yield Axis("split", dim, TILE + 1, reduced=True)

    def loop(self) -> Axis | None:
        return next((Axis("loop", dim, TILE) for _, dim in self.of("loop")), None)

    def input(self, name: str) -> Node:
        full = self.kernels.types[name]
        cuts = tuple(a.dim if a.dim in full.names else None for a in self.space.grid)
        loop = self.space.loop
        loop_cut = loop.dim if loop is not None and loop.dim in full.names else None
        bound = Node("input", (), (Value(name, full),), cuts=cuts, loop_cut=loop_cut)
        extents = {name: d.size for name, d in self.dims.items()}
        return replace(bound, outs=(Value(name, tile_type(bound, full, self.space, extents)),))

    def node(self, name: str, op: str, *words: str) -> Node:
        value = Value(name, SCALAR)
        if op == "const":
            return Node(op, (), (value,), value=float(words[0]))
        if op == "int":
            value = Value(name, TensorType((), DType.INT32))
            return Node("const", (), (value,), value=float(words[0]))
        if op == "length":
            value = Value(name, TensorType((), DType.INT32))
            return Node("size", (), (value,), over=words[-1])
        args, over = words, ""
        if "over" in words:
            args, over = words[: words.index("over")], words[-1]
        return Node(op, args, (value,), over=over)

    def output(self, words: list[str]) -> Node:
        """Read `store VALUE as NAME: DIMS TYPE`."""
        _, value, _, _, *names, dtype = words
        type_ = TensorType(tuple(self.dim(n) for n in names), DType(dtype))
        keys = (a.tile_key for a in self.space.grid)
        cuts = tuple(k if k in type_.names else None for k in keys)
        node = Node("output", (value,), (Value(f"{value}_stored", type_),), cuts=cuts)
        self.builder.add(node)
        return node

    def dim(self, name: str) -> Dim:
        for axis in self.space.reduced:
            if name == parts_of(axis.dim):
                whole = self.dims[axis.dim]
                return Dim(name, -(-whole.size // axis.tile), whole.dynamic)
        return self.dims[name]
