"""The cost reading: bytes, matrix flops and elementwise operations of a muGraph on a target.

The estimate ranks muGraphs and variants before anything is compiled; what counts in the end is
measured. One kernel takes the longest of: device memory traffic (every distinct byte once), cache
traffic (every byte that every block loads), tensor-core and arithmetic work; plus a launch. A grid
that does not fill its last wave evenly stretches all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf, prod

from mirage_kernels.generator.ir import OPS, Graph, Kind, Node, Phase, count, parts_of, phases_of
from mirage_kernels.generator.ir.ops import ACCUMS
from mirage_kernels.generator.meaning.walk import Reading, Rule, reading, walk
from mirage_kernels.generator.target import Target

# Elementwise ops that cost a multiply-add; others take a division or a special function.
CHEAP = (
    *("add", "sub", "mul", "square", "neg", "less", "both", "max", "relu", "where"),
    *("floor", "round", "gt", "ge", "masked"),
)
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


def multiply_adds(op: str) -> float:
    """Return what an operation of an op counts."""
    dear = OPS[op].kind is Kind.ELEMENTWISE and op not in CHEAP
    return FUNCTION if dear else 1


def cost_reading(
    sizes: Mapping[str, int], weight: Callable[[str], float] = multiply_adds
) -> Reading[Work]:
    """Return the reading into work, at the given extents of whole tensors.

    `weight` says what an operation of an op counts.
    """

    def whole(node: Node, args: Sequence[Work]) -> list[Work]:
        return [Work(tuple((d, sizes[d]) for d in v.type.names)) for v in node.outs]

    def elementwise(node: Node, args: Sequence[Work]) -> list[Work]:
        made = Work(tuple({d: n for a in args for d, n in a.extents}.items()))
        return [replace(made, operations=weight(node.op) * made.elements)]

    def reduced(node: Node, args: Sequence[Work]) -> list[Work]:
        extents = {d: n for a in args for d, n in a.extents}
        products = prod(extents.values())
        extents.pop(node.over, None)
        made = Work(tuple(extents.items()))
        if node.op != "contract":
            return [replace(made, operations=weight(node.op) * products)]
        kept = [{d for d, _ in a.extents} - {node.over} for a in args]
        if kept[0] == kept[1]:  # rows times the same rows: nothing for a matrix unit
            return [replace(made, operations=2 * weight(node.op) * products)]
        return [replace(made, flops=2 * products)]

    def same(node: Node, args: Sequence[Work]) -> list[Work]:
        joins = OPS[node.op].kind is Kind.CARRY and node.op != "last"
        each = weight(node.op) if joins else 0
        return [Work(args[0].extents, operations=each * args[0].elements)]

    def thread(node: Node, args: Sequence[Work]) -> list[Work]:
        assert node.body is not None
        found = walk(node.body, args, cost_reading(sizes, weight))
        total = sum(found[n.name].operations for n in node.body.nodes if n.op != "input")
        return [Work(found[node.body.outputs[0]].extents, operations=total)]

    rules: dict[Kind | str, Rule[Work]] = {
        Kind.SOURCE: whole,
        Kind.ELEMENTWISE: elementwise,
        Kind.REDUCE: reduced,
        Kind.STABILISER: reduced,
        Kind.CONTRACT: reduced,
        Kind.CARRY: same,
        Kind.OUTPUT: same,
        "block": whole,
        "thread": thread,
    }
    return reading(rules)


@dataclass(frozen=True)
class Estimate:
    """Predicted time of a kernel graph in microseconds, and what limits its longest kernel."""

    microseconds: float
    limit: str


def estimate(graph: Graph, sizes: Mapping[str, int], on: Target) -> Estimate:
    """Return the predicted time of a muGraph at the given extents."""
    sizes = with_parts(graph, sizes)
    kernels = [_kernel(graph, n, sizes, on) for n in graph.nodes if n.op in ("block", "contract")]
    longest = max(kernels, key=lambda k: k.microseconds)
    return Estimate(sum(k.microseconds for k in kernels), longest.limit)


def with_parts(graph: Graph, sizes: Mapping[str, int]) -> dict[str, int]:
    """Return extents with those of the dims that number parts of split ones."""
    split = [a for space in graph.spaces for a in space.reduced]
    return {**sizes, **{parts_of(a.dim): count(a, sizes[a.dim]) for a in split}}


def moved_bytes(graph: Graph, node: Node, sizes: Mapping[str, int]) -> int:
    """Return the bytes of a kernel's tensors, each of them once."""
    names = dict.fromkeys((*node.args, *(v.name for v in node.outs)))
    types = [graph.values[v].type for v in names]
    return sum(t.dtype.bytes * prod(sizes[d] for d in t.names) for t in types)


def contiguous_dims(block: Graph) -> set[str]:
    """Return the dims that a block wants several elements of: of products, and contiguous ones."""
    stored = [n.out.type.names[-1:] for n in block.of("input", "output")]
    multiplied = [block.values[a].type.names for n in block.of("contract") for a in n.args]
    return {d for names in (*stored, *multiplied) for d in names}


def _kernel(graph: Graph, node: Node, sizes: Mapping[str, int], on: Target) -> Estimate:
    times = {"memory": moved_bytes(graph, node, sizes) / on.memory_bytes_per_us}
    if node.body is None or node.body.space is None:
        whole = [Work(tuple((d, sizes[d]) for d in graph.values[a].type.names)) for a in node.args]
        return _slowest(times, cost_reading(sizes)[node.op](node, whole)[0], 1.0, on)
    block = block_work(node, sizes)
    if block.held > on.shared_bytes:
        return Estimate(inf, "shared memory")
    times["cache"] = block.blocks * block.loaded / on.l2_bytes_per_us
    waves = -(-block.blocks // on.multiprocessors) * on.multiprocessors / block.blocks
    work = Work((), block.flops * block.blocks, block.operations * block.blocks)
    return _slowest(times, work, waves, on)


@dataclass(frozen=True)
class BlockWork:
    """What one block of a block graph does, and how many blocks there are."""

    blocks: int
    steps: int
    held: int  # bytes of one tile of every input
    loaded: int  # bytes of all steps together
    flops: float
    operations: float


def block_work(
    node: Node, sizes: Mapping[str, int], weight: Callable[[str], float] = multiply_adds
) -> BlockWork:
    """Return the work of a block graph's blocks at the given extents of whole tensors.

    `weight` says what an operation of an op counts.
    """
    body = node.body
    assert body is not None
    assert body.space is not None
    blocks = prod(count(a, sizes[a.dim]) for a in body.space.grid)
    steps = body.space.steps(sizes)
    tiles, held, loaded = [], 0, 0
    for n in body.inputs:
        extents = ((d.name, min(d.size, sizes[d.name])) for d in n.out.type.dims)
        tiles.append(Work(tuple(extents)))
        tile_bytes = tiles[-1].elements * n.out.type.dtype.bytes
        held, loaded = held + tile_bytes, loaded + tile_bytes * (steps if n.loop_cut else 1)
    found, phases = walk(body, tiles, cost_reading(sizes, weight)), phases_of(body)
    flops = operations = 0.0
    for made in (n for n in body.nodes if n.op != "input"):
        looped = phases[made.name] is Phase.LOOP or made.op in ACCUMS
        flops += found[made.name].flops * (steps if looped else 1)
        operations += found[made.name].operations * (steps if looped else 1)
    return BlockWork(blocks, steps, held, loaded, flops, operations)


def _slowest(times: dict[str, float], work: Work, stretch: float, on: Target) -> Estimate:
    times |= {
        "tensor cores": work.flops / on.tensor_flops_per_us,
        "arithmetic": work.operations / on.alu_ops_per_us,
    }
    limit = max(times, key=lambda name: times[name])
    rest = sum(times.values()) - times[limit]
    return Estimate(on.launch_us + stretch * (times[limit] + 0.1 * rest), limit)
