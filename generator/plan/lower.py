"""From a tile program to what schedules run; one that they cannot carry is refused by name.

The general tile program (`tiles/`) says what is loaded, multiplied, summed up, carried and stored,
and in which phase. Here its values get the places that streaming schedules have for them.

Tokens taken whole are lines: in registers, by a warp before a loop, or by a block without one.
Elementwise operators and sums along the depth need nothing else: every thread holds some elements
of the line, and sums meet in a warp by shuffles, in a block through shared memory. Where nothing is
summed the grid cuts the lines as well, and a block holds a part of one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import chain, starmap
from math import prod

from mirage_kernels.generator.errors import PlanError
from mirage_kernels.generator.ir import OPS, DType, Graph, Kind, Node, Phase, number_text, phases_of
from mirage_kernels.generator.ir.dtypes import EIGHT_BITS
from mirage_kernels.generator.ir.ops import MAXIMA
from mirage_kernels.generator.plan.layout_planner import require_layouts
from mirage_kernels.generator.plan.program import (
    Do,
    Layout,
    Operand,
    Stage,
    Statement,
    TileProgram,
    needed,
    roles_of,
)
from mirage_kernels.generator.plan.rows import COMPUTED, READABLE, row_wise, token_numbers
from mirage_kernels.generator.plan.storage import require_own_type, require_places
from mirage_kernels.generator.plan.tail import EVEN_DEPTH, past_the_depth
from mirage_kernels.generator.tiles import program as tiles
from mirage_kernels.generator.tiles import statements as stated
from mirage_kernels.generator.tiles.lower import block_program

KEPT = "_kept"  # behind the name of what lines keep, as of totals
# Carries that join warps or blocks in ways of their own.
_UNPLANNED = ("accum_rescaled", "last", "combine", "combine_rescaled", *MAXIMA)
ROW_WISE = {  # what whole rows have, and where
    Layout.TOKENS: Layout.LINE,
    Layout.DEPTH: Layout.LINE_VECTOR,
    Layout.TOKEN_SUMS: Layout.TOKEN_SUMS,
    Layout.SCALAR: Layout.SCALAR,
}
_WHOLE = (Layout.TOKENS, Layout.DEPTH)  # of a line


def tile_program(recipe: str, graph: Graph, arch: str = "sm_90a") -> TileProgram:
    """Return the tile program of a muGraph with one kernel: weights streamed in a loop, or lines.

    Raises PlanError for other muGraphs: several kernels, a value with no place in the plan, an
    accumulator over something else than a sum along the loop.
    """
    program = lowered(recipe, graph)
    if program.loop:
        require_layouts(graph, arch)
    return program


def lowered(recipe: str, graph: Graph) -> TileProgram:
    """Return the tile program of a muGraph, whether its values have layouts or not."""
    if len(graph.blocks) != 1 or graph.of("contract"):
        raise PlanError(f"{recipe}: the muGraph has several kernels, this plan takes one")
    require_own_type(recipe, graph, (DType.FP32, *EIGHT_BITS))
    return _Lowering(recipe, graph).program()


def _waiting(statements: Sequence[Statement]) -> tuple[Statement, ...]:
    """Return a group of statements with a barrier of the block before it.

    A barrier is needed where a value goes through shared memory from one thread to another, and
    before the bytes it lay in are written anew. Warps read nothing but their own parts of a tile,
    hence there is none in the loop. Their sums lie where the pipeline's stages were; stages of
    [inner, tokens] elements add them up, products multiply those, and the epilogue reads the sums
    of all warps. Each of these groups waits once for the one before.
    """
    return tuple(replace(s, barrier=i == 0) for i, s in enumerate(statements))


class _Lowering:
    """One muGraph on its way to a tile program."""

    def __init__(self, recipe: str, graph: Graph) -> None:
        (kernel,) = graph.blocks
        self.recipe, self.graph = recipe, graph
        self.tiled = block_program(graph, kernel, tiles.WARP, stages=1)
        self.body, self.tensors = self.tiled.body, self.tiled.tensors
        self.roles = roles_of(self.body)
        self.phases = phases_of(self.body)
        self.past = past_the_depth(self.body, self.phases)
        self.types = {name: value.type for name, value in self.body.values.items()}
        self.numbers = token_numbers(self.body, self.roles)
        self.row_wise = row_wise(self.body, self.roles, self.phases) - self.numbers
        self.of_statistics = set(self.row_wise)  # with all that depends on them
        for node in self.body.nodes:
            if self.of_statistics.intersection(node.args):
                self.of_statistics.add(node.name)
        self.rules: dict[str, Callable[[Node], None]] = {}  # of values, by name
        self.renamed: dict[str, str] = {}  # rows that would be called like their tensor
        self.lines: list[Statement] = []
        self.fetches: list[Statement] = []
        self.loop: list[Statement] = []
        self.reductions: list[Statement] = []
        self.products: list[Statement] = []
        self.epilogue: list[Statement] = []

    def program(self) -> TileProgram:
        for s in chain.from_iterable(self.tiled.statements[phase] for phase in Phase):
            self.note(s)
        for node in (n for n in self.body.nodes if n.name in self.rules):
            self.rules[node.name](node)
        tensors = [n for n in self.graph.inputs if n.out.type.dims]
        types = self.graph.values
        results = [Operand(n, i, types[n].type) for i, n in enumerate(self.graph.outputs)]
        stored = {s.out for s in self.epilogue if s.do is Do.STORE}
        stages = [stage for stage in map(self.stage, self.roles.inner) if stage.statements]
        stages[:1] = [replace(s, statements=_waiting(s.statements)) for s in stages[:1]]
        assert self.body.space is not None
        made = TileProgram(
            recipe=self.recipe,
            roles=self.roles,
            inputs=tuple(starmap(Operand.of, enumerate(tensors))),
            scalars=tuple(n.name for n in self.graph.inputs if not n.out.type.dims),
            output=results[0],
            literals={n.name: n.over for n in self.body.of("size")}
            | {n.name: number_text(n.value) for n in self.body.of("const")},
            loop=tuple(sorted(self.loop, key=lambda s: s.do is not Do.LOAD)),
            reductions=_waiting(self.reductions),
            epilogue=_waiting(needed(self.epilogue, stored)),
            fetches=tuple(self.fetches),
            stages=tuple(stages),
            products=_waiting(self.products),
            lines=tuple(sorted(self.lines, key=lambda s: not self.loop and s.do is not Do.LOAD)),
            also=tuple(results[1:]),
            grid=tuple(axis.dim for axis in self.body.space.grid),
        )
        self.check(made)
        return made

    def check(self, made: TileProgram) -> None:
        """Raise PlanError for what the program's loads and stores cannot do."""
        late = [n.name for n in self.body.of("output") if n.loop_cut is None]
        if made.loop and late != [self.body.outputs[0]]:
            raise self.error("the kernel stores several results outside of its loop")
        for o in () if made.loop else made.results:
            if o.type.names != (self.roles.tokens, self.roles.depth):
                raise self.error(f"the result {o.type} is no line per token")
        for o in (o for o in (*made.inputs, made.output) if o.name not in made.turned):
            names, roles = o.type.names, self.roles  # a tensor lies along the depth before lines
            fast = next(d for d in (roles.depth, *roles.inner, roles.rows, *names) if d in names)
            if names[-1] != fast:
                wanted = " ".join((*(d for d in names if d != fast), fast))
                raise self.error(
                    f"{o.name} [{', '.join(names)}] has contiguous {names[-1]}, "
                    f"the plan takes contiguous {fast}",
                    f'give it as "{wanted}"',
                )
        require_places(made)
        if made.parted and any(s.do is Do.SUM for s in made.lines):
            raise self.error("sums of lines that the grid cuts are not planned")
        if made.parted and any(o.optional for o in made.inputs):
            raise self.error("parts of a vector that may be missing are not planned yet")

    def error(self, sentence: str, hint: str = "") -> PlanError:
        return PlanError(f"{self.recipe}: {sentence}", hint)

    def stage(self, dim: str) -> Stage:
        """Return what makes the totals over a dim that products contract."""
        totals = dict.fromkeys(p.args[1].removesuffix(KEPT) for p in self.products)
        mine = [t for t in totals if dim in self.types[t].names]
        inner = Layout.INNER_ACCUM
        keeps = [Statement(Do.KEEP, t + KEPT, (t,), self.types[t], inner) for t in mine]
        return Stage(dim, (*needed(self.epilogue, set(mine)), *keeps))

    # -- what the tile program says --------------------------------------------------------------

    def note(self, s: stated.Statement) -> None:
        """Note by which rules the values that a statement makes become statements of schedules."""
        if isinstance(s, stated.Load | stated.Fill):
            self.formulas(s.value, again=True)
        elif isinstance(s, stated.Store):
            self.rules[s.output] = self.output
            self.formulas(s.value)
        elif isinstance(s, stated.Add | stated.Combine | stated.Contract | stated.Reduce):
            joined = self.tiled.node(s.fragment if isinstance(s, stated.Contract) else s.tile)
            self.require_planned(joined)
            if isinstance(s, stated.Add):
                raise self.error(f"{s.tile} accumulates something else than a sum")
            if OPS[joined.op].kind is Kind.CARRY:
                self.rules[joined.name] = self.carry
                joined = self.tiled.node(joined.args[0])
            self.rules[joined.name] = self.reduction
            self.formulas(*joined.args)

    def formulas(self, *values: str, again: bool = False) -> None:
        """Note what values without tiles are made by, `again`: what fills the tiles of others."""
        at_hand = self.rules.keys() | ({} if again else self.tiled.tiles)
        for name in (v for v in values if v not in at_hand):
            node = self.tiled.node(name)
            if node.args:
                self.require_planned(node)
            self.rules[name] = self.elementwise if node.args else self.source
            self.formulas(*node.args)

    def require_planned(self, node: Node) -> None:
        if OPS[node.op].kind not in (*COMPUTED, Kind.CARRY) or node.op in _UNPLANNED:
            raise self.error(f"{node.op} is not planned yet ({node.name})")

    # -- statements ------------------------------------------------------------------------------

    def layout(self, name: str) -> Layout:
        """Return the place of a value in the loop and behind it."""
        layout = self.roles.layout(self.types[name].names)
        if layout is None:
            raise self.error(f"{name} {self.types[name]} has no place in the plan")
        return layout

    def add(self, do: Do, node: Node, args: Sequence[str], op: str = "") -> None:
        """Append a statement that makes a node's value."""
        layout = self.layout(node.name)
        self.put(Statement(do, node.name, tuple(args), node.out.type, layout, op), node)

    def put(self, s: Statement, node: Node) -> None:
        """Append a statement to the part of the block's life that a node belongs to."""
        if node.name not in self.row_wise:
            here = self.loop if self.phases[node.name] is Phase.LOOP else self.epilogue
            self.read(s.args, here)
            return here.append(s)
        if number := self.numbers.intersection(s.args):
            raise self.error(f"{min(number)} has a number per token, which lines do not read yet")
        if s.layout not in ROW_WISE:
            raise self.error(f"{s.out} {s.type} is no part of a line")
        out, args = self.renamed.get(s.out, s.out), s.args
        if s.do is not Do.LOAD:
            args = tuple(self.renamed.get(a, a) for a in args)
        return self.lines.append(replace(s, out=out, args=args, layout=ROW_WISE[s.layout]))

    def read(self, names: Sequence[str], here: list[Statement]) -> None:
        """Read the statistics among operands, each once; raises PlanError for a whole line.

        They are kept in shared memory, a number per token. It raises too where the loop reads what
        only the epilogue does.
        """
        late = {s.out for s in self.epilogue if s.do is Do.READ} | self.numbers
        late = late if here is self.loop else set()
        lines = {s.out for s in self.lines if s.do is Do.LOAD}
        for name in names:
            statistic = name in self.row_wise
            if name in lines or (name in late and not statistic):
                raise self.error(f"{name} is not cut by the loop")
            if not statistic or any(s.out == name for s in here):
                continue
            layout, type_ = self.layout(name), self.types[name]
            if layout is not Layout.TOKEN_SUMS:
                raise self.error(f"{name} is computed before the loop")
            kept = Statement(Do.KEEP, name + KEPT, (name,), type_, layout)
            if kept not in self.lines:
                self.lines.append(kept)
            here.append(Statement(Do.READ, name, (kept.out,), type_, layout))

    def widest_first(self, node: Node) -> Sequence[str]:
        """Return the operands with one in front that has all dims of the result.

        Fragments, and lines, broadcast to the first operand; only commutative ops may be turned
        round.
        """
        first = node.args[0]
        if node.name in self.row_wise:
            wide = self.layout(node.name) not in _WHOLE or self.layout(first) in _WHOLE
        else:
            wide = set(self.types[first].names) == set(node.out.type.names)
            wide |= self.phases[node.name] is not Phase.LOOP or len(node.args) != 2
        if not wide and not OPS[node.op].commutative:
            raise self.error(f"{node.name} broadcasts its first operand")
        return node.args if wide else node.args[::-1]

    def summed(self, node: Node) -> str:
        """Return what is summed up: of a contraction a product that is made in registers."""
        if len(node.args) == 1:
            return node.args[0]
        wide = max(node.args, key=lambda a: len(self.types[a].dims))
        name = f"{node.name}_terms"
        type_ = self.types[name] = replace(self.types[wide], dtype=node.out.type.dtype)
        self.put(Statement(Do.MAP, name, node.args, type_, self.layout(name), "mul"), node)
        return name

    # -- rules by kind ---------------------------------------------------------------------------

    def source(self, node: Node) -> None:
        if node.op == "iota":
            raise self.error(f"positions are not planned yet ({node.name})")
        if node.op != "input" or (node.loop_cut is None and not node.out.type.dims):
            return
        tensor, layout = self.tensors[node.name], self.layout(node.name)
        if self.graph.producers[tensor].grouped:
            if node.loop_cut is None or layout is not Layout.ROWS:
                raise self.error(f"{node.name} has an element for several, which rows alone do")
            self.add(Do.READ, node, (tensor,))
        elif layout is Layout.FACTORS:
            fetch = Statement(Do.FETCH, node.name, (tensor,), node.out.type, layout)
            self.fetches.append(fetch)
        elif node.name in self.numbers or (node.loop_cut is None and layout in READABLE):
            self.add(Do.READ, node, (tensor,))
        elif node.loop_cut is None and layout not in _WHOLE:
            raise self.error(f"{node.name} has a number per token, which no plan reads yet")
        else:
            if node.name in self.row_wise and node.name == tensor:
                self.renamed[node.name] = f"{node.name}_line"
            self.add(Do.LOAD, node, (tensor,))

    def elementwise(self, node: Node) -> None:
        if node.name in self.row_wise and len(node.args) > 2:
            raise self.error(f"{node.op} of a line is not planned ({node.name})")
        if node.name not in self.row_wise and self.layout(node.name) is Layout.FACTORS:
            raise self.error(f"{node.name} is not planned, {Layout.FACTORS.value}")
        self.add(Do.MAP, node, self.widest_first(node), node.op)

    def reduction(self, node: Node) -> None:
        """Sum along a dim, of a line or in the loop; lines sum products of the same lines."""
        if node.name not in self.row_wise:
            return self.contract(node) if len(node.args) > 1 else self.reduce(node)
        if node.over != self.roles.depth:
            raise self.error(f"{node.op} of a line is not planned ({node.name})")
        return self.add(Do.SUM, node, (self.summed(node),))

    def contract(self, node: Node) -> None:
        layouts = {self.layout(a) for a in node.args}
        if node.over in self.roles.inner and self.phases[node.name] is Phase.AFTER:
            self.late_product(node)
        elif node.over != self.roles.depth:
            raise self.error(f"{node.name} contracts {node.over}, not the loop's dim")
        elif layouts in ({Layout.ROWS, Layout.TOKENS}, {Layout.INNER, Layout.TOKENS}):
            rows, tokens = sorted(node.args, key=lambda a: self.layout(a) is Layout.TOKENS)
            self.ends(node, "multiplies")
            self.add(Do.CONTRACT, node, (rows, tokens))
        elif len(layouts) == 1:  # lines times the same lines: multiplied and summed in registers
            self.ends(node, "sums")
            self.add(Do.SUM, node, (self.summed(node),))
        else:
            raise self.error(f"{node.name} contracts {[self.layout(a).value for a in node.args]}")

    def late_product(self, node: Node) -> None:
        """Multiply a fetched tile with totals, which a stage keeps in the storage type."""
        fetched = {s.out for s in self.fetches}
        factors, totals = sorted(node.args, key=lambda a: a not in fetched)
        layouts = [self.layout(a) for a in (factors, totals)]
        if factors not in fetched or layouts != [Layout.FACTORS, Layout.INNER_ACCUM]:
            raise self.error(f"{node.name} contracts {[x.value for x in layouts]}")
        if self.types[totals].dtype is DType.FP32:
            raise self.error(f"{node.name} contracts fp32 totals")
        layout, args = self.layout(node.name), (factors, totals + KEPT)
        self.products.append(Statement(Do.CONTRACT, node.name, args, node.out.type, layout))
        self.add(Do.TOTAL, node, (node.name,))

    def reduce(self, node: Node) -> None:
        if node.over != self.roles.depth or self.phases[node.name] is not Phase.LOOP:
            raise self.error(f"{node.name} sums {node.over} outside the loop")
        self.ends(node, "sums")
        self.add(Do.SUM, node, node.args)

    def ends(self, node: Node, does: str) -> None:
        """Raise PlanError if a sum along the depth would go on behind it.

        Past the end of the depth what depends on statistics need not vanish: products with weights
        do, sums do not.
        """
        what = f"{node.name} {does} what need not end with the depth"
        if does == "sums" and self.of_statistics.intersection(node.args):
            raise self.error(what)
        dims = {d.name: d for n in self.graph.inputs for d in n.out.type.dims}
        past = prod(self.past[a] for a in node.args)
        if past != 0 and dims[node.over].size % EVEN_DEPTH:
            raise self.error(what, f"choose {node.over} as a multiple of {EVEN_DEPTH}")

    def carry(self, node: Node) -> None:
        (summed,) = node.args
        layout = self.layout(node.name)
        self.reductions.append(Statement(Do.REDUCE, summed, (summed,), node.out.type, layout))
        self.epilogue.append(Statement(Do.TOTAL, node.name, (summed,), node.out.type, layout))

    def output(self, node: Node) -> None:
        tensor = self.tensors[node.name]
        if self.roles.rows and node.loop_cut is None:
            return self.add(Do.STORE, node, node.args)
        if not self.roles.rows:
            return self.add(Do.STORE, node, (*node.args, tensor))
        last = self.graph.values[tensor].type.names[-1]
        loaded = self.body.producers[node.args[0]].op == "input"
        if self.roles.inner:
            raise self.error(f"{tensor} beside inner dims is not planned yet")
        if self.layout(node.name) is not Layout.TOKENS or last != self.roles.depth or loaded:
            raise self.error(f"the loop computes no lines of tokens for {tensor}")
        return self.add(Do.STORE, node, (*node.args, tensor))
