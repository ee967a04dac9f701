"""The cost reading: bytes, matrix flops and elementwise operations of a muGraph on a target.

The estimate ranks muGraphs and variants before anything is compiled; what counts in the end is
measured. One kernel takes the longest of: device memory traffic (every distinct byte once), cache
traffic (every byte that every block loads), tensor-core and arithmetic work; plus a launch. A grid
that does not fill its last wave evenly stretches all of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf, prod

from mirage_kernels.generator.ir import (
    Graph,
    Kind,
    Node,
    Phase,
    count,
    ops_of_kind,
    parts_of,
    phases_of,
)
from mirage_kernels.generator.meaning.walk import Reading, Rule, walk
from mirage_kernels.generator.target import Target

# Elementwise ops that cost a multiply-add; others take a division or a special function.
CHEAP = ("add", "sub", "mul", "square", "neg", "less", "both", "max", "relu", "where")
FUNCTION = 8  # multiply-adds


@dataclass(frozen=True)
class Work:
    """What one value costs to make, all of its tile; `extents` are its own."""

    extents: tuple[tuple[str, int], ...]
    flops: float = 0.0  # on the tensor cores
    operations: float = 0.0  # everywhere else

    @property
    def elements(self) -> int:
        """Number of elements of the value."""
        return prod(n for _, n in self.extents)


def _joined(args: Sequence[Work], without: str = "") -> tuple[tuple[str, int], ...]:
    dims = {d: n for a in args for d, n in a.extents}
    return tuple((d, n) for d, n in dims.items() if d != without)


def _elementwise(node: Node, args: Sequence[Work]) -> list[Work]:
    extents = _joined(args)
    each = 1 if node.op in CHEAP else FUNCTION
    return [Work(extents, operations=each * prod(n for _, n in extents))]


def _reduced(node: Node, args: Sequence[Work]) -> list[Work]:
    extents, products = _joined(args, node.over), prod(n for _, n in _joined(args))
    if node.op != "contract":
        return [Work(extents, operations=products)]
    kept = [{d for d, _ in a.extents} - {node.over} for a in args]
    if kept[0] == kept[1]:  # rows times the same rows: nothing for a matrix unit
        return [Work(extents, operations=2 * products)]
    return [Work(extents, flops=2 * products)]


def cost_reading(sizes: Mapping[str, int]) -> Reading[Work]:
    """Return the reading into work, at the given extents of whole tensors."""

    def whole(node: Node, args: Sequence[Work]) -> list[Work]:
        return [Work(tuple((d, sizes[d]) for d in v.type.names)) for v in node.outs]

    def same(node: Node, args: Sequence[Work]) -> list[Work]:
        return [Work(args[0].extents)]

    def carried(node: Node, args: Sequence[Work]) -> list[Work]:
        return [Work(args[0].extents, operations=args[0].elements)]

    def thread(node: Node, args: Sequence[Work]) -> list[Work]:
        assert node.body is not None
        found = walk(node.body, args, cost_reading(sizes))
        made = [found[n.name] for n in node.body.nodes if n.op != "input"]
        total = sum(w.operations for w in made)
        return [Work(found[node.body.outputs[0]].extents, operations=total)]

    rules: dict[str, Rule[Work]] = dict.fromkeys(ops_of_kind(Kind.ELEMENTWISE), _elementwise)
    rules |= dict.fromkeys(("const", "size", "iota", "block"), whole)
    rules |= dict.fromkeys(ops_of_kind(Kind.CARRY), carried)
    rules |= dict.fromkeys(("output", "last"), same)
    rules |= dict.fromkeys(("sum", "contract", "peak"), _reduced)
    return rules | {"thread": thread}


@dataclass(frozen=True)
class Estimate:
    """Predicted time of a kernel graph in microseconds, and what limits its longest kernel."""

    microseconds: float
    limit: str


def estimate(graph: Graph, sizes: Mapping[str, int], on: Target) -> Estimate:
    """Return the predicted time of a muGraph at the given extents."""
    spaces = [n.body.space for n in graph.blocks if n.body is not None and n.body.space is not None]
    parts = {parts_of(a.dim): count(a, sizes[a.dim]) for s in spaces for a in s.reduced}
    sizes = {**sizes, **parts}
    kernels = [_kernel(graph, n, sizes, on) for n in graph.nodes if n.op in ("block", "contract")]
    longest = max(kernels, key=lambda k: k.microseconds)
    return Estimate(sum(k.microseconds for k in kernels), longest.limit)


def _kernel(graph: Graph, node: Node, sizes: Mapping[str, int], on: Target) -> Estimate:
    types = [
        graph.values[v].type for v in dict.fromkeys((*node.args, *(v.name for v in node.outs)))
    ]
    moved = sum(t.dtype.bytes * prod(sizes[d] for d in t.names) for t in types)
    times = {"memory": moved / on.memory_bytes_per_us}
    if node.body is None or node.body.space is None:
        whole = [Work(tuple((d, sizes[d]) for d in graph.values[a].type.names)) for a in node.args]
        return _slowest(times, cost_reading(sizes)[node.op](node, whole)[0], 1.0, on)
    body, space = node.body, node.body.space
    blocks, steps = prod(count(a, sizes[a.dim]) for a in space.grid), space.steps(sizes)
    tiles = [
        Work(tuple((d.name, min(d.size, sizes[d.name])) for d in n.out.type.dims))
        for n in body.inputs
    ]
    tile_bytes = [
        t.elements * n.out.type.dtype.bytes for n, t in zip(body.inputs, tiles, strict=True)
    ]
    if sum(tile_bytes) > on.shared_bytes:
        return Estimate(inf, "shared memory")
    repeats = (steps if n.loop_cut else 1 for n in body.inputs)
    loaded = sum(b * r for b, r in zip(tile_bytes, repeats, strict=True))
    times["cache"] = blocks * loaded / on.l2_bytes_per_us
    found, phases = walk(body, tiles, cost_reading(sizes)), phases_of(body)
    flops = operations = 0.0  # of one block
    for made in body.nodes:
        if made.op != "input":
            looped = phases[made.name] is Phase.LOOP or made.op in ("accum", "accum_rescaled")
            flops += found[made.name].flops * (steps if looped else 1)
            operations += found[made.name].operations * (steps if looped else 1)
    waves = -(-blocks // on.multiprocessors) * on.multiprocessors / blocks
    total = Work((), flops * blocks, operations * blocks)
    return _slowest(times, total, waves, on)


def _slowest(times: dict[str, float], work: Work, stretch: float, on: Target) -> Estimate:
    times |= {
        "tensor cores": work.flops / on.tensor_flops_per_us,
        "arithmetic": work.operations / on.alu_ops_per_us,
    }
    limit = max(times, key=lambda name: times[name])
    rest = sum(times.values()) - times[limit]
    return Estimate(on.launch_us + stretch * (times[limit] + 0.1 * rest), limit)
