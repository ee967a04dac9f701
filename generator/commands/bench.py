"""`bench`: measure compiled ops against PyTorch and the memory floor, on a GPU."""

from __future__ import annotations

import argparse
import json
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict

import torch

from mirage_kernels.generator.bench import measure
from mirage_kernels.generator.bench.measure import Environment, Row
from mirage_kernels.generator.bench.workloads.cache import RECIPES, CacheWorkload
from mirage_kernels.generator.bench.workloads.lists import Workload, cache_workloads, usual
from mirage_kernels.generator.bench.workloads.tensors import TOKENS, TensorWorkload
from mirage_kernels.generator.build.compile import ROOT
from mirage_kernels.generator.commands import arguments as given
from mirage_kernels.generator.commands.arguments import argument, flag
from mirage_kernels.generator.errors import MirageError, ToolchainError
from mirage_kernels.generator.ir.dtypes import DType
from mirage_kernels.generator.recipe import Recipe, catalog
from mirage_kernels.generator.records.files import write_whole
from mirage_kernels.generator.request import Event, sizes_text
from mirage_kernels.generator.terminal import PROGRAM, Terminal


def bench(arguments: argparse.Namespace, terminal: Terminal) -> int:
    """Only CUDA graphs are timed, median over replays. "ours", "PyTorch" and "floor" are cold.

    Cold: launches rotate over buffers that together exceed four times the L2 cache. "floor" is the
    fastest bare kernel that reads the same bytes once; "ratio" is ours / floor. "promised" is ours
    where weights were promised to be constant (mirage_kernels.constant_weights). Errors are
    relative, against float64.

    Attention (--attention, or one of its recipes by name) is measured at the calls of serving:
    decode over pages of 16 and 64 tokens, mixed lengths, with norms, RoPE and the write to the
    cache, prefill, and the Mirage paper's dense calls. There "floor" is the time to read the keys
    and values, "compute" that of both products at the rate of a large matrix product, "ratio" ours
    over the larger. "peer" is the best of PyTorch's scaled_dot_product_attention on dense copies
    (cuDNN, flash, efficient; "grouped": with the heads of a group as tokens of one head), and of
    FlashInfer and FlashAttention-3 where they are installed. "PyTorch" is its unfused program.

    Ctrl-C ends the measuring: the rows so far are printed and written.

    examples:
      mirage-kernels bench rms_norm_linear --shape K=4096,N=6144 --m 1,8
      mirage-kernels bench --compile --json rows.json
      mirage-kernels bench --attention --dtype fp16 --json attention.json
      mirage-kernels bench gqa --m 1,8 --only decode --only page=16
    """
    file = None
    if arguments.json not in (None, "-"):
        file = given.file_to_write(arguments.json, "--json")
    named = arguments.recipe
    chosen = None if named is None else given.drawn_recipe(named, "bench")
    shapes = [dict(s.dims) for s in given.shapes(arguments.shape, chosen, "bench") or ()]
    listed = _over_cache if _is_over_cache(arguments, chosen) else _of_tensors
    _require_gpu()
    work = _compiled(arguments, chosen, listed(arguments, chosen, shapes))
    measured = measure.rows(work, measure.gpu_clock(), with_compile=arguments.compile)
    made = _kept([w.name for w in work], measured, terminal)
    here = measured_here(PROGRAM, arguments.commit)
    terminal.table([_cells(row) for row in made], left=5)
    terminal.line(
        f"{here.gpu}, driver {here.driver}, CUDA {here.cuda}, torch {here.torch}, {here.date}, "
        f"commit {here.commit}\n{here.command}"
    )
    terminal.document({"environment": here, "rows": made})
    if file is not None:
        write_whole(file, document_of(here, [asdict(row) for row in made]))
        terminal.line(f"wrote {file}")
    return 0


# -- what is measured --------------------------------------------------------------------------


def _is_over_cache(arguments: argparse.Namespace, chosen: Recipe | None) -> bool:
    """Say whether attention is to be measured: it is asked for, or the recipe is one of it."""
    named = chosen is not None and chosen.name in RECIPES
    attention = f"`{PROGRAM} bench --attention`"
    if chosen is not None and arguments.attention and not named:
        raise MirageError(
            f"{chosen.name} is no attention that the library has an op for",
            f"leave --attention away; it takes {', '.join(RECIPES)}",
        )
    wanted = arguments.attention or named
    if wanted and arguments.compile:
        raise MirageError(
            "--compile is not for attention, whose peers are fused kernels", attention
        )
    if arguments.only and not wanted:
        raise MirageError("--only chooses among workloads of attention", attention)
    return bool(wanted)


def _of_tensors(
    arguments: argparse.Namespace, chosen: Recipe | None, shapes: Sequence[dict[str, int]]
) -> Iterator[TensorWorkload]:
    every = [r for r in catalog().values() if TOKENS in r.dynamic and not r.indexed]
    for source in every if chosen is None else [chosen]:
        for dims in shapes or [dict(s.dims) for s in source.shapes]:
            for dtype in arguments.dtype or [DType.FP16]:
                for tokens in arguments.m:
                    yield TensorWorkload(source.name, {**dims, TOKENS: tokens}, dtype=dtype)


def _over_cache(
    arguments: argparse.Namespace, chosen: Recipe | None, shapes: Sequence[dict[str, int]]
) -> Iterator[CacheWorkload]:
    """Yield the listed workloads of the recipe and shapes; usual ones where none is listed."""
    dtypes = arguments.dtype or [DType.FP16]
    listed = [w for w in cache_workloads(dtypes) if w.sequences in arguments.m]
    if chosen is None:
        yield from listed
        return
    own = [w for w in listed if w.recipe == chosen.name]
    wanted = shapes or ([] if own else [dict(s.dims) for s in chosen.shapes])
    depths = [dims["D"] if "D" in dims else dims["C"] for dims in wanted]  # of a head's values
    yield from (w for w in own if w.depth in depths or not depths)
    for depth in depths:
        if depth not in {w.depth for w in own}:
            yield from usual(chosen.name, depth, arguments.m, dtypes)


def _compiled(
    arguments: argparse.Namespace, chosen: Recipe | None, listed: Iterable[Workload]
) -> list[Workload]:
    """Return what is compiled among what was asked for; asking for what isn't is an error."""
    from mirage_kernels import kernel_table

    asked, table = list(listed), [(k.recipe, k.dtype, dict(k.dims)) for k in kernel_table()]
    missing = [
        w
        for w in asked
        if w.needs_kernel and (w.recipe, w.dtype.value, dict(w.kernel_dims)) not in table
    ]
    if arguments.shape and missing:
        stem = "_".join(f"{name}{size}" for name, size in missing[0].kernel_dims.items())
        raise MirageError(
            f"no compiled kernel for {missing[0].recipe} {stem} {missing[0].dtype.value}",
            f"`{PROGRAM} list` shows what there is; `make extension KERNELS=all`",
        )
    found = [w for w in asked if w not in missing]
    kept = [w for w in found if all(text in w.name for text in arguments.only or ())]
    if any(w.needs_kernel for w in found) and kept:
        return kept
    named = f" for {chosen.name}" if chosen else ""
    where = f" named {' and '.join(arguments.only)}" if arguments.only else ""
    raise MirageError(
        f"nothing compiled to measure{named}{where}", f"`{PROGRAM} list` shows what there is"
    )


# -- measuring ---------------------------------------------------------------------------------


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


def _cells(row: Row) -> dict[str, str]:
    numbers = {
        "floor us": row.floor_us,
        "compute us": row.compute_us or None,
        "ours us": row.ours_us,
        "ratio": row.ratio,
        "promised us": row.promised_us,
        "promised ratio": row.promised_ratio,
        "warm us": row.warm_us,
        "peer us": row.best_peer_us,
        "PyTorch us": row.eager_us,
        "compile us": row.compile_us,
    }
    return {
        "recipe": row.workload,
        "setting": row.setting,
        "dtype": row.dtype,
        "sizes": sizes_text(row.dims),
        "best peer": row.best_peer,
        **{name: "" if us is None else f"{us:.2f}" for name, us in numbers.items()},
        "error": f"{row.error_ours:.2e}",
        "PyTorch's error": f"{row.error_eager:.2e}",
    }


def measured_here(program: str, commit: str | None = None) -> Environment:
    """Return where this process measures, by the command line that it was started with."""
    return measure.environment(command=given.command(program), commit=commit or _commit())


def document_of(environment: Environment, rows: Sequence[object]) -> str:
    """Return the JSON file of what was measured."""
    return json.dumps({"environment": asdict(environment), "rows": rows}, indent=2) + "\n"


def _commit() -> str:
    """Return the checkout's commit, marked when files differ from it; the version in a wheel."""
    if not given.is_checkout():
        from mirage_kernels import __version__

        return f"wheel {__version__}"
    describe = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        ran = subprocess.run(describe, capture_output=True, text=True, check=False)
    except OSError:  # no git
        return "unknown"
    return ran.stdout.strip() or "unknown"


VERBS = {
    "bench": (
        bench,
        argument(
            "recipe",
            "RECIPE",
            "default: every recipe with compiled kernels, but for attention's",
            nargs="?",
        ),
        flag("--attention", "measure attention: all its recipes, or RECIPE"),
        argument(
            "--only",
            "TEXT",
            "attention workloads with TEXT in their names, as 'B=8 L=4096' or 'mixed'; may be"
            " given several times, all must be there",
            action="append",
        ),
        *(given.DTYPES, given.SHAPES),
        argument(
            "--m",
            "1,8,16,64",
            "tokens; for attention, sequences",
            type=given.positives,
            default=(1, 8, 16, 64),
        ),
        flag("--compile", "torch.compile(max-autotune) as well (minutes)"),
        argument("--commit", "ID", "what to record as measured (default: the checkout's commit)"),
        argument("--json", "FILE", "write rows and environment there; - prints them on stdout"),
    ),
}
