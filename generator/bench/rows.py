"""Measures workloads on a GPU: ours beside its peers, the memory floor and float64, a row each.

Where the products take longer at the rate of a large matrix product than the bytes to read, that
time is the yardstick.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from mirage_kernels.generator.bench.measure import Clock, Results, largest_error
from mirage_kernels.generator.bench.workload import I, Program, Workload, poisoned, promises

LARGEST_PEER_ERROR = 0.1  # of a result that is right but for rounding; a wrong one is at 1


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
    workloads: Sequence[Workload[Any]], clock: Clock, *, with_compile: bool = False
) -> Iterator[Row]:
    """Measure one workload after the other.

    `with_compile`: torch.compile as well, which costs minutes.
    """
    for workload in workloads:
        yield measured(workload, clock, with_compile=with_compile)
        if clock.device == "cuda":
            torch.cuda.empty_cache()


def measured(workload: Workload[I], clock: Clock, *, with_compile: bool) -> Row:
    """Measure one workload."""
    sets = [workload.draw(n, clock.device) for n in range(clock.sets(workload.bytes_read))]
    flat = [workload.dense(given) for given in sets]
    exact, eager = workload.exact(flat[0]), workload.eager()
    outs = poisoned(workload.new_outs(sets[0]))
    workload.ours(sets[0], outs)
    errors = largest_error(outs, exact), largest_error(eager(flat[0]), exact)
    timed = [partial(workload.ours, given) for given in sets]
    ours_us = clock.per_call(timed)
    with promises():
        promised_us = clock.per_call(timed)
    found = peer_times(workload, (sets, flat), exact, clock)
    best = min(found, key=lambda name: found[name], default="")
    floor_us, compute_us = _bounds(workload, clock)
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
        warm_us=clock.per_call(timed[:1]),
        ratio=ours_us / max(floor_us, compute_us),
        promised_us=promised_us,
        promised_ratio=promised_us / max(floor_us, compute_us),
        eager_us=_cold(eager, flat, clock),
        compile_us=_cold(compiled_eager, flat, clock) if compiled_eager else None,
        peers=found,
        best_peer=best,
        best_peer_us=found.get(best),
        error_ours=errors[0],
        error_eager=errors[1],
    )


def _cold(program: Program[I], sets: Sequence[I], clock: Clock) -> float:
    return clock.per_call([partial(program, given) for given in sets])


def _bounds(workload: Workload[I], clock: Clock) -> tuple[float, float]:
    """Return the times of reading the bytes once and of the products."""
    operations = workload.operations
    compute_us = clock.matrix(workload.dtype) * operations if operations else 0.0
    return clock.floor(workload.bytes_read), compute_us


def peer_times(
    workload: Workload[I], sets: tuple[Sequence[I], Sequence[I]], exact: Results, clock: Clock
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
                found[peer.name] = _cold(peer.run, own, clock)
        except (RuntimeError, ValueError):  # it does not take the call
            continue
    return found


def compiled(eager: Program[I], inputs: I) -> Program[I]:
    """Return torch.compile(max-autotune) of `eager`, tuned on these inputs (takes minutes).

    Without its own CUDA graphs: the measurement puts every peer under one graph alike.
    """
    torch.compiler.reset()
    tuned = torch.compile(eager, mode="max-autotune-no-cudagraphs", dynamic=False)
    tuned(inputs)
    return tuned
