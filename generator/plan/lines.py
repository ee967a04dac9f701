"""Lines: tokens taken whole, in registers, by a warp before a loop, or by a block without one.

Elementwise operators and sums along the depth need nothing else: every thread holds some elements
of the line, and sums meet in a warp by shuffles, in a block through shared memory.
"""

from __future__ import annotations

from collections.abc import Mapping
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
    """Return the roles of a block graph without a loop: what its grid cuts, and what is whole.

    Raises PlanError where more than one dim is cut, or is not.
    """
    cut = [axis.dim for axis in body.space.grid] if body.space is not None else []
    dims = {d.name: d for v in body.values.values() for d in v.type.dims}
    whole = [name for name in dims if name not in cut]
    if len(cut) != 1 or len(whole) != 1:
        raise PlanError("without a loop the plan cuts one dim and keeps one whole")
    if not dims[cut[0]].dynamic or dims[whole[0]].dynamic:
        raise PlanError(f"without a loop {cut[0]} must be dynamic, and {whole[0]} must not")
    return Roles("", cut[0], whole[0])


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
        """Load a line of a tensor, or a vector that all lines share."""
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
    lines = Lines(recipe, roles, {name: v.type for name, v in body.values.items()})
    tensors = dict(zip((n.name for n in body.inputs), node.args, strict=True))
    for inner in body.nodes:
        if inner.op == "input" and inner.out.type.dims:
            lines.load(inner, tensors[inner.name])
        elif inner.op == "output":
            lines.add(Do.STORE, inner, inner.args)
        elif OPS[inner.op].kind is not Kind.SOURCE:
            lines.compute(inner)
        elif inner.op == "iota":
            raise PlanError(f"{recipe}: positions are not planned yet ({inner.name})")
    stored = next(s for s in lines.statements if s.do is Do.STORE)
    out = graph.values[graph.outputs[0]].type
    if stored.layout is not Layout.LINE or out.names != (roles.tokens, roles.depth):
        raise PlanError(f"{recipe}: the result {out} is no line per token")
    statements = sorted(lines.statements, key=lambda s: s.do is not Do.LOAD)
    return TileProgram(
        recipe=recipe,
        roles=roles,
        inputs=operands(graph),
        scalars=scalars(graph),
        output=Operand(graph.outputs[0], 0, out),
        literals=literals(body),
        loop=(),
        meetings=(),
        epilogue=(),
        lines=tuple(statements),
    )


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
