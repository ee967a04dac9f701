"""`tune`: compile variants of kernels, measure them on a GPU, keep the fastest in the catalog."""

from __future__ import annotations

import argparse
import importlib.util
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from mirage_kernels.generator import pipeline
from mirage_kernels.generator.bench.workloads.cache import RECIPES
from mirage_kernels.generator.commands import arguments as given
from mirage_kernels.generator.commands.arguments import argument, flag
from mirage_kernels.generator.errors import FileError, MirageError, ToolchainError
from mirage_kernels.generator.ir import Graph
from mirage_kernels.generator.jobs.store import Store
from mirage_kernels.generator.records.folder import emitted
from mirage_kernels.generator.records.record import KernelRecord
from mirage_kernels.generator.request import Progress, Request, requests
from mirage_kernels.generator.schedules.schedule import Knobs
from mirage_kernels.generator.settings import store_folder
from mirage_kernels.generator.terminal import PROGRAM, Terminal, counted
from mirage_kernels.generator.tuning import catalog
from mirage_kernels.generator.tuning.candidates import Candidates, candidates_of, mugraph_forms
from mirage_kernels.generator.tuning.catalog import (
    CATALOG,
    MANIFEST,
    Bucket,
    Section,
    Tried,
    Tuned,
    load_manifest,
    written,
)
from mirage_kernels.generator.tuning.choice import EQUAL_MEANS
from mirage_kernels.generator.tuning.libraries import (
    Shop,
    compiled_kernel,
    prune,
    write_script,
)
from mirage_kernels.generator.tuning.measurements import Results
from mirage_kernels.generator.tuning.process import worker_process
from mirage_kernels.generator.tuning.programs import (
    generated_records,
    is_generated,
    program_candidates,
)
from mirage_kernels.generator.tuning.session import Tuning

TOP = 4
LEGEND = (
    "size: tokens, or query rows; us: of calls that assume nothing, of one call",
    "assumed us: with constant weights and a constant history assumed",
    "ratio: over the floor; of several calls the geometric mean of both times",
    "library us: what the op runs above the tokens that a kernel serves",
    "schedules: the fastest of each, as predicted one is measured at least",
    "rank corr.: Spearman's, of the candidates' predicted and measured times",
)


def tune(arguments: argparse.Namespace, terminal: Terminal) -> int:
    """For every bucket of tokens several candidates are compiled and measured.

    They are the rule's choice, what the catalog has, and the --top best of the others, as a small
    model of the GPU predicts: of every plan that can serve, the best first. The fastest is written
    to kernels/catalog.json, which `generate` takes its variants from. A crash, a hang, a spill or a
    wrong result costs one candidate. What was compiled or measured before is not done again, so an
    interrupted tuning goes on where it was.

    With --compile DIR no GPU is needed, with --measure DIR no compiler: the two may be two
    machines. --measure takes everything in DIR, and only writes the catalog where all of it has
    been measured. With --as-is it needs no GPU: it writes what a measuring elsewhere has finished.

    examples:
      mirage-kernels tune rms_norm_linear --shape K=4096,N=6144 --dtype fp16
      mirage-kernels tune gated_mlp --compile build/tune
      mirage-kernels tune mine --only level2 --compile build/tune --sources
      mirage-kernels tune --measure build/tune
    """
    if arguments.sources and arguments.compile is None:
        raise MirageError("--sources goes with --compile DIR", "which says where to write them")
    if arguments.measure is not None:
        named = arguments.recipes and _generated(arguments) is None
        if named or arguments.shape or arguments.dtype:
            raise MirageError(
                "--measure takes all that its folder holds, not some kernels",
                "choose with --compile DIR, which takes RECIPE, --shape and --dtype",
            )
        file, folder = _catalog_file(arguments), Path(arguments.measure)
        return _measured(load_manifest(folder), (folder, file), arguments, terminal)
    if arguments.as_is:
        raise MirageError("--as-is goes with --measure DIR", "which holds what was measured")
    if not given.is_checkout():
        raise FileError(
            "this is an installed package, not a source checkout: it has no sources to compile",
            f"`{PROGRAM} tune --measure DIR` measures what a checkout compiled",
        )
    chosen = _chosen(arguments)
    if arguments.compile is not None:
        folder = Path(arguments.compile)
        _report_compiled(_compiled(chosen, arguments, folder, terminal), folder, terminal)
        return 0
    _require_gpu()
    file = _catalog_file(arguments)
    folder = store_folder(arguments.store) / "tuning" / arguments.arch
    made = _compiled(chosen, arguments, folder, terminal)
    return _measured(made, (folder, file), arguments, terminal)


def _catalog_file(arguments: argparse.Namespace) -> Path:
    """Return the catalog's file; raises FileError now if it can't be written, not in the end."""
    generated = _generated(arguments)
    if arguments.catalog is None and generated is not None:
        return given.file_to_write(str(generated / CATALOG), "DIR")
    if arguments.catalog is None and not given.is_checkout():
        raise FileError(
            "this is an installed package, not a source checkout: its catalog is not to be changed",
            "name a file to write: --catalog FILE",
        )
    file = given.file_to_write(arguments.catalog or str(catalog.committed_path()), "--catalog")
    catalog.load_catalog(file)
    return file


def _generated(arguments: argparse.Namespace) -> Path | None:
    """Return the folder that is named in place of recipes, None for recipes."""
    folders = [Path(name) for name in arguments.recipes if is_generated(Path(name))]
    if len(folders) > 1 or (folders and len(arguments.recipes) > 1):
        raise MirageError(
            f"a folder of generated kernels is tuned alone, not {' '.join(arguments.recipes)}",
            f"`{PROGRAM} tune {folders[0]}`",
        )
    return folders[0] if folders else None


def _require_gpu() -> None:
    if importlib.util.find_spec("torch") is not None:
        import torch

        if torch.cuda.is_available():
            return
    raise ToolchainError(
        "tuning measures on an NVIDIA GPU, and torch sees none",
        f"`{PROGRAM} tune --compile DIR` here, `{PROGRAM} tune --measure DIR` where there is one",
    )


# -- compile -----------------------------------------------------------------------------------


def _compiled(
    chosen: Sequence[KernelRecord | Request],
    arguments: argparse.Namespace,
    folder: Path,
    terminal: Terminal,
) -> Section:
    """Compile the chosen kernels; the folder's manifest keeps what else it holds."""
    arch = arguments.arch
    shop = Shop.at(folder, arch, arguments.jobs, only_sources=arguments.sources)
    made, file = Section(arch, {"command": given.command(PROGRAM)}, None, ()), folder / MANIFEST
    before = load_manifest(folder) if file.is_file() else made
    if before.arch != arch:
        raise FileError(
            f"{folder} holds candidates for {before.arch}, not {arch}", "name another folder"
        )
    with terminal.watch(f"compiling candidates of {counted(len(chosen), 'kernel')}") as progress:
        for one in chosen:
            built = compiled_kernel(_candidates(one, arguments, progress), shop, progress)
            made = replace(made, kernels=(*made.kernels, built))
            kept = before.without(made.names).kernels
            catalog.write_file(file, replace(made, kernels=(*kept, *made.kernels)))
    prune(shop, load_manifest(folder))
    if arguments.sources:
        write_script(shop, load_manifest(folder))
    return made


def _candidates(
    one: KernelRecord | Request, arguments: argparse.Namespace, progress: Progress
) -> Candidates:
    """Return the candidates of a kernel, of a program where a folder of these is tuned."""
    if isinstance(one, KernelRecord) and _generated(arguments):
        return program_candidates(one, arguments.top)
    record, forms = _record(one, arguments, progress)
    return candidates_of(record, arguments.top, forms)


def _chosen(arguments: argparse.Namespace) -> Sequence[KernelRecord | Request]:
    """Return what to tune: committed records, or requests for what was named."""
    arch, dtypes, generated = arguments.arch, arguments.dtype, _generated(arguments)
    if generated is not None:
        given.shapes(arguments.shape, None, "tune")
        records = generated_records(generated, arch, arguments.only)
        return [r for r in records if not dtypes or r.storage in dtypes]
    if arguments.recipes:
        return [
            request
            for source in (given.drawn_recipe(name, "tune") for name in arguments.recipes)
            for request in requests(
                source, arch, dtypes, given.shapes(arguments.shape, source, "tune")
            )
        ]
    given.shapes(arguments.shape, None, "tune")
    committed = emitted(given.package_kernels(), arch).values()
    found = [record for record in committed if not dtypes or record.storage in dtypes]
    if not found:
        raise FileError(
            f"no kernels are committed for {arch}", f"name a recipe: `{PROGRAM} tune RECIPE`"
        )
    return found


def _record(
    one: KernelRecord | Request, arguments: argparse.Namespace, progress: Progress
) -> tuple[KernelRecord, Sequence[Graph]]:
    """Return a kernel's record, generated where it was asked for by name.

    Where several muGraphs of such a recipe are compared, these too. Raises MirageError for a recipe
    without a plan.
    """
    if not isinstance(one, Request):
        return one, ()
    jobs, store = arguments.jobs, Store(store_folder(arguments.store))
    made = pipeline.generate(one, jobs=jobs, progress=progress, store=store).record
    if made.no_plan:
        raise MirageError(
            f"{made.recipe} {made.stem} has no kernel to tune: {made.no_plan}",
            "leave it out; everything compiled before it is kept",
        )
    if one.recipe.name not in RECIPES:
        return made, ()
    return made, mugraph_forms(one, jobs=jobs, progress=progress, store=store)


def _report_compiled(made: Section, folder: Path, terminal: Terminal) -> None:
    """Print how many candidates there are, and which cannot be measured."""
    built = [b for k in made.kernels for b in k.candidates.values()]
    failed = [b for b in built if b.failed]
    terminal.line(
        f"{counted(len(made.kernels), 'kernel')}, {counted(len(built), 'candidate')}, of which "
        f"{len(failed)} cannot be measured, in {folder}"
    )
    for one in failed:
        terminal.line(f"  {_knobs(one.knobs)}: {one.failed}")
    terminal.document({"folder": str(folder), "kernels": written(made.kernels)})


# -- measure -----------------------------------------------------------------------------------


def _measured(
    manifest: Section,
    places: tuple[Path, Path],  # of the libraries, of the catalog
    arguments: argparse.Namespace,
    terminal: Terminal,
) -> int:
    """Measure, choose, write the catalog, report."""
    folder, file = places
    results = Results.at(Path(arguments.results or folder / "measured.json"))
    tuning = Tuning(manifest, results, worker_process(folder), given.command(PROGRAM))
    if arguments.as_is:
        tuning = tuning.whole()
        left = len(manifest.kernels) - len(tuning.manifest.kernels)
        terminal.line(f"{counted(left, 'kernel')} not measured whole, left as they are")
    else:
        try:
            kernels = counted(len(manifest.kernels), "kernel")
            with terminal.watch(f"measuring {kernels}") as progress:
                tuning.measure(progress)
        finally:
            tuning.measurer.close()
    section = tuning.section()
    catalog.write_catalog(file, catalog.load_catalog(file).with_section(section))
    _report(section, terminal)
    terminal.line(f"wrote {file}")
    terminal.document(written(section))
    return 0


def _report(section: Section, terminal: Terminal) -> None:
    """Print what was chosen, why candidates failed, and where a call's other variant is faster."""
    terminal.table([row for kernel in section.kernels for row in _rows(kernel)], left=4)
    for line in LEGEND:
        terminal.line(line)
    terminal.line(f"over all buckets, relative to each one's best: {_number(section.correlation)}")
    dense = [
        {
            "kernel": kernel.key.name,
            "call": f"B={d.sequences} T={d.tokens} L={d.keys}{', causal' if d.causal else ''}",
            "us": f"{d.us:.1f}",
            "PyTorch us": f"{d.sdpa_us:.1f}",
            "served by": d.served_by,
            "PyTorch's kernels": ", ".join(f"{name} {us:.1f}" for name, us in d.peers.items()),
        }
        for kernel in section.kernels
        for d in kernel.dense
    ]
    terminal.table(dense, left=2)
    for kernel in section.kernels:
        if kernel.forms:
            ratios = ", ".join(f"{f.form} {f.ratio or 'failed'}" for f in kernel.forms)
            terminal.line(f"{kernel.key.name}: muGraphs {ratios}; {kernel.form} is chosen")
        for bucket in kernel.buckets:
            failed = (f"{_knobs(t.knobs)}: {t.failed}" for t in bucket.tried if t.failed)
            for line in (*failed, *_misplaced(bucket)):
                terminal.line(f"{kernel.key.name}, {_size(bucket)}: {line}")


def _rows(kernel: Tuned) -> Iterator[dict[str, str]]:
    for bucket in kernel.buckets:
        point, alone = bucket.points[0], len(bucket.points) == 1
        for c in bucket.chosen:
            others = "others" if bucket.choice(few=True) else "all"
            best = bucket.best or Tried(bucket.chosen[0].knobs)
            us, assumed_us = (_number(t[0] if t else None) for t in (best.us, best.assumed_us))
            plans = ", ".join(f"{plan} {us:.2f}" for plan, us in bucket.plans.items())
            yield {
                "kernel": kernel.key.name,
                "size": _size(bucket),
                "calls": "of few work tiles" if c.few_tiles else others,
                "knobs": _knobs(c.knobs),
                "us": us if alone else "",
                "assumed us": assumed_us if alone else "",
                "floor": f"{point.floor_us:.2f}" if alone else "",
                "ratio": _number(c.ratio, 3),
                "rule's": _number(c.rule_ratio, 3),
                "PyTorch us": _number(point.eager_us) if alone else "",
                "library us": _number(point.library_us) if alone else "",
                "rank corr.": _number(bucket.correlation),
                "candidates": str(sum(not t.failed for t in bucket.tried)),
                "schedules": plans if alone else "",
            }
    for beyond in kernel.beyond:
        yield {
            "kernel": kernel.key.name,
            "size": str(beyond.tokens),
            "knobs": f"serves up to {kernel.max_tokens}" if kernel.max_tokens else "serves all",
            "us": _number(beyond.us),
            "PyTorch us": f"{beyond.eager_us:.2f}",
            "library us": _number(beyond.library_us),
        }


def _misplaced(bucket: Bucket) -> Iterator[str]:
    """Say where the launch's rule takes the slower one of the two variants that were chosen."""
    usual, of_few = (bucket.choice(few=few) for few in (False, True))
    if usual is None or of_few is None:
        return
    times = {t.knobs: t.means() for t in bucket.tried if not t.failed}
    for i, point in enumerate(bucket.points):
        taken, other = (of_few, usual) if point.few_tiles else (usual, of_few)
        us, others_us = times[taken.knobs][i], times[other.knobs][i]
        if us > EQUAL_MEANS * others_us:
            yield (
                f"{point.name} takes {us:.2f} us by {_knobs(taken.knobs)}, "
                f"{others_us:.2f} by {_knobs(other.knobs)}"
            )


def _knobs(knobs: Knobs) -> str:
    words = (f"{name} {value}" for name, value in knobs.to_json().items() if name != "schedule")
    return f"{knobs.label}: {', '.join(words)}"


def _size(bucket: Bucket) -> str:
    return f"<= {bucket.size}" if bucket.size else "any"


def _number(value: float | None, digits: int = 2) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


VERBS = {
    "tune": (
        tune,
        argument("recipes", "RECIPE|DIR", "default: every committed kernel", nargs="*"),
        *(given.DTYPES, given.SHAPES, given.ARCH, given.JOBS, given.STORE),
        argument(
            "--top", "N", f"beside the rule's (default: {TOP})", type=given.positive, default=TOP
        ),
        given.one_of(
            argument("--compile", "DIR", "only compile, into DIR"),
            argument("--measure", "DIR", "only measure what DIR holds"),
        ),
        argument("--only", "PATTERN", "of DIR, kernels whose paths match", default=""),
        flag("--sources", "with --compile: write sources and a script that compiles them"),
        argument("--results", "FILE", "measurements made so far (default: DIR/measured.json)"),
        argument("--catalog", "FILE", "what to write (default: that of DIR, or of the package)"),
        flag(
            "--as-is",
            "with --measure: measure nothing, take the kernels that have been measured whole",
        ),
        given.JSON,
    ),
}
