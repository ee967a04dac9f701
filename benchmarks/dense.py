"""Measures dense calls of several query tokens: our kernels beside PyTorch's attention.

    python benchmarks/dense.py --json benchmarks/results/dense.json

For heads whose kernels have tiles of 16 rows only. Cold, under CUDA graphs, as `mirage-kernels
bench` measures, at 4096 keys. From what comes out follows `NARROW` in kernels/prefill.py; a test
compares them.
"""

from __future__ import annotations

import argparse
import sys
from functools import partial
from itertools import product
from pathlib import Path

import torch

from mirage_kernels import gqa, prefill
from mirage_kernels.generator.bench.measure import graph_microseconds, rotation_count
from mirage_kernels.generator.commands.bench import document_of, measured_here
from mirage_kernels.generator.records.files import write_whole

HEADS, KV_HEADS, KEYS = 32, 8, 4096


def measured(depth: int, causal: bool, sequences: int, tokens: int) -> dict[str, object]:
    """Measure one workload both ways."""

    def drawn(lines: int, heads: int) -> torch.Tensor:
        return torch.randn(sequences, lines, heads, depth, device="cuda", dtype=torch.float16)

    def inputs() -> tuple[torch.Tensor, ...]:
        return drawn(tokens, HEADS), drawn(KEYS, KV_HEADS), drawn(KEYS, KV_HEADS)

    one = inputs()
    sets = [one, *(inputs() for _ in range(rotation_count(sum(t.nbytes for t in one)) - 1))]
    times = {}
    for name, long in (("ours_us", False), ("pytorch_us", True)):
        prefill.is_long = lambda *_, long=long, **__: long
        times[name] = graph_microseconds([partial(gqa, *one, causal=causal) for one in sets])
    return {"D": depth, "causal": causal, "sequences": sequences, "tokens": tokens, **times}


def main() -> int:
    """Measure, print, and write JSON where asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--depth", nargs="+", type=int, default=[96, 192, 256])
    parser.add_argument("--tokens", nargs="+", type=int, default=[4, 8, 16, 32, 64])
    parser.add_argument("--sequences", nargs="+", type=int, default=[1, 8])
    arguments = parser.parse_args()
    swept = product(arguments.depth, (False, True), arguments.sequences, arguments.tokens)
    rows = []
    for which in swept:
        rows.append(measured(*which))
        print(", ".join(f"{key} {value}" for key, value in rows[-1].items()), flush=True)
    if arguments.json is not None:
        here = measured_here("python benchmarks/dense.py")
        write_whole(arguments.json, document_of(here, rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
