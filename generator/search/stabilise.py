"""Safe exponentials: every exp that is summed is taken relative to a peak, which cancels.

    sum(exp(s) * v) / sum(exp(s))  ->  sum(exp(s - m) * v) / sum(exp(s - m)),   m = peak(s)

A value computed from exp(s - m) is exp(-d * m) times what it was; d is its degree. Products add
degrees, quotients subtract them, sums want equal ones. Where a degree is not yet cancelled, what
carries it rescales: an accumulator whenever the running peak rises, the blocks of a split when they
combine, a last kernel by the peaks that the first one stores beside its partial sums. The rewrite
knows no recipe; that its result is right for any peak at all is proved like everything else.

A program in which a degree is left over, or meets a function without a law, stays as it was: then
the numeric gate says whether it is safe.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from mirage_kernels.generator.ir import (
    Builder,
    DType,
    Graph,
    Level,
    Node,
    TensorType,
    Value,
    check,
    parts_of,
    tile_type,
    with_precision,
)
from mirage_kernels.generator.ir.infer import SCALAR, extents_of

Degree = Mapping[str, int]  # peak -> power of exp(-peak) in the value
NO_MASK = "minus_infinity"


class _UnstableError(Exception):
    """A degree that nothing cancels or that a function has no law for."""


def stabilise(graph: Graph, storage: DType) -> Graph:
    """Return a kernel graph whose exponentials cannot overflow, or `graph` if there is no way."""
    bodies = [n.body for n in graph.blocks if n.body is not None]
    if not any(part.of("exp") for part in (graph, *bodies)):
        return graph
    try:
        return check(_Kernels(graph, Builder(Level.KERNEL)).run(storage))
    except _UnstableError:
        return graph


@dataclass
class _Rewrite:
    """A graph being rebuilt: its new nodes, and the degree of every value."""

    graph: Graph
    builder: Builder
    degrees: dict[str, Degree] = field(default_factory=dict)
    added: dict[tuple[str, ...], str] = field(default_factory=dict)

    def add(self, op: str, args: tuple[str, ...], name: str, over: str = "") -> str:
        """Append a node under a free name, the same one for the same op on the same values."""
        key = (op, over, *args)
        if key not in self.added:
            free = self.builder.free_name(name)
            self.added[key] = self.builder.add(Node(op, args, (Value(free, SCALAR),), over=over))
        return self.added[key]

    def need(self, name: str) -> None:
        """Append a value of the graph, and first what it is made of, if that is not done yet."""
        if name in self.degrees:
            return
        node = self.graph.producers[name]
        for arg in node.args:
            self.need(arg)
        rules = {"exp": self.exp, "sum": self.total, "contract": self.total}
        rules |= {"accum": self.carry, "combine": self.carry}
        rules.get(node.op, self.keep)(node)

    def keep(self, node: Node) -> None:
        """Append a node as it is."""
        self.builder.add(node)
        self.degrees[node.name] = self.degree_of(node)

    def exp(self, node: Node) -> None:
        """Take exp relative to the peak of its argument along the dims that it is summed along."""
        (argument,) = node.args
        dims, reached = set[str](), {node.name}
        for user in self.graph.nodes:  # operands first
            if reached & {*user.args}:
                reached |= {v.name for v in user.outs}
                dims |= {user.over} if user.op in ("sum", "contract") else set()
        dims &= {*self.builder.types[argument].names}
        if not dims:
            self.keep(node)
            return
        peak = self.seen(node, argument)
        for dim in sorted(dims):
            peak = self.add("peak", (peak,), "peak", over=dim)
        lowered = self.add("sub", (argument, peak), f"lowered_{argument}")
        self.builder.add(replace(node, args=(lowered,)))
        self.degrees[node.name] = {peak: 1}

    def seen(self, node: Node, argument: str) -> str:
        """Return exp's argument where the program looks at it, minus infinity where it masks it."""
        users = self.graph.users(node.name)
        if not all(u.op == "where" for u in users):
            return argument
        masks = {u.args[0] for u in users if self.is_zero(u.args[2])}
        if len(masks) != 1:
            return argument
        if NO_MASK not in self.builder.types:
            infinity = Node("const", (), (Value(NO_MASK, SCALAR),), value=float("-inf"))
            self.builder.add(infinity)
        mask = masks.pop()
        self.need(mask)
        return self.add("where", (mask, argument, NO_MASK), f"seen_{argument}")

    def is_zero(self, name: str) -> bool:
        """Return whether a value is the constant 0."""
        node = self.graph.producers[name]
        return node.op == "const" and node.value == 0

    def total(self, node: Node) -> None:
        """Sum along a dim; terms that are relative to peaks of their own are made comparable.

        They become relative to the common peak along that dim.
        """
        args, types = list(node.args), self.builder.types
        for i, arg in enumerate(args):
            for peak, power in self.degrees[arg].items():
                if peak not in types or node.over not in types[peak].names:
                    continue
                if power != 1:
                    raise _UnstableError
                common, factor = f"{peak}_common", f"{peak}_decay"
                if common not in types:
                    self.add("peak", (peak,), common, over=node.over)
                    self.add("exp", (self.add("sub", (peak, common), f"{peak}_lowered"),), factor)
                args[i] = self.add("mul", (arg, factor), f"{arg}_rescaled")
                rest = {p: n for p, n in self.degrees[arg].items() if p != peak}
                self.degrees[args[i]] = _plus(rest, {common: 1})
        self.builder.add(replace(node, args=tuple(args)))
        self.degrees[node.name] = _plus(*(self.degrees[a] for a in args))

    def carry(self, node: Node) -> None:
        """Sum across the loop, rescaled whenever the running peak rises, or over a split's blocks.

        What the blocks sum is relative to their common peak.
        """
        degree = self.degrees[node.args[0]]
        if not degree:
            self.keep(node)
            return
        if list(degree.values()) != [1]:
            raise _UnstableError
        (peak,) = degree
        after = f"{peak}_last" if node.op == "accum" else f"{peak} of all blocks"
        if node.op == "accum" and after not in self.builder.types:
            self.add("last", (peak,), after)
        self.builder.add(replace(node, op=f"{node.op}_rescaled", args=(node.args[0], peak)))
        self.degrees[node.name] = {after: 1}

    def degree_of(self, node: Node) -> Degree:
        """Return the degree of an op's result."""
        args = [self.degrees[a] for a in node.args]
        if node.op == "mul":
            return _plus(*args)
        if node.op == "div":
            return _plus(args[0], {peak: -n for peak, n in args[1].items()})
        if node.op == "where" and self.is_zero(node.args[2]):
            return args[1]
        same = node.op in ("add", "sub") and args[0] == args[1]
        if node.op in ("neg", "output") or same:
            return args[0]
        if any(args):
            raise _UnstableError
        return {}


def _plus(*degrees: Degree) -> Degree:
    total: dict[str, int] = {}
    for peak, power in (item for d in degrees for item in d.items()):
        total[peak] = total.get(peak, 0) + power
    return {peak: power for peak, power in total.items() if power}


class _Kernels(_Rewrite):
    """A kernel graph being rebuilt."""

    def run(self, storage: DType) -> Graph:
        """Return the rebuilt graph."""
        for node in self.graph.nodes:
            if node.op == "block":
                self.block(node, storage)
            elif node.op == "contract" and self.graph.blocks:
                # The library's product stores its result as it is.
                if any(self.degrees[a] for a in node.args):
                    raise _UnstableError
                self.degrees[self.builder.keep(node)] = {}
            else:
                self.need(node.name)
        if any(self.degrees[name] for name in self.graph.outputs):
            raise _UnstableError
        return self.builder.graph(self.graph.outputs)

    def block(self, node: Node, storage: DType) -> None:
        """Rebuild a block graph; partial sums are stored with their peaks."""
        assert node.body is not None
        rewrite = _Block(node.body, self)
        body = with_precision(rewrite.run(node.args), storage, squares=False)
        outs = list(node.outs)
        stored = {peak: self.builder.free_name(f"{peak}_stored") for peak in rewrite.peaks}
        for name, inner in zip(stored.values(), body.outputs[len(outs) :], strict=True):
            outs.append(Value(name, body.values[inner].type))
        self.builder.add(Node("block", tuple(rewrite.args), tuple(outs), body=body))
        for out, inner in zip(node.outs, node.body.outputs, strict=True):
            degree = rewrite.degrees[inner]
            self.degrees[out.name] = {stored[peak]: power for peak, power in degree.items()}
        self.degrees |= {name: {} for name in stored.values()}


class _Block(_Rewrite):
    """A block graph being rebuilt; it also reads the peaks of tensors that carry a degree."""

    def __init__(self, graph: Graph, kernels: _Kernels) -> None:
        assert graph.space is not None
        super().__init__(graph, Builder(Level.BLOCK, graph.space))
        self.space, self.kernels = graph.space, kernels
        self.args: list[str] = []  # tensors that the inputs are bound to
        self.peaks: list[str] = []  # to be stored

    def run(self, args: Sequence[str]) -> Graph:
        """Return the rebuilt graph, its inputs bound to some tensors."""
        for node, tensor in zip(self.graph.inputs, args, strict=True):
            self.input(node, tensor)
        for node in self.graph.nodes:
            if node.op != "input":
                self.need(node.name)
        outputs = self.graph.of("output")
        self.peaks = sorted({p for n in outputs for p in self.degrees[n.name]})
        stored = tuple(self.store(peak, outputs[0]) for peak in self.peaks)
        return self.builder.graph((*self.graph.outputs, *stored))

    def input(self, node: Node, tensor: str) -> None:
        """Add an input, and the peaks that its tensor is relative to, cut alike."""
        self.builder.add(node)
        self.args.append(tensor)
        peaks: dict[str, int] = {}
        for peak, power in self.kernels.degrees[tensor].items():
            full, tile = self.kernels.builder.types[peak], f"{peak}_tile"
            peaks[tile] = power
            if tile in self.builder.types:
                continue
            self.args.append(peak)
            cuts = tuple(c if c in full.names else None for c in node.cuts)
            loop_cut = node.loop_cut if node.loop_cut in full.names else None
            bound = Node("input", (), (Value(tile, full),), cuts=cuts, loop_cut=loop_cut)
            extents = extents_of([self.kernels.builder.types[a] for a in self.args])
            type_ = tile_type(bound, full, self.space, extents)
            self.builder.add(replace(bound, outs=(Value(tile, type_),)))
            self.degrees[tile] = {}
        self.degrees[node.name] = peaks

    def store(self, peak: str, beside: Node) -> str:
        """Store a peak next to what is relative to it, cut alike."""
        if peak not in self.builder.types:
            raise _UnstableError
        own = {*self.builder.types[peak].names}
        kept = own | {parts_of(a.dim) for a in self.space.reduced}
        dims = tuple(d for d in beside.out.type.dims if d.name in kept)
        if not own <= {d.name for d in dims}:
            raise _UnstableError
        cuts = tuple(c if c in kept else None for c in beside.cuts)
        value = Value(f"{peak}_stored", TensorType(dims, DType.FP32))
        return self.builder.add(Node("output", (peak,), (value,), cuts=cuts))
