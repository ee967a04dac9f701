"""Parts of a spec that are searched as if they were inputs, and computed as the spec says.

Where both operands of a product are sums of several products, the terms of all that could be made
of them are too many to search through. What such a part sums along dims that are never cut lies
within a tile, wherever the tile is: the parts are left out of the search, which then finds programs
of a smaller spec, and put back into what it finds. A part has no product of two tensors and no exp:
there the order of evaluation matters.

Sums of inputs that are never cut, such as weights stored less 1, are parts of any spec: multiplying
them out is what makes sums long. So are the results beside the output: they are stored and computed
anyway, elementwise, so that any tile of one follows from tiles of inputs.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from mirage_kernels.generator.ir import OPS, Graph, Kind, Node
from mirage_kernels.generator.search.settings import View
from mirage_kernels.generator.search.sketch import (
    BlockSketch,
    Kernel,
    ProgramSketch,
)
from mirage_kernels.generator.search.values import Step


@dataclass(frozen=True)
class Parts:
    """The parts of a spec: the nodes of each by its name, operands first."""

    spec: Graph
    nodes: Mapping[str, tuple[Node, ...]]


_SOURCES = ("input", "const", "size", "iota")


def folded(spec: Graph, long: Collection[str]) -> tuple[Graph, Parts | None]:
    """Return the spec with its parts as inputs, and the parts; dims in `long` may be cut."""
    inside = _foldable(spec, long)
    summing: set[str] = set()
    for node in spec.nodes:
        if node.op == "sum" or summing & {*node.args}:
            summing.add(node.name)
    roots = [
        n.name
        for n in spec.nodes
        if n.name in inside & summing
        and n.out.type.dims
        and any(user.name not in inside for user in spec.users(n.name))
    ]
    return _without(spec, roots) if spec.outputs[0] not in inside else (spec, None)


def beside(spec: Graph, long: Collection[str]) -> tuple[Graph, Parts | None]:
    """Return the spec with its results beside the output as inputs, and these parts."""
    made, parts = _without(replace(spec, outputs=spec.outputs[:1]), spec.outputs[1:])
    return made, parts and replace(parts, spec=spec)


def shifted(spec: Graph, long: Collection[str]) -> tuple[Graph, Parts | None]:
    """Return the spec with its sums of inputs as inputs, and these parts."""
    inside: set[str] = set()
    for node in spec.nodes:
        whole = node.out.type.dtype.is_real and not {*node.out.type.names} & {*long}
        within = node.op in ("add", "sub") and all(a in inside for a in node.args)
        if whole and (node.op in ("input", "const") or within):
            inside.add(node.name)
    roots = [
        n.name
        for n in spec.nodes
        if n.name in inside
        and n.args
        and n.out.type.dims
        and any(user.name not in inside for user in spec.users(n.name))
    ]
    return _without(spec, roots)


def _without(spec: Graph, roots: Sequence[str]) -> tuple[Graph, Parts | None]:
    """Return the spec with some values as inputs, and the parts that make them."""
    if not roots:
        return spec, None
    inputs = [Node("input", (), (spec.values[root],)) for root in roots]
    kept = _leading_to(spec, spec.outputs, stop=roots)
    nodes = [n for n in spec.nodes if n.name in kept]
    first = [n for n in nodes if n.op == "input"]
    rest = [n for n in nodes if n.op != "input"]
    parts = Parts(spec, {root: _part(spec, root) for root in roots})
    return replace(spec, nodes=(*first, *inputs, *rest)), parts


def _foldable(spec: Graph, long: Collection[str]) -> set[str]:
    """Return the values that a part may hold."""
    inside: set[str] = set()
    for node in spec.nodes:
        local = node.op == "sum" and node.over not in long
        plain = OPS[node.op].kind is Kind.ELEMENTWISE and node.op != "exp"
        within = all(a in inside for a in node.args)
        if node.op in _SOURCES or (within and (local or plain)):
            inside.add(node.name)
    return inside


def _leading_to(spec: Graph, results: Collection[str], stop: Collection[str] = ()) -> set[str]:
    """Return the values that some results need, but for what leads to those in `stop`, and them."""
    needed: set[str] = set()
    todo = [*results]
    while todo:
        name = todo.pop()
        if name not in needed and name not in stop:
            needed.add(name)
            todo += spec.producers[name].args
    return needed


def _part(spec: Graph, root: str) -> tuple[Node, ...]:
    """Return the nodes of a part; a sum of products is a contraction."""
    needed = _leading_to(spec, [root])
    nodes = [n for n in spec.nodes if n.name in needed]
    made: list[Node] = []
    for node in nodes:
        factors = spec.producers[node.args[0]] if node.op == "sum" else node
        alone = [u.name for u in nodes if factors.name in u.args] == [node.name]
        if node.op == "sum" and factors.op in ("mul", "square") and alone:
            a, b = (*factors.args, *factors.args)[:2]
            node = replace(node, op="contract", args=(a, b))
            made = [n for n in made if n.name != factors.name]
        made.append(node)
    return tuple(made)


def unfolded(program: ProgramSketch, parts: Parts) -> ProgramSketch | None:
    """Return a program with the parts computed where they are read; None if the library does."""
    kernels: list[Kernel] = []
    for kernel in program.kernels:
        if isinstance(kernel, BlockSketch):
            kernels.append(_Unfolding(kernel, parts).run())
        elif parts.nodes.keys() & {*kernel.args}:
            return None
        else:
            kernels.append(kernel)
    return replace(program, kernels=tuple(kernels))


@dataclass
class _Unfolding:
    """A block graph whose views of parts are being replaced by what makes them."""

    kernel: BlockSketch
    parts: Parts
    views: dict[View, None] = field(default_factory=dict)
    constants: dict[str, None] = field(default_factory=dict)
    steps: list[tuple[str, tuple[object, ...], str]] = field(default_factory=list)

    def run(self) -> BlockSketch:
        """Return the block graph, its values numbered anew."""
        kernel = self.kernel
        self.constants = dict.fromkeys(kernel.constants)
        known: list[object] = [self.viewed(view) for view in kernel.views]
        known += kernel.constants
        for step in kernel.steps:
            self.steps.append((step.op, tuple(known[a] for a in step.args), step.over))
            known.append(len(self.steps) - 1)
        views = sorted(self.views, key=self.position)
        before = [*views, *self.constants]
        number: dict[object, int] = {value: i for i, value in enumerate(before)}
        number |= {i: len(before) + i for i in range(len(self.steps))}
        return replace(
            kernel,
            views=tuple(views),
            constants=tuple(self.constants),
            steps=tuple(Step(op, tuple(number[a] for a in args), o) for op, args, o in self.steps),
            results=tuple((number[known[value]], dims) for value, dims in kernel.results),
        )

    def position(self, view: View) -> int:
        """Return where a tensor comes among the spec's; what a first kernel made comes last."""
        spec = self.parts.spec
        names = [n.name for n in (*spec.inputs, *spec.of("iota"))]
        return names.index(view.tensor) if view.tensor in names else len(names)

    def viewed(self, view: View) -> object:
        """Return what stands for an input: a view, or the last step of the part that it views."""
        if view.tensor not in self.parts.nodes:
            self.views.setdefault(view)
            return view
        made: dict[str, object] = {}
        for node in self.parts.nodes[view.tensor]:
            made[node.name] = self.made(node, made, view)
        return made[view.tensor]

    def made(self, node: Node, before: Mapping[str, object], view: View) -> object:
        """Return what stands for a value of a part that is viewed like this."""
        if node.op in ("const", "size"):
            self.constants.setdefault(node.name)
            return node.name
        if node.op in _SOURCES:
            names = node.out.type.names
            cuts = tuple(c if c in names else None for c in view.cuts)
            own = View(node.name, cuts, view.loop_cut if view.loop_cut in names else None)
            self.views.setdefault(own)
            return own
        self.steps.append((node.op, tuple(before[a] for a in node.args), node.over))
        return len(self.steps) - 1
