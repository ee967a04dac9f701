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
    inside: set[str] = set()
    summing: set[str] = set()
    for node in spec.nodes:
        local = node.op == "sum" and node.over not in long
        plain = OPS[node.op].kind is Kind.ELEMENTWISE and node.op != "exp"
        if node.op in _SOURCES or (inside >= {*node.args} and (local or plain)):
            inside.add(node.name)
        if node.op == "sum" or summing & {*node.args}:
            summing.add(node.name)
    if spec.outputs[0] in inside:
        return spec, None
    return _without(spec, [name for name in _leaving(spec, inside) if name in summing])


def beside(spec: Graph, long: Collection[str]) -> tuple[Graph, Parts | None]:
    """Return the spec with its results beside the output as inputs, and these parts."""
    made, parts = _without(replace(spec, outputs=spec.outputs[:1]), spec.outputs[1:])
    return made, parts and replace(parts, spec=spec)


def shifted(spec: Graph, long: Collection[str]) -> tuple[Graph, Parts | None]:
    """Return the spec with its sums of inputs as inputs, and these parts."""
    inside: set[str] = set()
    for node in spec.nodes:
        whole = node.out.type.dtype.is_real and not {*node.out.type.names} & {*long}
        within = node.op in ("add", "sub") and inside >= {*node.args}
        if whole and (node.op in ("input", "const") or within):
            inside.add(node.name)
    return _without(spec, _leaving(spec, inside))


def _leaving(spec: Graph, inside: set[str]) -> list[str]:
    """Return the computed tensors of a set that something outside of it uses."""
    return [
        n.name
        for n in spec.nodes
        if n.name in inside
        and n.args
        and n.out.type.dims
        and any(user.name not in inside for user in spec.users(n.name))
    ]


def _without(spec: Graph, roots: Sequence[str]) -> tuple[Graph, Parts | None]:
    """Return the spec with some values as inputs, and the parts that make them."""
    if not roots:
        return spec, None
    kept = _leading_to(spec, spec.outputs, stop=roots)
    own = [n for n in spec.inputs if n.name in kept]
    inputs = [Node("input", (), (spec.values[root],)) for root in roots]
    rest = [n for n in spec.nodes if n.name in kept and n.op != "input"]
    parts = Parts(spec, {root: _part(spec, root) for root in roots})
    return replace(spec, nodes=(*own, *inputs, *rest)), parts


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
    """A block graph whose views of parts are being replaced by what makes them.

    A value is a view, a constant's name, or the number of a step.
    """

    kernel: BlockSketch
    parts: Parts
    views: dict[View, None] = field(default_factory=dict)
    constants: dict[str, None] = field(default_factory=dict)
    steps: list[tuple[str, list[object], str]] = field(default_factory=list)

    def run(self) -> BlockSketch:
        """Return the block graph, its values numbered anew."""
        kernel, spec = self.kernel, self.parts.spec
        self.constants = dict.fromkeys(kernel.constants)
        known: list[object] = [*map(self.viewed, kernel.views), *kernel.constants]
        for step in kernel.steps:
            known.append(self.step(step.op, [known[a] for a in step.args], step.over))
        names = [n.name for n in (*spec.inputs, *spec.of("iota"))]
        places = {name: i for i, name in enumerate(names)}  # what a first kernel made comes last
        views = sorted(self.views, key=lambda view: places.get(view.tensor, len(names)))
        values: list[object] = [*views, *self.constants, *range(len(self.steps))]
        number = {value: i for i, value in enumerate(values)}
        return replace(
            kernel,
            views=tuple(views),
            constants=tuple(self.constants),
            steps=tuple(Step(op, tuple(number[a] for a in args), o) for op, args, o in self.steps),
            results=tuple((number[known[value]], dims) for value, dims in kernel.results),
        )

    def step(self, op: str, args: list[object], over: str) -> int:
        self.steps.append((op, args, over))
        return len(self.steps) - 1

    def viewed(self, view: View) -> object:
        """Return what stands for an input: a view, or the last step of the part that it views."""
        if view.tensor not in self.parts.nodes:
            self.views.setdefault(view)
            return view
        made: dict[str, object] = {}
        for node in self.parts.nodes[view.tensor]:
            if node.op in _SOURCES:
                made[node.name] = self.source(node, view)
            else:
                made[node.name] = self.step(node.op, [made[a] for a in node.args], node.over)
        return made[view.tensor]

    def source(self, node: Node, view: View) -> View | str:
        if node.op in ("const", "size"):
            self.constants.setdefault(node.name)
            return node.name
        names = node.out.type.names
        cuts = tuple(c if c in names else None for c in view.cuts)
        own = View(node.name, cuts, view.loop_cut if view.loop_cut in names else None)
        self.views.setdefault(own)
        return own
