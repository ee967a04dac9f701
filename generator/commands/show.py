"""`show`: a recipe, or a kernel's muGraph as text with what was proved."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from difflib import get_close_matches
from itertools import groupby
from pathlib import Path
from textwrap import indent

from mirage_kernels.generator.build.compile import DEFAULT_ARCH
from mirage_kernels.generator.build.selection import kernel_name
from mirage_kernels.generator.commands import arguments as given
from mirage_kernels.generator.commands.list import listed, print_kernels, recipe_json
from mirage_kernels.generator.errors import FileError, RecipeError
from mirage_kernels.generator.ir import to_text
from mirage_kernels.generator.recipe import Recipe, catalog, trace
from mirage_kernels.generator.records.folder import emitted, sources_below
from mirage_kernels.generator.records.record import KernelRecord, load_record
from mirage_kernels.generator.request import sizes_text
from mirage_kernels.generator.terminal import Table, Terminal

DETAILS = """\
examples:
  mirage-kernels show rms_norm_linear                        the recipe: spec, shapes, kernels
  mirage-kernels show rms_norm_linear/K4096_N6144_fp16       a kernel: muGraph, proof, variants
  mirage-kernels show path/to/my_recipe.py
  mirage-kernels show kernels/sm_90a/rms_norm_linear/K4096_N6144_fp16.json
"""
ARGUMENTS = (
    given.argument(
        "name", metavar="NAME|FILE", help="a recipe, a kernel, a muGraph's JSON or a recipe file"
    ),
    *(given.KERNELS, given.JSON),
)


def run(arguments: argparse.Namespace, terminal: Terminal) -> int:
    """Find out what the name means and print it."""
    name: str = arguments.name
    if name.endswith(".json"):
        path, record = name, _read(Path(name))
        folder = Path(name).resolve().parent.parent.parent
    else:
        folder = given.kernels_folder(arguments.kernels)
        found = emitted(folder)
        if name.endswith(".py") or name in catalog():
            _show_recipe(given.recipe(name), found, terminal)
            return 0
        path, record = _named(name, found)
    sources = [] if record.no_plan else sources_below(folder, record)
    _show_kernel(path, record, sources, terminal)
    return 0


def _read(path: Path) -> KernelRecord:
    """Return a record from its file; raises FileError for a file that is none."""
    try:
        data = json.loads(path.read_text())
        problem = "" if isinstance(data, dict) and "mugraph" in data else "it holds no muGraph"
    except OSError as error:
        raise FileError(f"{path} cannot be read: {error.strerror}", "check the path") from error
    except (ValueError, RecursionError) as error:
        problem = f"it is no JSON ({error})"
    if problem:
        hint = "`mirage-kernels generate RECIPE` writes records"
        raise FileError(f"{path} is not a kernel record: {problem}", hint)
    return load_record(path)


def _named(name: str, found: Mapping[str, KernelRecord]) -> tuple[str, KernelRecord]:
    """Return the kernel of a name, with its architecture or without; raises RecipeError."""
    names = {path: (path.removesuffix(".json"), kernel_name(r)) for path, r in found.items()}
    matching = [path for path in found if name in names[path]]
    if not matching:
        known = [*catalog(), *sorted({short for _, short in names.values()})]
        raise RecipeError(
            f"there is no recipe, kernel or file called {name!r}",
            f"the nearest: {', '.join(get_close_matches(name, known, cutoff=0))}; "
            "`mirage-kernels list` names all",
        )
    path = min(matching, key=lambda path: found[path].arch != DEFAULT_ARCH)
    return path, found[path]


def _show_recipe(recipe: Recipe, found: Mapping[str, KernelRecord], terminal: Terminal) -> None:
    spec = to_text(trace(recipe, recipe.shapes[0], recipe.dtypes[0]))
    own = {path: record for path, record in found.items() if record.recipe == recipe.name}
    bounds = ", ".join(f"{name} <= {bound}" for name, bound in recipe.dynamic.items())
    terminal.line(f"{recipe.name}: {recipe.summary}")
    terminal.line(f"static dims {', '.join(recipe.static_dims)}; at run time {bounds}")
    terminal.line(f"\nspec at its first shape, {recipe.dtypes[0].value}:\n{indent(spec, '  ')}\n")
    rows = tuple((sizes_text(s.dims), s.source) for s in recipe.shapes)
    terminal.table(Table(("static dims", "shape from"), rows, left=2))
    terminal.line()
    print_kernels(own, terminal)
    terminal.document(
        {
            "recipe": recipe_json(recipe),
            "spec": spec,
            "kernels": [asdict(kernel) for kernel in listed(own)],
        }
    )


def _show_kernel(
    path: str, record: KernelRecord, sources: Sequence[Path], terminal: Terminal
) -> None:
    text = to_text(record.graph)
    dims = sizes_text(record.shape).replace(",", ", ")
    terminal.line(f"{record.recipe} at {dims}, {record.dtype}, {record.arch} ({record.source})")
    terminal.line(f"{path}\n\n{indent(text, '  ')}\n\n{proof_sentence(record)}")
    if record.no_plan:
        terminal.line(f"Not emitted: {record.no_plan}.")
    else:
        terminal.line("`mirage-kernels check` proves it again.")
        for folder, files in groupby(sources, lambda path: path.parent):
            names = ", ".join(file.name for file in files)
            terminal.line(f"Emitted: {folder.parent.name}/{folder.name}: {names}")
        terminal.line()
        rows = tuple(_variant_rows(record))
        terminal.table(Table(("variant serves", "cuts", "knobs"), rows, left=3))
    terminal.document(
        {
            "path": path,
            "text": text,
            "sources": ["/".join(p.parts[-3:]) for p in sources],
            "record": record.to_json(),
        }
    )


def _variant_rows(record: KernelRecord) -> Iterator[tuple[str, ...]]:
    counted = record.roles.counted
    for variant in record.variants:
        tiles = ", ".join(f"{name} by {size}" for name, size in record.tiles(variant).items())
        knobs = ", ".join(f"{name} {value}" for name, value in vars(variant.knobs).items())
        served = f"{counted} <= {variant.bucket}" if variant.bucket else f"any {counted}"
        tiled = f", {variant.work_tiles} work tiles" if variant.work_tiles else ""
        yield served + tiled, tiles, knobs


def proof_sentence(record: KernelRecord) -> str:
    """Say what was proved, and how sure it is."""
    proof = record.proof
    return (
        f"Proved equal to the recipe on {proof.draws} random draws over finite fields: a "
        f"wrong muGraph would pass with a probability of at most 2^{proof.log2_failure:g}."
    )
