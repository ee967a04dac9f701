"""The general schedule: any block graph by one tile program, no shape of muGraph assumed.

Every kernel of the muGraph is a loop over stages of asynchronous copies, products on tensor cores
and reductions by warps (`generator/tiles`). Tiles, threads and stages are chosen by a model of time
for each bucket of the dynamic dim that has rows of products; the model weighs what is read against
how many bytes are on their way at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from math import ceil, inf, prod
from typing import ClassVar

from mirage_kernels.generator.errors import PlanError
from mirage_kernels.generator.ir import Dim, Graph, Node, Phase, held_dims, retile
from mirage_kernels.generator.meaning.cost import (
    block_work,
    moved_bytes,
    with_parts,
)
from mirage_kernels.generator.plan.threads import without_threads
from mirage_kernels.generator.schedules.general.options import LONG, choices, combines
from mirage_kernels.generator.schedules.schedule import Knobs, Schedule, Variant
from mirage_kernels.generator.target import Target
from mirage_kernels.generator.tiles.lower import DEAR, block_programs
from mirage_kernels.generator.tiles.program import VECTOR_BYTES, WARP, Barrier, BlockProgram, Reduce
from mirage_kernels.generator.tiles.vectors import at_once, widest_read

BUCKETS = (16, 64, 0)  # extents of the counted dim; 0: any
FEWEST = 2  # a bucket more where no product rounds the counted dim up
MANY, FEW = 1024, 8  # what any extent of the counted dim, and of other dynamic dims, is planned for
MOST_SUMS = 128  # fp32 sums of products that a thread keeps
REGISTERS = 56  # of a thread beside its sums: a lead
THREADS_EACH, BLOCKS_EACH = 2048, 32  # of a multiprocessor: CUDA programming guide, appendix
PAGE_BYTES = 1024  # of a row of memory that is open, as seen by one multiprocessor: a lead
LINE_BYTES = 64  # two sectors of the L2 cache, which memory gives together
SHARED_EACH = 1024  # bytes that a block takes beside its own, as the guide says
# Leads, fitted to sweeps of a gated MLP, attention and norms on an H200.
LATENCY_US = 1.2  # from a copy's start to its end under load
COPIED_PER_US = 6.0e4  # bytes that one multiprocessor takes at most
BLOCK_US, BARRIER_US = 2.0, 0.1  # start and end of a block; a barrier of a step
MEETING_US = 0.7  # of a cluster's blocks, between its first barrier and its last: a lead
CLUSTERED = 0.9  # of the multiprocessors where clusters find room for all of their blocks
PRODUCTS = 0.5  # of the tensor cores' rate that mma.sync gets
ISSUED_PER_US, OF_A_WARP = 4400.0, 600.0  # warp instructions of a multiprocessor and of one warp
COPY, READ, PRODUCT = 14, 6, 3  # instructions: of a copied vector, of one read, of an mma.sync
MULTIPLY_ADD = 6  # where threads do it
OPERATION = 2  # of an elementwise one; reading, converting and computing again are counted in
SHARPNESS = 3  # how little times that overlap add to the longest of them
MMA_FLOPS = 4096  # of a warp's mma.sync


@dataclass(frozen=True)
class GeneralRoles:
    """The dim whose extent chooses a bucket, empty where there is one bucket."""

    counted: str = ""


@dataclass(frozen=True)
class GeneralKnobs(Knobs):
    """Tile sizes by `Axis.tile_key`, threads of a block, and stages of its loads."""

    schedule: ClassVar[str] = "general"
    cuts: tuple[tuple[str, int], ...]
    threads: int
    stages: int

    def tiles(self, roles: GeneralRoles) -> dict[str, int]:
        """Return the tile sizes of the muGraph."""
        return dict(self.cuts)


SCHEDULE = Schedule[Graph](
    knobs=GeneralKnobs, roles=GeneralRoles, fits=lambda graph, on: tuple(reasons(graph, on))
)


def reasons(graph: Graph, on: Target) -> Iterator[str]:
    """Yield what a general kernel cannot do of a muGraph."""
    for node in graph.nodes:
        if node.op not in ("input", "output", "block", "iota", "const", "size"):
            yield f"{node.name} is a library's {node.op}: it is no kernel of its own"
    clusters = [s for s in graph.spaces if s.reduced and combines(graph, s)]
    if clusters and not on.has_clusters:
        yield f"{on.arch} has no clusters, whose blocks could combine their sums"
    for space in clusters:
        for axis in space.reduced if space.loop is None else ():
            if any(d.dynamic for d in _dims(graph) if d.name == axis.dim):
                yield f"blocks that sum along {axis.dim} in one step are as many as it is long"


def programs(graph: Graph, knobs: GeneralKnobs) -> tuple[BlockProgram, ...]:
    """Return the programs of a muGraph's kernels with given knobs."""
    return block_programs(retile(graph, dict(knobs.cuts)), knobs.threads, knobs.stages)


def _dims(graph: Graph) -> Iterator[Dim]:
    return (d for n in graph.nodes for v in n.outs for d in v.type.dims)


# -- choosing knobs --------------------------------------------------------------------------------


def roles_of(graph: Graph) -> GeneralRoles:
    """Return the first dynamic dim that only one operand of some product has, or blocks cut.

    One that is summed along, as keys are, chooses nothing.
    """
    summed = _summed(graph)
    for kernel in graph.blocks:
        assert kernel.body is not None
        for node in kernel.body.of("contract"):
            names = [kernel.body.values[a].type.names for a in node.args]
            dims = [d for a in node.args for d in kernel.body.values[a].type.dims if d.dynamic]
            for d in dims:
                if not all(d.name in own for own in names) and d.name not in (node.over, *summed):
                    return GeneralRoles(d.name)
    dynamic = {d.name for n in graph.inputs for d in n.out.type.dims if d.dynamic}
    cut = [a.dim for s in graph.spaces for a in s.grid if a.dim in dynamic and not a.reduced]
    return GeneralRoles(*cut[:1])


def buckets_of(graph: Graph, counted: str) -> tuple[int, ...]:
    """Return the extents of the counted dim that a graph has variants for."""
    if not counted:
        return BUCKETS[-1:]
    kernels = [k.body for k in graph.blocks if k.body]
    pairs = [
        [set(body.values[a].type.names) for a in node.args]
        for body in kernels
        for node in body.of("contract")
    ]
    return BUCKETS if any(a - b and b - a for a, b in pairs) else (FEWEST, *BUCKETS)


def sizes_for(graph: Graph, counted: str, size: int) -> dict[str, int]:
    """Return the extents that a bucket is planned for."""
    summed, found = _summed(graph), {}
    for d in _dims(graph):
        wanted = (size or MANY) if d.name == counted else LONG if d.name in summed else FEW
        found[d.name] = min(d.size, wanted) if d.dynamic else d.size
    return found


def _summed(graph: Graph) -> set[str]:
    """Return the dims that loops and splits go along."""
    return {a.dim for s in graph.spaces for a in (*s.reduced, *([s.loop] if s.loop else []))}


def predict(graph: Graph, knobs: GeneralKnobs, sizes: Mapping[str, int], on: Target) -> float:
    """Return the predicted microseconds of a muGraph, infinite where a block has no room."""
    tiled = retile(graph, dict(knobs.cuts))
    sizes = with_parts(tiled, sizes)
    made = block_programs(tiled, knobs.threads, knobs.stages)
    pairs = zip(tiled.blocks, made, strict=True)
    return sum(_kernel(tiled, node, program, sizes, on) for node, program in pairs)


def _kernel(
    graph: Graph, node: Node, made: BlockProgram, sizes: Mapping[str, int], on: Target
) -> float:
    assert node.body is not None
    plain = replace(node, body=without_threads(node.body))
    work = block_work(plain, sizes, lambda op: DEAR.get(op, OPERATION))
    resident = _resident(made, on)
    if not resident:
        return inf
    memory = moved_bytes(graph, node, sizes) / on.memory_bytes_per_us * _reopened(made)
    fetched = work.loaded * _fetched(made)
    cache = work.blocks * fetched / on.l2_bytes_per_us
    # Of the busiest multiprocessor: blocks at once, and how often.
    places = on.multiprocessors * (CLUSTERED if made.statements[Phase.JOINED] else 1.0)
    together = min(resident, ceil(work.blocks / places))
    rounds = ceil(work.blocks / (places * together))
    steps, loaded = work.steps, together * fetched / work.steps
    reads = _Reads.of(made, steps)
    under_way = max(1.0, together * reads.under_way * fetched / max(1.0, work.loaded))
    copying = loaded / min(COPIED_PER_US, under_way / LATENCY_US)
    products, operations = together * work.flops / steps, together * work.operations / steps
    if not made.fragments:  # threads multiply
        products, operations = 0.0, operations + MULTIPLY_ADD * products / 2
    computing = products * on.multiprocessors / on.tensor_flops_per_us / PRODUCTS
    issued = together * reads.issued / WARP + PRODUCT * products / MMA_FLOPS
    issued += operations / WARP
    warps = together * made.threads // WARP
    issuing = issued / min(ISSUED_PER_US, OF_A_WARP * warps)
    barriers = sum(isinstance(s, Barrier) for s in made.statements[Phase.LOOP])
    step = max(copying, computing, issuing) + BARRIER_US * barriers
    if held_dims(made.body):  # one after the other, in turn where blocks follow each other
        parts = [*_reading_us(made, together), max(computing, issuing), _meeting_us(made)]
        step = max(parts) + (sum(parts) - max(parts)) / (together if rounds > 1 else 1)
    times = (memory, cache, rounds * (BLOCK_US + steps * step))
    return on.launch_us + float(sum(t**SHARPNESS for t in times) ** (1 / SHARPNESS))


def _meeting_us(made: BlockProgram) -> float:
    """Return for how long the blocks of a cluster meet on their way: not first and last."""
    met = sum(isinstance(s, Barrier) and s.cluster for s in made.statements[Phase.JOINED])
    alone = all(a.tile >= made.extents[a.dim].size for a in made.space.reduced)
    return 0.0 if alone else MEETING_US * (met - 2)


def _reading_us(made: BlockProgram, together: int) -> Iterator[float]:
    """Yield how long blocks read that hold a row: their parts of it, then what they store with it.

    The latter is read in place, again for each of a block's rows.
    """
    rows = {a.dim: a.tile for a in made.space.grid if not a.reduced}
    for copied in (True, False):
        own = [n.out for n in made.body.inputs if n.out.type.dims and n.name not in made.iotas]
        types = [v.type for v in own if (v.name in made.tiles) is copied]
        again = [1 if copied else prod(rows[d] for d in rows if d not in t.names) for t in types]
        size = sum(n * t.bytes for n, t in zip(again, types, strict=True))
        most = made.threads * at_once(VECTOR_BYTES) * VECTOR_BYTES  # of one input
        under_way = sum(t.bytes if copied else min(t.bytes, most) for t in types)
        yield size / min(COPIED_PER_US / together, max(1, under_way) / LATENCY_US)


@dataclass(frozen=True)
class _Reads:
    """How a block gets its inputs: bytes under way at once, instructions of a step."""

    under_way: float
    issued: float

    @staticmethod
    def of(made: BlockProgram, steps: int) -> _Reads:
        """Return the reads of a block. Copies wait for nothing, threads for what they read."""
        ahead = max(1, made.stages - 1) if steps > 1 else 1
        under_way = issued = 0.0
        for node in made.body.inputs:
            type_ = node.out.type
            if not type_.dims or node.name in made.iotas:
                continue
            vector = min(VECTOR_BYTES, widest_read(made, node.name) * type_.dtype.bytes)
            size = prod(d.size for d in type_.dims) * type_.dtype.bytes
            copied = node.name in made.tiles
            issued += (COPY if copied else READ) * size / vector / (1 if node.loop_cut else steps)
            if copied and vector == VECTOR_BYTES:
                under_way += size * (ahead if node.loop_cut else 1)
            else:
                under_way += min(size, made.threads * at_once(vector) * vector)
        return _Reads(under_way, issued)


def _fetched(made: BlockProgram) -> float:
    """Return how many bytes memory gives for each that blocks load: rows come in whole lines."""
    wanted = fetched = 1.0
    for node in made.body.inputs:
        type_ = node.out.type
        if not type_.dims or node.name in made.iotas:
            continue
        size = prod(d.size for d in type_.dims) * type_.dtype.bytes
        last = type_.dims[-1]
        run = last.size * type_.dtype.bytes if last.size < made.extents[last.name].size else inf
        whole = widest_read(made, node.name) > 1
        lines = max(1.0, LINE_BYTES / run) if whole else 1.0 + LINE_BYTES / run
        wanted, fetched = wanted + size, fetched + size * lines
    return fetched / wanted


def _reopened(made: BlockProgram) -> float:
    """Return how often memory opens a page again, where threads pass a wide tile in columns."""
    most = 1.0
    for s in (s for said in made.statements.values() for s in said if isinstance(s, Reduce)):
        for name in (x for v in (s.value, s.other) if v for x in made.leaves(v)):
            type_ = made.type(name)
            if name in made.tiles or name not in made.tensors or not type_.dims:
                continue
            tile = type_.dims[-1].size * type_.dtype.bytes
            passed = made.threads * min(VECTOR_BYTES, widest_read(made, name) * type_.dtype.bytes)
            if s.over != type_.names[-1]:
                most = max(most, min(tile, PAGE_BYTES) / passed)
    return most


def _resident(made: BlockProgram, on: Target) -> int:
    """Return how many blocks a multiprocessor holds at once."""
    shared = made.shared_bytes + SHARED_EACH
    sums = sum(prod(f.extents) // (WARP * prod(f.warps)) for f in made.fragments.values())
    if made.shared_bytes > on.shared_bytes or sums > MOST_SUMS:
        return 0
    registers = made.threads * (REGISTERS + sums)
    room = ((on.shared_bytes + SHARED_EACH) // shared, on.registers // registers)
    return min(*room, THREADS_EACH // made.threads, BLOCKS_EACH)


Times = dict[GeneralKnobs, float]  # predicted microseconds


def best_knobs(
    graph: Graph, sizes: Mapping[str, int], on: Target, *, starts: int = 3
) -> GeneralKnobs:
    """Return the knobs that are predicted to be fastest, as `explored` finds them."""
    return explored(graph, sizes, on, starts=starts)[0]


def explored(
    graph: Graph, sizes: Mapping[str, int], on: Target, *, starts: int = 3
) -> tuple[GeneralKnobs, Times]:
    """Change one knob at a time from some starts; return the best knobs, and all that were seen."""
    options, times = choices(graph, sizes), Times()

    def time(chosen: Mapping[str, int]) -> float:
        made = knobs_of(chosen)
        if made not in times:
            times[made] = predict(graph, made, sizes, on)
        return times[made]

    ends = [{k: values[place] for k, values in options.items()} for place in (0, -1)]
    middle = {k: values[len(values) // 2] for k, values in options.items()}
    found = []
    for chosen in (middle, *ends)[:starts]:
        better = True
        while better:
            before = time(chosen)
            for name, values in options.items():
                chosen = min(({**chosen, name: v} for v in values), key=time)
            better = time(chosen) < before
        found.append(chosen)
    best = min(found, key=time)
    if time(best) == inf:
        raise PlanError(
            f"no block has room for the muGraph's tiles: {on.shared_bytes} bytes of shared memory, "
            f"{MOST_SUMS} sums of products for each thread",
            "shorter dims that nothing cuts may do",
        )
    return knobs_of(best), times


def knobs_of(chosen: Mapping[str, int]) -> GeneralKnobs:
    """Return knobs by their values' names, those of `choices`."""
    cuts = tuple((k, n) for k, n in chosen.items() if k not in ("threads", "stages"))
    return GeneralKnobs(cuts, chosen["threads"], chosen["stages"])


@lru_cache(maxsize=8)  # planning asks for what choosing has found
def general_by_size(graph: Graph, on: Target) -> dict[int, GeneralKnobs]:
    """Return the knobs of every bucket; a library's products are blocks already (products.py).

    Raises PlanError where there are none.
    """
    for reason in reasons(graph, on):
        raise PlanError(reason)
    counted = roles_of(graph).counted
    return {
        size: best_knobs(graph, sizes_for(graph, counted, size), on)
        for size in buckets_of(graph, counted)
    }


def general_variants(graph: Graph, on: Target) -> tuple[Variant[GeneralKnobs], ...]:
    """Return the variants of `general_by_size`."""
    return variants_of(general_by_size(graph, on))


def variants_of(chosen: Mapping[int, GeneralKnobs]) -> tuple[Variant[GeneralKnobs], ...]:
    """Return a variant per bucket; one serves those beside each other that have the same knobs."""
    found = [Variant(size, knobs) for size, knobs in chosen.items()]
    kept = [a for a, b in pairwise(found) if a.knobs != b.knobs]
    return (*kept, found[-1])
