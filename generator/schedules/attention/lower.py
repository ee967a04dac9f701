"""From a muGraph to its attention program; what this plan can't carry is refused by node."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from mirage_kernels.generator.errors import PlanError
from mirage_kernels.generator.ir import OPS, DType, Graph, Kind, Node, Phase, phases_of
from mirage_kernels.generator.plan.program import needed
from mirage_kernels.generator.plan.threads import without_threads
from mirage_kernels.generator.schedules.attention.program import (
    AttentionProgram,
    Carried,
    Do,
    Literal,
    Place,
    Step,
    require,
)
from mirage_kernels.generator.schedules.attention.roles import named, roles_of
from mirage_kernels.generator.schedules.attention.softmax import (
    COUNTED,
    check_hidden,
    with_softmax_step,
)

_ONE = {Do.QUERIES: "tile of queries", Do.KEYS: "tile of keys", Do.LENGTH: "length per sequence"}
_TENSORS = (Do.QUERIES, Do.KEYS, Do.MORE_QUERIES, Do.MORE_KEYS)


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


class _Lowering:
    """One muGraph on its way to an attention program."""

    def __init__(self, graph: Graph, node: Node, body: Graph) -> None:
        self.graph, self.body, self.phases = graph, body, phases_of(body)
        self.roles, products = roles_of(node, body)
        self.tensor = dict(zip((n.name for n in body.inputs), node.args, strict=True))
        self.literals: dict[str, Literal] = {}
        self.steps: dict[Phase | None, list[Step]] = {phase: [] for phase in Phase}
        heads, depth = self.roles.heads, self.roles.depth
        self.row_vector = (heads, self.roles.group, depth)
        self.vectors = ((depth,), (heads, depth), self.row_vector)
        self.peak = self.only("peak", "running peak")
        summed = self.only("sum", "sum over keys")
        product = self.only("contract", "product over keys")
        self.values, self.weights = self.product_operands(product, products)
        self.scores = {n.name: self.score_operands(n) for n in products}  # keys, then queries
        for looker in (self.peak, summed):
            (name,) = looker.args
            sentence = f"{looker.name} looks along keys of {name}, which are no scores"
            require(self.place(name) is Place.SCORES, sentence)
        self.sum, self.product = self.carried(summed), self.carried(product)
        self.tensors = {"values": self.tensor[self.values]}  # role -> argument

    def run(self, recipe: str) -> AttentionProgram:
        rules: dict[Kind, Callable[[Node], None]] = {
            Kind.SOURCE: self.source,
            Kind.ELEMENTWISE: self.elementwise,
            Kind.CONTRACT: self.contract,
            Kind.REDUCE: self.contract,
            Kind.STABILISER: self.raise_peak,
            Kind.CARRY: self.check_carry,
            Kind.OUTPUT: lambda node: self.add(Do.STORE, node, node.args),
        }
        for node in self.body.nodes:
            rules[OPS[node.op].kind](node)
        self.check_sources()
        self.check_order()
        self.check_after()
        early = (*self.steps[Phase.BEFORE], *self.steps[Phase.LOOP])
        check_hidden(self.body, self.weights, {s.out: s.do for s in early if s.do in COUNTED})
        return self.program(recipe)

    def program(self, recipe: str) -> AttentionProgram:
        (_, resident), *others = self.scores.values()
        more, types = others[0][1] if others else "", self.body.values
        later = (*self.steps[Phase.LOOP], *self.steps[Phase.JOINED])
        used = {resident, more}.union(*(s.args for s in later))
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
            depth=types[resident].type.dim(self.roles.depth).size,
            literals=self.literals,
            before=needed(self.steps[Phase.BEFORE], used),
            resident=resident,
            more_resident=more,
            more_depth=types[more].type.dim(self.roles.more).size if more else 0,
            peak=self.peak.name,
            sum=self.sum,
            product=self.product,
            loop=needed(self.steps[Phase.LOOP], {self.peak.name, self.sum.name, self.product.name}),
            after=needed(self.steps[Phase.JOINED], stored),
        )

    # The nodes that there is one of.

    def place(self, name: str) -> Place:
        type_ = self.body.values[name].type
        place = self.roles.place(type_)
        if place is None:
            raise PlanError(f"{name} {type_} has no place in the plan")
        return place

    def only(self, op: str, words: str) -> Node:
        """Return the one node with an op along the keys."""
        found = [n for n in self.body.of(op) if n.over == self.roles.keys]
        require(len(found) == 1, f"this plan has one {words}, the muGraph {named(found)}")
        in_loop = self.phases[found[0].name] is Phase.LOOP
        require(in_loop, f"{found[0].name} is no value of the loop")
        return found[0]

    def operands(self, node: Node, other: Place, words: str) -> tuple[str, str]:
        """Return the operand of a product that is keys, then the other."""
        places = {a: self.roles.place(self.body.values[a].type) for a in node.args}
        keys, others = sorted(node.args, key=lambda a: places[a] is not Place.KEYS)
        found = (places[keys], places[others]) == (Place.KEYS, other)
        require(found, f"{node.name} is no product of {words}")
        return keys, others

    def product_operands(self, node: Node, products: list[Node]) -> tuple[str, str]:
        """Return the values and their weights.

        Values are an input that is used for nothing else; of latents, the keys as they are.
        """
        values, weights = self.operands(node, Place.SCORES, "values and weights")
        made = self.body.producers[values]
        lookers = [node, products[0]] if len(products) > 1 else [node]
        others = [n.name for n in self.body.users(values) if n not in lookers]
        words = f"used by {others[0]}" if others else "computed"
        read = made.op == "input" and made.loop_cut == self.roles.keys and not others
        require(read, f"{values}, which {node.name} multiplies, is {words}")
        self.require_storage(weights, node)
        return values, weights

    def score_operands(self, node: Node) -> tuple[str, str]:
        """Return keys and queries of a product; the queries' side must not change in the loop."""
        in_loop = self.phases[node.name] is Phase.LOOP
        require(in_loop, f"{node.name}, the product with queries, is not in the loop")
        keys, queries = self.operands(node, Place.QUERIES, "keys and queries")
        early = self.phases[queries] is Phase.BEFORE
        require(early, f"{queries}, the queries' side of {node.name}, changes in the loop")
        for operand in (keys, queries):
            self.require_storage(operand, node)
        return keys, queries

    def require_storage(self, name: str, node: Node) -> None:
        type_ = self.body.values[name].type
        stored = type_.dtype in (DType.FP16, DType.BF16)
        require(stored, f"{node.name} multiplies {name} {type_}")

    def carried(self, node: Node) -> Carried:
        """Return how a sum leaves the loop and the blocks: rescaled by the peak both times."""
        peak, total = self.peak.name, self.only_user(node, "accum_rescaled")
        by = total.args[1]
        require(by == peak, f"{total.name} is rescaled by {by}, not {peak}")
        whole = self.only_user(total, "combine_rescaled")
        last = self.body.producers[whole.args[1]]
        alike = last.op == "last" and last.args == (peak,) and whole.over == self.roles.keys
        require(alike, f"{whole.name} combines by {last.name}, no peak of the same loop")
        return Carried(node.name, total.name, whole.name, node.out.type)

    def only_user(self, node: Node, op: str) -> Node:
        users = self.body.users(node.name)
        found = ", ".join(f"{u.name} = {u.op}" for u in users) or "nothing"
        require(
            [u.op for u in users] == [op] and users[0].args[0] == node.name,
            f"{node.name} is carried by {op} only in this plan, not by {found}",
        )
        return users[0]

    # Node by node.

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
        made, place = self.graph.producers[self.tensor[node.name]], self.place(node.name)
        roles, type_, looped = self.roles, node.out.type, node.loop_cut is not None
        more = roles.more in type_.names
        along = roles.more if more else roles.depth
        queries = {roles.sequences, *roles.rows, roles.heads, along} - {""}
        if made.op in ("const", "size"):
            self.source(replace(made, outs=node.outs))
        elif made.op == "iota" and made.over == roles.keys and looped:
            self.add(Do.KEY_POSITIONS, node)
        elif made.op == "iota":
            planned = made.over == roles.tokens
            require(planned, f"{node.name}: positions along {made.over} are not planned")
            self.add(Do.ROW_TOKENS, node)
        elif place is Place.KEYS and looped:
            if node.name != self.values or roles.more:
                self.add(Do.MORE_KEYS if more else Do.KEYS, node)
        elif place is Place.QUERIES and {*type_.names} == queries:
            self.add(Do.MORE_QUERIES if more else Do.QUERIES, node)
        elif type_.names in self.vectors:
            do = Do.ROW_VECTORS if type_.names == self.row_vector else Do.VECTOR
            self.add(do, node, (made.name,))
        elif type_.dtype is DType.INT32 and type_.names == (roles.sequences,):
            self.add(Do.LENGTH, node)
        elif type_.dims:
            raise PlanError(f"{node.name} {type_} is an input that this plan does not read")

    def elementwise(self, node: Node) -> None:
        """Map values; one of the result's kind comes first, if the result is a tile.

        Fragments broadcast to the first operand; only commutative ops may be turned round.
        """
        peak, args = self.peak.name, node.args
        if self.phases[node.name] is not Phase.JOINED:
            place = self.place(node.name)
            tile = place in (Place.QUERIES, Place.KEYS, Place.DEPTH_VECTOR)
            if tile and self.place(args[0]) is not place:
                sentence = f"{node.name} = {node.op}(..) broadcasts its first operand"
                require(OPS[node.op].commutative, sentence)
                args = args[::-1]
        if peak in node.args and (node.op != "sub" or node.args[0] == peak):
            raise PlanError(f"{node.name} = {node.op}(..): a peak is only subtracted in this plan")
        self.add(Do.MAP, node, args, op=node.op)

    def contract(self, node: Node) -> None:
        """Place a product or a sum: over keys, of keys and queries, or along the depth."""
        if node.name == self.product.name:
            self.add(Do.PRODUCT, node, (self.values, self.weights))
        elif node.name == self.sum.name:
            self.add(Do.SUM, node, node.args)
        elif node.name in self.scores:
            first = node.name == next(iter(self.scores))
            do = Do.SCORES if first else Do.MORE_SCORES
            self.add(do, node, self.scores[node.name][:1])
        else:
            self.line_sum(node)

    def line_sum(self, node: Node) -> None:
        """Sum along the depth, line by line: of a tile, or of it times another or a vector."""
        tiles_first = sorted(node.args, key=lambda a: self.place(a) is Place.DEPTH_VECTOR)
        kinds = {self.place(a) for a in node.args}
        tiles = self.place(tiles_first[0]) in (Place.QUERIES, Place.KEYS)
        alike = len(kinds - {Place.DEPTH_VECTOR}) == 1
        words = " and ".join(sorted(k.value for k in kinds))
        require(
            node.over == self.roles.depth and tiles and alike,
            f"{node.name} sums {node.over} of {words}, which is not planned",
        )
        self.add(Do.LINE_SUM, node, tuple(tiles_first))

    def raise_peak(self, node: Node) -> None:
        one = node is self.peak
        require(one, f"{node.name} is a peak along {node.over}, this plan has one of keys")
        self.add(Do.RAISE, node, node.args)

    # What holds for the whole.

    @property
    def carries(self) -> set[str]:
        """All values that leave the loop, or the blocks."""
        last = {n.name for n in self.body.of("last") if n.args == (self.peak.name,)}
        return last.union(*((c.total, c.whole) for c in (self.sum, self.product)))

    def check_carry(self, node: Node) -> None:
        sentence = f"{node.name} = {node.op}(..) carries what this plan does not"
        require(node.name in self.carries, sentence)

    def check_sources(self) -> None:
        """Refuse several tiles of queries or keys, several lengths or none, and odd orders."""
        early = (*self.steps[Phase.BEFORE], *self.steps[Phase.LOOP])
        for do, words in _ONE.items():
            found = [s.out for s in early if s.do is do]
            names = " and ".join(found) or "none"
            require(len(found) == 1, f"this plan has one {words}, the muGraph {names}")
        tensors = {what: self.graph.values[name] for what, name in self.tensors.items()}
        out = self.graph.values[self.graph.outputs[0]]
        for stored, like in ((tensors["values"], tensors["keys"]), (out, tensors["queries"])):
            alike = stored.type.names == like.type.names
            require(alike, f"{stored.name} {stored.type} is not stored as {like.name} is")

    def check_order(self) -> None:
        """Refuse sums that do not follow the peak, and what a block computes of its own sums."""
        order, peak = [s.out for s in self.steps[Phase.LOOP]], self.peak.name
        for name in (self.sum.name, self.product.name):
            later = order.index(name) > order.index(peak)
            require(later, f"{name} is added before {peak} is raised")
        for step in self.steps[Phase.AFTER]:
            raise PlanError(f"{step.out} is computed by each block before they combine")

    def check_after(self) -> None:
        """Refuse what an element of the result can't look into, and sums that do not divide."""
        steps, whole = self.steps[Phase.JOINED], self.sum.whole
        made = {*(s.out for s in steps), *self.carries, *self.literals}
        for step in steps:
            if whole in step.args and (step.op != "div" or step.args[0] == whole):
                raise PlanError(f"{step.out} = {step.op}(..): this plan only divides by {whole}")
            for arg in step.args:
                require(arg in made, f"{step.out} needs {arg} after the blocks have combined")
