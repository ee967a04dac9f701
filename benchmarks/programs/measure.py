"""Runs the programs' kernels on a GPU: python -m programs.measure DIR --json FILE

DIR holds what `programs.generate` made and `mirage-kernels compile` compiled. Each program is
compared with float64 and timed in a CUDA graph beside PyTorch as it is and torch.compile, at every
number of rows it names. The floor is the time to read and write its tensors once.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
from collections.abc import Callable
from pathlib import Path

import torch

from mirage_kernels.programs import Program as Kernels
from mirage_kernels.programs import load, program
from programs import PROGRAMS, Program, level1, level2, serving  # noqa: F401  (they register)

BYTES_PER_US = 4.4e6  # an H200's streaming rate
CALLS, REPLAYS = 20, 15
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


def microseconds(call: Callable[[], object]) -> float:
    """Return the median time of a call in a CUDA graph, its tensors in the cache or not."""
    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    with torch.cuda.stream(stream):
        for _ in range(3):
            call()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph, stream=stream):
        for _ in range(CALLS):
            call()
    times = []
    for _ in range(REPLAYS):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) * 1e3 / CALLS)
    return statistics.median(times)


def fitted(kernels: Kernels, inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return inputs with the dims that the program gives, where it splits one of theirs."""
    signature, made = kernels.kernels[0].signature, {}
    for wanted in signature["tensors"]:
        tensor = inputs[wanted["name"]]
        sizes = [signature["static"].get(d, -1) for d in wanted["dims"]]
        made[wanted["name"]] = tensor if tensor.dim() == len(sizes) else tensor.reshape(sizes)
    return made


def row_of(program_: Program, rows: int, dtype: str, peers: bool) -> dict[str, object]:
    """Return the row of a program at a number of rows: its error and times."""
    kernels = program(re.sub(r"\W", "_", program_.name))
    inputs = program_.inputs(rows, DTYPES[dtype], "cuda")
    given = fitted(kernels, inputs)
    made = kernels(**given)
    torch.cuda.synchronize()
    exact = program_.run(**{n: x.double() for n, x in inputs.items()})
    found = made.double().reshape(exact.shape)
    error = ((found - exact).norm() / exact.norm()).item()
    eager = program_.run(**inputs)
    own = ((eager.double() - exact).norm() / exact.norm()).item()
    moved = sum(x.numel() * x.element_size() for x in (*inputs.values(), made))
    row: dict[str, object] = {"program": program_.name, "rows": rows, "dtype": dtype}
    row |= {"error": float(f"{error:.2e}"), "eager_error": float(f"{own:.2e}")}
    row["floor_us"] = round(moved / BYTES_PER_US, 2)
    row["us"] = round(microseconds(lambda: kernels(**given)), 2)
    if peers:
        row["eager_us"] = round(microseconds(lambda: program_.run(**inputs)), 2)
        compiled = torch.compile(program_.run)
        row["compile_us"] = round(microseconds(lambda: compiled(**inputs)), 2)
    return row


def main() -> None:
    """Measure every program that DIR has kernels of."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--dtype", default="bf16", choices=[*DTYPES])
    parser.add_argument("--no-peers", action="store_true", help="time the kernels alone")
    options = parser.parse_args()
    there, rows = {*load(options.folder)}, []
    for one in PROGRAMS.values():
        if re.sub(r"\W", "_", one.name) not in there:
            continue
        for count in one.rows:
            try:
                rows.append(row_of(one, count, options.dtype, not options.no_peers))
            except (ValueError, RuntimeError) as error:
                rows.append({"program": one.name, "rows": count, "reason": str(error)[:300]})
            print(json.dumps(rows[-1]), flush=True)
            torch.cuda.empty_cache()
    about = {"device": torch.cuda.get_device_name(), "torch": torch.__version__}
    command = f"python -m programs.measure DIR --dtype {options.dtype}"
    document = {**about, "command": command, "rows": rows}
    options.json.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
