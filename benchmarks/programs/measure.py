"""Runs the programs' kernels on a GPU: python -m programs.measure DIR --json FILE

DIR holds what `programs.generate` or `programs.mirage` made and `mirage-kernels compile` compiled.
Each program is compared with float64 and timed in a CUDA graph, as it is and within
`constant_weights()`, beside PyTorch eager and torch.compile, at every number of rows it names.
Calls go round sets of tensors that together exceed the L2 cache, so that all are read from memory.
The time of its bytes is what reading and writing its tensors once takes, of tables and caches the
rows that an index says, at the rate at which the fastest bare kernel reads 2 GiB in the same
process. torch.compile compiles in processes beside each other before anything is timed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import cache, partial
from pathlib import Path

import torch

from mirage_kernels import constant_weights, kernel_table, load, program
from mirage_kernels.generator.bench.measure import (
    Method,
    floor_microseconds,
    graph_microseconds,
    rotation_count,
)
from mirage_kernels.generator.bench.workloads.programs import MOST_SETS
from programs import PROGRAMS, Inputs, Program, level1, level2, others, recorded, serving  # noqa: F401

STREAMED = 2**31  # bytes that the streaming rate is measured with
MOST_CACHED = 2**28  # bytes that a call moves: of more a cache holds nothing for the next one
MOST_BYTES = 2**33  # of a program's tensors, that calls go round
METHOD = Method(launches=20, replays=15, warmup_replays=3, settle_ms=20)
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


def microseconds(run: Callable[..., object], sets: Sequence[Inputs]) -> float:
    """Return the median time of a call in a CUDA graph, of each set of inputs in turn."""
    for inputs in (*sets, *sets[:3]):
        run(**inputs)
    return graph_microseconds([partial(run, **inputs) for inputs in sets], method=METHOD)


def several(results: object) -> list[torch.Tensor]:
    """Return the results of a call as a list."""
    return list(results) if isinstance(results, tuple | list) else [results]  # type: ignore[list-item]


def difference(found: torch.Tensor, exact: torch.Tensor) -> float:
    """Return the relative Frobenius error of a result."""
    wide = exact.double()
    return float((found.double() - wide).norm() / wide.norm())


@cache
def bytes_per_us() -> float:
    """Return the rate at which this GPU streams memory; the extension brings the kernels for it."""
    kernel_table()
    return STREAMED / floor_microseconds(STREAMED)


def sets_of(moved: int, inputs: Inputs) -> int:
    """Return how many sets of tensors calls go round, one where no cache holds what they move."""
    held = sum(x.nbytes for x in inputs.values())
    return 1 if moved >= MOST_CACHED else min(rotation_count(moved), MOST_SETS, MOST_BYTES // held)


def row_of(program_: Program, rows: int, dtype: str, peers: bool) -> dict[str, object]:
    """Return the row of a program at a number of rows: its error and times."""
    kernels = program(program_.recipe)
    inputs = program_.inputs(rows, DTYPES[dtype], "cuda")
    doubles = {n: x.double() if x.is_floating_point() else x for n, x in inputs.items()}
    exact = several(program_.run(**doubles))
    del doubles
    made = several(kernels(**inputs))
    with constant_weights():
        again = several(kernels(**inputs))
    torch.cuda.synchronize()
    error = max(*map(difference, made, exact), *map(difference, again, exact))
    own = max(map(difference, several(program_.run(**inputs)), exact))
    moved = program_.bytes_moved(inputs, made)
    row: dict[str, object] = {"program": program_.name, "rows": rows, "dtype": dtype}
    row |= {"error": float(f"{error:.2e}"), "eager_error": float(f"{own:.2e}")}
    row["floor_us"] = round(moved / bytes_per_us(), 2)
    del made, exact, again
    more = range(1, sets_of(moved, inputs))
    sets = [inputs, *(program_.inputs(rows, DTYPES[dtype], "cuda") for _ in more)]
    row["us"] = round(microseconds(kernels, sets), 2)
    with constant_weights():
        row["promised_us"] = round(microseconds(kernels, sets), 2)
    if peers:
        row["eager_us"] = round(microseconds(program_.run, sets), 2)
        row["compile_us"] = round(microseconds(compiled_by_torch(program_), sets), 2)
    return row


def compiled_by_torch(program_: Program) -> Callable[..., object]:
    """Return what torch.compile makes of a program, for the extents of its next call."""
    torch._dynamo.reset()
    return torch.compile(program_.run, dynamic=False)


def compile_ahead(name: str, rows: int, dtype: str) -> None:
    """Let torch.compile fill its cache on disk, in a process of its own."""
    one = PROGRAMS[name]
    with contextlib.suppress(Exception):  # `row_of` meets it again, and says so
        compiled_by_torch(one)(**one.inputs(rows, DTYPES[dtype], "cuda"))
    torch.cuda.empty_cache()


def write_rows(path: Path, command: str, rows: Sequence[dict[str, object]]) -> None:
    """Write a result file: the GPU, its streaming rate, what made the rows, the rows."""
    about: dict[str, object] = {"device": torch.cuda.get_device_name()}
    about |= {"torch": torch.__version__, "tb_s": round(bytes_per_us() / 1e6, 2)}
    path.write_text(json.dumps({**about, "command": command, "rows": rows}, indent=1) + "\n")


def main() -> None:
    """Measure every program that DIR has kernels of."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--dtype", default="bf16", choices=[*DTYPES])
    parser.add_argument("--only", nargs="+", default=[""], metavar="TEXT", help="in names")
    parser.add_argument("--no-peers", action="store_true", help="time the kernels alone")
    parser.add_argument("--processes", type=int, default=12, help="that torch.compile runs in")
    options = parser.parse_args()
    there, rows = {*load(options.folder)}, []
    made = (one for one in PROGRAMS.values() if one.recipe in there)
    chosen = [one for one in made if any(text in one.name for text in options.only)]
    if not options.no_peers:
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(options.processes, context) as pool:
            for one in chosen:
                for count in one.rows:
                    pool.submit(compile_ahead, one.name, count, options.dtype)
    for one in chosen:
        for count in one.rows:
            try:
                rows.append(row_of(one, count, options.dtype, not options.no_peers))
            except (ValueError, RuntimeError, KeyError) as error:
                rows.append({"program": one.name, "rows": count, "reason": str(error)[:300]})
            print(json.dumps(rows[-1]), flush=True)
            command = f"python -m programs.measure DIR --dtype {options.dtype}"
            write_rows(options.json, command, rows)
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
