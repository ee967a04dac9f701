"""`list` and `show`: recipes, committed kernels, what was proved of them, what is compiled."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from difflib import get_close_matches
from itertools import groupby
from pathlib import Path
from textwrap import indent
from typing import Any

from mirage_kernels.generator.build.compile import DEFAULT_ARCH
from mirage_kernels.generator.build.selection import kernel_name
from mirage_kernels.generator.commands import arguments as given
from mirage_kernels.generator.commands import extension
from mirage_kernels.generator.commands.arguments import argument, flag
from mirage_kernels.generator.commands.models import list_model
from mirage_kernels.generator.errors import RecipeError
from mirage_kernels.generator.ir import to_text
from mirage_kernels.generator.recipe import Recipe, catalog, trace
from mirage_kernels.generator.records.folder import emitted, sources_below
from mirage_kernels.generator.records.record import KernelRecord, load_record
from mirage_kernels.generator.request import sizes_text
from mirage_kernels.generator.schedules.schedule import Variant
from mirage_kernels.generator.target import TARGETS
from mirage_kernels.generator.terminal import Terminal
from mirage_kernels.generator.tuning.catalog import committed_path, load_catalog

Records = Mapping[str, KernelRecord]  # by their paths below the folder
Rows = list[dict[str, Any]]  # as `--json` prints them


def list_all(arguments: argparse.Namespace, terminal: Terminal) -> int:
    """The column "compiled" says whether the extension that is built here contains the kernel.

    A variant serves up to the number of tokens (M) that its bucket names; in attention of query
    rows: heads of a group (G), times tokens (T*G) where they see keys up to their own. "tuned" is
    the day when variants were measured, as kernels/catalog.json has it; others are the rule's. An
    architecture's kernels are planned for the GPU beside it; "tuned" counts those whose own times
    are in the catalog, and the last column says how far the kernels that are shipped for it have
    been tried.

    --model lists what a model's decode step needs on one of --tp GPUs: kernels that the extension
    holds (compiled) or the folder (emitted), those that `generate --model` makes (missing), and
    steps that no recipe computes yet.
    """
    if arguments.model:
        return list_model(arguments, terminal)
    recipes = catalog().values()
    records = {} if arguments.recipes else emitted(given.kernels_folder(arguments.kernels))
    document: dict[str, object] = {"recipes": [_recipe_json(recipe) for recipe in recipes]}
    shapes = [{"recipe": r.name, **row} for r in recipes for row in _shape_rows(r)]
    terminal.table(shapes, left=3)
    if not arguments.recipes:
        terminal.line()
        kernels = _print_kernels(records, terminal)
        terminal.line()
        architectures = [
            {
                "arch": arch,
                "gpu": on.gpu,
                "kernels": sum(kernel["arch"] == arch for kernel in kernels),
                "tuned": sum(k["arch"] == arch and k["tuned"] is not None for k in kernels),
                "evidence": on.evidence.value,
            }
            for arch, on in TARGETS.items()
        ]
        names = ("arch", "planned for", "kernels", "tuned", "those shipped")
        rows = [dict(zip(names, map(str, a.values()), strict=True)) for a in architectures]
        terminal.table(rows, left=5)
        document |= {"kernels": kernels, "architectures": architectures}
    terminal.document(document)
    return 0


def _shape_rows(recipe: Recipe) -> list[dict[str, str]]:
    return [{"static dims": sizes_text(s.dims), "shape from": s.source} for s in recipe.shapes]


def _print_kernels(records: Records, terminal: Terminal) -> Rows:
    """Print the table of committed kernels; return what `--json` says of each."""
    days = {
        (section.arch, name): section.measured.get("date", "yes").partition(" ")[0]
        for section in load_catalog(committed_path()).sections
        for name in section.names
    }
    compiled = extension.compiled_paths(records)
    kernels: Rows = [
        {
            "name": kernel_name(record),
            "path": path,
            "recipe": record.recipe,
            "shape": dict(record.shape),
            "dtype": record.dtype,
            "arch": record.arch,
            "buckets": [variant.bucket for variant in record.variants],
            "stacked": list(record.stacked),  # a second kernel takes one slice of these per token
            "tuned": days.get((record.arch, kernel_name(record))),  # the day
            "compiled": path in compiled,
        }
        for path, record in records.items()
    ]
    if not kernels:
        terminal.line("no kernels yet: `mirage-kernels generate rms_norm_linear` makes some")
        return kernels
    rows = [
        {
            "kernel": kernel_name(record),
            "arch": record.arch,
            "variants serve": _served(record),
            "tuned": row["tuned"] or "-",
            "compiled": "yes" if row["compiled"] else "no",
        }
        for record, row in zip(records.values(), kernels, strict=True)
    ]
    terminal.table(rows, left=5)
    if not extension.extension_file().is_file():
        terminal.line("the extension is not built: `make extension` in a source checkout builds it")
    return kernels


def _served(record: KernelRecord) -> str:
    """Say which numbers of tokens or rows the variants serve: `M <= 8, 16, 32, any`."""
    buckets = ", ".join(dict.fromkeys(str(v.bucket or "any") for v in record.variants))
    counted = record.roles.counted
    served = f"any {counted}" if buckets == "any" else f"{counted} <= {buckets}"
    return served + (f", and stacks of {', '.join(record.stacked)}" if record.stacked else "")


def _recipe_json(recipe: Recipe) -> dict[str, object]:
    return {
        "name": recipe.name,
        "summary": recipe.summary,
        "inputs": dict(recipe.inputs),
        "output": recipe.output,
        "also": dict(recipe.also),
        "dynamic": dict(recipe.dynamic),
        "dtypes": [d.value for d in recipe.dtypes],
        "shapes": [{"source": s.source, "dims": dict(s.dims)} for s in recipe.shapes],
    }


def show(arguments: argparse.Namespace, terminal: Terminal) -> int:
    """A recipe's spec, shapes and kernels; or a kernel's muGraph, proof, sources and variants.

    examples:
      mirage-kernels show rms_norm_linear                        the recipe: spec, shapes, kernels
      mirage-kernels show rms_norm_linear/K4096_N6144_fp16       a kernel: muGraph, proof, variants
      mirage-kernels show path/to/my_recipe.py
      mirage-kernels show kernels/sm_90a/rms_norm_linear/K4096_N6144_fp16.json
    """
    name: str = arguments.name
    if name.endswith(".json"):
        folder = Path(name).resolve().parent.parent.parent
        _show_kernel(name, load_record(Path(name)), folder, terminal)
        return 0
    folder = given.kernels_folder(arguments.kernels)
    found = emitted(folder)
    if name.endswith(".py") or name in catalog():
        _show_recipe(given.recipe(name), found, terminal)
    else:
        path = _path_of(name, found)
        _show_kernel(path, found[path], folder, terminal)
    return 0


def _path_of(name: str, found: Records) -> str:
    """Return the path of a kernel's record; its name may hold the architecture.

    Without it the default architecture goes first. Raises RecipeError.
    """
    names = {path: (path.removesuffix(".json"), kernel_name(r)) for path, r in found.items()}
    matching = [path for path in found if name in names[path]]
    if matching:
        return min(matching, key=lambda path: found[path].arch != DEFAULT_ARCH)
    known = [*catalog(), *sorted({short for _, short in names.values()})]
    raise RecipeError(
        f"there is no recipe, kernel or file called {name!r}",
        f"the nearest: {', '.join(get_close_matches(name, known, cutoff=0))}; "
        "`mirage-kernels list` names all",
    )


def _show_recipe(recipe: Recipe, found: Records, terminal: Terminal) -> None:
    spec = to_text(trace(recipe, recipe.shapes[0], recipe.dtypes[0]))
    bounds = ", ".join(f"{name} <= {bound}" for name, bound in recipe.dynamic.items())
    terminal.line(f"{recipe.name}: {recipe.summary}")
    terminal.line(f"static dims {', '.join(recipe.static_dims)}; at run time {bounds}")
    terminal.line(f"\nspec at its first shape, {recipe.dtypes[0].value}:\n{indent(spec, '  ')}\n")
    terminal.table(_shape_rows(recipe), left=2)
    terminal.line()
    own = {path: record for path, record in found.items() if record.recipe == recipe.name}
    kernels = _print_kernels(own, terminal)
    terminal.document({"recipe": _recipe_json(recipe), "spec": spec, "kernels": kernels})


def _show_kernel(path: str, record: KernelRecord, folder: Path, terminal: Terminal) -> None:
    text, sources = to_text(record.graph), [] if record.no_plan else sources_below(folder, record)
    dims = sizes_text(record.shape).replace(",", ", ")
    terminal.line(f"{record.recipe} at {dims}, {record.dtype}, {record.arch} ({record.source})")
    terminal.line(f"{path}\n\n{indent(text, '  ')}\n\n{proof_sentence(record)}")
    if record.no_plan:
        terminal.line(f"Not emitted: {record.no_plan}.")
    else:
        terminal.line("`mirage-kernels check` proves it again.")
        for place, files in groupby(sources, lambda path: path.parent):
            names = ", ".join(file.name for file in files)
            terminal.line(f"Emitted: {place.parent.name}/{place.name}: {names}")
        terminal.line()
        terminal.table([_variant_row(record, variant) for variant in record.variants], left=3)
    terminal.document(
        {
            "path": path,
            "text": text,
            "sources": ["/".join(p.parts[-3:]) for p in sources],
            "record": record.to_json(),
        }
    )


def _variant_row(record: KernelRecord, variant: Variant) -> dict[str, str]:
    counted, bucket = record.roles.counted, variant.bucket
    tiled = f", {variant.work_tiles} work tiles" if variant.work_tiles else ""
    return {
        "variant serves": (f"{counted} <= {bucket}" if bucket else f"any {counted}") + tiled,
        "cuts": ", ".join(f"{name} by {size}" for name, size in record.tiles(variant).items()),
        "knobs": ", ".join(f"{name} {value}" for name, value in vars(variant.knobs).items()),
    }


def proof_sentence(record: KernelRecord) -> str:
    """Say what was proved, and how sure it is."""
    proof = record.proof
    return (
        f"Proved equal to the recipe on {proof.draws} random draws over finite fields: a "
        f"wrong muGraph would pass with a probability of at most 2^{proof.log2_failure:g}."
    )


VERBS = {
    "list": (
        list_all,
        flag("--recipes", "only the recipes and their shapes"),
        *(given.MODEL, given.TP, given.SEPARATE, given.ARCH, given.KERNELS, given.JSON),
    ),
    "show": (
        show,
        argument("name", "NAME|FILE", "a recipe, a kernel, a muGraph's JSON or a recipe file"),
        *(given.KERNELS, given.JSON),
    ),
}
