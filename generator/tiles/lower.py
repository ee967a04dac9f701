"""From a block graph to its general tile program: a place for every value, statements in order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from math import prod

from mirage_kernels.generator.ir import (
    OPS,
    Dim,
    DType,
    Graph,
    Indexed,
    Kind,
    Node,
    Phase,
    ops_of_kind,
    phases_of,
)
from mirage_kernels.generator.ir.ops import ACCUMS, COMBINES
from mirage_kernels.generator.plan.threads import without_threads
from mirage_kernels.generator.tiles.barriers import with_barriers
from mirage_kernels.generator.tiles.conversions import converted, operand_dims
from mirage_kernels.generator.tiles.passes import are_one_pass, with_held_rows
from mirage_kernels.generator.tiles.program import (
    DEAR,
    IDENTITY,
    BlockProgram,
    Fragment,
    Tile,
    joined_by,
    reaches_beyond,
)
from mirage_kernels.generator.tiles.register_formulas import with_register_formulas
from mirage_kernels.generator.tiles.shares import as_results
from mirage_kernels.generator.tiles.statements import (
    Add,
    Clear,
    Combine,
    Contract,
    Fill,
    Load,
    Reduce,
    Scale,
    Spill,
    Statement,
    Store,
)
from mirage_kernels.generator.tiles.tensor_cores import COLUMNS, ROWS, is_product, lines, multiples
from mirage_kernels.generator.tiles.vectors import WIDTHS, uneven_row, with_parts

MASK = DType.FP16  # of truth values in shared memory: 1 and 0
RESCALE = "_rescale"  # behind the name of a running maximum: its factor
LATE_BYTES = 32 * 1024  # that are copied to a tile to be there when they are wanted
OFTEN = 8  # times that a dear operation is computed again at most
_REDUCTIONS = ("contract", *ops_of_kind(Kind.REDUCE, Kind.STABILISER))


def block_program(
    graph: Graph, kernel: Node, threads: int, stages: int, *, vectors: bool = False
) -> BlockProgram:
    """Return the tile program of one block graph of a kernel graph.

    As general kernels run it with `vectors`: tensor cores make products with these too. Raises
    PlanError for what no block can do: a sum that meets no carry, tiles beyond reason.
    """
    return _Lowering(graph, kernel, threads, stages, vectors=vectors).program()


def block_programs(
    graph: Graph, threads: int, stages: int, indexed: Mapping[str, Indexed] | None = None
) -> tuple[BlockProgram, ...]:
    """Return the tile programs of all kernels of a kernel graph, as general kernels run them.

    Some tensors may be `indexed`. Threads hold rows where these are short.
    """
    plain = (block_program(graph, node, threads, stages, vectors=True) for node in converted(graph))
    return tuple(with_held_rows(p.with_indices(indexed or {})) for p in plain)


class _Lowering:
    """One block graph on its way to statements."""

    def __init__(
        self, graph: Graph, kernel: Node, threads: int, stages: int, *, vectors: bool
    ) -> None:
        assert kernel.body is not None
        assert kernel.body.space is not None
        self.graph, self.threads = graph, threads
        self.body, self.space = without_threads(kernel.body), kernel.body.space
        self.stages, self.vectors = stages if self.space.loop else 1, vectors
        self.phases = phases_of(self.body)
        self.types = {name: v.type for name, v in self.body.values.items()}
        self.tensors = dict(zip((n.name for n in self.body.inputs), kernel.args, strict=True))
        outs = (v.name for v in kernel.outs)
        self.tensors |= dict(zip(self.body.outputs, outs, strict=True))
        dims = {d.name: d for value in graph.values.values() for d in value.type.dims}
        own = (d for name in self.tensors.values() for d in graph.values[name].type.names)
        counted = (n.over for n in self.body.of("size"))
        self.extents = {name: dims[name] for name in (*own, *counted)}
        self.offsets = self.cut_dims()
        self.tiles: dict[str, Tile] = {}
        self.fragments: dict[str, Fragment] = {}
        self.said: dict[Phase, list[Statement]] = {phase: [] for phase in Phase}
        found = self.body.of("contract")
        self.products = [n for n in found if is_product(self.body, n, vectors=vectors)]
        self.multiples = self.rounding()

    def program(self) -> BlockProgram:
        self.place()
        for node in self.body.nodes:
            if node.op in _REDUCTIONS:
                self.reduction(node)
            elif node.op in ACCUMS:
                self.carry(node)
            elif node.op in COMBINES:
                (value,), *peaks = map(self.leaves, node.args)
                peak = peaks[0].pop() if peaks else ""
                s = Combine((), (), node.name, value, peak, joined_by(node))
                self.say(Phase.JOINED, s, node.args, node)
            elif node.op == "output":
                phase = self.phase(self.body.producers[node.args[0]])
                self.say(phase, Store((), (), node.name, node.args[0]), node.args)
            elif node.name in self.tiles and node.op != "input":
                self.fill(node)
        program = BlockProgram(
            body=self.body,
            tensors=self.tensors,
            tiles=self.tiles,
            fragments=self.fragments,
            statements={phase: tuple(said) for phase, said in self.said.items()},
            offsets=self.offsets,
            extents=self.extents,
            iotas=frozenset(n.name for n in self.body.inputs if self.is_position(n.name)),
            optional=frozenset(n.name for n in self.body.inputs if self.made(n.name).optional),
            grouped={n.name: dict(self.made(n.name).grouped) for n in self.body.inputs},
            stages=self.stages,
            threads=self.threads,
        )
        made = with_register_formulas(program) if self.vectors else program
        return with_barriers(with_parts(made))

    # -- places ----------------------------------------------------------------------------------

    def cut_dims(self) -> dict[str, dict[str, tuple[str, ...]]]:
        """Return for each value which axes cut its dims."""
        found: dict[str, dict[str, tuple[str, ...]]] = {}
        for node in self.body.nodes:
            made: dict[str, tuple[str, ...]] = {}
            if node.op in ("input", "output"):
                cuts = [(a.name, cut) for a, cut in zip(self.space.grid, node.cuts, strict=False)]
                cuts += [("loop", node.loop_cut)] if node.loop_cut else []
                for axis, cut in cuts:
                    if cut is not None:
                        made[cut] = (*made.get(cut, ()), axis)
            else:
                for arg in node.args:
                    made |= found[arg]
                made = {d: axes for d, axes in made.items() if d in self.types[node.name].names}
            found[node.name] = made
        return found

    def rounding(self) -> dict[str, int]:
        """Return what the extents of dims are rounded up to in tiles."""
        found: dict[str, int] = {}
        for node in self.products:
            for dim, least in multiples(self.body, node).items():
                found[dim] = max(found.get(dim, 1), least)
        for node in self.body.inputs:
            if row := uneven_row(node.out.type, self.extents):  # whole vectors of it are read
                found[row] = max(found.get(row, 1), WIDTHS[0])
        return found

    def rounded(self, dims: Sequence[Dim]) -> tuple[Dim, ...]:
        """Return dims as tiles have them."""
        pairs = ((d, self.multiples.get(d.name, 1)) for d in dims)
        return tuple(d.with_size(-(-d.size // n) * n) for d, n in pairs)

    def tile(self, name: str, dims: Sequence[Dim] | None = None, dtype: DType | None = None) -> str:
        """Give a value a tile; of what tensor cores or blocks sum, as results have its dims."""
        type_, node = self.types[name], self.body.producers[name]
        staged = node.op == "input" and node.loop_cut
        summed = name in self.fragments or node.op in COMBINES
        own = as_results(self.body, type_.dims) if summed else type_.dims
        dims = self.rounded(own if dims is None else dims)
        made = dtype or (MASK if type_.dtype is DType.BOOL else type_.dtype)
        self.tiles[name] = Tile(name, dims, made, self.stages if staged else 1)
        return name

    def place(self) -> None:
        """Give tiles to operands of products and combines, and to inputs that are read twice."""
        for node in self.products:
            for name in node.args:
                made = self.body.producers[name]
                if made.op == "input":
                    self.tile(name)
                elif made.op not in OPS or OPS[made.op].kind is Kind.ELEMENTWISE:
                    self.tile(name, operand_dims(self.body, node.over, name))
        for node in self.body.of(*COMBINES):  # other blocks read what it joins
            if OPS[self.body.producers[node.args[0]].op].kind is Kind.ELEMENTWISE:
                self.tile(node.args[0])
        self.place_formulas()
        self.place_inputs()
        for name in list(self.tiles):
            node = self.body.producers[name]
            if node.op == "input":
                phase = Phase.LOOP if node.loop_cut else Phase.BEFORE
                self.said[phase].append(Load((), (name,), name))

    def place_formulas(self) -> None:
        """Give tiles to formulas that threads would compute again and again.

        That are those of dear operations, and in a loop those that it does not change.
        """
        for node in reversed(self.body.nodes):
            name, own = node.name, prod(d.size for d in node.out.type.dims)
            single = own == 1 and self.phases[name] is not Phase.JOINED  # a row's own: of a cluster
            if single or not node.out.type.dims or not self.is_formula(name):
                continue
            constant = bool(self.space.loop) and self.phases[name] is Phase.BEFORE
            wanted = self.is_dear(name) or (constant and self.is_summed(name))
            if wanted and self.times(name) > OFTEN * own:
                self.tile(name, dtype=DType.FP32)

    def times(self, name: str) -> int:
        """Count the elements of a formula that are computed where it is used."""
        found = 0
        for user in self.body.users(name):
            if self.is_formula(user.name):
                found += self.times(user.name)
            elif user not in self.products:
                dims = {d.name: d.size for a in user.args for d in self.types[a].dims}
                found += prod(dims.values())
        return found

    def is_summed(self, name: str) -> bool:
        """Say whether a value is an operand of sums that threads make."""
        return any(user.op == "contract" for user in self.body.users(name))

    def is_formula(self, name: str) -> bool:
        """Say whether a value is computed where it is used."""
        op = self.body.producers[name].op
        return name not in self.tiles and op in OPS and OPS[op].kind is Kind.ELEMENTWISE

    def is_dear(self, name: str) -> bool:
        """Say whether a formula has an operation that takes many instructions."""
        node = self.body.producers[name]
        return self.is_formula(name) and (node.op in DEAR or any(map(self.is_dear, node.args)))

    def place_inputs(self) -> None:
        """Give tiles to inputs that the loop loads or several statements read.

        Stores and sums that are one pass of all threads read what they take once.
        """
        apart = self.tiles or self.space.loop or self.body.of(*COMBINES)
        for node in self.body.inputs:
            if not node.out.type.dims or self.is_position(node.name) or node.name in self.tiles:
                continue
            readers = self.readers(node.name)
            together = not apart and are_one_pass(self.body, readers)
            late = self.is_read_late(node, readers)
            if node.loop_cut or late or (len(readers) > 1 and not together):
                self.tile(node.name)

    def is_read_late(self, node: Node, readers: AbstractSet[str]) -> bool:
        """Say whether a sum waits for others before it reads what a kernel stored just before."""
        small = prod(d.size for d in node.out.type.dims) * node.out.type.dtype.bytes <= LATE_BYTES
        made = self.body.producers
        sums = (made[x] for x in readers if OPS[made[x].op].kind is Kind.REDUCE)
        given = (x for n in sums for a in n.args for x in self.leaves(a))
        return small and self.made(node.name).op == "block" and any(made[x].args for x in given)

    def is_position(self, name: str) -> bool:
        """Say whether an input numbers a dim, so that nothing is read."""
        return self.made(name).op == "iota"

    def made(self, name: str) -> Node:
        """Return the kernel graph's node that makes the tensor of an input."""
        return self.graph.producers[self.tensors[name]]

    def readers(self, name: str) -> set[str]:
        """Return the reductions and stores that a value goes into through formulas."""
        found = set[str]()
        for user in self.body.users(name):
            elementwise = OPS[user.op].kind is Kind.ELEMENTWISE and user.name not in self.tiles
            found |= self.readers(user.name) if elementwise else {user.name}
        return found

    # -- statements ------------------------------------------------------------------------------

    def say(
        self, phase: Phase, s: Statement, values: Sequence[str], made: Node | None = None
    ) -> None:
        """Append a statement that reads formulas, and gives what it makes a tile."""
        reads = {leaf for value in values for leaf in self.leaves(value) if leaf in self.tiles}
        writes = set(s.writes)
        if made is not None:
            if made.name not in self.tiles:
                self.tile(made.name, dtype=DType.FP32)
            writes.add(made.name)
        self.said[phase].append(
            replace(s, reads=tuple(sorted({*s.reads, *reads})), writes=tuple(sorted(writes)))
        )

    def leaves(self, name: str) -> set[str]:
        """Return the values at hand that a formula is made of."""
        node = self.body.producers[name]
        if name in self.tiles or not node.args:
            return {name}
        return set[str]().union(*(self.leaves(a) for a in node.args))

    def phase(self, node: Node) -> Phase:
        phase = self.phases[node.name]
        assert phase is not None
        return phase

    def carrier(self, node: Node) -> Node | None:
        """Return the carry that alone takes a value, if one does."""
        users = self.body.users(node.name)
        carry = users[0] if len(users) == 1 and users[0].op in ACCUMS else None
        return carry if carry and joined_by(carry) == joined_by(node) else None

    def is_uneven(self, node: Node, dim: str) -> bool:
        """Say whether tiles may end beyond the tensor: what lies there is cleared."""
        own = self.types[node.name].dim(dim)
        return reaches_beyond(self.extents[dim], own.size, self.rounded([own])[0].size)

    def fill(self, node: Node) -> None:
        over = {u.over for u in self.products if node.name in u.args}
        ends = tuple(d for d in sorted(over) if self.is_uneven(node, d))
        self.say(self.phase(node), Fill((), (node.name,), node.name, ends), node.args)

    def reduction(self, node: Node) -> None:
        """Join along a dim, by tensor cores or threads; into the carry if that alone takes it."""
        phase, carry = self.phase(node), self.carrier(node)
        into = carry or node
        factor = f"{carry.args[1]}{RESCALE}" if carry and carry.op == "accum_rescaled" else ""
        if node in self.products:
            return self.product(node, into, factor)
        value, other = (*node.args, "")[:2]
        running = phase is Phase.LOOP and self.space.runs(node)
        op = joined_by(node)
        carried = running or carry is not None
        s = Reduce((), (), into.name, value, other, op, node.over, carried, factor)
        if running and any(u.op == "accum_rescaled" for u in self.body.users(node.name)):
            rescale = node.name + RESCALE
            self.tiles[rescale] = Tile(rescale, self.rounded(node.out.type.dims), DType.FP32)
            s = replace(s, rescale=rescale, writes=(rescale,))
        if s.carried:
            self.say(Phase.BEFORE, Clear((), (), into.name, IDENTITY[op]), (), into)
        s = replace(s, reads=((factor,) if factor else ()) + ((into.name,) if s.carried else ()))
        return self.say(phase, s, node.args, into)

    def product(self, node: Node, into: Node, factor: str) -> None:
        rows, columns, turned = lines(self.body, node)
        a, b = node.args[::-1] if turned else node.args
        shared = {d.name for d in self.types[a].dims} & {d.name for d in self.types[b].dims}
        batch = tuple(d for d in self.types[a].dims if d.name in shared - {node.over})
        made = Fragment(
            into.name,
            batch,
            self.rounded(self.contiguous_last(a, rows)),
            self.rounded(self.contiguous_last(b, columns)),
        )
        self.fragments[into.name] = replace(made, warps=self.warps(made))
        phase = self.phase(node)
        carried = into is not node
        self.say(Phase.BEFORE if carried else phase, Clear((), (), into.name), ())
        if factor:
            self.say(phase, Scale((factor,), (), into.name, factor), ())
        self.say(phase, Contract((a, b), (), into.name, a, b, node.over), ())
        self.tile(into.name)
        self.say(Phase.AFTER if carried else phase, Spill((), (), into.name, into.name), (), into)

    def contiguous_last(self, name: str, dims: Sequence[Dim]) -> tuple[Dim, ...]:
        return tuple(sorted(dims, key=lambda d: self.tiles[name].names.index(d.name)))

    def warps(self, fragment: Fragment) -> tuple[int, int]:
        """Return how many warps share the rows, and how many the columns: rows first."""
        _, rows, columns = fragment.extents
        left, found = self.threads // 32, [1, 1]
        for i, tiles in enumerate((rows // ROWS, columns // COLUMNS)):
            while left > 1 and tiles % (2 * found[i]) == 0:
                found[i], left = found[i] * 2, left // 2
        return found[0], found[1]

    def carry(self, node: Node) -> None:
        """Add to a carried value what no reduction has put there already."""
        made = self.body.producers[node.args[0]]
        if made.op in _REDUCTIONS and self.carrier(made) is node:
            return
        factor = f"{node.args[1]}{RESCALE}" if node.op == "accum_rescaled" else ""
        op = joined_by(node)
        self.say(Phase.BEFORE, Clear((), (), node.name, IDENTITY[op]), (), node)
        reads = (node.name, factor) if factor else (node.name,)
        s = Add(reads, (), node.name, node.args[0], factor, op)
        self.say(Phase.LOOP, s, node.args[:1], node)
