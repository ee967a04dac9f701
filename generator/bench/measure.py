"""Measures a compiled op on a GPU: cold and warm time, the memory floor, error against float64.

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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Union

from mirage_kernels.generator.bench.peers import compiled

if TYPE_CHECKING:
    import torch

Inputs = tuple["torch.Tensor", ...]
Results = Union["torch.Tensor", tuple["torch.Tensor", ...]]  # one, or several
Op = Callable[..., Results]


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
    rotation_l2_multiple: int = 4
    rotation_bytes_at_least: int = 256 * 1024 * 1024
    input_sets_at_least: int = 3


METHOD = Method()


@dataclass(frozen=True)
class Subject:
    """One workload: an op of ours, what PyTorch does instead, and a maker of random inputs.

    `oracle` is the recipe's reference; it is called on float64 copies of the inputs.
    `make_inputs(seed)` returns tensors on the GPU, in the order that all callables take them.
    `ours_into(out, *inputs)` writes into a given tensor, or into a tuple of them: with it, the
    checked run starts from outputs full of NaN, so that elements which nobody wrote show.
    `promise(True)` tells the library that weights are constant, `promise(False)` takes that back.
    """

    workload: str
    dtype: str
    dims: Mapping[str, int]
    ours: Op
    eager: Op
    oracle: Op
    make_inputs: Callable[[int], Inputs]
    ours_into: Callable[..., object] | None = None
    promise: Callable[[bool], None] | None = None


@dataclass(frozen=True)
class Row:
    """One line of the benchmark table; times in microseconds per call, cold unless named warm.

    `floor_us` is the time to read the bytes once, `compute_us` that of the products at the rate of
    a large matrix product, 0 of ops that take tokens; `ratio` is ours over the larger.
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
    import torch

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


def total_bytes(tensors: Sequence[torch.Tensor]) -> int:
    """Count the bytes of all tensors together."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def rotation_count(set_bytes: int, *, method: Method = METHOD) -> int:
    """Return how many input sets together exceed the cache often enough for a cold reading."""
    import torch

    l2_bytes = torch.cuda.get_device_properties(torch.cuda.current_device()).L2_cache_size
    wanted = max(method.rotation_l2_multiple * l2_bytes, method.rotation_bytes_at_least)
    return max(method.input_sets_at_least, wanted // set_bytes + 1)


def graph_microseconds(calls: Sequence[Callable[[], object]], *, method: Method = METHOD) -> float:
    """Time one call: the median over replays of a graph that holds whole rounds of `calls`."""
    import torch

    round_calls = list(calls) * -(-method.launches // len(calls))
    calls[0]()  # module loading and handles must not fall into the capture
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in round_calls:
            call()
    marks = [
        torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        for _ in range(method.replays + 1)
    ]
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


def cold_microseconds(
    launch: Op, input_sets: Sequence[Inputs], *, method: Method = METHOD
) -> float:
    """Time `launch(*inputs)` per call while rotating over the input sets (see `rotation_count`)."""

    def call_on(inputs: Inputs) -> Callable[[], object]:
        return lambda: launch(*inputs)

    return graph_microseconds([call_on(inputs) for inputs in input_sets], method=method)


def warm_microseconds(launch: Op, inputs: Inputs, *, method: Method = METHOD) -> float:
    """Time `launch(*inputs)` per call on the same buffers again and again."""
    return graph_microseconds([lambda: launch(*inputs)], method=method)


@dataclass(frozen=True)
class FloorReader:
    """The bare kernels: read(data, variant, sink) reads a uint8 tensor once."""

    read: Callable[[torch.Tensor, int, torch.Tensor], None]
    variants: int


def library_floor() -> FloorReader:
    """Return the floor kernels of the installed extension."""
    import torch

    ops = torch.ops.mirage_kernels
    return FloorReader(read=ops._read_floor, variants=int(ops._read_floor_variants()))


def floor_by_variant(
    reader: FloorReader, byte_count: int, *, method: Method = METHOD
) -> tuple[float, ...]:
    """Time each bare kernel on `byte_count` bytes (rounded up to 16), rotated as the op is."""
    import torch

    size = -(-byte_count // 16) * 16
    data = [
        torch.randint(0, 256, (size,), dtype=torch.uint8, device="cuda")
        for _ in range(rotation_count(size, method=method))
    ]
    sink = torch.zeros(1, dtype=torch.int32, device="cuda")

    def call_on(buffer: torch.Tensor, variant: int) -> Callable[[], object]:
        return lambda: reader.read(buffer, variant, sink)

    return tuple(
        graph_microseconds([call_on(buffer, variant) for buffer in data], method=method)
        for variant in range(reader.variants)
    )


def floor_microseconds(reader: FloorReader, byte_count: int, *, method: Method = METHOD) -> float:
    """Return the time in which the fastest bare kernel reads the bytes once."""
    return min(floor_by_variant(reader, byte_count, method=method))


def relative_error(value: torch.Tensor, oracle: torch.Tensor) -> float:
    """Return ||value - oracle|| / ||oracle|| (Frobenius, float64); NaN stays NaN."""
    difference = value.double() - oracle.double()
    return float(difference.norm() / oracle.double().norm())


def as_tuple(made: Results) -> tuple[torch.Tensor, ...]:
    """Return one result or several as a tuple."""
    return made if isinstance(made, tuple) else (made,)


def largest_error(made: Results, oracle: Results) -> float:
    """Return the largest relative error of several results; NaN if one has it."""
    pairs = zip(as_tuple(made), as_tuple(oracle), strict=True)
    return max((relative_error(a, b) for a, b in pairs), key=lambda e: (e != e, e))


def errors(subject: Subject, inputs: Inputs) -> tuple[float, float]:
    """Return the relative errors of ours and of eager against the float64 oracle."""
    import torch

    oracle = subject.oracle(*(t.double() if t.is_floating_point() else t for t in inputs))
    eager = subject.eager(*inputs)
    if subject.ours_into is None:
        ours = subject.ours(*inputs)
    else:
        poisoned = tuple(torch.full_like(e, float("nan")) for e in as_tuple(eager))
        ours = poisoned if isinstance(eager, tuple) else poisoned[0]
        subject.ours_into(ours, *inputs)
    return largest_error(ours, oracle), largest_error(eager, oracle)


def measure(
    subject: Subject,
    reader: FloorReader,
    *,
    with_compile: bool = False,
    method: Method = METHOD,
) -> Row:
    """Measure one workload; torch.compile costs minutes and is asked for by `with_compile`."""
    first = subject.make_inputs(0)
    byte_count = total_bytes(first)
    sets = [first]
    sets += [subject.make_inputs(n) for n in range(1, rotation_count(byte_count, method=method))]
    error_ours, error_eager = errors(subject, first)
    floor_us = floor_microseconds(reader, byte_count, method=method)
    ours_us = cold_microseconds(subject.ours, sets, method=method)
    promised_us = _promised_microseconds(subject, sets, method)
    compile_us = None
    if with_compile:
        compile_us = cold_microseconds(compiled(subject.eager, first), sets, method=method)
    return Row(
        workload=subject.workload,
        dtype=subject.dtype,
        dims=subject.dims,
        bytes_read=byte_count,
        floor_us=floor_us,
        ours_us=ours_us,
        eager_us=cold_microseconds(subject.eager, sets, method=method),
        compile_us=compile_us,
        warm_us=warm_microseconds(subject.ours, first, method=method),
        ratio=ours_us / floor_us,
        promised_us=promised_us,
        promised_ratio=promised_us / floor_us,
        error_ours=error_ours,
        error_eager=error_eager,
    )


def _promised_microseconds(subject: Subject, sets: Sequence[Inputs], method: Method) -> float:
    if subject.promise is None:
        return cold_microseconds(subject.ours, sets, method=method)
    subject.promise(True)
    try:
        return cold_microseconds(subject.ours, sets, method=method)
    finally:
        subject.promise(False)
