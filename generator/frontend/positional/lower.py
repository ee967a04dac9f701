"""From positional programs to graphs with named dims: the one entry of everything in this folder.

The program is read again and again: each reading may find that two dims are one, or that a dim
falls into factors; the reading that finds nothing new makes the graph.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mirage_kernels.generator.errors import GraphError
from mirage_kernels.generator.frontend.positional.blocks import BlockLowering, compute
from mirage_kernels.generator.frontend.positional.dims import (
    Factor,
    Factors,
    Refined,
    Scope,
    Tile,
)
from mirage_kernels.generator.frontend.positional.program import Program
from mirage_kernels.generator.frontend.positional.steps import Step, Tensor
from mirage_kernels.generator.ir import (
    Builder,
    Dim,
    Graph,
    Level,
    Node,
    TensorType,
    Value,
    check,
)
from mirage_kernels.generator.ir.infer import extents_of

Layout = tuple[tuple[str, ...], ...]  # names of the dims that each positional dim consists of
MOST_READINGS = 10_000


@dataclass(frozen=True)
class Lowered:
    """A program's graph, and which of its dims each positional dim of inputs and results is."""

    graph: Graph
    inputs: tuple[Layout, ...]
    outputs: tuple[Layout, ...]

    @property
    def extents(self) -> dict[str, int]:
        """Extents of all dims of inputs and results."""
        types = [n.out.type for n in self.graph.inputs]
        return extents_of([*types, *(self.graph.values[o].type for o in self.graph.outputs)])


def flat(layout: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
    """Return the dims of a tensor in positional order."""
    return tuple(name for row in layout for name in row)


def sizes_of(graph: Graph) -> dict[str, int]:
    """Return the extent of every dim of a kernel graph's tensors."""
    return extents_of([value.type for value in graph.values.values()])


def lower(program: Program) -> Lowered:
    """Return a program's checked graph; raise GraphError for what has no meaning in named dims."""
    factors = Factors()
    for _ in range(MOST_READINGS):
        with contextlib.suppress(Refined):
            roles = _roles(_Reading(program, factors, "d{}".format).run().graph)
            break
    else:
        raise GraphError("the dims of the program keep falling into ever smaller factors")
    return _Reading(program, factors, lambda factor: roles[f"d{factor}"]).run()


def _roles(graph: Graph) -> dict[str, str]:
    """Return names for dims after what products of matrices do with them, as in BLAS.

    M and N are rows and columns, K is summed along, B what both operands have; D are other dims. Of
    one letter they are numbered, and so are the factors of rows or columns.
    """
    roles: dict[str, str] = {}
    used: Counter[str] = Counter()

    def note(letter: str, *dims: str) -> None:
        if all(dim in roles for dim in dims):
            return
        used[letter] += 1
        base = letter if used[letter] == 1 else f"{letter}{used[letter]}"
        for i, dim in enumerate(dims):
            roles.setdefault(dim, base if len(dims) == 1 else f"{base}_{i}")

    for level in (graph, *(n.body for n in graph.blocks if n.body)):
        for node in level.of("contract"):
            a, b = (level.values[arg].type.names for arg in node.args)
            for dim in (d for d in a if d in b and d != node.over):
                note("B", dim)
            note("M", *(d for d in a if d not in b))
            note("K", node.over)
            note("N", *(d for d in b if d not in a))
    for dim in sizes_of(graph):
        note("D", dim)
    return roles


class _Reading:
    """One pass over a program: tensors by number, the growing graph."""

    def __init__(self, program: Program, factors: Factors, names: Callable[[Factor], str]) -> None:
        self.program, self.factors, self.names = program, factors, names
        self.builder = Builder(Level.KERNEL)
        self.scope = Scope(self.builder, factors, names)
        self.found: dict[int, Tile] = {}

    def run(self) -> Lowered:
        for step in self.program.steps:
            if step.op == "input":
                self.input(step.outs[0])
            elif step.op == "customized":
                self.customized(step)
            else:
                compute(self.scope, [step], self.found)
        layouts = []
        for tensor in (*self.program.inputs, *self.program.outputs):
            rows = self.found[tensor.number].rows
            layouts.append(tuple(tuple(map(self.names, row)) for row in rows))
        count = len(self.program.inputs)
        outputs = [self.found[t.number].name for t in self.program.outputs]
        graph = check(self.builder.graph(outputs))
        return Lowered(graph, tuple(layouts[:count]), tuple(layouts[count:]))

    def input(self, tensor: Tensor) -> None:
        extents = enumerate(tensor.extents)
        rows = tuple(self.factors.of_input(tensor.number, i, n) for i, n in extents)
        outermost_first = sorted(range(tensor.num_dims), key=lambda i: (-tensor.layout[i], i))
        flat = [f for i in outermost_first for f in rows[i]]
        if len(set(flat)) < len(flat):
            raise GraphError(
                f"the program makes two dims of input {len(self.found) + 1}, "
                f"{list(tensor.extents)}, one and the same",
                "a product of a square tensor with itself has no named form yet",
            )
        dims = tuple(Dim(self.names(f), self.factors.sizes[f]) for f in flat)
        name = f"in_{len(self.builder.nodes) + 1}"
        name = self.builder.input(name, TensorType(dims, tensor.dtype))
        self.found[tensor.number] = Tile(name, rows)

    def customized(self, step: Step) -> None:
        assert step.block is not None
        tiles = [self.found[a] for a in step.args]
        storage = self.program.tensors[step.args[0]].dtype
        lowering = BlockLowering(step.block, self.factors, self.names, storage)
        body, stored = lowering.run(tiles, self.builder.types)
        names = [self.builder.free_name(s.name.removesuffix("_stored")) for s in stored]
        outs = tuple(
            Value(name, body.values[s.name].type) for name, s in zip(names, stored, strict=True)
        )
        self.builder.add(Node("block", tuple(t.name for t in tiles), outs, body=body))
        for tensor, name, s in zip(step.outs, names, stored, strict=True):
            self.found[tensor.number] = Tile(name, s.rows)
