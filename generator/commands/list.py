"""`list`: what there is: recipes, committed kernels, compiled kernels."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from mirage_kernels.generator.build.selection import kernel_name
from mirage_kernels.generator.commands.arguments import JSON, KERNELS, argument, kernels_folder
from mirage_kernels.generator.commands.extension import (
    compiled_arch,
    compiled_names,
    extension_file,
)
from mirage_kernels.generator.ir.text import Json
from mirage_kernels.generator.recipe import Recipe, catalog
from mirage_kernels.generator.records.folder import emitted
from mirage_kernels.generator.records.record import KernelRecord
from mirage_kernels.generator.request import sizes_text
from mirage_kernels.generator.target import TARGETS
from mirage_kernels.generator.terminal import Table, Terminal
from mirage_kernels.generator.tuning.catalog import committed_path, load_catalog

DETAILS = """\
"compiled" says whether the extension that is built here contains the kernel. A variant serves up
to the number of tokens (M) that its bucket names; in attention of query rows: heads of a group (G),
times tokens (T*G) where they see keys up to their own. "tuned" is the day when variants were
measured, as kernels/catalog.json has it; others are the rule's. An architecture's kernels are
planned for the GPU beside it; "tuned" counts those whose own times are in the catalog, and the last
column says how far the kernels that are shipped for it have been tried.
"""
ARGUMENTS = (
    argument("--recipes", action="store_true", help="only the recipes and their shapes"),
    *(KERNELS, JSON),
)


@dataclass(frozen=True)
class Listed:
    """A committed kernel."""

    name: str
    path: str
    recipe: str
    shape: dict[str, int]
    dtype: str
    arch: str
    buckets: list[int]
    stacked: list[str]  # weights of which a second kernel takes one slice per token
    tuned: str | None  # the day
    compiled: bool


def run(arguments: argparse.Namespace, terminal: Terminal) -> int:
    """Print the recipes with their shapes, then the committed kernels."""
    recipes = catalog().values()
    rows = tuple((r.name, sizes_text(s.dims), s.source) for r in recipes for s in r.shapes)
    document: dict[str, Json] = {"recipes": [recipe_json(r) for r in recipes]}
    records = {} if arguments.recipes else emitted(kernels_folder(arguments.kernels))
    terminal.table(Table(("recipe", "static dims", "shape from"), rows, left=3))
    if not arguments.recipes:
        kernels = listed(records)
        terminal.line()
        print_kernels(records, terminal)
        terminal.line()
        architectures = [_architecture(arch, kernels) for arch in TARGETS]
        cells = tuple(tuple(map(str, a.values())) for a in architectures)
        terminal.table(
            Table(("arch", "planned for", "kernels", "tuned", "those shipped"), cells, left=5)
        )
        document["kernels"] = [asdict(kernel) for kernel in kernels]
        document["architectures"] = [*architectures]
    terminal.document(document)
    return 0


def listed(records: Mapping[str, KernelRecord]) -> list[Listed]:
    """Return what is to be told of each kernel, by the path of its record."""
    days = {
        (section.arch, name): section.measured.get("date", "yes").partition(" ")[0]
        for section in load_catalog(committed_path()).sections
        for name in section.names
    }
    compiled = compiled_paths(records)
    return [
        Listed(
            name=kernel_name(record),
            path=path,
            recipe=record.recipe,
            shape=dict(record.shape),
            dtype=record.dtype,
            arch=record.arch,
            buckets=[variant.bucket for variant in record.variants],
            stacked=list(record.stacked),
            tuned=days.get((record.arch, kernel_name(record))),
            compiled=path in compiled,
        )
        for path, record in records.items()
    ]


def print_kernels(records: Mapping[str, KernelRecord], terminal: Terminal) -> None:
    """Print the table of committed kernels, and whether the extension contains them."""
    if not records:
        terminal.line("no kernels yet: `mirage-kernels generate rms_norm_linear` makes some")
        return
    rows = tuple(
        (k.name, k.arch, _served(k, record), k.tuned or "-", "yes" if k.compiled else "no")
        for k, record in zip(listed(records), records.values(), strict=True)
    )
    terminal.table(Table(("kernel", "arch", "variants serve", "tuned", "compiled"), rows, left=5))
    if not extension_file().is_file():
        terminal.line("the extension is not built: `make extension` in a source checkout builds it")


def _served(kernel: Listed, record: KernelRecord) -> str:
    """Say which numbers of tokens or rows the variants serve: `M <= 8, 16, 32, any`."""
    served = ", ".join(dict.fromkeys(str(bucket or "any") for bucket in kernel.buckets))
    text = (
        f"any {record.roles.counted}" if served == "any" else f"{record.roles.counted} <= {served}"
    )
    return text + (f", and stacks of {', '.join(kernel.stacked)}" if kernel.stacked else "")


def compiled_paths(records: Mapping[str, KernelRecord]) -> set[str]:
    """Return which committed kernels the extension contains: those of its one architecture."""
    arch, names = compiled_arch(), compiled_names(kernel_name(r) for r in records.values())
    return {path for path, r in records.items() if r.arch == arch and kernel_name(r) in names}


def _architecture(arch: str, kernels: list[Listed]) -> dict[str, Json]:
    own = [kernel for kernel in kernels if kernel.arch == arch]
    return {
        "arch": arch,
        "gpu": TARGETS[arch].gpu,
        "kernels": len(own),
        "tuned": sum(kernel.tuned is not None for kernel in own),
        "evidence": TARGETS[arch].evidence.value,
    }


def recipe_json(recipe: Recipe) -> Json:
    """Return a recipe's catalog as JSON data."""
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
