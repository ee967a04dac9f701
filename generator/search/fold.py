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
from dataclasses import dataclass, replace

from mirage_kernels.generator.ir import OPS, Graph, Kind, Node
from mirage_kernels.generator.search.settings import View
from mirage_kernels.generator.search.sketch import (
    BlockSketch,
    Kernel,
    Leaf,
    LibrarySketch,
    ProgramSketch,
    Step,
    in_order,
)


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
        if isinstance(kernel, LibrarySketch) and parts.nodes.keys() & {*kernel.args}:
            return None
        kernels.append(kernel if isinstance(kernel, LibrarySketch) else _unfolded(kernel, parts))
    return ProgramSketch(tuple(kernels), program.cost)


def _unfolded(kernel: BlockSketch, parts: Parts) -> BlockSketch:
    """Return a block graph whose views of parts are replaced by what makes them."""
    leaves: dict[Leaf, None] = dict.fromkeys(c for c in kernel.leaves if isinstance(c, str))
    steps: list[tuple[str, list[Leaf | int], str]] = []
    known: list[Leaf | int] = []  # what stands for each value: a leaf, or the number of a step

    def step(op: str, args: list[Leaf | int], over: str) -> int:
        steps.append((op, args, over))
        return len(steps) - 1

    for leaf in kernel.leaves:
        made: dict[str, Leaf | int] = {}
        nodes = parts.nodes.get(leaf.tensor, ()) if isinstance(leaf, View) else ()
        for node in nodes:
            if isinstance(leaf, View) and node.op in _SOURCES:
                made[node.name] = source = _source(node, leaf)
                leaves.setdefault(source)
            else:
                made[node.name] = step(node.op, [made[a] for a in node.args], node.over)
        known.append(made[nodes[-1].name] if nodes else leaf)
        if not nodes:
            leaves.setdefault(leaf)
    for old in kernel.steps:
        known.append(step(old.op, [known[a] for a in old.args], old.over))
    names = [n.name for n in (*parts.spec.inputs, *parts.spec.of("iota"))]
    ordered = in_order(leaves, names)
    number = {value: i for i, value in enumerate((*ordered, *range(len(steps))))}
    return BlockSketch(
        kernel.setting,
        ordered,
        tuple(Step(op, tuple(number[a] for a in args), over) for op, args, over in steps),
        tuple((number[known[value]], dims) for value, dims in kernel.results),
    )


def _source(node: Node, view: View) -> Leaf:
    """Return what stands for an input or a constant of a part that is viewed."""
    if node.op in ("const", "size"):
        return node.name
    names = node.out.type.names
    cuts = tuple(c if c in names else None for c in view.cuts)
    return View(node.name, cuts, view.loop_cut if view.loop_cut in names else None)
