"""From a muGraph to its attention program; what this plan can't carry is refused by node."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from mirage_kernels.generator.errors import PlanError
from mirage_kernels.generator.ir import (
    OPS,
    DType,
    Graph,
    Kind,
    Node,
    Phase,
    phases_of,
)
from mirage_kernels.generator.plan.blocks import without_threads
from mirage_kernels.generator.plan.dead_code import needed
from mirage_kernels.generator.schedules.attention.form import form_of
from mirage_kernels.generator.schedules.attention.mask import Positions, check_hidden
from mirage_kernels.generator.schedules.attention.program import (
    AttentionProgram,
    Do,
    Held,
    Literal,
    Step,
)
from mirage_kernels.generator.schedules.attention.softmax import with_softmax_step


def attention_program(recipe: str, graph: Graph) -> AttentionProgram:
    """Return the attention program of a muGraph.

    Raises PlanError for other muGraphs: several kernels, no loop or another split, exponentials
    without a running peak, several products with queries or values, a value with no place.
    """
    extra = [n for n in graph.nodes if n.op not in ("input", "iota", "size", "const", "block")]
    if len(graph.blocks) != 1 or extra:
        names = ", ".join(n.name for n in (*graph.blocks, *extra))
        raise PlanError(f"{recipe}: attention is planned as one kernel, not as {names}")
    (node,) = graph.blocks
    if len(node.outs) != 1:
        raise PlanError(f"{recipe}: {node.name} stores several results, this plan takes one")
    assert node.body is not None
    try:
        return with_softmax_step(_Lowering(graph, node, without_threads(node.body)).run(recipe))
    except PlanError as error:
        raise PlanError(f"{recipe}: {error.sentence}", error.hint) from None


_ONE = {Do.QUERIES: "tile of queries", Do.KEYS: "tile of keys", Do.LENGTH: "length per sequence"}


class _Lowering:
    """One muGraph on its way to an attention program."""

    def __init__(self, graph: Graph, node: Node, body: Graph) -> None:
        self.graph, self.body = graph, body
        self.form = form_of(node, body)
        self.roles, self.phases = self.form.roles, phases_of(body)
        self.tensor = dict(zip((n.name for n in body.inputs), node.args, strict=True))
        self.literals: dict[str, Literal] = {}
        self.steps: dict[Phase | None, list[Step]] = {phase: [] for phase in Phase}

    def run(self, recipe: str) -> AttentionProgram:
        rules: dict[Kind, Callable[[Node], None]] = {
            Kind.SOURCE: self.source,
            Kind.ELEMENTWISE: self.elementwise,
            Kind.CONTRACT: self.contract,
            Kind.REDUCE: self.reduce,
            Kind.STABILISER: self.raise_peak,
            Kind.CARRY: self.carry,
            Kind.OUTPUT: self.store,
        }
        for node in self.body.nodes:
            rules[OPS[node.op].kind](node)
        self.check_sources()
        self.check_order()
        self.check_after()
        check_hidden(self.body, self.form.weights, self.positions_of())
        return self.program(recipe)

    def program(self, recipe: str) -> AttentionProgram:
        form, depth = self.form, self.roles.depth
        stored = {s.out for s in self.steps[Phase.JOINED] if s.do is Do.STORE}
        summed = {form.peak.name, form.sum.name, form.product.name}
        return AttentionProgram(
            recipe=recipe,
            roles=self.roles,
            tensors=self.tensors(),
            scalars=self.inputs_without_dims(DType.FP32),
            integers=self.inputs_without_dims(DType.INT32),
            vectors=self.vectors(),
            output=self.graph.outputs[0],
            depth=self.depth_of(form.resident, depth),
            literals=self.literals,
            before=needed(self.steps[Phase.BEFORE], {*self.resident(), *self.used_later()}),
            resident=form.resident,
            more_resident=form.more_resident,
            more_depth=self.depth_of(form.more_resident, self.roles.more) if form.more else 0,
            peak=form.peak.name,
            sum=form.sum,
            product=form.product,
            loop=needed(self.steps[Phase.LOOP], summed),
            after=needed(self.steps[Phase.JOINED], stored),
        )

    def resident(self) -> set[str]:
        return {self.form.resident, self.form.more_resident} - {""}

    def depth_of(self, name: str, dim: str) -> int:
        return self.body.values[name].type.dim(dim).size

    # The kernel's arguments.

    def tensors(self) -> dict[str, str]:
        found = {"values": self.tensor[self.form.values]}
        for phase in (Phase.BEFORE, Phase.LOOP):
            for s in self.steps[phase]:
                if s.do in (Do.QUERIES, Do.KEYS, Do.MORE_QUERIES, Do.MORE_KEYS):
                    found[s.do.value] = self.tensor[s.out]
        return found

    def inputs_without_dims(self, dtype: DType) -> tuple[str, ...]:
        types = {n.name: n.out.type for n in self.graph.inputs}
        return tuple(n for n, type_ in types.items() if not type_.dims and type_.dtype is dtype)

    def vectors(self) -> tuple[str, ...]:
        wanted = {*self.vector_dims().values()}
        return tuple(n.name for n in self.graph.inputs if n.out.type.names in wanted)

    def vector_dims(self) -> dict[str, tuple[str, ...]]:
        """Return the dims of inputs along the depth: of all heads, of the cache's, of the rows'."""
        heads, depth = self.roles.heads, self.roles.depth
        return {"all": (depth,), "heads": (heads, depth), "rows": (heads, self.roles.group, depth)}

    # Node by node.

    def held(self, name: str) -> Held:
        type_ = self.body.values[name].type
        held = self.roles.held(type_)
        if held is None:
            raise PlanError(f"{name} {type_} has no place in the plan")
        return held

    def add(self, do: Do, node: Node, args: tuple[str, ...] = (), *, op: str = "") -> None:
        """Append a statement to the phase of the kernel that the node belongs to."""
        self.steps[self.phases[node.name]].append(Step(do, node.name, args, node.out.type, op))

    def source(self, node: Node) -> None:
        if node.op == "input":
            self.input(node)
        elif node.op == "const":
            real = node.out.type.dtype.is_real
            self.literals[node.name] = float(node.value) if real else int(node.value)
        elif node.op == "size" and node.over == self.roles.depth and node.out.type.dtype.is_real:
            self.literals[node.name] = node.over
        elif node.op == "size" and node.over == self.roles.tokens:
            self.add(Do.TOKEN_COUNT, node)
        else:
            raise PlanError(f"{node.name} = {node.op}({node.over}) is not planned")

    def input(self, node: Node) -> None:
        """Place a tile of an argument, or of positions that the kernel graph numbers."""
        made, held = self.graph.producers[self.tensor[node.name]], self.held(node.name)
        looped, dtype = node.loop_cut is not None, node.out.type.dtype
        if made.op in ("const", "size"):
            self.source(replace(made, outs=node.outs))
        elif made.op == "iota":
            self.positions(node, made)
        elif held is Held.KEYS and looped:
            if node.name != self.form.values or self.form.more:
                self.add(Do.MORE_KEYS if self.is_more(node) else Do.KEYS, node)
        elif held is Held.QUERIES and set(node.out.type.names) == self.query_dims(node):
            self.add(Do.MORE_QUERIES if self.is_more(node) else Do.QUERIES, node)
        elif node.out.type.names in self.vector_dims().values():
            rows = node.out.type.names == self.vector_dims()["rows"]
            self.add(Do.ROW_VECTORS if rows else Do.VECTOR, node, (made.name,))
        elif dtype is DType.INT32 and node.out.type.names == (self.roles.sequences,):
            self.add(Do.LENGTH, node)
        elif node.out.type.dims:
            raise PlanError(f"{node.name} {node.out.type} is an input that this plan does not read")

    def positions(self, node: Node, made: Node) -> None:
        if made.over == self.roles.keys and node.loop_cut is not None:
            self.add(Do.KEY_POSITIONS, node)
        elif made.over == self.roles.tokens:
            self.add(Do.ROW_TOKENS, node)
        else:
            raise PlanError(f"{node.name}: positions along {made.over} are not planned")

    def is_more(self, node: Node) -> bool:
        return self.roles.more in node.out.type.names

    def query_dims(self, node: Node) -> set[str]:
        roles = self.roles
        depth = roles.more if self.is_more(node) else roles.depth
        return {roles.sequences, *roles.rows, roles.heads, depth} - {""}

    def elementwise(self, node: Node) -> None:
        if self.phases[node.name] is not Phase.JOINED:
            self.held(node.name)
        peak = self.form.peak.name
        if peak in node.args and (node.op != "sub" or node.args[0] == peak):
            raise PlanError(f"{node.name} = {node.op}(..): a peak is only subtracted in this plan")
        self.add(Do.MAP, node, self.widest_first(node), op=node.op)

    def widest_first(self, node: Node) -> tuple[str, ...]:
        """Return the operands with one of the result's kind in front, if the result is a tile.

        Fragments broadcast to the first operand; only commutative ops may be turned round.
        """
        tiles = (Held.QUERIES, Held.KEYS, Held.DEPTH_VECTOR)
        joined = self.phases[node.name] is Phase.JOINED
        held = None if joined else self.held(node.name)
        if held not in tiles or self.held(node.args[0]) is held:
            return node.args
        if not OPS[node.op].commutative:
            raise PlanError(f"{node.name} = {node.op}(..) broadcasts its first operand")
        return node.args[::-1]

    def contract(self, node: Node) -> None:
        form = self.form
        if node.name == form.product.name:
            self.add(Do.PRODUCT, node, (form.values, form.weights))
        elif node is form.scores:
            self.add(Do.SCORES, node, (form.scored,))
        elif node is form.more:
            self.add(Do.MORE_SCORES, node, (form.more_scored,))
        else:
            self.line_sum(node)

    def reduce(self, node: Node) -> None:
        if node.name == self.form.sum.name:
            self.add(Do.SUM, node, node.args)
        else:
            self.line_sum(node)

    def line_sum(self, node: Node) -> None:
        """Sum along the depth, line by line: of a tile, or of it times another or a vector."""
        tiles_first = sorted(node.args, key=lambda a: self.held(a) is Held.DEPTH_VECTOR)
        kinds = {self.held(a) for a in node.args}
        tiles = self.held(tiles_first[0]) in (Held.QUERIES, Held.KEYS)
        alike = len(kinds - {Held.DEPTH_VECTOR}) == 1
        if node.over != self.roles.depth or not tiles or not alike:
            words = " and ".join(sorted(k.value for k in kinds))
            raise PlanError(f"{node.name} sums {node.over} of {words}, which is not planned")
        self.add(Do.LINE_SUM, node, tuple(tiles_first))

    def raise_peak(self, node: Node) -> None:
        if node is not self.form.peak:
            raise PlanError(f"{node.name} is a peak along {node.over}, this plan has one of keys")
        self.add(Do.RAISE, node, node.args)

    def carry(self, node: Node) -> None:
        if node.name not in self.form.carries:
            raise PlanError(f"{node.name} = {node.op}(..) carries what this plan does not")

    def store(self, node: Node) -> None:
        self.add(Do.STORE, node, node.args)

    # What holds for the whole.

    def check_sources(self) -> None:
        """Refuse several tiles of queries or keys, several lengths or none, and odd orders."""
        steps = (*self.steps[Phase.BEFORE], *self.steps[Phase.LOOP])
        for do, words in _ONE.items():
            found = [s.out for s in steps if s.do is do]
            if len(found) != 1:
                names = " and ".join(found) or "none"
                raise PlanError(f"this plan has one {words}, the muGraph {names}")
        tensors = {what: self.graph.values[name] for what, name in self.tensors().items()}
        out = self.graph.values[self.graph.outputs[0]]
        for one, like in (("values", tensors["keys"]), ("out", tensors["queries"])):
            stored = tensors.get(one, out)
            if stored.type.names != like.type.names:
                raise PlanError(f"{stored.name} {stored.type} is not stored as {like.name} is")

    def check_order(self) -> None:
        """Refuse sums that do not follow the peak, and what a block computes of its own sums."""
        order = [s.out for s in self.steps[Phase.LOOP]]
        for name in (self.form.sum.name, self.form.product.name):
            if order.index(name) < order.index(self.form.peak.name):
                raise PlanError(f"{name} is added before {self.form.peak.name} is raised")
        for step in self.steps[Phase.AFTER]:
            raise PlanError(f"{step.out} is computed by each block before they combine")

    def check_after(self) -> None:
        """Refuse what an element of the result can't look into, and sums that do not divide."""
        steps, whole = self.steps[Phase.JOINED], self.form.sum.whole
        made = {*(s.out for s in steps), *self.form.carries}
        for step in steps:
            if whole in step.args and (step.op != "div" or step.args[0] == whole):
                raise PlanError(f"{step.out} = {step.op}(..): this plan only divides by {whole}")
            for arg in step.args:
                if arg not in made and arg not in self.literals:
                    raise PlanError(f"{step.out} needs {arg} after the blocks have combined")

    def positions_of(self) -> Positions:
        """Return the names under which positions, lengths and counts are known in the block."""
        named: dict[Do, list[str]] = {do: [] for do in Do}
        for step in (*self.steps[Phase.BEFORE], *self.steps[Phase.LOOP]):
            named[step.do].append(step.out)
        return Positions(
            keys=frozenset(named[Do.KEY_POSITIONS]),
            tokens=frozenset(named[Do.ROW_TOKENS]),
            lengths=frozenset(named[Do.LENGTH]),
            counts=frozenset(named[Do.TOKEN_COUNT]),
        )

    def used_later(self) -> set[str]:
        later = (*self.steps[Phase.LOOP], *self.steps[Phase.JOINED])
        return {a for s in later for a in s.args}
