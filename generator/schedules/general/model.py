"""The time of general kernels by a model: what is read against how many bytes are under way.

It is coarse. It tells hopeless knobs from others; what is near the best is for measurement to say.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil, inf, prod

from mirage_kernels.generator.ir import Graph, Node, Phase, held_dims
from mirage_kernels.generator.meaning.cost import block_work, moved_bytes, with_parts
from mirage_kernels.generator.plan.threads import without_threads
from mirage_kernels.generator.target import Target
from mirage_kernels.generator.tiles.horizontal import launches
from mirage_kernels.generator.tiles.program import (
    DEAR,
    THREADS_EACH,
    VECTOR_BYTES,
    WARP,
    BlockProgram,
)
from mirage_kernels.generator.tiles.statements import Barrier
from mirage_kernels.generator.tiles.tensor_cores import COLUMNS
from mirage_kernels.generator.tiles.vectors import (
    WIDTHS,
    at_once,
    is_shifted,
    widest_read,
    words_at_work,
)

MOST_SUMS = 128  # fp32 sums of products that a thread keeps
REGISTERS = 56  # of a thread beside its sums: a lead
BLOCKS_EACH = 32  # of a multiprocessor: CUDA programming guide, appendix
PAGE_BYTES = 1024  # of a row of memory that is open, as seen by one multiprocessor: a lead
LINE_BYTES = 64  # two sectors of the L2 cache, which memory gives together
SECTOR_BYTES = 32
SHARED_EACH = 1024  # bytes that a block takes beside its own, as the guide says
# Leads, fitted to sweeps of a gated MLP, attention and norms on an H200.
LATENCY_US = 1.2  # from a copy's start to its end under load
COPIED_PER_US = 6.0e4  # bytes that one multiprocessor takes at most
BLOCK_US, BARRIER_US = 2.0, 0.1  # start and end of a block; a barrier of a step
OVERLAP_US = 2.0  # of a launch with the one before it: attention with a kernel that joins its parts
MEETING_US = 0.7  # of a cluster's blocks, between its first barrier and its last: a lead
CLUSTER_US = 1.0  # start of a cluster and its two barriers: sums of a row of 8192 on an H100
CLUSTERED = 0.9  # of the multiprocessors where clusters find room for all of their blocks
PRODUCTS = 0.5  # of the tensor cores' rate that mma.sync gets
ISSUED_PER_US, OF_A_WARP = 4400.0, 600.0  # warp instructions of a multiprocessor and of one warp
COPY, READ, PRODUCT = 14, 6, 3  # instructions: of a copied vector, of one read, of an mma.sync
SHIFT = 60  # of a vector of uneven rows: words of it found, read and shifted into place
MULTIPLY_ADD = 6  # where threads do it
OPERATION = 2  # of an elementwise one; reading, converting and computing again are counted in
SHARPNESS = 3  # how little times that overlap add to the longest of them
MMA_FLOPS = 4096  # of a warp's mma.sync
DISPATCH_US = 0.05  # until a multiprocessor has begun a block more: a lead that is not fitted


def kernels_us(
    graph: Graph, programs: Sequence[BlockProgram], sizes: Mapping[str, int], on: Target
) -> float:
    """Return the predicted microseconds of a muGraph's kernels, infinite where a block has no room.

    Where one launch runs several, each takes time of the others besides.
    """
    sizes, total = with_parts(graph, sizes), 0.0
    for own in launches(programs):
        total += on.launch_us - (OVERLAP_US if total else 0.0)
        for i in own:
            node = graph.blocks[i]
            total += _kernel(graph, node, programs[i], sizes, on, alone=len(own) == 1)
            total += _beside_others(node, programs[i], sizes, on) if len(own) > 1 else 0.0
    return total


def _beside_others(node: Node, made: BlockProgram, sizes: Mapping[str, int], on: Target) -> float:
    """Return what a kernel adds to a launch of several: its blocks begin, and take what they read.

    Neither many blocks with little to do nor few with much are free, as latency alone says. Threads
    that copy nothing wait for what they read, as often as they read.
    """
    work = block_work(node, sizes)
    each = work.blocks / on.multiprocessors
    fetched = work.loaded * _fetched(made)
    waiting = LATENCY_US * (0 if made.tiles else _rounds(made) - 1)
    return DISPATCH_US * each + ceil(each) * fetched / COPIED_PER_US + waiting


def _rounds(made: BlockProgram) -> int:
    """Return how often threads read what results are made of."""
    read = sum(bool(n.out.type.dims) and n.name not in made.iotas for n in made.body.inputs)
    stored = (made.type(n.args[0]).dims for n in made.body.of("output"))
    vectors = max(prod(d.size for d in dims) for dims in stored) / WIDTHS[0]
    return max(1, ceil(vectors / made.threads / at_once(read * VECTOR_BYTES)))


def _kernel(
    graph: Graph,
    node: Node,
    made: BlockProgram,
    sizes: Mapping[str, int],
    on: Target,
    *,
    alone: bool,
) -> float:
    assert node.body is not None
    plain = replace(node, body=without_threads(node.body))
    work = block_work(plain, sizes, lambda op: DEAR.get(op, OPERATION))
    resident, held = _resident(made, on), bool(held_dims(made.body))
    if not resident:
        return inf
    memory = moved_bytes(graph, node, sizes) / on.memory_bytes_per_us * _reopened(made)
    fetched = work.loaded * _fetched(made)
    cache = work.blocks * fetched / on.l2_bytes_per_us
    # Of the busiest multiprocessor: blocks at once, and how often.
    clustered = bool(made.statements[Phase.JOINED]) and not (_is_alone(made) and not held)
    places = on.multiprocessors * (CLUSTERED if clustered else 1.0)
    around = BLOCK_US + (CLUSTER_US if clustered else 0.0)
    together = min(resident, ceil(work.blocks / places))
    rounds = ceil(work.blocks / (places * together))
    steps, loaded = work.steps, together * fetched / work.steps
    reads = _Reads.of(made, steps)
    under_way = max(1.0, together * reads.under_way * fetched / max(1.0, work.loaded))
    copying = loaded / min(COPIED_PER_US, under_way / LATENCY_US)
    if alone and not made.tiles:  # what is read may be little, and go to much that is stored
        stored = together * sum(made.type(n.args[0]).bytes for n in made.body.of("output"))
        copying = max(copying, LATENCY_US * _rounds(made) + stored / COPIED_PER_US)
    products, operations = together * work.flops / steps, together * work.operations / steps
    if not made.fragments:  # threads multiply
        products, operations = 0.0, operations + MULTIPLY_ADD * products / 2
    elif all(not f.columns for f in made.fragments.values()):
        products *= COLUMNS  # of which one counts
    computing = products * on.multiprocessors / on.tensor_flops_per_us / PRODUCTS
    issued = together * reads.issued / WARP + PRODUCT * products / MMA_FLOPS
    issued += operations / WARP
    warps = together * made.threads // WARP
    issuing = issued / min(ISSUED_PER_US, OF_A_WARP * warps)
    barriers = sum(isinstance(s, Barrier) for s in made.statements[Phase.LOOP])
    step = max(copying, computing, issuing) + BARRIER_US * barriers
    if held:  # one after the other, in turn where blocks follow each other
        parts = [*_reading_us(made, together), max(computing, issuing), _meeting_us(made)]
        step = max(parts) + (sum(parts) - max(parts)) / (together if rounds > 1 else 1)
    times = (memory, cache, rounds * (around + steps * step))
    return float(sum(t**SHARPNESS for t in times) ** (1 / SHARPNESS))


def _meeting_us(made: BlockProgram) -> float:
    """Return for how long the blocks of a cluster meet on their way: not first and last."""
    met = sum(isinstance(s, Barrier) and s.cluster for s in made.statements[Phase.JOINED])
    return 0.0 if _is_alone(made) else MEETING_US * max(0, met - 2)


def _is_alone(made: BlockProgram) -> bool:
    """Say whether clusters have one block."""
    return all(a.tile >= made.extents[a.dim].size for a in made.space.reduced)


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
            words = words_at_work(made, node.name)
            each = COPY if copied else READ
            each += SHIFT if is_shifted(made, node.name) and not words else 0
            issued += each * size / vector / (words or 1) / (1 if node.loop_cut else steps)
            if copied and vector == VECTOR_BYTES and not is_shifted(made, node.name):
                under_way += size * (ahead if node.loop_cut else 1)
            else:
                under_way += min(size, (words or 1) * made.threads * at_once(vector) * vector)
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
        if is_shifted(made, node.name):  # words begin and end within sectors
            lines = 1.0 + SECTOR_BYTES / run
        wanted, fetched = wanted + size, fetched + size * lines
    return fetched / wanted


def _reopened(made: BlockProgram) -> float:
    """Return how often memory opens a page again, where threads pass a wide tile in columns."""
    most = 1.0
    for s in made.reductions:
        for name in (x for v in s.values for x in made.leaves(v)):
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
