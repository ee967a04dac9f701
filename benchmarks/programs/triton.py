"""Runs Triton programs on a GPU: python -m programs.triton --json FILE [DIR]

One record of every form of the catalog, at few rows and at many, and the programs that
`programs.generate --out DIR` made. Each is compared with float64 and timed in a CUDA graph beside
PyTorch. Exit code 1 where one fails, or has an error above the recipe's tolerance of PyTorch's.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

import mirage_kernels
from mirage_kernels.generator.bench.demonstrate import loaded
from mirage_kernels.generator.bench.workloads.tensors import TensorWorkload
from mirage_kernels.generator.ir import DType
from mirage_kernels.generator.ir.indexed import RESULT
from mirage_kernels.generator.records.record import KernelRecord, load_record
from mirage_kernels.generator.records.triton import triton_of
from mirage_kernels.program_steps import SteppedProgram
from programs import PROGRAMS, level1, level2, others, serving  # noqa: F401  (they register)
from programs.measure import DTYPES, difference, microseconds, several

KERNELS = Path(mirage_kernels.__file__).parent
FEW = {"M": 8, "B": 8, "Hkv": 8, "G": 4, "Hq": 128, "T": 2, "L": 4096}
MANY = FEW | {"M": 2048, "B": 1, "T": 512}
TOLERANCE = 1.2  # of PyTorch's error, for programs without a recipe


@dataclass(frozen=True)
class Case:
    """A call of Triton programs, and PyTorch's program of the same."""

    name: str
    call: Callable[[], object]
    eager: Callable[[], object]
    exact: Callable[[], object]
    tolerance: float


def function_of(record: KernelRecord, texts: Path) -> Callable[..., object]:
    """Return the Triton program of a record, whose text goes into a folder."""
    path = texts / f"{record.recipe}_{record.stem}.py"
    path.write_text(triton_of(record))
    made: Callable[..., object] = getattr(loaded(path), record.recipe)
    return made


def of_catalog(dtype: DType, texts: Path) -> Iterator[Case]:
    """Yield calls of every form of the catalog, as its first record has it."""
    for folder in sorted((KERNELS / "sm_90a").iterdir()):
        for path in sorted(folder.glob(f"*_{dtype.value}.json"))[:1]:
            record = load_record(path)
            dims = {d.name for n in record.graph.inputs for d in n.out.type.dims}
            for extents in (FEW, MANY) if dims & {"M", "T"} else (FEW,):
                sizes = {d: n for d, n in extents.items() if d in dims} | record.shape
                work = TensorWorkload(recipe=record.recipe, dtype=dtype, sizes=sizes)
                drawn = work.draw(0, "cuda")
                values = work.source.scalars
                given = [
                    drawn[n.name]
                    if n.name in drawn
                    else (float if n.out.type.dtype.is_real else int)(values[n.name])
                    for n in record.graph.inputs
                ]
                yield Case(
                    work.name,
                    partial(function_of(record, texts), *given),
                    partial(work.eager(), drawn),
                    partial(work.exact, drawn),
                    work.source.tolerance,
                )


def of_folder(folder: Path, dtype: DType, texts: Path) -> Iterator[Case]:
    """Yield calls of the benchmark's programs that a folder has, with Triton for their kernels."""
    records = [load_record(path) for path in folder.glob(f"*/*/*_{dtype.value}.json")]
    functions = {f"{r.arch}/{r.recipe}_{r.stem}": function_of(r, texts) for r in records}

    indexed = {f"{r.arch}/{r.recipe}_{r.stem}": [x.tensor for x in r.indexed] for r in records}

    def launched(
        key: str, given: Sequence[torch.Tensor], into: Sequence[torch.Tensor | None]
    ) -> Sequence[torch.Tensor]:
        rows = [x for i, x in enumerate(into) if f"{RESULT}{i}" in indexed[key]]
        made = zip(several(functions[key](*given, *rows)), into, strict=True)
        return [x if to is None or x is to else to.copy_(x) for x, to in made]

    for program in PROGRAMS.values():
        for path in sorted(folder.glob(f"*/{program.recipe}_{dtype.value}_*.program.json"))[:1]:
            made = SteppedProgram([json.loads(path.read_text())], launched)
            for rows in program.rows:
                drawn = program.inputs(rows, DTYPES[dtype.value], "cuda")
                doubles = {n: x.double() if x.is_floating_point() else x for n, x in drawn.items()}
                name = f"{program.name} M={rows}, {dtype.value}"
                calls = (partial(made, **drawn), partial(program.run, **drawn))
                yield Case(name, *calls, partial(program.run, **doubles), TOLERANCE)


def row_of(case: Case) -> Mapping[str, object]:
    """Return the row of a call: its errors and times."""
    made, exact = several(case.call()), several(case.exact())
    torch.cuda.synchronize()
    error = max(map(difference, made, exact))
    own = max(map(difference, several(case.eager()), exact))
    row: dict[str, object] = {"call": case.name, "good": error <= case.tolerance * own}
    row |= {"error": float(f"{error:.2e}"), "eager_error": float(f"{own:.2e}")}
    return row | {
        "triton_us": round(microseconds(case.call, [{}]), 2),
        "eager_us": round(microseconds(case.eager, [{}]), 2),
    }


def main() -> int:
    """Run and measure all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, nargs="?", help="what programs.generate made")
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--dtype", nargs="+", default=["fp16", "bf16"], choices=[*DTYPES])
    options, rows = parser.parse_args(), list[Mapping[str, object]]()
    with TemporaryDirectory() as made:
        for dtype in map(DType, options.dtype):
            texts, folder = Path(made), options.folder
            for case in of_folder(folder, dtype, texts) if folder else of_catalog(dtype, texts):
                try:
                    rows.append(row_of(case))
                except Exception as failure:  # Triton and PyTorch raise anything
                    reason = f"{type(failure).__name__}: {failure}"
                    rows.append({"call": case.name, "good": False, "reason": reason[:500]})
                print(json.dumps(rows[-1]), flush=True)
                about = {"device": torch.cuda.get_device_name(), "torch": torch.__version__}
                options.json.write_text(json.dumps({**about, "rows": rows}, indent=1) + "\n")
    return 0 if all(row["good"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
