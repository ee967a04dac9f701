"""Times kernels of two versions beside each other: python -m programs.kernels A B --json FILE

A and B are folders of the same kernels that two versions of the generator emitted (from the records
of one `programs.generate`) and `mirage-kernels compile` of each compiled. A kernel runs on random
tensors, at the rows of its program, in CUDA graphs, in the order A, B, B, A; the least of two is
kept. `same`: whether both made the same bits. It is None for kernels that write parts of a tensor.
"""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path

import torch

from mirage_kernels.element_types import TYPES
from mirage_kernels.generator.bench.measure import Method, graph_microseconds
from mirage_kernels.program_checks import ANY_INDICES
from mirage_kernels.program_kernel import ProgramKernel
from mirage_kernels.program_library import read_kernel
from programs import PROGRAMS, level1, level2, others, serving  # noqa: F401

METHOD = Method(launches=20, replays=11, warmup_replays=2, settle_ms=5)
FEW = (1, 16, 64)
INDICES = (ANY_INDICES, "int32", "int64")


def drawn(dtype: str, shape: list[int], generator: torch.Generator) -> torch.Tensor:
    """Return a tensor of a kernel's signature: random, or where it is an index, in order."""
    if dtype in INDICES:
        kind = torch.int32 if dtype == "int32" else torch.int64
        return torch.arange(torch.Size(shape).numel(), device="cuda").reshape(shape).to(kind)
    if dtype == "bool":
        return torch.rand(shape, device="cuda", generator=generator) < 0.5
    return torch.randn(shape, device="cuda", generator=generator).to(TYPES[dtype])


def rows_of(recipe: str) -> tuple[int, ...]:
    """Return the numbers of rows that a kernel is timed at: its program's, where that has one."""
    found = re.match(r"level1_(\d+)_", recipe)
    return PROGRAMS[f"level1/{found[1]}"].rows if found else FEW


def compared(both: list[ProgramKernel], rows: int) -> dict[str, object]:
    """Return the times of both versions of a kernel at a number of rows."""
    signature = both[0].signature
    sizes = dict(signature["static"]) | dict.fromkeys(signature["dynamic"], rows)
    generator = torch.Generator("cuda").manual_seed(rows)
    given = [
        drawn(t["dtype"], [sizes[d] for d in t["dims"]], generator) for t in signature["tensors"]
    ]
    scalars = [0.5] * len(signature.get("scalars", ()))
    made = [kernel.results(given) for kernel in both]
    for kernel, own in zip(both, made, strict=True):
        kernel.run(given, scalars, own)
    same = all(torch.equal(a, b) for a, b in zip(*made, strict=True))
    times: tuple[list[float], list[float]] = ([], [])
    for i in (0, 1, 1, 0):
        call = [lambda i=i: both[i].run(given, scalars, made[i])]
        times[i].append(round(graph_microseconds(call, method=METHOD), 3))
    has_index = any(t["dtype"] in INDICES for t in signature["tensors"])
    us = {"a_us": min(times[0]), "b_us": min(times[1])}
    return {"kernel": both[0].name, "rows": rows, **us, "same": None if has_index else same}


def main() -> None:
    """Compare every kernel that both folders have."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument("--json", type=Path, required=True)
    options = parser.parse_args()
    results: list[dict[str, object]] = []
    for file in sorted(options.after.rglob("*.so")):
        older = options.before / file.relative_to(options.after)
        both = [read_kernel(f, f"{file.parent.name}_{file.stem}") for f in (older, file)]
        for rows in rows_of(file.parent.name):
            results.append(compared(both, rows))
            print(json.dumps(results[-1]), flush=True)
    about = {"device": torch.cuda.get_device_name(), "torch": torch.__version__}
    about |= {"command": "python -m programs.kernels BEFORE AFTER"}
    options.json.write_text(json.dumps({**about, "rows": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
