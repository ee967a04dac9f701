"""From a muGraph to its attention program; what this plan can't carry is refused by node."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from mirage_kernels.generator.errors import PlanError
from mirage_kernels.generator.ir import OPS, DType, Graph, Kind, Node, Phase, phases_of
from mirage_kernels.generator.plan.program import needed
from mirage_kernels.generator.plan.threads import without_threads
from mirage_kernels.generator.schedules.attention.form import form_of
from mirage_kernels.generator.schedules.attention.mask import COUNTED, check_hidden
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
_TENSORS = (Do.QUERIES, Do.KEYS, Do.MORE_QUERIES, Do.MORE_KEYS)


class _Lowering:
    """One muGraph on its way to an attention program."""

    def __init__(self, graph: Graph, node: Node, body: Graph) -> None:
        self.graph, self.body = graph, body
        self.form, self.phases = form_of(node, body), phases_of(body)
        self.roles = roles = self.form.roles
        self.tensor = dict(zip((n.name for n in body.inputs), node.args, strict=True))
        self.tensors = {"values": self.tensor[self.form.values]}  # role -> argument
        self.literals: dict[str, Literal] = {}
        self.steps: dict[Phase | None, list[Step]] = {phase: [] for phase in Phase}
        self.row_vector = (roles.heads, roles.group, roles.depth)
        self.vectors = ((roles.depth,), (roles.heads, roles.depth), self.row_vector)

    def run(self, recipe: str) -> AttentionProgram:
        rules: dict[Kind, Callable[[Node], None]] = {
            Kind.SOURCE: self.source,
            Kind.ELEMENTWISE: self.elementwise,
            Kind.CONTRACT: self.contract,
            Kind.REDUCE: self.contract,
            Kind.STABILISER: self.raise_peak,
            Kind.CARRY: self.carry,
            Kind.OUTPUT: lambda node: self.add(Do.STORE, node, node.args),
        }
        for node in self.body.nodes:
            rules[OPS[node.op].kind](node)
        self.check_sources()
        self.check_order()
        self.check_after()
        counted = {s.out: s.do for s in self.early() if s.do in COUNTED}
        check_hidden(self.body, self.form.weights, counted)
        return self.program(recipe)

    def early(self) -> list[Step]:
        return [*self.steps[Phase.BEFORE], *self.steps[Phase.LOOP]]

    def program(self, recipe: str) -> AttentionProgram:
        form, values = self.form, self.body.values
        resident, more = form.scores.queries, form.more.queries if form.more else ""
        later = (*self.steps[Phase.LOOP], *self.steps[Phase.JOINED])
        used = {resident, more}.union(*(s.args for s in later))
        summed = {form.peak.name, form.sum.name, form.product.name}
        stored = {s.out for s in self.steps[Phase.JOINED] if s.do is Do.STORE}
        inputs = {n.name: n.out.type for n in self.graph.inputs}
        numbers = {name: type_.dtype for name, type_ in inputs.items() if not type_.dims}
        return AttentionProgram(
            recipe=recipe,
            roles=self.roles,
            tensors=self.tensors,
            scalars=tuple(n for n, dtype in numbers.items() if dtype is DType.FP32),
            integers=tuple(n for n, dtype in numbers.items() if dtype is DType.INT32),
            vectors=tuple(n for n, type_ in inputs.items() if type_.names in self.vectors),
            output=self.graph.outputs[0],
            depth=values[resident].type.dim(self.roles.depth).size,
            literals=self.literals,
            before=needed(self.steps[Phase.BEFORE], used),
            resident=resident,
            more_resident=more,
            more_depth=values[more].type.dim(self.roles.more).size if more else 0,
            peak=form.peak.name,
            sum=form.sum,
            product=form.product,
            loop=needed(self.steps[Phase.LOOP], summed),
            after=needed(self.steps[Phase.JOINED], stored),
        )

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
        if do in _TENSORS:
            self.tensors[do.value] = self.tensor[node.name]

    def source(self, node: Node) -> None:
        real = node.out.type.dtype.is_real
        if node.op == "input":
            self.input(node)
        elif node.op == "const":
            self.literals[node.name] = float(node.value) if real else int(node.value)
        elif node.op == "size" and node.over == self.roles.depth and real:
            self.literals[node.name] = node.over
        elif node.op == "size" and node.over == self.roles.tokens:
            self.add(Do.TOKEN_COUNT, node)
        else:
            raise PlanError(f"{node.name} = {node.op}({node.over}) is not planned")

    def input(self, node: Node) -> None:
        """Place a tile of an argument, or of positions that the kernel graph numbers."""
        made, held = self.graph.producers[self.tensor[node.name]], self.held(node.name)
        roles, type_ = self.roles, node.out.type
        more = roles.more in type_.names
        along = roles.more if more else roles.depth
        queries = {roles.sequences, *roles.rows, roles.heads, along} - {""}
        if made.op in ("const", "size"):
            self.source(replace(made, outs=node.outs))
        elif made.op == "iota":
            self.positions(node, made)
        elif held is Held.KEYS and node.loop_cut is not None:
            if node.name != self.form.values or self.form.more:
                self.add(Do.MORE_KEYS if more else Do.KEYS, node)
        elif held is Held.QUERIES and {*type_.names} == queries:
            self.add(Do.MORE_QUERIES if more else Do.QUERIES, node)
        elif type_.names in self.vectors:
            do = Do.ROW_VECTORS if type_.names == self.row_vector else Do.VECTOR
            self.add(do, node, (made.name,))
        elif type_.dtype is DType.INT32 and type_.names == (roles.sequences,):
            self.add(Do.LENGTH, node)
        elif type_.dims:
            raise PlanError(f"{node.name} {type_} is an input that this plan does not read")

    def positions(self, node: Node, made: Node) -> None:
        if made.over == self.roles.keys and node.loop_cut is not None:
            self.add(Do.KEY_POSITIONS, node)
        elif made.over == self.roles.tokens:
            self.add(Do.ROW_TOKENS, node)
        else:
            raise PlanError(f"{node.name}: positions along {made.over} are not planned")

    def elementwise(self, node: Node) -> None:
        """Map values; one of the result's kind comes first, if the result is a tile.

        Fragments broadcast to the first operand; only commutative ops may be turned round.
        """
        peak, args = self.form.peak.name, node.args
        if self.phases[node.name] is not Phase.JOINED:
            held = self.held(node.name)
            tile = held in (Held.QUERIES, Held.KEYS, Held.DEPTH_VECTOR)
            if tile and self.held(args[0]) is not held:
                if not OPS[node.op].commutative:
                    raise PlanError(f"{node.name} = {node.op}(..) broadcasts its first operand")
                args = args[::-1]
        if peak in node.args and (node.op != "sub" or node.args[0] == peak):
            raise PlanError(f"{node.name} = {node.op}(..): a peak is only subtracted in this plan")
        self.add(Do.MAP, node, args, op=node.op)

    def contract(self, node: Node) -> None:
        """Place a product or a sum: over keys, of keys and queries, or along the depth."""
        form = self.form
        if node.name == form.product.name:
            self.add(Do.PRODUCT, node, (form.values, form.weights))
        elif node.name == form.sum.name:
            self.add(Do.SUM, node, node.args)
        elif node is form.scores.node:
            self.add(Do.SCORES, node, (form.scores.keys,))
        elif form.more and node is form.more.node:
            self.add(Do.MORE_SCORES, node, (form.more.keys,))
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

    # What holds for the whole.

    def check_sources(self) -> None:
        """Refuse several tiles of queries or keys, several lengths or none, and odd orders."""
        for do, words in _ONE.items():
            found = [s.out for s in self.early() if s.do is do]
            if len(found) != 1:
                names = " and ".join(found) or "none"
                raise PlanError(f"this plan has one {words}, the muGraph {names}")
        tensors = {what: self.graph.values[name] for what, name in self.tensors.items()}
        out = self.graph.values[self.graph.outputs[0]]
        for stored, like in ((tensors["values"], tensors["keys"]), (out, tensors["queries"])):
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
        made = {*(s.out for s in steps), *self.form.carries, *self.literals}
        for step in steps:
            if whole in step.args and (step.op != "div" or step.args[0] == whole):
                raise PlanError(f"{step.out} = {step.op}(..): this plan only divides by {whole}")
            for arg in step.args:
                if arg not in made:
                    raise PlanError(f"{step.out} needs {arg} after the blocks have combined")
