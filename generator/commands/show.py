"""`show`: a recipe, or a kernel's muGraph as text with what was proved."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from itertools import groupby
from pathlib import Path

from mirage_kernels.generator.build.compile import DEFAULT_ARCH
from mirage_kernels.generator.commands import arguments as given
from mirage_kernels.generator.commands.arguments import Parser, Verb
from mirage_kernels.generator.commands.list import (
    compiled_paths,
    dims_text,
    kernel_name,
    kernels_json,
    print_kernels,
    recipe_json,
)
from mirage_kernels.generator.errors import FileError, RecipeError
from mirage_kernels.generator.ir import Json, to_text
from mirage_kernels.generator.recipe import Recipe, catalog, trace
from mirage_kernels.generator.records.folder import emitted, sources_below
from mirage_kernels.generator.records.record import (
    MUGRAPH_ENDING,
    KernelRecord,
    MuGraphRecord,
    Record,
    load_mugraph,
    load_record,
)
from mirage_kernels.generator.terminal import Table, Terminal

_NEAREST = 3  # names that are told where there is none of a name
DETAILS = """\
examples:
  mirage-kernels show rms_norm_linear                        the recipe: spec, shapes, kernels
  mirage-kernels show rms_norm_linear/K4096_N6144_fp16       a kernel: muGraph, proof, variants
  mirage-kernels show path/to/my_recipe.py
  mirage-kernels show kernels/sm_90a/rms_norm_linear/K4096_N6144_fp16.json
"""


def add_arguments(parser: Parser) -> None:
    """Add the verb's arguments."""
    parser.add_argument(
        "name", metavar="NAME|FILE", help="a recipe, a kernel, a muGraph's JSON or a recipe file"
    )
    given.add_kernels(parser)
    given.add_json(parser)


def run(arguments: argparse.Namespace, terminal: Terminal) -> int:
    """Find out what the name means and print it."""
    name: str = arguments.name
    if name.endswith(".json"):
        _require_record(Path(name))
    if name.endswith(MUGRAPH_ENDING):
        _show_kernel(name, load_mugraph(Path(name)), (), terminal)
        return 0
    if name.endswith(".json"):
        record = load_record(Path(name))
        folder = Path(name).resolve().parent.parent.parent
        _show_kernel(name, record, sources_below(folder, record), terminal)
        return 0
    if name.endswith(".py") or name in catalog():
        found = emitted(given.kernels_folder(arguments.kernels))
        _show_recipe(given.recipe(name), found, terminal)
        return 0
    folder = given.kernels_folder(arguments.kernels)
    found = emitted(folder)
    matching = {path: r for path, r in found.items() if _means(name, path, r)}
    if not matching:
        kernels = sorted({kernel_name(record) for record in found.values()})
        like = get_close_matches(name, [*catalog(), *kernels], n=_NEAREST, cutoff=0)
        raise RecipeError(
            f"there is no recipe, kernel or file called {name!r}",
            f"the nearest: {', '.join(like)}; `mirage-kernels list` names all",
        )
    path, record = min(matching.items(), key=lambda item: item[1].arch != DEFAULT_ARCH)
    _show_kernel(path, record, sources_below(folder, record), terminal)
    return 0


def _require_record(path: Path) -> None:
    """Raise FileError for a file that cannot be a record."""
    try:
        data = json.loads(path.read_text())
        found = "" if isinstance(data, dict) and "mugraph" in data else "it holds no muGraph"
    except OSError as error:
        raise FileError(f"{path} cannot be read: {error.strerror}", "check the path") from error
    except (ValueError, RecursionError) as error:
        found = f"it is no JSON ({error})"
    if found:
        hint = "`mirage-kernels generate RECIPE` writes records"
        raise FileError(f"{path} is not a kernel record: {found}", hint)


def _means(name: str, path: str, record: KernelRecord) -> bool:
    """Say whether a name, with or without the architecture, means this kernel."""
    return name in (path.removesuffix(".json"), kernel_name(record))


def _show_recipe(recipe: Recipe, found: Mapping[str, KernelRecord], terminal: Terminal) -> None:
    spec = to_text(trace(recipe, recipe.shapes[0], recipe.dtypes[0]))
    own = {path: record for path, record in found.items() if record.recipe == recipe.name}
    compiled = compiled_paths(own)
    bounds = ", ".join(f"{name} <= {bound}" for name, bound in recipe.dynamic.items())
    terminal.line(f"{recipe.name}: {recipe.summary}")
    terminal.line(f"static dims {', '.join(recipe.static_dims)}; at run time {bounds}")
    terminal.line(f"\nspec at its first shape, {recipe.dtypes[0].value}:")
    terminal.line(_indented(spec))
    terminal.line()
    rows = tuple((dims_text(s), s.source) for s in recipe.shapes)
    terminal.table(Table(("static dims", "shape from"), rows, left=2))
    terminal.line()
    print_kernels(own, compiled, terminal)
    terminal.document(
        {"recipe": recipe_json(recipe), "spec": spec, "kernels": kernels_json(own, compiled)}
    )


def _show_kernel(path: str, record: Record, sources: Sequence[Path], terminal: Terminal) -> None:
    text = to_text(record.graph)
    dims = ", ".join(f"{name}={size}" for name, size in record.shape.items())
    terminal.line(f"{record.recipe} at {dims}, {record.dtype}, {record.arch} ({record.source})")
    terminal.line(f"{path}\n")
    terminal.line(_indented(text))
    terminal.line(f"\n{proof_sentence(record)}")
    if isinstance(record, MuGraphRecord):
        terminal.line(f"Not emitted: {record.no_plan}.")
    else:
        terminal.line("`mirage-kernels check` proves it again.")
        for folder, files in groupby(sources, lambda path: path.parent):
            names = ", ".join(file.name for file in files)
            terminal.line(f"KernelRecord: {folder.parent.name}/{folder.name}: {names}")
        terminal.line()
        table = Table(("variant serves", "cuts", "knobs"), tuple(_variant_rows(record)), left=3)
        terminal.table(table)
    paths: list[Json] = ["/".join(p.parts[-3:]) for p in sources]
    terminal.document({"path": path, "text": text, "sources": paths, "record": record.to_json()})


def _variant_rows(record: KernelRecord) -> Iterator[tuple[str, ...]]:
    counted = record.roles.counted
    for variant, cut in zip(record.variants, record.all_tiles, strict=True):
        tiles = ", ".join(f"{name} by {size}" for name, size in cut.items())
        knobs = ", ".join(f"{name} {value}" for name, value in vars(variant.knobs).items())
        served = f"{counted} <= {variant.bucket}" if variant.bucket else f"any {counted}"
        yield (
            served + (f", {variant.work_tiles} work tiles" if variant.work_tiles else ""),
            tiles,
            knobs,
        )


def proof_sentence(record: Record) -> str:
    """Say what was proved, and how sure it is."""
    proof = record.proof
    return (
        f"Proved equal to the recipe on {proof.draws} random draws over finite fields: a "
        f"wrong muGraph would pass with a probability of at most 2^{proof.log2_failure:g}."
    )


def _indented(text: str) -> str:
    return "\n".join(f"  {line}" for line in text.splitlines())


VERB = Verb(DETAILS, add_arguments, run)
