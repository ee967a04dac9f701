"""Measures workloads on a GPU: ours beside its peers, the memory floor and float64, a row each.

Method (the reasons stand beside the numbers):
  * Only CUDA graphs are timed, so that the cost of Python and of the launch call does not count.
  * Cold: launches rotate over input sets that together exceed four times the L2 cache, because in a
    model other layers' weights have passed through the cache between two calls of the same op.
  * Floor: the fastest of several bare kernels that read the same bytes once, rotated alike. Where
    the products take longer at the rate of a large matrix product, that time is the yardstick.
"""

from __future__ import annotations

import datetime
import itertools
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial

import torch

from mirage_kernels.generator.bench.workload import (
    TORCH_DTYPES,
    Inputs,
    Program,
    Results,
    largest_error,
    poisoned,
    promises,
)
from mirage_kernels.generator.bench.workloads.lists import Workload
from mirage_kernels.generator.ir.dtypes import DType

L2_MULTIPLE, ROTATION_BYTES, SETS_AT_LEAST = 4, 256 * 1024 * 1024, 3
SLOW_MICROSECONDS = 400  # of one call: from there on few repetitions are enough
MATRIX_SIZE = 8192
LARGEST_PEER_ERROR = 0.1  # of a result that is right but for rounding; a wrong one is at 1

Timed = Sequence[Callable[[], object]]


@dataclass(frozen=True)
class Method:
    """How often things are repeated.

    A graph holds at least `launches` launches, so that the gap between replays stays under 1 % of
    what is timed; the median of `replays` is taken after `warmup_replays` that are not counted, and
    before them as many as `settle_ms` milliseconds take: what ran before (a float64 reference, say)
    leaves the GPU with clocks of its own for a while.
    """

    launches: int = 40
    replays: int = 15
    warmup_replays: int = 3
    settle_ms: float = 0.0


METHOD = Method()
_SETTLED = replace(METHOD, settle_ms=50)
_SLOW = Method(launches=6, replays=5, warmup_replays=1)


@dataclass(frozen=True)
class Clock:
    """How things are timed: a GPU's, or a pretended one. Times are in microseconds."""

    device: str
    per_call: Callable[[Timed], float]
    floor: Callable[[int], float]  # of bytes
    matrix: Callable[[DType], float]  # per floating-point operation
    sets: Callable[[int], int]  # input sets of so many bytes for a cold reading

    def cold(self, program: Program, sets: Sequence[Inputs]) -> float:
        """Time a program while rotating over input sets."""
        return self.per_call([partial(program, given) for given in sets])


def gpu_clock() -> Clock:
    """Return the clock of this GPU; floors and the matrix rate are measured once each."""
    floor, matrix = cache(floor_microseconds), cache(matrix_microseconds)
    return Clock("cuda", paced_microseconds, floor, matrix, rotation_count)


@dataclass(frozen=True)
class Environment:
    """What a published number needs beside it."""

    gpu: str
    driver: str
    cuda: str
    torch: str
    date: str
    commit: str
    command: str


def environment(*, command: str, commit: str) -> Environment:
    """Record the current GPU, its software and the time; the caller knows command and commit."""
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    driver = subprocess.run(query, capture_output=True, text=True, check=True).stdout.split()[0]
    date = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC")
    versions = (driver, str(torch.version.cuda), torch.__version__)
    return Environment(torch.cuda.get_device_name(), *versions, date, commit, command)


# -- times -----------------------------------------------------------------------------------------


def rotation_count(set_bytes: int) -> int:
    """Return how many input sets together exceed the cache often enough for a cold reading."""
    l2_bytes = torch.cuda.get_device_properties(torch.cuda.current_device()).L2_cache_size
    return max(SETS_AT_LEAST, max(L2_MULTIPLE * l2_bytes, ROTATION_BYTES) // set_bytes + 1)


def captured(calls: Timed) -> torch.cuda.CUDAGraph:
    """Return a graph of calls in order, the first of which has run once before."""
    calls[0]()  # module loading and handles must not fall into the capture
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    return graph


def graph_microseconds(calls: Timed, *, method: Method = METHOD) -> float:
    """Time one call: the median over replays of a graph that holds whole rounds of `calls`."""
    round_calls = list(calls) * -(-method.launches // len(calls))
    graph = captured(round_calls)
    marks = _events(method.replays + 1)
    started = time.perf_counter()
    while 1e3 * (time.perf_counter() - started) < method.settle_ms:
        graph.replay()
        torch.cuda.synchronize()
    for _ in range(method.warmup_replays):
        graph.replay()
    marks[0].record()
    for mark in marks[1:]:  # queued without waiting: the GPU never idles between replays
        graph.replay()
        mark.record()
    torch.cuda.synchronize()
    milliseconds: list[float] = [a.elapsed_time(b) for a, b in itertools.pairwise(marks)]
    return 1e3 * statistics.median(milliseconds) / len(round_calls)


def paced_microseconds(calls: Timed) -> float:
    """Time one call in a graph, with fewer repetitions of what takes long anyway."""
    calls[0]()  # what only the first call does
    milliseconds = []  # outside a graph, launches included
    for _ in range(3):
        begin, end = _events(2)
        begin.record()
        calls[0]()
        end.record()
        torch.cuda.synchronize()
        milliseconds.append(begin.elapsed_time(end))
    is_slow = 1e3 * min(milliseconds) > SLOW_MICROSECONDS
    return graph_microseconds(calls, method=_SLOW if is_slow else _SETTLED)


def _events(count: int) -> list[torch.cuda.Event]:
    return [torch.cuda.Event(enable_timing=True) for _ in range(count)]  # type: ignore[no-untyped-call]


def floor_microseconds(byte_count: int) -> float:
    """Return the time in which the fastest bare kernel reads the bytes (rounded up to 16) once."""
    ops = torch.ops.mirage_kernels
    size = -(-byte_count // 16) * 16
    data = [
        torch.randint(0, 256, (size,), dtype=torch.uint8, device="cuda")
        for _ in range(rotation_count(size))
    ]
    sink = torch.zeros(1, dtype=torch.int32, device="cuda")
    return min(
        graph_microseconds([partial(ops._read_floor, buffer, variant, sink) for buffer in data])
        for variant in range(int(ops._read_floor_variants()))
    )


def matrix_microseconds(dtype: DType) -> float:
    """Return the time of a floating-point operation in a large matrix product."""
    size = (MATRIX_SIZE, MATRIX_SIZE)
    a, b = (torch.randn(size, dtype=TORCH_DTYPES[dtype], device="cuda") for _ in range(2))
    return graph_microseconds([lambda: a @ b], method=_SLOW) / (2 * MATRIX_SIZE**3)


# -- rows ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    """One line of the benchmark table; times in microseconds per call, cold unless named warm.

    `floor_us` is the time to read the bytes once, `compute_us` that of the products at the rate of
    a large matrix product, 0 where they cannot bound the time; `ratio` is ours over the larger.
    `promised_us` and `promised_ratio` are ours where weights, and the cached tokens, were promised
    to be constant. `peers` are all that gave the right result; the best of them is named.
    """

    workload: str
    dtype: str
    dims: Mapping[str, int]
    bytes_read: int
    floor_us: float
    ours_us: float
    eager_us: float
    compile_us: float | None
    warm_us: float
    ratio: float
    promised_us: float
    promised_ratio: float
    error_ours: float
    error_eager: float
    setting: str = ""  # of calls over a cache: decode, prefill
    compute_us: float = 0.0
    peers: Mapping[str, float] = field(default_factory=dict)
    best_peer: str = ""
    best_peer_us: float | None = None


def rows(
    workloads: Sequence[Workload], clock: Clock, *, with_compile: bool = False
) -> Iterator[Row]:
    """Measure one workload after the other.

    `with_compile`: torch.compile as well, which costs minutes.
    """
    for workload in workloads:
        yield measured(workload, clock, with_compile=with_compile)
        if clock.device == "cuda":
            torch.cuda.empty_cache()


def measured(workload: Workload, clock: Clock, *, with_compile: bool) -> Row:
    """Measure one workload."""
    sets = [workload.draw(n, clock.device) for n in range(clock.sets(workload.bytes_read))]
    flat = [workload.dense(given) for given in sets]
    exact, eager = workload.exact(flat[0]), workload.eager()
    outs = poisoned(workload.new_outs(sets[0]))
    workload.ours(sets[0], outs)
    error_ours, error_eager = largest_error(outs, exact), largest_error(eager(flat[0]), exact)
    ours_us = clock.cold(workload.ours, sets)
    with promises():
        promised_us = clock.cold(workload.ours, sets)
    peers = peer_times(workload, (sets, flat), exact, clock)
    best = min(peers, key=lambda name: peers[name], default="")
    floor_us, operations = clock.floor(workload.bytes_read), workload.operations
    compute_us = clock.matrix(workload.dtype) * operations if operations else 0.0
    bound_us = max(floor_us, compute_us)
    compiled_eager = compiled(eager, flat[0]) if with_compile else None
    return Row(
        workload=workload.recipe,
        setting=workload.setting,
        dtype=workload.dtype.value,
        dims=workload.dims,
        bytes_read=workload.bytes_read,
        floor_us=floor_us,
        compute_us=compute_us,
        ours_us=ours_us,
        warm_us=clock.cold(workload.ours, sets[:1]),
        ratio=ours_us / bound_us,
        promised_us=promised_us,
        promised_ratio=promised_us / bound_us,
        eager_us=clock.cold(eager, flat),
        compile_us=clock.cold(compiled_eager, flat) if compiled_eager else None,
        peers=peers,
        best_peer=best,
        best_peer_us=peers.get(best),
        error_ours=error_ours,
        error_eager=error_eager,
    )


def peer_times(
    workload: Workload,
    sets: tuple[Sequence[Inputs], Sequence[Inputs]],
    exact: Results,
    clock: Clock,
) -> dict[str, float]:
    """Time the peers that take the call and compute what is wanted; others are left out.

    `sets` are inputs as our op takes them, and without pages.
    """
    found = {}
    for peer in workload.peers():
        own = sets[0 if peer.paged else 1]
        try:
            made = [peer.run(given) for given in own]  # what is prepared once comes before graphs
            if largest_error(made[0], exact) < LARGEST_PEER_ERROR:
                found[peer.name] = clock.cold(peer.run, own)
        except (RuntimeError, ValueError):  # it does not take the call
            continue
    return found


def compiled(eager: Program, inputs: Inputs) -> Program:
    """Return torch.compile(max-autotune) of `eager`, tuned on these inputs (takes minutes).

    Without its own CUDA graphs: the measurement puts every peer under one graph alike.
    """
    torch.compiler.reset()
    tuned = torch.compile(eager, mode="max-autotune-no-cudagraphs", dynamic=False)
    tuned(inputs)
    return tuned
