"""Measures calls over a cache on a GPU: ours beside its peers, the memory floor and float64.

The method is that of `measure`. The floor is the time to read the keys and values that are seen;
where both products take longer at the rate of a large matrix product, that time is the yardstick.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial

import torch
from torch import Tensor

from mirage_kernels.generator.bench.measure import (
    METHOD,
    FloorReader,
    Method,
    Row,
    floor_microseconds,
    graph_microseconds,
    relative_error,
    rotation_count,
)
from mirage_kernels.generator.bench.workloads import tensors as calls
from mirage_kernels.generator.bench.workloads.calls import CallWorkload, dense_twin
from mirage_kernels.generator.bench.workloads.peers import Peer, peers
from mirage_kernels.generator.bench.workloads.tensors import Tensors
from mirage_kernels.generator.ir.dtypes import DType

LARGEST_PEER_ERROR = 0.1  # of a result that is right but for rounding; a wrong one is at 1
_SLOW_MICROSECONDS = 400
_SETTLED = replace(METHOD, settle_ms=50)
_SLOW = replace(METHOD, launches=6, replays=5, warmup_replays=1)
_MATRIX_SIZE = 8192


@dataclass(frozen=True)
class Clock:
    """How things are timed: a GPU's, or a pretended one. Times are in microseconds."""

    device: str
    per_call: Callable[[Sequence[Callable[[], object]]], float]
    floor: Callable[[int], float]  # of bytes
    matrix: Callable[[DType], float]  # per floating-point operation
    sets: Callable[[int], int]  # input sets of so many bytes for a cold reading


@dataclass(frozen=True)
class Others:
    """What the same inputs without pages give: PyTorch's programs and fused kernels."""

    eager_us: float
    error_eager: float
    peers: Mapping[str, float]


def gpu_clock(reader: FloorReader) -> Clock:
    """Return the clock of this GPU; floors and the matrix rate are measured once each."""
    floor = cache(partial(floor_microseconds, reader))
    return Clock("cuda", paced_microseconds, floor, _rate, rotation_count)


def paced_microseconds(timed: Sequence[Callable[[], object]]) -> float:
    """Time one call in a graph, with fewer repetitions of what takes long anyway."""
    timed[0]()  # what only the first call does
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(2)]  # type: ignore[no-untyped-call]
    marks[0].record()
    timed[0]()
    marks[1].record()
    torch.cuda.synchronize()
    is_slow = 1e3 * marks[0].elapsed_time(marks[1]) > _SLOW_MICROSECONDS
    return graph_microseconds(timed, method=_paced(len(timed)) if is_slow else _SETTLED)


def _paced(count: int) -> Method:
    return replace(_SLOW, launches=max(count, _SLOW.launches))


@cache
def _rate(dtype: DType) -> float:
    size = (_MATRIX_SIZE, _MATRIX_SIZE)
    a, b = (torch.randn(size, dtype=calls.TORCH_DTYPES[dtype], device="cuda") for _ in range(2))
    return graph_microseconds([lambda: a @ b], method=_SLOW) / (2 * _MATRIX_SIZE**3)


def rows(workloads: Sequence[CallWorkload], clock: Clock) -> Iterator[Row]:
    """Measure one workload after the other; what has no pages is measured once for all sizes."""
    known: dict[CallWorkload, Others] = {}
    for workload in workloads:
        yield _row(workload, clock, known)
        if clock.device == "cuda":
            torch.cuda.empty_cache()


def _row(workload: CallWorkload, clock: Clock, known: dict[CallWorkload, Others]) -> Row:
    count = clock.sets(workload.bytes_read)
    sets = [calls.drawn(workload, seed, clock.device) for seed in range(count)]
    exact = calls.exact(workload, calls.dense(workload, sets[0]))
    error_ours = _error(calls.poisoned_run(workload, sets[0]), exact)
    timed = [partial(calls.ours, workload, given) for given in sets]
    ours_us = clock.per_call(timed)
    promised_us = calls.promised(lambda: clock.per_call(timed))
    twin = dense_twin(workload)
    if twin not in known:
        known[twin] = _others(workload, sets, exact, clock)
    others = known[twin]
    found = {**others.peers, **_timed(_paged_peers(workload), sets, exact, clock)}
    best = min(found, key=lambda name: found[name], default="")
    floor_us = clock.floor(workload.bytes_read)
    compute_us = clock.matrix(workload.dtype) * workload.operations
    return Row(
        workload=workload.recipe,
        setting=workload.setting,
        dtype=workload.dtype.value,
        dims=workload.dims,
        bytes_read=workload.bytes_read,
        floor_us=floor_us,
        compute_us=compute_us,
        ours_us=ours_us,
        warm_us=clock.per_call(timed[:1]),
        ratio=ours_us / max(floor_us, compute_us),
        promised_us=promised_us,
        promised_ratio=promised_us / max(floor_us, compute_us),
        eager_us=others.eager_us,
        compile_us=None,
        peers=found,
        best_peer=best,
        best_peer_us=found.get(best),
        error_ours=error_ours,
        error_eager=others.error_eager,
    )


def _paged_peers(workload: CallWorkload) -> list[Peer]:
    return [peer for peer in peers(workload) if peer.paged]


def _others(workload: CallWorkload, sets: Sequence[Tensors], exact: Tensor, clock: Clock) -> Others:
    dense = [calls.dense(workload, given) for given in sets]
    eager = partial(calls.eager, workload)
    return Others(
        clock.per_call([partial(eager, given) for given in dense]),
        _error(eager(dense[0]), exact),
        _timed([peer for peer in peers(workload) if not peer.paged], dense, exact, clock),
    )


def _timed(
    candidates: Sequence[Peer], sets: Sequence[Tensors], exact: Tensor, clock: Clock
) -> dict[str, float]:
    """Time those that take the call and compute what is wanted; others are left out."""
    found: dict[str, float] = {}
    for peer in candidates:
        timed = [partial(peer.run, given) for given in sets]
        try:
            results = [run() for run in timed]  # what is prepared once per set comes before graphs
            if _error(results[0], exact) < LARGEST_PEER_ERROR:
                found[peer.name] = clock.per_call(timed)
        except (RuntimeError, ValueError):  # it does not take the call
            continue
    return found


def _error(result: Tensor, exact: Tensor) -> float:
    return relative_error(result.reshape(exact.shape), exact)
