"""Measures whole decode steps: one CUDA graph of all layers, beside PyTorch and the bytes.

    python benchmarks/decode_step.py --models Llama-3.1-8B --lengths 1024 --sequences 1 8 64 \\
        --json benchmarks/results/decode_step.json

All layers have random weights of their own, caches have pages of 16 in random order. The floor is
the time to stream the weights and the cache at the rate of reading 2 GiB, measured in the same run.
`ours` takes each op that this build has a kernel for, and PyTorch's elsewhere. Peers are PyTorch
eager and torch.compile (default mode, dynamic=False) of all that lies between two attentions,
with the fastest of PyTorch's attentions on a dense cache. Parts are timed in graphs of their own,
over the weights of all layers; `trace` times the kernels of a layer within the step. Logits of two
layers are compared with fp32.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
from decode.models import MODELS, Weights, drawn_state, drawn_weights, gathered
from decode.ours import Ours, wanted_ops
from decode.peers import Torch, attend, fastest_attention, in_fp32
from decode.traces import kernels_of_a_layer
from torch.nn.attention import SDPBackend

from mirage_kernels import constant_history, constant_weights
from mirage_kernels.generator.bench.measure import Method, floor_microseconds, graph_microseconds
from mirage_kernels.generator.bench.workload import relative_error
from mirage_kernels.generator.commands.bench import document_of, measured_here
from mirage_kernels.generator.records.files import write_whole

STREAMED_BYTES = 2 << 30
STEP = Method(launches=1, replays=20, warmup_replays=3, settle_ms=50)
WHAT = ("ours", "parts", "trace", "logits", "compile", "eager")
Row = dict[str, object]


@dataclass(frozen=True)
class Wanted:
    """What is measured, and how our step runs."""

    only: tuple[str, ...]
    without: tuple[str, ...]
    prefetch_mb: float
    bytes_per_us: float


@contextlib.contextmanager
def promises(kept: bool) -> Iterator[None]:
    """Promise that weights and history are constant, as a serving step does."""
    constant_weights(kept)
    constant_history(kept)
    try:
        yield
    finally:
        constant_weights(False)
        constant_history(False)


def step_microseconds(step: Callable[[], object]) -> float:
    """Time a step's graph."""
    for _ in range(2):  # what is compiled is compiled here
        step()
    torch.cuda.synchronize()
    return graph_microseconds([step], method=STEP)


def parts_of(step: Ours, bytes_per_us: float) -> Row:
    """Time each part on all layers: microseconds of a call, and of its bytes."""
    found: Row = {}
    for name, read, calls in step.parts():
        micros = graph_microseconds(calls)
        found[name] = {"us": round(micros, 2), "bytes_us": round(read / bytes_per_us, 2)}
    return found


def logits_errors(weights: Weights, sequences: int, has: dict[str, bool]) -> Row:
    """Compare the logits of two layers with fp32: ours and PyTorch's."""
    cut = weights.cut(2)
    state = drawn_state(cut.model, sequences, 256)
    dense = gathered(state)
    wide = replace(dense, caches=tuple(cache.float() for cache in dense.caches))
    math = partial(attend, SDPBackend.MATH, False)
    exact = Torch(in_fp32(cut), wide, math, is_compiled=False).step().double()
    made = {"ours": Ours(cut, state, has), "eager": Torch(cut, dense, math, is_compiled=False)}
    return {name: relative_error(step.step(), exact) for name, step in made.items()}


def measured(weights: Weights, sequences: int, length: int, wanted: Wanted) -> Row:
    """Measure one row: a model, so many sequences, keys of each."""
    state = drawn_state(weights.model, sequences, length)
    has = wanted_ops(weights.model, wanted.without)
    floor = (weights.bytes_read + state.bytes_read) / wanted.bytes_per_us
    row: Row = {"model": weights.model.name, "length": length, "sequences": sequences}
    row |= {"floor_us": round(floor, 1), "kernels": has, "prefetch_mb": wanted.prefetch_mb}

    def note(name: str, micros: float) -> None:
        row[name] = round(micros, 1)
        row[f"{name}/floor"] = round(micros / floor, 3)

    ours = Ours(weights, state, has, wanted.prefetch_mb)
    if "ours" in wanted.only:
        note("ours", step_microseconds(ours.step))
    if "parts" in wanted.only:
        row["parts"] = parts_of(ours, wanted.bytes_per_us)
    if "trace" in wanted.only:
        row["trace"] = kernels_of_a_layer(ours.step, weights.model.layers)
    if "logits" in wanted.only:
        row["logits_error"] = logits_errors(weights, min(sequences, 8), has)
    peers = [name for name in ("compile", "eager") if name in wanted.only]
    if peers:
        row["attention"], attention = fastest_attention(state)
        for name in peers:
            note(name, step_microseconds(Torch(weights, state, attention, name == "compile").step))
    return row


def parsed() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", default=["Llama-3.1-8B"], choices=MODELS)
    parser.add_argument("--lengths", nargs="+", type=int, default=[1024])
    parser.add_argument("--sequences", nargs="+", type=int, default=[1, 8, 64])
    parser.add_argument("--only", nargs="+", default=list(WHAT), choices=WHAT)
    parser.add_argument("--no-peers", action="store_true")
    parser.add_argument("--no-promises", action="store_true")
    parser.add_argument("--without", nargs="*", default=[], help="parts that PyTorch computes")
    parser.add_argument("--prefetch-mb", nargs="+", type=float, default=[0.0])
    parser.add_argument("--limit-s", type=float, default=420, help="begin no row after so long")
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


def rows_of(given: argparse.Namespace) -> Iterator[Row]:
    """Measure row after row until the time is over."""
    started = time.monotonic()
    rate = STREAMED_BYTES / floor_microseconds(STREAMED_BYTES)
    torch.cuda.empty_cache()
    print(f"streams {rate / 1e6:.3f} TB/s", flush=True)
    peers = ("compile", "eager") if given.no_peers else ()
    only = tuple(what for what in given.only if what not in peers)
    for name in given.models:
        weights = drawn_weights(MODELS[name])
        for length in given.lengths:
            for sequences in given.sequences:
                for megabytes in given.prefetch_mb:
                    if time.monotonic() - started > given.limit_s:
                        print("the time is over; the rest is not measured", flush=True)
                        return
                    wanted = Wanted(only, tuple(given.without), megabytes, rate)
                    yield measured(weights, sequences, length, wanted)
                    torch.cuda.empty_cache()
        del weights


def main() -> int:
    """Measure, print, and write JSON where asked, after every row."""
    given = parsed()
    here = measured_here("python benchmarks/decode_step.py")
    rows: list[object] = []
    torch.manual_seed(0)
    with torch.inference_mode(), promises(not given.no_promises):
        for row in rows_of(given):
            print(", ".join(f"{key} {value}" for key, value in row.items()), flush=True)
            rows.append(row)
            if given.json is not None:
                write_whole(given.json, document_of(here, rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
