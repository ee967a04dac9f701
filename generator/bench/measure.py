"""Times calls on a GPU, cold and warm, beside the memory floor; errors against float64.

Method (the reasons stand beside the numbers):
  * Only CUDA graphs are timed, so that the cost of Python and of the launch call does not count.
  * Cold: launches rotate over input sets that together exceed four times the L2 cache, because in a
    model other layers' weights have passed through the cache between two calls of the same op.
  * Floor: the fastest of several bare kernels that read the same bytes once, rotated alike.
"""

from __future__ import annotations

import datetime
import itertools
import statistics
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial

import torch
from torch import Tensor

from mirage_kernels.generator.ir.dtypes import DType

TORCH_DTYPES = {DType.FP16: torch.float16, DType.BF16: torch.bfloat16}
L2_MULTIPLE, ROTATION_BYTES, SETS_AT_LEAST = 4, 256 * 1024 * 1024, 3
SLOW_MICROSECONDS = 400  # of one call: from there on few repetitions are enough
MATRIX_SIZE = 8192

Inputs = tuple[Tensor, ...]
Results = Tensor | tuple[Tensor, ...]  # one, or several
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


def gpu_clock() -> Clock:
    """Return the clock of this GPU; floors and the matrix rate are measured once each."""
    return Clock(
        "cuda", paced_microseconds, cache(floor_microseconds), cache(_rate), rotation_count
    )


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
    return Environment(
        gpu=torch.cuda.get_device_name(),
        driver=driver,
        cuda=str(torch.version.cuda),
        torch=torch.__version__,
        date=datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        commit=commit,
        command=command,
    )


# -- times -----------------------------------------------------------------------------------------


def rotation_count(set_bytes: int) -> int:
    """Return how many input sets together exceed the cache often enough for a cold reading."""
    l2_bytes = torch.cuda.get_device_properties(torch.cuda.current_device()).L2_cache_size
    return max(SETS_AT_LEAST, max(L2_MULTIPLE * l2_bytes, ROTATION_BYTES) // set_bytes + 1)


def graph_microseconds(calls: Timed, *, method: Method = METHOD) -> float:
    """Time one call: the median over replays of a graph that holds whole rounds of `calls`."""
    round_calls = list(calls) * -(-method.launches // len(calls))
    calls[0]()  # module loading and handles must not fall into the capture
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in round_calls:
            call()
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
    is_slow = min(_elapsed(calls[0]) for _ in range(3)) > SLOW_MICROSECONDS
    return graph_microseconds(calls, method=_SLOW if is_slow else _SETTLED)


def _elapsed(call: Callable[[], object]) -> float:
    """Return the microseconds of a call outside a graph, launches included."""
    begin, end = _events(2)
    begin.record()
    call()
    end.record()
    torch.cuda.synchronize()
    return 1e3 * float(begin.elapsed_time(end))


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


def _rate(dtype: DType) -> float:
    size = (MATRIX_SIZE, MATRIX_SIZE)
    a, b = (torch.randn(size, dtype=TORCH_DTYPES[dtype], device="cuda") for _ in range(2))
    return graph_microseconds([lambda: a @ b], method=_SLOW) / (2 * MATRIX_SIZE**3)


# -- errors ----------------------------------------------------------------------------------------


def relative_error(value: Tensor, oracle: Tensor) -> float:
    """Return ||value - oracle|| / ||oracle|| (Frobenius, float64); NaN stays NaN."""
    difference = value.double() - oracle.double()
    return float(difference.norm() / oracle.double().norm())


def as_tuple(made: Results) -> tuple[Tensor, ...]:
    """Return one result or several as a tuple."""
    return made if isinstance(made, tuple) else (made,)


def largest_error(made: Results, oracle: Results) -> float:
    """Return the largest relative error of several results of any shape; NaN if one has it."""
    pairs = zip(as_tuple(made), as_tuple(oracle), strict=True)
    return max((relative_error(a.reshape(b.shape), b) for a, b in pairs), key=lambda e: (e != e, e))
