"""`bench`: measure compiled ops against PyTorch and the memory floor, on a GPU."""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from mirage_kernels.generator.build.compile import ROOT
from mirage_kernels.generator.commands import bench_calls
from mirage_kernels.generator.commands.arguments import (
    DTYPES,
    SHAPES,
    argument,
    check_writable,
    is_checkout,
    positives,
    recipe,
)
from mirage_kernels.generator.errors import FileError, MirageError, ToolchainError
from mirage_kernels.generator.ir.dtypes import DType
from mirage_kernels.generator.ir.text import Json
from mirage_kernels.generator.recipe import Recipe, Shape, catalog
from mirage_kernels.generator.records.files import write_whole
from mirage_kernels.generator.request import Event, parse_shape
from mirage_kernels.generator.terminal import PROGRAM, Table, Terminal

if TYPE_CHECKING:
    from mirage_kernels.generator.bench.measure import Environment, Row
    from mirage_kernels.generator.bench.workloads.tokens import Workload

DETAILS = """\
Only CUDA graphs are timed, median over replays. "ours", "PyTorch" and "floor" are cold: launches
rotate over buffers that together exceed four times the L2 cache. "floor" is the fastest bare kernel
that reads the same bytes once; "ratio" is ours / floor. "promised" is ours where weights were
promised to be constant (mirage_kernels.constant_weights). Errors are relative, against float64.

Attention (--attention, or one of its recipes by name) is measured at the calls of serving: decode
over pages of 16 and 64 tokens, mixed lengths, with norms, RoPE and the write to the cache, prefill,
and the Mirage paper's dense calls. There "floor" is the time to read the keys and values, "compute"
that of both products at the rate of a large matrix product, "ratio" ours over the larger. "peer" is
the best of PyTorch's scaled_dot_product_attention on dense copies (cuDNN, flash, efficient;
"grouped": with the heads of a group as tokens of one head), and of FlashInfer and FlashAttention-3
where they are installed. "PyTorch" is its unfused program.

Ctrl-C ends the measuring: the rows so far are printed and written.

examples:
  mirage-kernels bench rms_norm_linear --shape K=4096,N=6144 --m 1,8
  mirage-kernels bench --compile --json rows.json
  mirage-kernels bench --attention --dtype fp16 --json attention.json
  mirage-kernels bench gqa --m 1,8 --only decode --only page=16
"""
ARGUMENTS = (
    argument(
        "recipe",
        nargs="?",
        metavar="RECIPE",
        help="default: every recipe with compiled kernels, but for attention's",
    ),
    argument(
        "--attention", action="store_true", help="measure attention: all its recipes, or RECIPE"
    ),
    argument(
        "--only",
        action="append",
        metavar="TEXT",
        help="attention workloads with TEXT in their names, as 'B=8 L=4096' or 'mixed'; may be"
        " given several times, all must be there",
    ),
    *(DTYPES, SHAPES),
    argument(
        "--m",
        type=positives,
        default=(1, 8, 16, 64),
        metavar="1,8,16,64",
        help="tokens; for attention, sequences",
    ),
    argument(
        "--compile", action="store_true", help="torch.compile(max-autotune) as well (minutes)"
    ),
    argument(
        "--commit", metavar="ID", help="what to record as measured (default: the checkout's commit)"
    ),
    argument(
        "--json", metavar="FILE", help="write rows and environment there; - prints them on stdout"
    ),
)


def run(arguments: argparse.Namespace, terminal: Terminal) -> int:
    """Measure every chosen workload and print one table."""
    target_file = None if arguments.json in (None, "-") else Path(arguments.json)
    if target_file is not None:
        _check_target(target_file)
    chosen = None if arguments.recipe is None else recipe(arguments.recipe)
    shapes = _shapes(arguments, chosen)
    attention = bench_calls.is_attention(arguments, chosen)
    _require_gpu()
    if attention:
        calls = bench_calls.chosen_workloads(arguments, chosen, shapes)
        rows = _measured([call.name for call in calls], bench_calls.rows(calls), terminal)
        table = bench_calls.table(rows)
    else:
        work = list(_workloads(arguments, chosen, shapes))
        rows = _measured([_name(w) for w in work], _rows(work, arguments.compile), terminal)
        table = _table(rows, arguments.compile)
    environment = measured_here(PROGRAM, arguments.commit)
    terminal.table(table)
    terminal.line(_described(environment))
    document = document_of(environment, [asdict(row) for row in rows])
    terminal.document(json.loads(document))
    if target_file is not None:
        write_whole(target_file, document)
        terminal.line(f"wrote {target_file}")
    return 0


def _shapes(arguments: argparse.Namespace, chosen: Recipe | None) -> list[Shape]:
    if not arguments.shape:
        return []
    if chosen is None:
        raise MirageError("--shape needs a recipe", f"`{PROGRAM} bench RECIPE --shape ...`")
    return [parse_shape(text, chosen) for text in arguments.shape]


def _check_target(file: Path) -> None:
    if file.is_dir():
        raise FileError(f"{file} is a folder", "--json takes the name of a file to write")
    check_writable(file)


def _require_gpu() -> None:
    try:
        import torch
    except ImportError as missing:
        raise ToolchainError("torch is not installed", "`pip install 'torch>=2.10'`") from missing
    if not torch.cuda.is_available():
        raise ToolchainError(
            "bench needs an NVIDIA GPU, and torch sees none",
            f"`{PROGRAM} doctor` says what was found; without a GPU try `{PROGRAM} run`",
        )
    try:
        import mirage_kernels.ops  # noqa: F401  (registers the ops)
    except ImportError as failure:
        raise ToolchainError(str(failure), f"`{PROGRAM} doctor` says what is missing") from failure
    major, minor = torch.cuda.get_device_capability()
    name = torch.cuda.get_device_name()
    complaint = str(torch.ops.mirage_kernels._architecture_complaint(major, minor, name))
    if complaint:
        raise ToolchainError(complaint)


def _workloads(
    arguments: argparse.Namespace, chosen: Recipe | None, shapes: Sequence[Shape]
) -> Iterator[Workload]:
    """Yield what is compiled among what was asked for; asking for what isn't is an error."""
    from mirage_kernels.generator.bench.workloads.tokens import Workload

    recipes = [r for r in catalog().values() if "M" in r.dynamic]  # those over tokens
    if chosen is not None:
        recipes = [chosen]
    dtypes: list[DType] = arguments.dtype or [DType.FP16]
    found = False
    for source in recipes:
        for shape in shapes or source.shapes:
            for dtype in dtypes:
                if _is_compiled(source, shape, dtype):
                    found = True
                    for tokens in arguments.m:
                        yield Workload(source, dtype, {**shape.dims, "M": tokens}, "cuda")
                elif shapes:
                    raise MirageError(
                        f"no compiled kernel for {source.name} {shape.stem} {dtype.value}",
                        f"`{PROGRAM} list` shows what there is; `make extension KERNELS=all`",
                    )
    if not found:
        raise MirageError(
            f"nothing compiled to measure{f' for {chosen.name}' if chosen else ''}",
            f"`{PROGRAM} list` shows what there is",
        )


def _is_compiled(source: Recipe, shape: Shape, dtype: DType) -> bool:
    from mirage_kernels import kernel_table

    wanted = (source.name, dtype.value, dict(shape.dims))
    return any((k.recipe, k.dtype, dict(k.dims)) == wanted for k in kernel_table())


def _measured(names: Sequence[str], found: Iterable[Row], terminal: Terminal) -> list[Row]:
    """Measure one workload after the other; Ctrl-C ends that where there are rows already."""
    rows: list[Row] = []
    try:
        with terminal.watch(f"measuring {len(names)} workloads") as progress:
            progress(Event("measure", 0, len(names), names[0]))
            for row in found:
                rows.append(row)
                coming = names[len(rows)] if len(rows) < len(names) else "done"
                progress(Event("measure", len(rows), len(names), coming))
    except KeyboardInterrupt:
        if not rows:
            raise
        terminal.line(f"stopped: {len(rows)} of {len(names)} workloads measured")
    return rows


def _rows(work: Sequence[Workload], with_compile: bool) -> Iterator[Row]:
    from mirage_kernels.generator.bench.measure import library_floor, measure

    reader = library_floor()
    for workload in work:
        yield measure(workload.subject(), reader, with_compile=with_compile)


def _name(workload: Workload) -> str:
    dims = ", ".join(f"{name}={size}" for name, size in workload.sizes.items())
    return f"{workload.recipe.name} {dims}, {workload.dtype.value}"


def _table(rows: Sequence[Row], with_compile: bool) -> Table:
    columns = ["recipe", "dtype", "static dims", "M", "floor us", "ours us", "ratio"]
    columns += ["promised us", "ratio", "warm us"]
    columns += ["PyTorch us", *(["compile us"] if with_compile else [])]
    columns += ["error", "PyTorch's error"]
    return Table(tuple(columns), tuple(_cells(r, with_compile) for r in rows), left=3)


def _cells(row: Row, with_compile: bool) -> tuple[str, ...]:
    static = ",".join(f"{name}={size}" for name, size in row.dims.items() if name != "M")
    times = [f"{row.floor_us:.2f}", f"{row.ours_us:.2f}", f"{row.ratio:.2f}"]
    times += [f"{row.promised_us:.2f}", f"{row.promised_ratio:.2f}"]
    times += [f"{row.warm_us:.2f}", f"{row.eager_us:.2f}"]
    if with_compile:
        times.append("-" if row.compile_us is None else f"{row.compile_us:.2f}")
    errors = (f"{row.error_ours:.2e}", f"{row.error_eager:.2e}")
    return (row.workload, row.dtype, static, str(row.dims["M"]), *times, *errors)


def measured_here(program: str, commit: str | None = None) -> Environment:
    """Return where this process measures, by the command line that it was started with."""
    from mirage_kernels.generator.bench.measure import environment

    words = [Path(word).name if word.startswith("/") else word for word in sys.argv[1:]]
    command = " ".join([program, *map(shlex.quote, words)])
    return environment(command=command, commit=commit or _commit())


def document_of(environment: Environment, rows: Sequence[Json]) -> str:
    """Return the JSON file of what was measured."""
    return json.dumps({"environment": asdict(environment), "rows": rows}, indent=2) + "\n"


def _commit() -> str:
    """Return the checkout's commit, marked when files differ from it; the version in a wheel."""
    if not is_checkout():
        from mirage_kernels import __version__

        return f"wheel {__version__}"
    describe = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        ran = subprocess.run(describe, capture_output=True, text=True, check=False)
    except OSError:  # no git
        return "unknown"
    return ran.stdout.strip() or "unknown"


def _described(environment: Environment) -> str:
    e = environment
    return (
        f"{e.gpu}, driver {e.driver}, CUDA {e.cuda}, torch {e.torch}, {e.date}, commit {e.commit}"
        f"\n{e.command}"
    )
