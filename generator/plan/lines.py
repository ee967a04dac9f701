"""Lines: tokens taken whole, in registers, by a warp before a loop, or by a block without one.

Elementwise operators and sums along the depth need nothing else: every thread holds some elements
of the line, and sums meet in a warp by shuffles, in a block through shared memory. Where nothing is
summed the grid cuts the lines as well, and a block holds a part of one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from mirage_kernels.generator.errors import PlanError
from mirage_kernels.generator.ir import OPS, Graph, Kind, Node, TensorType, number_text
from mirage_kernels.generator.plan.program import (
    Do,
    Layout,
    Operand,
    Roles,
    Statement,
    TileProgram,
)

KEPT = "_kept"  # behind the name of what lines keep, as of totals
_HELD = {
    Layout.TOKENS: Layout.LINE,
    Layout.DEPTH: Layout.LINE_VECTOR,
    Layout.TOKEN_SUMS: Layout.TOKEN_SUMS,
    Layout.SCALAR: Layout.SCALAR,
}
_WHOLE = (Layout.LINE, Layout.LINE_VECTOR)


def line_roles(body: Graph) -> Roles:
    """Return the roles of a block graph without a loop: tokens are cut, lines are whole or cut.

    Raises PlanError for other dims than a dynamic one and a static one.
    """
    dims = {d.name: d for v in body.values.values() for d in v.type.dims}
    tokens = [name for name, dim in dims.items() if dim.dynamic]
    lines = [name for name, dim in dims.items() if not dim.dynamic]
    if len(tokens) != 1 or len(lines) != 1:
        raise PlanError("without a loop the plan takes a dynamic dim and a static one")
    if tokens[0] not in _cut(body):
        raise PlanError(f"without a loop the plan cuts {tokens[0]}")
    return Roles("", tokens[0], lines[0])


def _cut(body: Graph) -> list[str]:
    return [axis.dim for axis in body.space.grid] if body.space is not None else []


class Lines:
    """The statements of one line, as they are lowered."""

    def __init__(self, recipe: str, roles: Roles, types: Mapping[str, TensorType]) -> None:
        self.recipe, self.roles, self.types = recipe, roles, types
        self.statements: list[Statement] = []
        self.loaded: dict[str, str] = {}  # lines that would be called like their tensor

    def held(self, name: str) -> Layout:
        """Return how a line has a value; raises PlanError where it has no place for it."""
        layout = self.roles.layout(self.types[name].names)
        if layout not in _HELD:
            raise PlanError(f"{self.recipe}: {name} {self.types[name]} is no part of a line")
        return _HELD[layout]

    def load(self, node: Node, tensor: str) -> None:
        """Load a line of a tensor, or a vector that all lines share; else raises PlanError."""
        if self.held(node.name) not in _WHOLE:
            raise PlanError(
                f"{self.recipe}: {node.name} has a number per token, which no plan reads yet"
            )
        if node.name == tensor:
            self.loaded[node.name] = f"{node.name}_line"
        self.add(Do.LOAD, node, (tensor,))

    def compute(self, node: Node) -> None:
        """Add an operator; raises PlanError for one that lines do not have."""
        kind = OPS[node.op].kind
        if kind is Kind.ELEMENTWISE and len(node.args) <= 2:
            self.add(Do.MAP, node, self.line_first(node), node.op)
        elif kind is Kind.REDUCE and node.over == self.roles.depth:
            self.add(Do.SUM, node, node.args)
        elif kind is Kind.CONTRACT and node.over == self.roles.depth:
            self.product(node)
        else:
            raise PlanError(f"{self.recipe}: {node.op} of a line is not planned ({node.name})")

    def product(self, node: Node) -> None:
        """Multiply and sum in registers."""
        wide = max((self.types[a] for a in node.args), key=lambda t: len(t.dims))
        terms, type_ = f"{node.name}_terms", replace(wide, dtype=node.out.type.dtype)
        args = map(self.named, node.args)
        layout = self.held(next(a for a in node.args if self.types[a] is wide))
        self.statements.append(Statement(Do.MAP, terms, tuple(args), type_, layout, "mul"))
        self.add(Do.SUM, node, (terms,))

    def line_first(self, node: Node) -> tuple[str, ...]:
        """Return the operands with a line in front: numbers broadcast to it."""
        if self.held(node.name) not in _WHOLE or self.held(node.args[0]) in _WHOLE:
            return node.args
        if not OPS[node.op].commutative:
            raise PlanError(f"{self.recipe}: {node.name} broadcasts its first operand")
        return node.args[::-1]

    def add(self, do: Do, node: Node, args: tuple[str, ...], op: str = "") -> None:
        """Append a statement."""
        layout = self.held(node.name)
        if do is not Do.LOAD:
            args = tuple(map(self.named, args))
        out = self.named(node.name)
        self.statements.append(Statement(do, out, args, node.out.type, layout, op))

    def named(self, name: str) -> str:
        """Return what a value is called here."""
        return self.loaded.get(name, name)

    def keep(self, name: str) -> None:
        """Keep a token's number in shared memory, once."""
        if self.held(name) is not Layout.TOKEN_SUMS:
            raise PlanError(f"{self.recipe}: {name} is computed before the loop")
        kept = Statement(Do.KEEP, name + KEPT, (name,), self.types[name], Layout.TOKEN_SUMS)
        if kept not in self.statements:
            self.statements.append(kept)


def line_program(recipe: str, graph: Graph, node: Node, body: Graph) -> TileProgram:
    """Return the program of a kernel without a loop: lines and nothing else.

    Raises PlanError for what has no place in a line.
    """
    roles = line_roles(body)
    parted = roles.depth in _cut(body)
    lines = Lines(recipe, roles, {name: v.type for name, v in body.values.items()})
    tensors = dict(zip((n.name for n in body.inputs), node.args, strict=True))
    stored = dict(zip(body.outputs, (v.name for v in node.outs), strict=True))
    for inner in body.nodes:
        if inner.op == "input" and inner.out.type.dims:
            lines.load(inner, tensors[inner.name])
        elif inner.op == "output":
            lines.add(Do.STORE, inner, (*inner.args, stored[inner.name]))
        elif OPS[inner.op].kind is not Kind.SOURCE:
            lines.compute(inner)
        elif inner.op == "iota":
            raise PlanError(f"{recipe}: positions are not planned yet ({inner.name})")
    results = [result(graph, i) for i in range(len(graph.outputs))]
    for made in results:
        if made.type.names != (roles.tokens, roles.depth):
            raise PlanError(f"{recipe}: the result {made.type} is no line per token")
    inputs = operands(graph)
    lying(recipe, roles, inputs)
    if parted and any(s.do is Do.SUM for s in lines.statements):
        raise PlanError(f"{recipe}: sums of lines that the grid cuts are not planned")
    if parted and any(o.optional and o.type.dims for o in inputs):
        raise PlanError(f"{recipe}: parts of a vector that may be missing are not planned yet")
    statements = sorted(lines.statements, key=lambda s: s.do is not Do.LOAD)
    return TileProgram(
        recipe=recipe,
        roles=roles,
        inputs=inputs,
        scalars=scalars(graph),
        output=results[0],
        literals=literals(body),
        loop=(),
        meetings=(),
        epilogue=(),
        lines=tuple(statements),
        also=tuple(results[1:]),
        parted=parted,
    )


def lying(recipe: str, roles: Roles, tensors: Iterable[Operand]) -> None:
    """Raise PlanError for a tensor that lies along another dim than the plan takes it."""
    for o in tensors:
        *others, last = o.type.names
        if others and last != (fast := roles.fast(o.type.names)):
            wanted = " ".join((*(d for d in o.type.names if d != fast), fast))
            raise PlanError(
                f"{recipe}: {o.name} [{', '.join(o.type.names)}] has contiguous {last}, "
                f"the plan takes contiguous {fast}",
                f'give it as "{wanted}"',
            )


def result(graph: Graph, index: int) -> Operand:
    """Return a kernel's result, numbered as its recipe has it."""
    name = graph.outputs[index]
    return Operand(name, index, graph.values[name].type)


def operands(graph: Graph) -> tuple[Operand, ...]:
    """Return a kernel's tensors, in recipe order."""
    tensors = [n for n in graph.inputs if n.out.type.dims]
    return tuple(Operand(n.name, i, n.out.type, n.optional) for i, n in enumerate(tensors))


def scalars(graph: Graph) -> tuple[str, ...]:
    """Return a kernel's run-time scalars, in recipe order."""
    return tuple(n.name for n in graph.inputs if not n.out.type.dims)


def literals(body: Graph) -> dict[str, str]:
    """Return what stands for constants and extents."""
    found = {n.name: n.over for n in body.of("size")}
    return found | {n.name: number_text(n.value) for n in body.of("const")}
