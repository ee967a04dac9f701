"""Times bare reads of what each program moves: python -m programs.bare --json FILE

The fastest of several bare kernels reads as many bytes as the program reads and writes, of tables
and caches the rows that an index says, from buffers that together exceed the L2 cache. Numbers of
bytes that are the same in seven bits are timed once.
"""

from __future__ import annotations

import argparse
import json
from functools import cache
from pathlib import Path

import torch

from mirage_kernels import kernel_table
from mirage_kernels.generator.bench.measure import floor_microseconds
from programs import PROGRAMS, level1, level2, others, recorded, serving  # noqa: F401
from programs.measure import several, write_rows

floor = cache(floor_microseconds)


def bare_microseconds(byte_count: int) -> float:
    """Return the time in which the fastest bare kernel reads about so many bytes."""
    step = 1 << max(0, byte_count.bit_length() - 7)
    return floor(round(byte_count / step) * step)


def main() -> None:
    """Time the bytes of every program, in types of 16 bits, at every number of rows."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--only", nargs="+", default=[""], metavar="TEXT", help="in names")
    options = parser.parse_args()
    kernel_table()  # the extension brings the kernels
    rows = []
    for one in (p for p in PROGRAMS.values() if any(text in p.name for text in options.only)):
        for count in one.rows:
            inputs = one.inputs(count, torch.bfloat16, "cuda")
            moved = one.bytes_moved(inputs, several(one.run(**inputs)))
            del inputs
            torch.cuda.empty_cache()
            us = round(bare_microseconds(moved), 2)
            rows.append({"program": one.name, "rows": count, "bytes": moved, "us": us})
            print(json.dumps(rows[-1]), flush=True)
    write_rows(options.json, "python -m programs.bare", rows)


if __name__ == "__main__":
    main()
