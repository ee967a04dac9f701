"""From positional programs to graphs with named dims: the one entry of everything in this folder.

The program is read again and again: each reading may find that two dims are one, or that a dim
falls into factors; the reading that finds nothing new makes the graph.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from mirage_kernels.generator.errors import GraphError
from mirage_kernels.generator.frontend.mirage.atoms import Atom, Atoms, Refined, Row
from mirage_kernels.generator.frontend.mirage.customized import BlockLowering, Operand
from mirage_kernels.generator.frontend.mirage.program import Program, Step, Tensor
from mirage_kernels.generator.frontend.mirage.rules import RULES
from mirage_kernels.generator.frontend.mirage.tiles import Scope, Tile
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
        types += [self.graph.values[o].type for o in self.graph.outputs]
        return {d.name: d.size for t in types for d in t.dims}


def lower(program: Program) -> Lowered:
    """Return a program's checked graph; raise GraphError for what has no meaning in named dims."""
    atoms = Atoms()
    for _ in range(MOST_READINGS):
        try:
            roles = _Reading(program, atoms, lambda atom: f"d{atom}").run().roles
            return _Reading(program, atoms, _named(roles)).run().lowered()
        except Refined:
            continue
    raise GraphError("the dims of the program keep falling into ever smaller factors")


def _named(roles: dict[Atom, str]) -> Callable[[Atom], str]:
    return lambda atom: roles[atom]


class _Reading:
    """One pass over a program: tensors by number, the growing graph, what each dim is for."""

    def __init__(self, program: Program, atoms: Atoms, names: Callable[[Atom], str]) -> None:
        self.program, self.atoms, self.names = program, atoms, names
        self.builder = Builder(Level.KERNEL)
        self.scope = Scope(self.builder, atoms, names)
        self.found: dict[int, Tile] = {}
        self.roles: dict[Atom, str] = {}

    def run(self) -> _Reading:
        for step in self.program.steps:
            if step.op == "input":
                self.input(step.outs[0])
            elif step.op == "customized":
                self.customized(step)
            else:
                args = [self.found[a] for a in step.args]
                if step.op == "matmul":
                    self.note_matmul(*args)
                made = RULES[step.op](self.scope, step, args)
                self.found.update(zip((t.number for t in step.outs), made, strict=True))
        self.note_rest()
        return self

    def input(self, tensor: Tensor) -> None:
        rows = tuple(self.atoms.of_input(tensor.number, i, n) for i, n in enumerate(tensor.extents))
        order = _storage_order(tensor)
        name = f"in_{len(self.builder.nodes) + 1}"
        flat = [a for i in order for a in rows[i]]
        type_ = TensorType(tuple(self.dim(a) for a in flat), tensor.dtype)
        if len(set(flat)) < len(flat):
            raise GraphError(
                f"the program makes two dims of input {len(self.found) + 1}, "
                f"{list(tensor.extents)}, one and the same",
                "a product of a square tensor with itself has no named form yet",
            )
        self.found[tensor.number] = Tile(self.builder.input(name, type_), rows)

    def dim(self, atom: Atom) -> Dim:
        return Dim(self.names(atom), self.atoms.sizes[atom])

    def customized(self, step: Step) -> None:
        assert step.block is not None
        tiles = [self.found[a] for a in step.args]
        types = self.builder.types
        operands = [Operand(t.name, types[t.name], t.rows) for t in tiles]
        storage = self.program.tensor(step.args[0]).dtype
        lowering = BlockLowering(step.block, self.atoms, self.names, storage)
        body, stored = lowering.run(operands)
        names = [self.builder.free_name(s.name.removesuffix("_stored")) for s in stored]
        outs = tuple(
            Value(name, body.values[s.name].type) for name, s in zip(names, stored, strict=True)
        )
        self.builder.add(Node("block", tuple(t.name for t in tiles), outs, body=body))
        for tensor, value, s in zip(step.outs, outs, stored, strict=True):
            self.found[tensor.number] = Tile(value.name, s.rows)

    def note_matmul(self, a: Tile, b: Tile) -> None:
        rows = zip(a.rows[:-2], b.rows[:-2], strict=False)
        for row in (r for pair in rows for r in pair):
            self.note("B", row)
        for letter, row in zip("MKKN", (*a.rows[-2:], *b.rows[-2:]), strict=True):
            self.note(letter, row)

    def note(self, letter: str, row: Row) -> None:
        """Name a row of atoms after what it is for; its factors are numbered."""
        if all(atom in self.roles for atom in row):
            return
        bases = {role.partition("_")[0] for role in self.roles.values()}
        base, suffix = letter, 1
        while base in bases:
            suffix += 1
            base = f"{letter}{suffix}"
        for i, atom in enumerate(row):
            self.roles.setdefault(atom, base if len(row) == 1 else f"{base}_{i}")

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
            if inner.op in ("input", "output"):
                continue
            known = [rows[a] for a in inner.args if a in rows]
            if inner.op == "matmul" and len(known) == 2:
                a, b = known
                self.note_matmul(Tile("", a), Tile("", b))
                rows[inner.outs[0].number] = (*a[:-1], b[-1])
            elif known and inner.op not in ("accum", "reduction"):
                for tensor in inner.outs:
                    rows[tensor.number] = known[0]

    def lowered(self) -> Lowered:
        outputs = [self.found[n] for n in self.program.outputs]
        graph = check(self.builder.graph([t.name for t in outputs]))
        inputs = [self.found[t.number] for t in self.program.inputs]
        return Lowered(
            graph, tuple(self.layout(t) for t in inputs), tuple(self.layout(t) for t in outputs)
        )

    def layout(self, tile: Tile) -> Layout:
        return tuple(tuple(self.names(a) for a in row) for row in tile.rows)


def _storage_order(tensor: Tensor) -> list[int]:
    """Return the positions of an input's dims, the one with the largest stride first."""
    positions = list(range(len(tensor.extents)))
    if not tensor.strides:
        return positions
    return sorted(positions, key=lambda i: (-tensor.strides[i], i))
