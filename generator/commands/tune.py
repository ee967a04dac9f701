"""`tune`: compile variants of kernels, measure them on a GPU, keep the fastest in the catalog."""

from __future__ import annotations

import argparse
import importlib.util
import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from mirage_kernels.generator import pipeline
from mirage_kernels.generator.bench.workloads.cache import RECIPES
from mirage_kernels.generator.commands.arguments import (
    ARCH,
    DTYPES,
    JOBS,
    JSON,
    SHAPES,
    STORE,
    argument,
    check_writable,
    is_checkout,
    one_of,
    package_kernels,
    positive,
    recipe,
)
from mirage_kernels.generator.commands.tuned import report, report_compiled
from mirage_kernels.generator.errors import FileError, MirageError, ToolchainError
from mirage_kernels.generator.ir import Graph
from mirage_kernels.generator.jobs.store import Store
from mirage_kernels.generator.records.folder import emitted
from mirage_kernels.generator.records.record import KernelRecord
from mirage_kernels.generator.request import Progress, Request, parse_shape, requests
from mirage_kernels.generator.settings import store_folder
from mirage_kernels.generator.terminal import PROGRAM, Terminal, counted
from mirage_kernels.generator.tuning.catalog import (
    committed_path,
    load_catalog,
    write_catalog,
)
from mirage_kernels.generator.tuning.files import written
from mirage_kernels.generator.tuning.libraries import Shop, compiled_kernel, prune
from mirage_kernels.generator.tuning.manifest import Manifest, load_manifest, path_in
from mirage_kernels.generator.tuning.process import worker_process
from mirage_kernels.generator.tuning.results import load_results
from mirage_kernels.generator.tuning.session import Tuning
from mirage_kernels.generator.tuning.sources import candidates_of, mugraph_forms

TOP = 4
DETAILS = f"""\
For every bucket of tokens the rule's choice, what the catalog has, and the --top best of the
others, as a small model of the GPU predicts, are compiled and measured: of every plan that can
serve, the best first. The fastest is written to kernels/catalog.json, which `generate` takes its
variants from. A crash, a hang, a spill or a wrong result costs one candidate. What was compiled or
measured before is not done again, so an interrupted tuning goes on where it was.

With --compile DIR no GPU is needed, with --measure DIR no compiler: the two may be two machines.
--measure takes everything in DIR, and only writes the catalog where all of it has been measured.
With --as-is it needs no GPU: it writes what a measuring elsewhere has finished.

examples:
  {PROGRAM} tune rms_norm_linear --shape K=4096,N=6144 --dtype fp16
  {PROGRAM} tune gated_mlp --compile build/tune
  {PROGRAM} tune --measure build/tune
"""
ARGUMENTS = (
    argument("recipes", nargs="*", metavar="RECIPE", help="default: every committed kernel"),
    *(DTYPES, SHAPES, ARCH, JOBS, STORE),
    argument(
        "--top", type=positive, default=TOP, metavar="N", help=f"beside the rule's (default: {TOP})"
    ),
    one_of(
        argument("--compile", metavar="DIR", help="only compile, into DIR"),
        argument("--measure", metavar="DIR", help="only measure what DIR holds"),
    ),
    argument(
        "--results", metavar="FILE", help="measurements made so far (default: DIR/measured.json)"
    ),
    argument("--catalog", metavar="FILE", help="what to write (default: kernels/catalog.json)"),
    argument(
        "--as-is",
        action="store_true",
        help="with --measure: measure nothing, take the kernels that have been measured whole",
    ),
    JSON,
)


def run(arguments: argparse.Namespace, terminal: Terminal) -> int:
    """Do one phase or both."""
    if arguments.measure is not None:
        return _measure_only(arguments, terminal)
    if arguments.as_is:
        raise MirageError("--as-is goes with --measure DIR", "which holds what was measured")
    if not is_checkout():
        raise FileError(
            "this is an installed package, not a source checkout: it has no sources to compile",
            f"`{PROGRAM} tune --measure DIR` measures what a checkout compiled",
        )
    if arguments.compile is not None:
        folder = Path(arguments.compile)
        made = _compiled(arguments, folder, terminal)
        report_compiled(made, folder, terminal)
        return 0
    _require_gpu()
    catalog = _catalog_path(arguments)
    folder = store_folder(arguments.store) / "tuning" / arguments.arch
    return _measured(_compiled(arguments, folder, terminal), folder, (arguments, catalog), terminal)


def _measure_only(arguments: argparse.Namespace, terminal: Terminal) -> int:
    if arguments.recipes or arguments.shape or arguments.dtype:
        raise MirageError(
            "--measure takes all that its folder holds, not some kernels",
            "choose with --compile DIR, which takes RECIPE, --shape and --dtype",
        )
    catalog, folder = _catalog_path(arguments), Path(arguments.measure)
    return _measured(load_manifest(folder), folder, (arguments, catalog), terminal)


def _catalog_path(arguments: argparse.Namespace) -> Path:
    """Return the catalog's file; raises FileError now if it can't be written, not in the end."""
    if arguments.catalog is None and not is_checkout():
        raise FileError(
            "this is an installed package, not a source checkout: its catalog is not to be changed",
            "name a file to write: --catalog FILE",
        )
    file = committed_path() if arguments.catalog is None else Path(arguments.catalog)
    if file.is_dir():
        raise FileError(f"{file} is a folder", "--catalog takes the name of a file to write")
    check_writable(file)
    load_catalog(file)
    return file


def _require_gpu() -> None:
    if importlib.util.find_spec("torch") is not None:
        import torch

        if torch.cuda.is_available():
            return
    raise ToolchainError(
        "tuning measures on an NVIDIA GPU, and torch sees none",
        f"`{PROGRAM} tune --compile DIR` here, `{PROGRAM} tune --measure DIR` where there is one",
    )


# -- compile ---------------------------------------------------------------------------------------


def _compiled(arguments: argparse.Namespace, folder: Path, terminal: Terminal) -> Manifest:
    """Compile the chosen kernels; the folder's manifest keeps what else it holds."""
    chosen, arch = _chosen(arguments), arguments.arch
    shop = Shop.at(folder, arch, arguments.jobs)
    store = Store(store_folder(arguments.store))
    made = Manifest(arch, _command(), ())
    before = load_manifest(folder) if path_in(folder).is_file() else made
    if before.arch != arch:
        raise FileError(
            f"{folder} holds candidates for {before.arch}, not {arch}", "name another folder"
        )
    with terminal.watch(f"compiling candidates of {counted(len(chosen), 'kernel')}") as progress:
        for one in chosen:
            record, forms = _record(one, arguments, (store, progress))
            built = compiled_kernel(candidates_of(record, arguments.top, forms), shop, progress)
            made = replace(made, kernels=(*made.kernels, built))
            kept = before.without(made.names).kernels
            replace(made, kernels=(*kept, *made.kernels)).write(folder)
    prune(shop, load_manifest(folder))
    return made


def _chosen(arguments: argparse.Namespace) -> Sequence[KernelRecord | Request]:
    """Return what to tune: committed records, or requests for what was named."""
    arch = arguments.arch
    committed = {path: r for path, r in emitted(package_kernels()).items() if r.arch == arch}
    if not arguments.recipes:
        if arguments.shape:
            raise MirageError("--shape needs a recipe", f"`{PROGRAM} tune RECIPE --shape ...`")
        found = [
            r for r in committed.values() if not arguments.dtype or r.storage in arguments.dtype
        ]
        if not found:
            raise FileError(
                f"no kernels are committed for {arch}", f"name a recipe: `{PROGRAM} tune RECIPE`"
            )
        return found
    wanted: list[Request] = []
    for source in [recipe(name) for name in arguments.recipes]:
        shapes = [parse_shape(text, source) for text in arguments.shape or ()]
        wanted += requests(source, arch, arguments.dtype or None, shapes or None)
    return wanted


def _record(
    one: KernelRecord | Request, arguments: argparse.Namespace, by: tuple[Store, Progress]
) -> tuple[KernelRecord, Sequence[Graph]]:
    """Return a kernel's record, generated where it was asked for by name.

    Where several muGraphs of such a recipe are compared, these too. Raises MirageError for a recipe
    without a plan.
    """
    if not isinstance(one, Request):
        return one, ()
    store, progress = by
    made = pipeline.generate(one, jobs=arguments.jobs, progress=progress, store=store).record
    if made.no_plan:
        raise MirageError(
            f"{made.recipe} {made.stem} has no kernel to tune: {made.no_plan}",
            "leave it out; everything compiled before it is kept",
        )
    if one.recipe.name not in RECIPES:
        return made, ()
    return made, mugraph_forms(one, jobs=arguments.jobs, progress=progress, store=store)


# -- measure ---------------------------------------------------------------------------------------


def _measured(
    manifest: Manifest,
    folder: Path,
    where: tuple[argparse.Namespace, Path],
    terminal: Terminal,
) -> int:
    """Measure, choose, write the catalog, report; `where` = the arguments, the catalog's file."""
    arguments, catalog = where
    given = arguments.results
    results = load_results(folder / "measured.json" if given is None else Path(given))
    tuning = Tuning(manifest, results, worker_process(folder), _command())
    if arguments.as_is:
        tuning = tuning.whole()
        left = len(manifest.kernels) - len(tuning.manifest.kernels)
        terminal.line(f"{counted(left, 'kernel')} not measured whole, left as they are")
    else:
        _measure(tuning, terminal)
    section = tuning.section()
    write_catalog(catalog, load_catalog(catalog).with_section(section))
    report(section, terminal)
    terminal.line(f"wrote {catalog}")
    terminal.document(written(section))
    return 0


def _measure(tuning: Tuning, terminal: Terminal) -> None:
    kernels = counted(len(tuning.manifest.kernels), "kernel")
    try:
        with terminal.watch(f"measuring {kernels}") as progress:
            tuning.measure(progress)
    finally:
        tuning.measurer.close()


def _command() -> str:
    """Return this command without the folders of this machine."""
    words = [Path(word).name if word.startswith("/") else word for word in sys.argv[1:]]
    return shlex.join([PROGRAM, *words])
