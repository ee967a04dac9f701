"""From a muGraph to its tile program; a muGraph that this plan can't carry is refused by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import prod

from mirage_kernels.generator.errors import PlanError
from mirage_kernels.generator.ir import (
    OPS,
    DType,
    Graph,
    Kind,
    Node,
    Phase,
    TensorType,
    phases_of,
)
from mirage_kernels.generator.plan.blocks import without_threads
from mirage_kernels.generator.plan.dead_code import needed
from mirage_kernels.generator.plan.lines import (
    KEPT,
    Lines,
    line_program,
    line_roles,
    literals,
    lying,
    operands,
    result,
    scalars,
)
from mirage_kernels.generator.plan.program import (
    Do,
    Layout,
    Roles,
    Stage,
    Statement,
    TileProgram,
)
from mirage_kernels.generator.plan.tail import EVEN_DEPTH, past_the_depth
from mirage_kernels.generator.plan.tiles import require_layouts, with_barriers


def tile_program(recipe: str, graph: Graph, arch: str = "sm_90a") -> TileProgram:
    """Return the tile program of a muGraph with one kernel: weights streamed in a loop, or lines.

    Raises PlanError for other muGraphs: several kernels, a value with no place in the plan, an
    accumulator over something else than a sum along the loop.
    """
    if len(graph.blocks) != 1 or graph.of("contract"):
        raise PlanError(f"{recipe}: the muGraph has several kernels, this plan takes one")
    (node,) = graph.blocks
    assert node.body is not None
    if node.body.space is not None and node.body.space.loop is None:
        return line_program(recipe, graph, node, without_threads(node.body))
    late = [n.name for n in node.body.of("output") if n.loop_cut is None]
    if late != [node.body.outputs[0]]:
        raise PlanError(f"{recipe}: the kernel stores several results outside of its loop")
    program = _Lowering(recipe, graph, node, node.body).run()
    require_layouts(graph, arch)
    return with_barriers(program)


# Carries that join warps or blocks in ways of their own.
_UNPLANNED = ("accum_rescaled", "last", "combine", "combine_rescaled")
_COMPUTED = (Kind.ELEMENTWISE, Kind.REDUCE, Kind.CONTRACT)
_READABLE = (Layout.ACCUM, Layout.ROW_SUMS)  # by the epilogue


def roles_of(body: Graph) -> Roles:
    """Return which dim is streamed, which holds the few lines, which is contracted.

    The loop's dim is the depth; of the two operands of a contraction over it, the one with static
    lines streams. Where several do, the grid cuts the rows; lines that it leaves whole are inner
    ones. Without a loop there are lines (`lines.py`). Raises PlanError where that does not
    determine the roles.
    """
    loop = body.space.loop if body.space is not None else None
    if loop is None:
        return line_roles(body)
    found: list[tuple[str, str]] = []
    for node in body.of("contract"):
        kept = [[d for d in body.values[a].type.dims if d.name != loop.dim] for a in node.args]
        if node.over != loop.dim or [len(k) for k in kept] != [1, 1] or kept[0] == kept[1]:
            continue
        rows, tokens = sorted((k[0] for k in kept), key=lambda d: d.dynamic)
        if not rows.dynamic and tokens.dynamic:
            found.append((rows.name, tokens.name))
    if not found:
        raise PlanError("no contraction along the loop has one static and one dynamic operand")
    assert body.space is not None
    cut = {axis.dim for axis in body.space.grid}
    streamed, few = next((pair for pair in found if pair[0] in cut), found[0])
    whole = (lines for lines, other in found if other == few and lines not in cut)
    inner = tuple(dict.fromkeys(lines for lines in whole if lines != streamed))
    return Roles(streamed, few, loop.dim, inner)


class _Lowering:
    """One muGraph on its way to a tile program."""

    def __init__(self, recipe: str, graph: Graph, node: Node, body: Graph) -> None:
        self.recipe, self.graph, self.node = recipe, graph, node
        self.body = body = without_threads(body)
        self.roles = roles_of(body)
        self.phases = phases_of(body)
        self.past = past_the_depth(body, self.phases)
        self.types = {name: value.type for name, value in body.values.items()}
        self.loop: list[Statement] = []
        self.meetings: list[Statement] = []
        self.epilogue: list[Statement] = []
        self.fetches: list[Statement] = []
        self.products: list[Statement] = []
        self.lines = Lines(recipe, self.roles, self.types)

    def run(self) -> TileProgram:
        rules: dict[Kind, Callable[[Node], None]] = {
            Kind.SOURCE: self.source,
            Kind.ELEMENTWISE: self.elementwise,
            Kind.CONTRACT: self.contract,
            Kind.REDUCE: self.reduce,
            Kind.CARRY: self.carry,
            Kind.OUTPUT: self.output,
        }
        for node in self.body.nodes:
            kind = OPS[node.op].kind
            if kind not in rules or node.op in _UNPLANNED:
                raise PlanError(f"{self.recipe}: {node.op} is not planned yet ({node.name})")
            if kind in _COMPUTED and self.phases[node.name] is Phase.BEFORE:
                self.lines.compute(node)
            else:
                rules[kind](node)
        return self.program()

    def program(self) -> TileProgram:
        stored = {s.out for s in self.epilogue if s.do is Do.STORE}
        stages = map(self.stage, self.roles.inner)
        inputs, output = operands(self.graph), result(self.graph, 0)
        lying(self.recipe, self.roles, (*inputs, output))
        return TileProgram(
            recipe=self.recipe,
            roles=self.roles,
            inputs=inputs,
            scalars=scalars(self.graph),
            output=output,
            literals=literals(self.body),
            loop=tuple(self.loop),
            meetings=tuple(self.meetings),
            epilogue=needed(self.epilogue, stored),
            fetches=tuple(self.fetches),
            stages=tuple(stage for stage in stages if stage.statements),
            products=tuple(self.products),
            lines=tuple(self.lines.statements),
            also=tuple(result(self.graph, i) for i in range(1, len(self.graph.outputs))),
        )

    def stage(self, dim: str) -> Stage:
        """Return what makes the totals over a dim that products contract."""
        totals = dict.fromkeys(p.args[1].removesuffix(KEPT) for p in self.products)
        mine = [t for t in totals if dim in self.types[t].names]
        keeps = [
            Statement(Do.KEEP, t + KEPT, (t,), self.types[t], Layout.INNER_ACCUM) for t in mine
        ]
        return Stage(dim, (*needed(self.epilogue, set(mine)), *keeps))

    def layout(self, name: str, type_: TensorType) -> Layout:
        layout = self.roles.layout(type_.names)
        if layout is None or len(type_.dims) > 2:
            raise PlanError(f"{self.recipe}: {name} {type_} has no place in the plan")
        return layout

    def add(self, do: Do, node: Node, args: tuple[str, ...], **more: str) -> None:
        """Append a statement to the part of the block's life that the node belongs to."""
        layout = self.layout(node.name, node.out.type)
        statement = Statement(do, node.name, args, node.out.type, layout, more.get("op", ""))
        here = self.loop if self.phases[node.name] is Phase.LOOP else self.epilogue
        self.read(args, here)
        here.append(statement)

    def read(self, names: Sequence[str], here: list[Statement]) -> None:
        """Read the statistics among operands, each once; raises PlanError for a whole line.

        So it does in the loop for what only the epilogue reads.
        """
        late = {s.out for s in self.epilogue if s.do is Do.READ} if here is self.loop else set()
        for name in names:
            line = any(s.do is Do.LOAD and s.out == name for s in self.lines.statements)
            if line or (name in late and not self.is_statistic(name)):
                raise PlanError(f"{self.recipe}: {name} is not cut by the loop")
            if self.is_statistic(name) and all(s.out != name for s in here):
                self.lines.keep(name)
                kept, type_ = name + KEPT, self.types[name]
                here.append(Statement(Do.READ, name, (kept,), type_, self.layout(name, type_)))

    def is_statistic(self, name: str) -> bool:
        """Say whether lines compute a value, before the loop."""
        made = self.body.producers.get(name)
        return (
            made is not None
            and OPS[made.op].kind in _COMPUTED
            and self.phases[name] is Phase.BEFORE
        )

    def has_statistics(self, name: str) -> bool:
        """Say whether a value of the loop depends on what lines compute.

        Past the end of the depth it need not vanish: products with weights do, sums do not.
        """
        found = self.body.producers.get(name)
        return found is not None and (
            self.is_statistic(name) or any(self.has_statistics(a) for a in found.args)
        )

    def source(self, node: Node) -> None:
        if node.op == "iota":
            raise PlanError(f"{self.recipe}: positions are not planned yet ({node.name})")
        if node.op != "input":
            return
        tensor = self.node.args[[n.name for n in self.body.inputs].index(node.name)]
        if node.loop_cut is not None:
            self.add(Do.LOAD, node, (tensor,))
        elif node.out.type.dims:
            layout = self.layout(node.name, node.out.type)
            if layout is Layout.FACTORS:
                fetch = Statement(Do.FETCH, node.name, (tensor,), node.out.type, layout)
                self.fetches.append(fetch)
            elif layout in _READABLE:
                self.add(Do.READ, node, (tensor,))
            else:
                self.lines.load(node, tensor)

    def elementwise(self, node: Node) -> None:
        if self.layout(node.name, node.out.type) is Layout.FACTORS:
            raise PlanError(f"{self.recipe}: {node.name} is not planned, {Layout.FACTORS.value}")
        self.add(Do.MAP, node, self.widest_first(node), op=node.op)

    def widest_first(self, node: Node) -> tuple[str, ...]:
        """Return the operands with one that has all dims of the result in front.

        Fragments broadcast to the first operand; only commutative ops may be turned round.
        """
        if self.phases[node.name] is not Phase.LOOP or len(node.args) != 2:
            return node.args
        wide = [set(self.types[a].names) == set(node.out.type.names) for a in node.args]
        if wide[0]:
            return node.args
        if not OPS[node.op].commutative:
            raise PlanError(f"{self.recipe}: {node.name} broadcasts its first operand")
        return node.args[::-1]

    def contract(self, node: Node) -> None:
        layouts = {self.layout(a, self.body.values[a].type) for a in node.args}
        if node.over in self.roles.inner and self.phases[node.name] is Phase.AFTER:
            self.late_product(node)
        elif node.over != self.roles.depth:
            raise PlanError(f"{self.recipe}: {node.name} contracts {node.over}, not the loop's dim")
        elif layouts in ({Layout.ROWS, Layout.TOKENS}, {Layout.INNER, Layout.TOKENS}):
            rows, tokens = sorted(node.args, key=lambda a: self.is_tokens(a))
            self.ends(node, "multiplies", self.past[rows] * self.past[tokens])
            self.add(Do.CONTRACT, node, (rows, tokens))
        elif len(layouts) == 1:  # lines times the same lines: multiplied and summed in registers
            self.squares(node)
        else:
            raise PlanError(f"{self.recipe}: {node.name} contracts {[x.value for x in layouts]}")

    def is_tokens(self, name: str) -> bool:
        return self.layout(name, self.body.values[name].type) is Layout.TOKENS

    def late_product(self, node: Node) -> None:
        """Multiply a fetched tile with totals, which a stage keeps in the storage type."""
        fetched = {s.out for s in self.fetches}
        factors, totals = sorted(node.args, key=lambda a: a not in fetched)
        layouts = [self.layout(a, self.types[a]) for a in (factors, totals)]
        if factors not in fetched or layouts != [Layout.FACTORS, Layout.INNER_ACCUM]:
            raise PlanError(f"{self.recipe}: {node.name} contracts {[x.value for x in layouts]}")
        if self.types[totals].dtype is DType.FP32:
            raise PlanError(f"{self.recipe}: {node.name} contracts fp32 totals")
        layout, args = self.layout(node.name, node.out.type), (factors, totals + KEPT)
        self.products.append(Statement(Do.CONTRACT, node.name, args, node.out.type, layout))
        self.add(Do.TOTAL, node, (node.name,))

    def squares(self, node: Node) -> None:
        first = self.body.values[node.args[0]]
        name = f"{node.name}_terms"
        self.read(node.args, self.loop)
        self.loop.append(
            Statement(
                Do.MAP,
                name,
                node.args,
                replace(first.type, dtype=node.out.type.dtype),
                self.layout(name, first.type),
                "mul",
            )
        )
        self.sum_up(node, name)

    def sum_up(self, node: Node, terms: str) -> None:
        if any(self.has_statistics(a) for a in node.args):
            raise PlanError(f"{self.recipe}: {node.name} sums what need not end with the depth")
        self.ends(node, "sums", prod(self.past[a] for a in node.args))
        self.add(Do.SUM, node, (terms,))

    def ends(self, node: Node, does: str, past: float) -> None:
        """Raise PlanError if a sum along the depth would go on behind it; `past`: with what."""
        depth = next(d for o in operands(self.graph) for d in o.type.dims if d.name == node.over)
        if past != 0 and depth.size % EVEN_DEPTH:
            raise PlanError(
                f"{self.recipe}: {node.name} {does} what need not end with the depth",
                f"choose {depth.name} as a multiple of {EVEN_DEPTH}",
            )

    def reduce(self, node: Node) -> None:
        if node.over != self.roles.depth or self.phases[node.name] is not Phase.LOOP:
            raise PlanError(f"{self.recipe}: {node.name} sums {node.over} outside the loop")
        self.sum_up(node, node.args[0])

    def carry(self, node: Node) -> None:
        (summed,) = node.args
        if not any(s.out == summed and s.do in (Do.CONTRACT, Do.SUM) for s in self.loop):
            raise PlanError(f"{self.recipe}: {node.name} accumulates something else than a sum")
        layout = self.layout(node.name, node.out.type)
        self.meetings.append(Statement(Do.MEET, summed, (summed,), node.out.type, layout))
        self.epilogue.append(Statement(Do.TOTAL, node.name, (summed,), node.out.type, layout))

    def output(self, node: Node) -> None:
        if node.loop_cut is None:
            self.add(Do.STORE, node, node.args)
            return
        layout = self.layout(node.name, node.out.type)
        tensor = self.node.outs[self.body.outputs.index(node.name)].name
        last = self.graph.values[tensor].type.names[-1]
        loaded = self.body.producers[node.args[0]].op == "input"
        if self.roles.inner:
            raise PlanError(f"{self.recipe}: {tensor} beside inner dims is not planned yet")
        if layout is not Layout.TOKENS or last != self.roles.depth or loaded:
            raise PlanError(f"{self.recipe}: the loop computes no lines of tokens for {tensor}")
        self.add(Do.STORE, node, (*node.args, tensor))
