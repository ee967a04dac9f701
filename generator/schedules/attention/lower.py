"""From a muGraph to its attention program; what this plan can't carry is refused by node.

Lines of a cache may be keys and values alike, with more of the keys beside them (latent attention).
Scores are the sum of two products then: of queries with the lines whose values are summed, and of
what else queries have with the rest of the keys, along a dim of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

from mirage_kernels.generator.errors import PlanError
from mirage_kernels.generator.ir import OPS, Dim, DType, Graph, Kind, Node, Phase, phases_of
from mirage_kernels.generator.plan.program import needed
from mirage_kernels.generator.plan.threads import without_threads
from mirage_kernels.generator.schedules.attention.program import (
    AttentionProgram,
    AttentionRoles,
    Carried,
    Do,
    Literal,
    Place,
    Step,
    require,
)
from mirage_kernels.generator.schedules.attention.softmax import (
    COUNTED,
    check_hidden,
    softmax_step,
)

_ONE = {Do.QUERIES: "tile of queries", Do.KEYS: "tile of keys", Do.LENGTH: "length per sequence"}
_ALONG_KEYS = {"peak": "running peak", "sum": "sum over keys", "contract": "product over keys"}


def attention_program(recipe: str, graph: Graph) -> AttentionProgram:
    """Return the attention program of a muGraph.

    Raises PlanError for other muGraphs: several kernels, no loop or another split, exponentials
    without a running peak, several products with queries or values, a value with no place. What is
    done with scores is one online-softmax step, last in the loop, where that can be formed.
    """
    extra = [n for n in graph.nodes if n.op not in ("input", "iota", "size", "const", "block")]
    if len(graph.blocks) != 1 or extra:
        names = ", ".join(n.name for n in (*graph.blocks, *extra))
        raise PlanError(f"{recipe}: attention is planned as one kernel, not as {names}")
    (node,) = graph.blocks
    if len(node.outs) != 1:
        raise PlanError(f"{recipe}: {node.name} stores several results, this plan takes one")
    try:
        program = _Lowering(graph, node).program(recipe)
    except PlanError as error:
        raise PlanError(f"{recipe}: {error.sentence}", error.hint) from None
    with suppress(PlanError):  # without the step there are tiles of few rows only
        step = softmax_step(program)
        return replace(program, loop=(*(s for s in program.loop if s not in step.covers), step))
    return program


def _roles(node: Node, body: Graph) -> tuple[AttentionRoles, list[Node]]:
    """Return the roles of dims, and the products of queries and keys.

    Roles follow from how keys and queries are stored: keys by sequence, position, perhaps head, and
    depth, which is what their product contracts; queries by sequence, perhaps token, head, head of
    the group, and depth. The dim of the loop must be the one that blocks split.
    """
    assert body.space is not None
    require(body.space.loop is not None, f"{node.name} has no loop over keys")
    assert body.space.loop is not None
    keys, split = body.space.loop.dim, [axis.dim for axis in body.space.reduced]
    names = ", ".join(split) or "nothing"
    require(split == [keys], f"{node.name}: its blocks split {names}, this plan splits {keys}")
    scores, *more = products = _score_products(body, keys)
    sides = sorted(scores.args, key=lambda a: keys not in body.values[a].type.names)
    of_keys, of_queries = (_stored(side, body) for side in sides)
    depth, names = scores.over, ", ".join(d.name for d in of_keys)
    by_sequence = len(of_keys) in (3, 4) and (of_keys[1].name, of_keys[-1].name) == (keys, depth)
    require(by_sequence, f"keys are stored as [{names}], not by sequence, {keys}, head and {depth}")
    heads, rows = of_keys[2:-1], tuple(d for d in of_queries if d not in of_keys)
    names = ", ".join(d.name for d in of_queries)
    in_order = of_queries == (of_keys[0], *rows[:-1], *heads, *rows[-1:], of_keys[-1])
    sentence = f"queries are stored as [{names}], not by sequence, token, head and group"
    require(in_order and 1 <= len(rows) <= 2, sentence)
    for dim in (*of_keys[:-1], *rows):
        sentence = f"{dim.name} is static, this plan takes all dims but {depth} at run time"
        require(dim.dynamic, sentence, f'name it in the recipe: dynamic={{"{dim.name}": ...}}')
    compiled = not of_keys[-1].dynamic
    require(compiled, f"{depth} is dynamic, this plan takes its extent when it is compiled")
    roles = AttentionRoles(
        keys=keys,
        depth=depth,
        rows=tuple(d.name for d in rows),
        heads=heads[0].name if heads else "",
        sequences=of_keys[0].name,
        more=more[0].over if more else "",
    )
    return roles, products


def _score_products(body: Graph, keys: str) -> list[Node]:
    """Return the product of keys and queries, then that of what else the keys have, if any.

    Either is of one operand along the keys and one that is not. Of two, the first one's keys are
    what the product over the keys sums, too.
    """
    products, found = body.of("contract"), []
    summed = {a for node in products if node.over == keys for a in node.args}
    for node in products:
        sides = [{*body.values[a].type.names} for a in node.args]
        of_keys = node.over != keys and sum(keys in s for s in sides) == 1
        if of_keys and len(set().union(*sides)) > 3:
            found.append(node)
    found.sort(key=lambda node: not summed & {*node.args})
    latent = len(found) == 2 and summed & {*found[0].args} and found[0].over != found[1].over
    _require_one([n.name for n in found[: 1 if latent else None]], "product of keys and queries")
    return found


def _stored(operand: str, body: Graph) -> tuple[Dim, ...]:
    """Return the dims of the widest input that a value is made of elementwise, as it is stored."""
    node = body.producers[operand]
    if OPS[node.op].kind is Kind.ELEMENTWISE:
        return max((_stored(a, body) for a in node.args), key=len)
    return node.out.type.dims if node.op == "input" else ()


def _require_one(found: Sequence[str], words: str) -> None:
    names = " and ".join(found) or "none"
    require(len(found) == 1, f"this plan has one {words}, the muGraph {names}")


class _Lowering:
    """One muGraph on its way to an attention program."""

    def __init__(self, graph: Graph, node: Node) -> None:
        assert node.body is not None
        self.graph, self.body = graph, without_threads(node.body)
        self.phases = phases_of(self.body)
        self.roles, products = _roles(node, self.body)
        self.tensor = dict(zip((n.name for n in self.body.inputs), node.args, strict=True))
        self.literals: dict[str, Literal] = {}
        self.steps: dict[Phase | None, list[Step]] = {phase: [] for phase in Phase}
        heads, group, depth = self.roles.heads, self.roles.group, self.roles.depth
        self.vectors = {(depth,): Do.VECTOR, (heads, depth): Do.VECTOR}
        self.vectors[heads, group, depth] = Do.ROW_VECTORS
        self.peak, summed, product = map(self.only, _ALONG_KEYS)
        self.scores = {n.name: self.operands(n, Place.QUERIES) for n in products}
        values, self.weights = self.operands(product, Place.SCORES)
        others = [n for n in self.body.users(values) if n not in (product, *products[:-1])]
        words = f"used by {others[0].name}" if others else "computed"
        looped = self.body.producers[values].loop_cut == self.roles.keys
        require(looped and not others, f"{values}, which {product.name} multiplies, is {words}")
        self.values, self.tensors = values, {"values": self.tensor[values]}  # role -> argument
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

    def only(self, op: str) -> Node:
        """Return the one node with an op along the keys."""
        found = {n.name: n for n in self.body.of(op) if n.over == self.roles.keys}
        _require_one([*found], _ALONG_KEYS[op])
        (node,) = found.values()
        require(self.phases[node.name] is Phase.LOOP, f"{node.name} is no value of the loop")
        if op != "contract":
            sentence = f"{node.name} looks along keys of {node.args[0]}, which are no scores"
            require(self.place(node.args[0]) is Place.SCORES, sentence)
        return node

    def operands(self, node: Node, other: Place) -> tuple[str, str]:
        """Return the operand of a product that is keys or values, then queries or weights.

        The queries' side must not change in the loop.
        """
        places = {a: self.roles.place(self.body.values[a].type) for a in node.args}
        keys, others = sorted(node.args, key=lambda a: places[a] is not Place.KEYS)
        of_queries = other is Place.QUERIES
        words = "keys and queries" if of_queries else "values and weights"
        found = (places[keys], places[others]) == (Place.KEYS, other)
        require(found, f"{node.name} is no product of {words}")
        early = self.phases[others] is Phase.BEFORE or not of_queries
        require(early, f"{others}, the queries' side of {node.name}, changes in the loop")
        for name in (keys, others):
            type_ = self.body.values[name].type
            stored = type_.dtype in (DType.FP16, DType.BF16)
            require(stored, f"{node.name} multiplies {name} {type_}")
        return keys, others

    def carried(self, node: Node) -> Carried:
        """Return how a sum leaves the loop and the blocks: rescaled by the peak both times."""
        peak, found = self.peak.name, [node]
        for op in ("accum_rescaled", "combine_rescaled"):
            name, users = found[-1].name, self.body.users(found[-1].name)
            words = ", ".join(f"{u.name} = {u.op}" for u in users) or "nothing"
            alone = [u.op for u in users] == [op] and users[0].args[0] == name
            require(alone, f"{name} is carried by {op} only in this plan, not by {words}")
            found.append(users[0])
        _, total, whole = found
        by, last = total.args[1], self.body.producers[whole.args[1]]
        require(by == peak, f"{total.name} is rescaled by {by}, not {peak}")
        alike = last.op == "last" and last.args == (peak,) and whole.over == self.roles.keys
        require(alike, f"{whole.name} combines by {last.name}, no peak of the same loop")
        self.carries |= {total.name, whole.name}
        return Carried(node.name, whole.name, node.out.type)

    # Node by node.

    def lower(self) -> None:
        """Append each node's statement to the phase of the kernel that it belongs to."""
        for node in self.body.nodes:
            kind = OPS[node.op].kind
            if kind is Kind.SOURCE:
                self.source(node)
            elif kind is Kind.ELEMENTWISE:
                self.elementwise(node)
            elif node.op in ("contract", "sum"):
                self.contract(node)
            elif kind in (Kind.STABILISER, Kind.REDUCE):
                sentence = (
                    f"{node.name} is a {node.op} along {node.over}, this plan has one of keys"
                )
                require(node is self.peak, sentence)
                self.add(Do.RAISE, node, node.args)
            elif kind is Kind.CARRY:
                sentence = f"{node.name} = {node.op}(..) carries what this plan does not"
                require(node.name in self.carries, sentence)
            else:
                self.add(Do.STORE, node, node.args)

    def add(self, do: Do, node: Node, args: tuple[str, ...] = ()) -> None:
        op = node.op if do is Do.MAP else ""
        self.steps[self.phases[node.name]].append(Step(do, node.name, args, node.out.type, op))

    def source(self, node: Node) -> None:
        """Place a number, an extent, positions in a whole tensor, or a tile of an argument."""
        made = self.graph.producers[self.tensor[node.name]] if node.op == "input" else node
        real, roles = node.out.type.dtype.is_real, self.roles
        number = {"iota": Do.ROW_TOKENS, "size": Do.TOKEN_COUNT}.get(made.op)
        if made.op == "input":
            self.tile(node, made.name)
        elif made.op == "const":
            self.literals[node.name] = float(made.value) if real else int(made.value)
        elif made.op == "size" and made.over == roles.depth and real:
            self.literals[node.name] = made.over
        elif made.op == "iota" and made.over == roles.keys and node.loop_cut is not None:
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
        read = of_queries or (place is Place.KEYS and node.loop_cut is not None)
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

    def contract(self, node: Node) -> None:
        """Place a product or a sum: over keys, of keys and queries, or along the depth.

        What is summed along the depth is a tile, or a tile times another or a vector.
        """
        if node.name == self.product.name:
            return self.add(Do.PRODUCT, node, (self.values, self.weights))
        if node.name == self.sum.name:
            return self.add(Do.SUM, node, node.args)
        if node.name in self.scores:
            first = node.name == next(iter(self.scores))
            do = Do.SCORES if first else Do.MORE_SCORES
            return self.add(do, node, self.scores[node.name][:1])
        args = sorted(node.args, key=lambda a: self.place(a) is Place.DEPTH_VECTOR)
        kinds = {self.place(a) for a in args}
        tiles = self.place(args[0]) in (Place.QUERIES, Place.KEYS)
        planned = node.over == self.roles.depth and tiles and len(kinds - {Place.DEPTH_VECTOR}) == 1
        words = " and ".join(sorted(k.value for k in kinds))
        require(planned, f"{node.name} sums {node.over} of {words}, which is not planned")
        return self.add(Do.LINE_SUM, node, tuple(args))

    def check(self) -> None:
        """Refuse what no statement alone says: what there is one of, orders, what may be read."""
        early = (*self.steps[Phase.BEFORE], *self.steps[Phase.LOOP])
        for do, words in _ONE.items():
            _require_one([s.out for s in early if s.do is do], words)
        tensors = {what: self.graph.values[name] for what, name in self.tensors.items()}
        out = self.graph.values[self.graph.outputs[0]]
        for stored, like in ((tensors["values"], tensors["keys"]), (out, tensors["queries"])):
            alike = stored.type.names == like.type.names
            require(alike, f"{stored.name} {stored.type} is not stored as {like.name} is")
        order, peak, whole = [s.out for s in early], self.peak.name, self.sum.whole
        for name in (self.sum.name, self.product.name):
            later = order.index(name) > order.index(peak)
            require(later, f"{name} is added before {peak} is raised")
        for step in self.steps[Phase.AFTER]:
            raise PlanError(f"{step.out} is computed by each block before they combine")
        joined = self.steps[Phase.JOINED]
        made = {*(s.out for s in joined), *self.carries, *self.literals}
        for step in joined:
            divides = whole not in step.args or (step.op == "div" and step.args[0] != whole)
            require(divides, f"{step.out} = {step.op}(..): this plan only divides by {whole}")
            for arg in step.args:
                require(arg in made, f"{step.out} needs {arg} after the blocks have combined")
        check_hidden(self.body, self.weights, {s.out: s.do for s in early if s.do in COUNTED})
