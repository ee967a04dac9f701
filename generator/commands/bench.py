"""`bench`: measure compiled ops against PyTorch and the memory floor, on a GPU."""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path

import torch

from mirage_kernels.generator.bench import measure, rows
from mirage_kernels.generator.bench.measure import Environment
from mirage_kernels.generator.bench.rows import Row
from mirage_kernels.generator.build.compile import ROOT
from mirage_kernels.generator.commands import bench_workloads
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
from mirage_kernels.generator.ir.text import Json
from mirage_kernels.generator.recipe import Recipe, Shape
from mirage_kernels.generator.records.files import write_whole
from mirage_kernels.generator.request import Event, parse_shape
from mirage_kernels.generator.terminal import PROGRAM, Table, Terminal

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
    bench_workloads.is_over_cache(arguments, chosen)
    _require_gpu()
    work = bench_workloads.chosen_workloads(arguments, chosen, shapes)
    measured = rows.rows(work, measure.gpu_clock(), with_compile=arguments.compile)
    made = _kept([w.name for w in work], measured, terminal)
    environment = measured_here(PROGRAM, arguments.commit)
    terminal.table(_table(made))
    terminal.line(_described(environment))
    document = document_of(environment, [asdict(row) for row in made])
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


def _kept(names: Sequence[str], found: Iterable[Row], terminal: Terminal) -> list[Row]:
    """Measure one workload after the other; Ctrl-C ends that where there are rows already."""
    made: list[Row] = []
    try:
        with terminal.watch(f"measuring {len(names)} workloads") as progress:
            progress(Event("measure", 0, len(names), names[0]))
            for row in found:
                made.append(row)
                coming = names[len(made)] if len(made) < len(names) else "done"
                progress(Event("measure", len(made), len(names), coming))
    except KeyboardInterrupt:
        if not made:
            raise
        terminal.line(f"stopped: {len(made)} of {len(names)} workloads measured")
    return made


def _table(made: Sequence[Row]) -> Table:
    """Lay the rows out; columns that no row fills are left away."""
    columns = {
        "recipe": [r.workload for r in made],
        "setting": [r.setting for r in made],
        "dtype": [r.dtype for r in made],
        "sizes": [",".join(f"{name}={size}" for name, size in r.dims.items()) for r in made],
        "best peer": [r.best_peer for r in made],
        "floor us": [_number(r.floor_us) for r in made],
        "compute us": [_number(r.compute_us or None) for r in made],
        "ours us": [_number(r.ours_us) for r in made],
        "ratio": [_number(r.ratio) for r in made],
        "promised us": [_number(r.promised_us) for r in made],
        "promised ratio": [_number(r.promised_ratio) for r in made],
        "warm us": [_number(r.warm_us) for r in made],
        "peer us": [_number(r.best_peer_us) for r in made],
        "PyTorch us": [_number(r.eager_us) for r in made],
        "compile us": [_number(r.compile_us) for r in made],
        "error": [f"{r.error_ours:.2e}" for r in made],
        "PyTorch's error": [f"{r.error_eager:.2e}" for r in made],
    }
    filled = {name: cells for name, cells in columns.items() if any(cells)}
    left = sum(name in filled for name in ("recipe", "setting", "dtype", "sizes", "best peer"))
    return Table(tuple(filled), tuple(zip(*filled.values(), strict=True)), left=left)


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def measured_here(program: str, commit: str | None = None) -> Environment:
    """Return where this process measures, by the command line that it was started with."""
    words = [Path(word).name if word.startswith("/") else word for word in sys.argv[1:]]
    command = " ".join([program, *map(shlex.quote, words)])
    return measure.environment(command=command, commit=commit or _commit())


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
