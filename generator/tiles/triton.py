"""The Triton writer: all kernels of a muGraph's tile programs as one Python module.

Triton places tensors and needs no barriers; it has no clusters, so one block does a cluster's work.
Programs run on the CPU under TRITON_INTERPRET=1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import zip_longest

from mirage_kernels.generator.emit.statements import LARGER
from mirage_kernels.generator.emit.writer import Writer
from mirage_kernels.generator.ir import Axis, Graph, Indexed, Phase, of_results, retile
from mirage_kernels.generator.tiles.clusters import without_clusters
from mirage_kernels.generator.tiles.conversions import converted
from mirage_kernels.generator.tiles.lower import block_program
from mirage_kernels.generator.tiles.program import IDENTITY, BlockProgram
from mirage_kernels.generator.tiles.statements import (
    Add,
    Clear,
    Contract,
    Fill,
    Load,
    Reduce,
    Scale,
    Spill,
    Statement,
    Store,
)
from mirage_kernels.generator.tiles.triton_blocks import Blocks
from mirage_kernels.generator.tiles.triton_formulas import (
    ALL,
    GRID,
    LOOP,
    PART,
    Formulas,
    Names,
    expanded,
    number,
)
from mirage_kernels.generator.tiles.triton_host import Host, Launch
from mirage_kernels.generator.tiles.triton_text import enclosed

TILE = 64  # of every axis while a muGraph is lowered: the text has names for extents
ZERO_AT_ZERO = (
    *("neg", "square", "relu", "silu", "gelu", "gelu_tanh", "tanh", "abs", "mish", "elu"),
    *("erf", "floor", "round", "log1p"),
)


def emit_triton(
    graph: Graph, name: str, head: Sequence[str] = (), indexed: Sequence[Indexed] = ()
) -> str:
    """Return a Python module with a function `name` from a muGraph's inputs to its results.

    It takes torch tensors of any strides and extents in the graph's order, and numbers for inputs
    without dims; an optional input may be None. `head`: comment lines to begin with. Behind the
    inputs come the index tensors of those that are `indexed`, and results that they address. Raises
    PlanError for what no block can do, or an op that Triton's table lacks. Products by a library
    have to be blocks already (`products.with_products`).
    """
    graph = without_clusters(graph)
    tiles = {a.tile_key: TILE for s in graph.spaces for a in s.axes if not a.reduced}
    own = of_results(indexed, graph.outputs)
    tiled = retile(graph, tiles)
    plain = [block_program(tiled, node, 32, 1) for node in converted(tiled)]
    programs = [p.with_indices(own) for p in plain]
    w = Writer(unit="    ")
    launches = []
    for i, program in enumerate(programs):
        symbol = f"_{name}_{i + 1}" if len(programs) > 1 else f"_{name}"
        launches.append(_Kernel(program, w).write(symbol))
        w.write("", "")
    Host(graph, launches, w, own).write(name)
    body = w.text()
    imports = ["import triton", "import triton.language as tl", "", ""]
    torch = ["import torch"] if "torch." in body else []
    return "\n".join([*head, *([""] if head else []), *torch, *imports]) + "\n" + body


class _Kernel(Formulas):
    """One block program as a function of Triton."""

    def __init__(self, program: BlockProgram, writer: Writer) -> None:
        self.blocks = Blocks(program)
        self.cleared = set[str]()  # fragments that the next product begins
        self.filled = set[str]()  # operands with zeros beyond the extents that they are summed to
        super().__init__(program, self.blocks.single, writer)

    def write(self, symbol: str) -> Launch:
        """Write the kernel; return what launches it."""
        w = self.writer
        sizes = [f"{kind}_{dim}" for kind, dim in self.kinds]
        extents = self.program.extents.values()
        static = [d.name for d in extents if not d.dynamic]
        counts = (d for x in self.program.indexed.values() for d in x.counts)
        rows = dict.fromkeys(d.name for d in counts)
        launch = Launch(
            symbol,
            tensors=list(self.tensors),
            numbers=[*self.scalars, *(d.name for d in extents if d.dynamic), *rows],
            constants=[*static, *sizes],
            counts=[self.count(a) for a in self.program.space.grid],
            blocks=self.blocks.lines(self),
            elements=self.blocks.elements(self),
        )
        arguments = [f"{t}_ptr" for t in self.tensors]
        arguments += [f"{t}_strides" for t in self.tensors]
        arguments += [*launch.numbers, *(f"{c}: tl.constexpr" for c in launch.constants)]
        w.line("@triton.jit")
        self.line(f"def {symbol}({', '.join(arguments)}):")
        w.depth += 1
        self.places()
        start, said = len(w.lines), self.program.statements
        self.phase(said[Phase.BEFORE])
        self.loop(said[Phase.LOOP])
        self.phase(said[Phase.AFTER])
        if self.rounded:
            w.lines.insert(start, f"{w.unit}{self.local('storage')} = {self.storage}")
        w.depth -= 1
        return launch

    # -- places ------------------------------------------------------------------------------------

    def count(self, axis: Axis) -> str:
        """Return the number of blocks along an axis."""
        if axis.dim in self.single and not axis.reduced:
            return axis.dim
        return f"cdiv({axis.dim}, {PART if axis.reduced else GRID}_{axis.dim})"

    def places(self) -> None:
        """Write which elements a block has along the dims of its tensors."""
        rest, block = "tl.program_id(0).to(tl.int64)", self.local("block")
        if len(self.program.space.grid) > 1:
            self.assign(block, rest)
            rest = block
        for i, axis in enumerate(self.program.space.grid):
            count = self.count(axis).replace("cdiv", "tl.cdiv")
            last = i + 1 == len(self.program.space.grid)
            if i and not last:
                self.assign(block, rest)
                rest = block
            self.cut(axis, rest if last else f"{rest} % {count}")
            rest = f"{block} // {count}"
        for kind, dim in self.kinds:
            lanes = f"tl.arange(0, {kind}_{dim})"
            if kind == ALL:
                self.assign(self.place(kind, dim), f"{lanes}.to(tl.int64)")
            elif kind == PART:
                first = f"{self.part_index(dim)} * {PART}_{dim}"
                self.assign(self.place(kind, dim), f"{first} + {lanes}")

    def cut(self, axis: Axis, number: str) -> None:
        """Write which elements a block with a number along an axis has."""
        if axis.reduced:
            self.assign(self.part_index(axis.dim), number)
        elif axis.dim in self.single:
            self.assign(self.place(GRID, axis.dim), number)
        else:
            size = f"{GRID}_{axis.dim}"
            lanes = f"tl.arange(0, {size})"
            self.assign(self.place(GRID, axis.dim), f"{number} * {size} + {lanes}")

    def loop(self, said: Sequence[Statement]) -> None:
        """Write the loop, if there is one."""
        loop = self.program.space.loop
        if loop is None:
            return
        dim, start, end, first = loop.dim, "0", loop.dim, self.local("first")
        hop = f"{LOOP}_{dim}"
        if self.program.turns:
            start = f"{self.part_index(dim)} * {hop}"
            self.assign(self.local("hop"), f"tl.cdiv({dim}, {PART}_{dim}) * {hop}")
            hop = self.local("hop")
        elif any(a.dim == dim for a in self.parted):
            start = f"{self.part_index(dim)} * {PART}_{dim}"
            end = f"min({start} + {PART}_{dim}, {dim})"
        if self.program.ends:
            start, end = self.ends(start, end, hop)
        with self.writer.block(f"for {first} in range({start}, {end}, {hop}):", ""):
            lanes = f"tl.arange(0, {LOOP}_{dim}).to(tl.int64)"
            self.assign(self.place(LOOP, dim), f"{first} + {lanes}")
            self.in_loop = True
            self.phase(said)
            self.in_loop = False

    def ends(self, start: str, end: str, hop: str) -> tuple[str, str]:
        """Write between which places no condition hides whole steps, and return these.

        Steps are `hop` places apart. From place to place of the first one `high - low` grows or
        falls by 1.
        """
        loop = self.program.space.loop
        assert loop is not None
        first, last, size = self.local("start"), self.local("end"), f"{LOOP}_{loop.dim}"
        before = "" if start == "0" else f"{start} + "
        lanes = f"tl.arange(0, {size}).to(tl.int64)"
        self.assign(self.place(LOOP, loop.dim), f"{before}{lanes}")
        self.at_hand.clear()
        ends, seen = {first: start, last: end}, self.local("seen")
        for bound in self.program.ends:
            wanted = self.union([bound.low, bound.high])
            low, high = (enclosed(self.read(v, wanted)) for v in (bound.low, bound.high))
            name, text = last, f"min({ends[last]}, {before}{{}})"
            if bound.begins:
                name = first
                text = f"max({ends[first]}, {before}({hop} - {{}}) // {hop} * {hop})"
            most = f"tl.max({high} - {low})"
            if len(f"{name} = {text.format(most)}") > self.writer.room:
                self.assign(seen, most)
                most = seen
            self.assign(name, text.format(most))
            ends[name] = name
        return ends[first], ends[last]

    # -- statements --------------------------------------------------------------------------------

    def phase(self, said: Iterable[Statement]) -> None:
        """Write statements; barriers and moves within a block are Triton's own."""
        writers: dict[type[Statement], Callable[..., None]] = {
            Load: lambda s: self.assign(s.value, self.load(s.value)),
            Fill: self.fill,
            Clear: lambda s: self.assign(s.target, self.full(s.target, s.value)),
            Reduce: self.reduce,
            Add: self.add,
            Scale: lambda s: self.assign(s.fragment, self.scaled(s.fragment, s.factor)),
            Contract: self.contract,
            Store: self.store,
            Spill: lambda s: self.round(s.tile),
        }
        self.at_hand.clear()
        known = [s for s in said if type(s) in writers]
        for s, after in zip_longest(known, known[1:]):
            if isinstance(s, Clear) and isinstance(after, Contract) and s.target == after.fragment:
                self.cleared.add(s.target)
                continue
            writers[type(s)](s)
            stale = {n for n in self.at_hand if {*s.writes} & {*self.program.leaves(n)}}
            self.at_hand -= stale

    def full(self, value: str, of: float) -> str:
        """Return a tensor of one number."""
        shape = self.shape(value)
        return f"tl.full(({', '.join(shape)}{',' * (len(shape) == 1)}), {number(of)}, tl.float32)"

    def vanishes(self, value: str, dim: str) -> bool:
        """Say whether a value is known to be zero beyond a dim's extent."""
        node = self.program.node(value)
        if node.op == "input":
            return value not in self.program.iotas and self.has(value, dim)
        if value in self.filled and dim in self.summed(value):
            return True
        args = [a for a in node.args if dim in self.dims(a)]
        zero = [self.vanishes(a, dim) for a in args]
        if node.op == "mul":
            return any(zero) and all(map(self.finite, args))
        return (node.op in ZERO_AT_ZERO and all(zero)) or (
            node.op == "div" and args == [node.args[0]] and all(zero)
        )

    def finite(self, value: str) -> bool:
        """Say whether a value is a finite number where all tensors are zero."""
        node = self.program.node(value)
        finite = node.op in ("input", "const", "size", "add", "sub", "mul", *ZERO_AT_ZERO)
        return finite and all(map(self.finite, node.args))

    def summed(self, value: str) -> list[str]:
        """Return the dims that products sum a value along."""
        users = [u for u in self.program.body.users(value) if u.op == "contract"]
        return list(dict.fromkeys(u.over for u in users))

    def fill(self, s: Fill) -> None:
        """Write an operand of a product: zeros beyond the dims that products sum along."""
        over = [d for d in self.summed(s.value) if not self.vanishes(s.value, d)]
        text, narrow, made = self.formula(s.value, again=True), self.narrowed(s.value), "made"
        mask = self.inside(s.value, over, self.dims(s.value))
        if mask or narrow:
            self.assign(made := self.scratch(made), text)
            text = f"tl.where({mask}, {made}, 0.0)" if mask else made
        self.assign(s.value, f"{text}{narrow}")
        self.filled.add(s.value)

    def reduce(self, s: Reduce) -> None:
        """Write a sum or a maximum along a dim, into what the tile holds if it is carried."""
        made = self.reduced(s)
        if not s.carried:
            narrow = self.narrowed(s.tile)
            return self.assign(s.tile, f"{made}{narrow}" if narrow else made)
        if s.op == "sum":
            return self.increase(s.tile, s.factor, made)
        if s.rescale:
            self.assign(f"{s.tile}_before", s.tile)
        larger = LARGER if s.op == "max" else "tl.maximum({}, {})"  # exp of NaN is NaN anyway
        self.assign(s.tile, larger.format(s.tile, made))
        if s.rescale:
            self.assign(s.rescale, f"tl.exp({s.tile}_before - {s.tile})")
        return None

    def reduced(self, s: Reduce) -> str:
        """Return the sum or the maximum of a step."""
        values = [s.value, *([s.other] if s.other else [])]
        wanted = self.union(values)
        made = " * ".join(self.read(v, wanted) for v in values)
        own = [v for v in values if s.over in self.dims(v)]
        if not own:
            return made
        if s.is_max or not all(self.vanishes(v, s.over) for v in own):
            mask = self.inside(own[0], [s.over], wanted)
            none = number(IDENTITY[s.op])
            self.assign(terms := self.scratch("terms"), f"tl.where({mask}, {made}, {none})")
            made = terms
        joined = f"tl.{'max' if s.is_max else 'sum'}({made}, axis={wanted.index(s.over)})"
        if s.op == "max":  # which leaves NaN out
            none = f"tl.where({made} != {made}, {made}, 0.0)"
            joined = f"{joined} + tl.sum({none}, axis={wanted.index(s.over)})"
        floor = s.op == "peak" and not s.carried
        return f"tl.maximum({joined}, {number(IDENTITY[s.op])})" if floor else joined

    def round(self, tile: str) -> None:
        """Write the rounding of sums to their tile's dtype."""
        if self.narrowed(tile):
            self.assign(tile, f"{tile}{self.narrowed(tile)}")

    def increase(self, name: str, factor: str, by: str) -> None:
        """Write a sum with what a tile holds, times a factor if there is one."""
        if factor:
            self.assign(name, f"{self.scaled(name, factor)} + {by}")
        else:
            self.line(f"{name} += {by}")

    def scaled(self, name: str, factor: str) -> str:
        """Return a value times a factor with some of its dims."""
        peak = factor.removesuffix("_rescale")
        return f"{name} * {expanded(factor, self.dims(peak), self.dims(name))}"

    def add(self, s: Add) -> None:
        """Write a sum with what a tile holds."""
        self.increase(s.tile, s.factor, self.read(s.value, self.dims(s.tile)))

    def contract(self, s: Contract) -> None:
        """Write a product of operands as [batch, rows, depth] and [batch, depth, columns]."""
        wanted = self.dims(s.fragment)
        a, b = s.a, s.b
        batch = tuple(d for d in wanted if d in self.dims(a) and d in self.dims(b))
        lines = [tuple(d for d in wanted if d in self.dims(v) and d not in batch) for v in (a, b)]
        if (*batch, *lines[0], *lines[1]) != wanted:
            a, b, lines = b, a, lines[::-1]
        rows, columns = lines
        left = self.flat(a, (batch, rows, (s.over,)))
        right = self.flat(b, (batch, (s.over,), columns))
        order, begins = (*batch, *rows, *columns), s.fragment in self.cleared
        self.cleared.discard(s.fragment)
        if order == wanted and len(order) == 2:
            held = "" if begins else f", {s.fragment}"
            return self.assign(s.fragment, f"tl.dot({left}, {right}{held})")
        made, shape = f"{s.fragment}_step", dict(zip(wanted, self.shape(s.fragment), strict=True))
        self.assign(made, f"tl.dot({left}, {right})")
        if len(order) != 2 + bool(batch):
            made = f"tl.reshape({made}, ({', '.join(shape[d] for d in order)}))"
        if order != wanted:
            made = f"tl.permute({made}, {tuple(order.index(d) for d in wanted)})"
        return self.line(f"{s.fragment} {'=' if begins else '+='} {made}")

    def flat(self, value: str, groups: Sequence[Names]) -> str:
        """Return an operand with a dim for each group of its dims, the batch only if it has any."""
        order, own = tuple(d for g in groups for d in g), self.dims(value)
        text, blocks = value, dict(zip(own, self.shape(value), strict=True))
        if order != own:
            text = f"tl.permute({text}, {tuple(own.index(d) for d in order)})"
        shape = [" * ".join(blocks[d] for d in g) for g in groups if g]
        if len(shape) != len(order):
            text = f"tl.reshape({text}, ({', '.join(shape)}))"
        return text

    def store(self, s: Store) -> None:
        """Write a result to device memory."""
        own = self.dims(s.value)
        mask = self.rows(s.output, own, self.inside(s.output, own, own))
        made = f"{self.read(s.value, own)}"
        value = f"{made}.to({self.program.tensors[s.output]}_ptr.dtype.element_ty)"
        given = f"{value}, mask={mask}" if mask else value
        self.line(f"tl.store({self.pointers(s.output, own)}, {given})")
