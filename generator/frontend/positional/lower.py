"""From positional programs to graphs with named dims: the one entry of everything in this folder.

The program is read again and again: each reading may find that two dims are one, or that a dim
falls into factors; the reading that finds nothing new makes the graph.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mirage_kernels.generator.errors import GraphError
from mirage_kernels.generator.frontend.positional.blocks import BlockLowering, compute
from mirage_kernels.generator.frontend.positional.dims import (
    Factor,
    Factors,
    Refined,
    Row,
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
        try:
            roles = _Reading(program, factors, lambda factor: f"d{factor}").run().roles
            return _Reading(program, factors, roles.__getitem__).run().lowered()
        except Refined:
            continue
    raise GraphError("the dims of the program keep falling into ever smaller factors")


class _Reading:
    """One pass over a program: tensors by number, the growing graph, what each dim is for."""

    def __init__(self, program: Program, factors: Factors, names: Callable[[Factor], str]) -> None:
        self.program, self.factors, self.names = program, factors, names
        self.builder = Builder(Level.KERNEL)
        self.scope = Scope(self.builder, factors, names)
        self.found: dict[int, Tile] = {}
        self.roles: dict[Factor, str] = {}

    def run(self) -> _Reading:
        for step in self.program.steps:
            if step.op == "input":
                self.input(step.outs[0])
            elif step.op == "customized":
                self.customized(step)
            else:
                if step.op == "matmul":
                    a, b = (self.found[a].rows for a in step.args)
                    self.note_matmul(a, b)
                compute(self.scope, [step], self.found)
        self.note_rest()
        return self

    def input(self, tensor: Tensor) -> None:
        extents = enumerate(tensor.extents)
        rows = tuple(self.factors.of_input(tensor.number, i, n) for i, n in extents)
        flat = [f for i in _storage_order(tensor) for f in rows[i]]
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

    def note_matmul(self, a: tuple[Row, ...], b: tuple[Row, ...]) -> None:
        """Name the dims of a product of matrices as BLAS does; leading ones are B."""
        leading = [("B", row) for pair in zip(a[:-2], b[:-2], strict=False) for row in pair]
        for letter, row in (*leading, *zip("MKKN", (*a[-2:], *b[-2:]), strict=True)):
            self.note(letter, row)

    def note(self, letter: str, row: Row) -> None:
        """Name a row of factors after what it is for; they are numbered."""
        if all(factor in self.roles for factor in row):
            return
        bases = {role.partition("_")[0] for role in self.roles.values()}
        base, suffix = letter, 1
        while base in bases:
            suffix += 1
            base = f"{letter}{suffix}"
        for i, factor in enumerate(row):
            self.roles.setdefault(factor, base if len(row) == 1 else f"{base}_{i}")

    def note_rest(self) -> None:
        """Name what no matmul of the kernel graph takes, block graphs' matmuls first."""
        for step in self.program.steps:
            if step.block is not None:
                self.note_block(step)
        for tensor in self.program.inputs:
            for row in self.found[tensor.number].rows:
                self.note("D", row)

    def note_block(self, step: Step) -> None:
        assert step.block is not None
        rows: dict[int, tuple[Row, ...]] = {}
        for inner, outer in zip(step.block.of("input"), step.args, strict=True):
            rows[inner.outs[0].number] = self.found[outer].rows
        for inner in step.block.steps:
            known = [rows[a] for a in inner.args if a in rows]
            if inner.op == "matmul" and len(known) == 2:
                a, b = known
                self.note_matmul(a, b)
                rows[inner.outs[0].number] = (*a[:-1], b[-1])
            elif known and inner.op not in ("accum", "reduction"):
                rows.update(dict.fromkeys((t.number for t in inner.outs), known[0]))

    def lowered(self) -> Lowered:
        outputs = [self.found[t.number] for t in self.program.outputs]
        inputs = [self.found[t.number] for t in self.program.inputs]
        graph = check(self.builder.graph([t.name for t in outputs]))
        return Lowered(graph, tuple(map(self.layout, inputs)), tuple(map(self.layout, outputs)))

    def layout(self, tile: Tile) -> Layout:
        return tuple(tuple(self.names(f) for f in row) for row in tile.rows)


def _storage_order(tensor: Tensor) -> list[int]:
    """Return the positions of an input's dims, the one with the largest stride first."""
    return sorted(range(tensor.num_dims), key=lambda i: (-tensor.layout[i], i))
