"""From a tile program to the attention program that schedules run; others are refused by statement.

The tile program of a muGraph (`tiles/lower.py`) says what its block loads, contracts, reduces with
a running maximum and combines. Here the roles of attention are read into that, and each statement,
and each node of the formulas between them, becomes one of device code's.

Lines of a cache may be keys and values alike, with more of the keys beside them (latent attention).
Scores are the sum of two products then: of queries with the lines whose values are summed, and of
what else queries have with the rest of the keys, along a dim of their own.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

from mirage_kernels.generator.errors import PlanError
from mirage_kernels.generator.ir import OPS, DType, Graph, Kind, Node, Phase, phases_of
from mirage_kernels.generator.plan.program import needed
from mirage_kernels.generator.plan.storage import require_own_type
from mirage_kernels.generator.schedules.attention.program import (
    AttentionProgram,
    Carried,
    Do,
    Literal,
    Place,
    Step,
    require,
)
from mirage_kernels.generator.schedules.attention.roles import (
    Joined,
    joined_of,
    require_one,
    roles_of,
)
from mirage_kernels.generator.schedules.attention.softmax import (
    COUNTED,
    check_hidden,
    softmax_step,
)
from mirage_kernels.generator.tiles.lower import RESCALE, block_program
from mirage_kernels.generator.tiles.program import BlockProgram
from mirage_kernels.generator.tiles.statements import Combine, Load

_ONE = {Do.QUERIES: "tile of queries", Do.KEYS: "tile of keys", Do.LENGTH: "length per sequence"}
_ALONG_KEYS = {"peak": "running peak", "sum": "sum over keys", "contract": "product over keys"}
THREADS, STAGES = 128, 1  # of the tile program; schedules have knobs of their own


def attention_program(recipe: str, graph: Graph) -> AttentionProgram:
    """Return the attention program of a muGraph.

    Raises PlanError for other muGraphs: several kernels, no loop or another split, exponentials
    without a running peak, several products with queries or values, a value with no place.
    """
    extra = [n for n in graph.nodes if n.op not in ("input", "iota", "size", "const", "block")]
    if len(graph.blocks) != 1 or extra:
        names = ", ".join(n.name for n in (*graph.blocks, *extra))
        raise PlanError(f"{recipe}: attention is planned as one kernel, not as {names}")
    require_own_type(recipe, graph, (DType.INT32,))
    (node,) = graph.blocks
    if len(node.outs) != 1:
        raise PlanError(f"{recipe}: {node.name} stores several results, this plan takes one")
    return attention_of(recipe, graph, block_program(graph, node, THREADS, STAGES))


def attention_of(recipe: str, graph: Graph, block: BlockProgram) -> AttentionProgram:
    """Return the attention program that a muGraph's tile program becomes, or raise PlanError.

    What is done with scores is one online-softmax step, last in the loop, where that can be formed.
    """
    try:
        program = _Lowering(graph, block).program(recipe)
    except PlanError as error:
        raise PlanError(f"{recipe}: {error.sentence}", error.hint) from None
    with suppress(PlanError):  # without the step there are tiles of few rows only
        step = softmax_step(program)
        return replace(program, loop=(*(s for s in program.loop if s not in step.covers), step))
    return program


class _Lowering:
    """One tile program on its way to an attention program."""

    def __init__(self, graph: Graph, block: BlockProgram) -> None:
        self.graph, self.block, self.body = graph, block, block.body
        self.phases, self.joined = phases_of(self.body), joined_of(block)
        self.roles, products = roles_of(block, self.joined)
        loop = block.statements[Phase.LOOP]
        self.loaded = {s.value for s in loop if isinstance(s, Load)}
        self.literals: dict[str, Literal] = {}
        self.steps: dict[Phase | None, list[Step]] = {phase: [] for phase in Phase}
        heads, group, depth = self.roles.heads, self.roles.group, self.roles.depth
        self.vectors = {(depth,): Do.VECTOR, (heads, depth): Do.VECTOR}
        self.vectors[heads, group, depth] = Do.ROW_VECTORS
        self.peak, summed, product = map(self.only, _ALONG_KEYS)
        self.scores = {s.name: self.operands(s, Place.QUERIES) for s in products}
        values, self.weights = self.operands(product, Place.SCORES)
        known = (product, *products[:-1])
        others = {n.name for n in self.body.users(values)} - {s.name for s in known}
        words = f"used by {min(others)}" if others else "computed"
        alone = values in self.loaded and not others
        require(alone, f"{values}, which {product.name} multiplies, is {words}")
        self.values, self.tensors = values, {"values": block.tensors[values]}  # role -> argument
        # All values that leave the loop, or the blocks.
        self.carries = {n.name for n in self.body.of("last") if n.args == (self.peak.name,)}
        self.sum, self.product = self.carried(summed), self.carried(product)

    def program(self, recipe: str) -> AttentionProgram:
        """Return the program, without an online-softmax step."""
        self.lower()
        self.check()
        (_, resident), *others = self.scores.values()
        more, types = others[0][1] if others else "", self.body.values
        before, loop, after = (self.steps[p] for p in (Phase.BEFORE, Phase.LOOP, Phase.JOINED))
        used = {resident, more}.union(*(s.args for s in (*loop, *after)))
        inputs = {n.name: n.out.type for n in self.graph.inputs}
        numbers = {name: type_.dtype for name, type_ in inputs.items() if not type_.dims}
        return AttentionProgram(
            recipe=recipe,
            roles=self.roles,
            tensors=self.tensors,
            scalars=tuple(n for n, dtype in numbers.items() if dtype is DType.FP32),
            integers=tuple(n for n, dtype in numbers.items() if dtype is DType.INT32),
            vectors=tuple(n for n, type_ in inputs.items() if type_.names in self.vectors),
            depth=types[resident].type.dim(self.roles.depth).size,
            literals=self.literals,
            before=needed(before, used),
            resident=resident,
            more_resident=more,
            more_depth=types[more].type.dim(self.roles.more).size if more else 0,
            peak=self.peak.name,
            sum=self.sum,
            product=self.product,
            loop=needed(loop, {self.peak.name, self.sum.name, self.product.name}),
            after=needed(after, {s.out for s in after if s.do is Do.STORE}),
        )

    def place(self, name: str) -> Place:
        type_ = self.body.values[name].type
        place = self.roles.place(type_)
        if place is None:
            raise PlanError(f"{name} {type_} has no place in the plan")
        return place

    def only(self, op: str) -> Joined:
        """Return the one statement that joins in a way along the keys."""
        keys = self.roles.keys
        found = {n: s for n, s in self.joined.items() if (s.op, s.over) == (op, keys)}
        require_one([*found], _ALONG_KEYS[op])
        (s,) = found.values()
        sentence = f"{s.name} looks along keys of {s.args[0]}, which are no scores"
        require(op == "contract" or self.place(s.args[0]) is Place.SCORES, sentence)
        return s

    def operands(self, s: Joined, other: Place) -> tuple[str, str]:
        """Return the operand of a product that is keys or values, then queries or weights.

        The queries' side must not change in the loop.
        """
        places = {a: self.roles.place(self.body.values[a].type) for a in s.args}
        keys, others = sorted(s.args, key=lambda a: places[a] is not Place.KEYS)
        of_queries = other is Place.QUERIES
        words = "keys and queries" if of_queries else "values and weights"
        found = (places[keys], places[others]) == (Place.KEYS, other)
        require(found, f"{s.name} is no product of {words}")
        early = self.phases[others] is Phase.BEFORE or not of_queries
        require(early, f"{others}, the queries' side of {s.name}, changes in the loop")
        return keys, others

    def carried(self, s: Joined) -> Carried:
        """Return how a sum leaves the loop and the blocks: rescaled by the peak both times."""
        self.require_carry(s.name, "accum_rescaled", s.factor)
        by, peak = s.factor.removesuffix(RESCALE), self.peak.name
        require(s.factor == self.peak.factor, f"{s.total} is rescaled by {by}, not {peak}")
        joined = (c for c in self.block.statements[Phase.JOINED] if isinstance(c, Combine))
        found = {c.tile: c.peak for c in joined if c.value == s.total and c.peak and c.op == "sum"}
        self.require_carry(s.total, "combine_rescaled", len(found) == 1)
        ((whole, last),) = found.items()
        alike = [*self.block.leaves(last)] == [peak]
        require(alike, f"{whole} combines by {last}, no peak of the same loop")
        self.carries |= {s.total, whole}
        return Carried(s.name, whole, self.block.type(s.name))

    def require_carry(self, name: str, op: str, found: object) -> None:
        words = ", ".join(f"{u.name} = {u.op}" for u in self.body.users(name)) or "nothing"
        require(found, f"{name} is carried by {op} only in this plan, not by {words}")

    # Node by node.

    def lower(self) -> None:
        """Append each node's statement to the phase of the kernel that it belongs to."""
        for node in self.body.nodes:
            kind = OPS[node.op].kind
            if kind is Kind.SOURCE:
                self.source(node)
            elif kind is Kind.ELEMENTWISE:
                self.elementwise(node)
            elif node.name in self.joined:
                self.join(node, self.joined[node.name])
            elif node.op == "output":
                self.add(Do.STORE, node, node.args)
            else:
                sentence = f"{node.name} = {node.op}(..) carries what this plan does not"
                require(node.name in self.carries, sentence)

    def add(self, do: Do, node: Node, args: tuple[str, ...] = ()) -> None:
        op = node.op if do is Do.MAP else ""
        self.steps[self.phases[node.name]].append(Step(do, node.name, args, node.out.type, op))

    def source(self, node: Node) -> None:
        """Place a number, an extent, positions in a whole tensor, or a tile of an argument."""
        made = self.graph.producers[self.block.tensors[node.name]] if node.op == "input" else node
        real, roles = node.out.type.dtype.is_real, self.roles
        number = {"iota": Do.ROW_TOKENS, "size": Do.TOKEN_COUNT}.get(made.op)
        if made.op == "input":
            self.tile(node, made.name)
        elif made.op == "const":
            self.literals[node.name] = float(made.value) if real else int(made.value)
        elif made.op == "size" and made.over == roles.depth and real:
            self.literals[node.name] = made.over
        elif made.op == "iota" and made.over == roles.keys and node.loop_cut:
            self.add(Do.KEY_POSITIONS, node)
        elif number and made.over == roles.tokens and node.op != "iota":
            self.add(number, node)
        else:
            raise PlanError(f"{node.name} = {made.op}({made.over}) is not planned")

    def tile(self, node: Node, name: str) -> None:
        """Place a tile of an argument."""
        place, roles, type_ = self.place(node.name), self.roles, node.out.type
        more = roles.more in type_.names
        along = roles.more if more else roles.depth
        if type_.names in self.vectors:
            return self.add(self.vectors[type_.names], node, (name,))
        if type_.dtype is DType.INT32 and type_.names == (roles.sequences,):
            return self.add(Do.LENGTH, node)
        if not type_.dims or (node.name == self.values and not roles.more):
            return None
        of_queries = {*type_.names} == {roles.sequences, *roles.rows, roles.heads, along} - {""}
        read = of_queries or (place is Place.KEYS and node.name in self.loaded)
        require(read, f"{node.name} {type_} is an input that this plan does not read")
        what = f"{'more ' if more else ''}{'queries' if of_queries else 'keys'}"
        self.tensors[what] = name
        return self.add(Do(what), node)

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
        lowered = peak not in args or (node.op == "sub" and node.args[0] != peak)
        require(lowered, f"{node.name} = {node.op}(..): a peak is only subtracted in this plan")
        self.add(Do.MAP, node, args)

    def join(self, node: Node, s: Joined) -> None:
        """Place a running maximum, a product or a sum: over keys, or along the depth.

        What is summed along the depth is a tile, or a tile times another or a vector.
        """
        if s is self.peak:
            return self.add(Do.RAISE, node, s.args)
        if s.name == self.product.name:
            return self.add(Do.PRODUCT, node, (self.values, self.weights))
        if s.name == self.sum.name:
            return self.add(Do.SUM, node, s.args)
        if s.name in self.scores:
            first = s.name == next(iter(self.scores))
            do = Do.SCORES if first else Do.MORE_SCORES
            return self.add(do, node, self.scores[s.name][:1])
        sentence = f"{s.name} is a {node.op} along {s.over}, this plan has one of keys"
        require(s.op == "sum", sentence)
        args = sorted(s.args, key=lambda a: self.place(a) is Place.DEPTH_VECTOR)
        kinds = {self.place(a) for a in args}
        tiles = self.place(args[0]) in (Place.QUERIES, Place.KEYS)
        planned = s.over == self.roles.depth and tiles and len(kinds - {Place.DEPTH_VECTOR}) == 1
        words = " and ".join(sorted(k.value for k in kinds))
        require(planned, f"{s.name} sums {s.over} of {words}, which is not planned")
        return self.add(Do.LINE_SUM, node, tuple(args))

    def check(self) -> None:
        """Refuse what no statement alone says: what there is one of, and what may be read."""
        early = (*self.steps[Phase.BEFORE], *self.steps[Phase.LOOP])
        for do, words in _ONE.items():
            require_one([s.out for s in early if s.do is do], words)
        tensors = {what: self.graph.values[name] for what, name in self.tensors.items()}
        out = self.graph.values[self.graph.outputs[0]]
        for stored, like in ((tensors["values"], tensors["keys"]), (out, tensors["queries"])):
            alike = stored.type.names == like.type.names
            require(alike, f"{stored.name} {stored.type} is not stored as {like.name} is")
        joined, whole = self.steps[Phase.JOINED], self.sum.whole
        made = {*(s.out for s in joined), *self.carries, *self.literals}
        for step in joined:
            divides = whole not in step.args or (step.op == "div" and step.args[0] != whole)
            require(divides, f"{step.out} = {step.op}(..): this plan only divides by {whole}")
            for arg in step.args:
                require(arg in made, f"{step.out} needs {arg} after the blocks have combined")
        check_hidden(self.body, self.weights, {s.out: s.do for s in early if s.do in COUNTED})
