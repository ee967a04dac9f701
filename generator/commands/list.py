"""`list`: what there is: recipes, committed kernels, compiled kernels."""

from __future__ import annotations

import argparse
from collections.abc import Mapping

from mirage_kernels.generator.commands.arguments import (
    Parser,
    Verb,
    add_json,
    add_kernels,
    kernels_folder,
)
from mirage_kernels.generator.commands.extension import (
    compiled_arch,
    compiled_names,
    extension_file,
)
from mirage_kernels.generator.ir.text import Json
from mirage_kernels.generator.recipe import Recipe, Shape, catalog
from mirage_kernels.generator.records.folder import emitted
from mirage_kernels.generator.records.record import KernelRecord
from mirage_kernels.generator.target import TARGETS
from mirage_kernels.generator.terminal import Table, Terminal
from mirage_kernels.generator.tuning.catalog import committed_path, load_catalog

DETAILS = """\
"compiled" says whether the extension that is built here contains the kernel. A variant serves up
to the number of tokens (M) that its bucket names; in attention of query rows: heads of a group (G),
times tokens (T*G) where they see keys up to their own. "tuned" is the day when variants were
measured, as kernels/catalog.json has it; others are the rule's. An architecture's kernels are
planned for the GPU beside it; "evidence" says whether those of the catalog have been run on one, or
were only compiled; others were generated, and not measured.
"""


def add_arguments(parser: Parser) -> None:
    """Add the verb's arguments."""
    parser.add_argument("--recipes", action="store_true", help="only the recipes and their shapes")
    add_kernels(parser)
    add_json(parser)


def run(arguments: argparse.Namespace, terminal: Terminal) -> int:
    """Print the recipes with their shapes, then the committed kernels."""
    recipes = catalog().values()
    found = {} if arguments.recipes else emitted(kernels_folder(arguments.kernels))
    compiled = compiled_paths(found)
    rows = tuple((r.name, dims_text(s), s.source) for r in recipes for s in r.shapes)
    terminal.table(Table(("recipe", "static dims", "shape from"), rows, left=3))
    document: dict[str, Json] = {"recipes": [recipe_json(r) for r in recipes]}
    if not arguments.recipes:
        terminal.line()
        print_kernels(found, compiled, terminal)
        terminal.line()
        print_architectures(found, terminal)
        document["kernels"] = kernels_json(found, compiled)
        document["architectures"] = architectures_json(found)
    terminal.document(document)
    return 0


def print_kernels(
    found: Mapping[str, KernelRecord], compiled: set[str], terminal: Terminal
) -> None:
    """Print the table of committed kernels and how many of them the extension contains."""
    if not found:
        terminal.line("no kernels yet: `mirage-kernels generate rms_norm_linear` makes some")
        return
    days = tuned_days()
    rows = tuple(
        (
            *(kernel_name(record), record.arch, buckets(record) + beside(record)),
            *(days.get((record.arch, kernel_name(record)), "-"), _yes(path in compiled)),
        )
        for path, record in found.items()
    )
    columns = ("kernel", "arch", "variants serve", "tuned", "compiled")
    terminal.table(Table(columns, rows, left=5))
    if not extension_file().is_file():
        terminal.line("the extension is not built: `make extension` in a source checkout builds it")


def tuned_days() -> dict[tuple[str, str], str]:
    """Return when each kernel of the catalog was measured, by architecture and name."""
    return {
        (section.arch, name): section.measured.get("date", "yes").partition(" ")[0]
        for section in load_catalog(committed_path()).sections
        for name in section.names
    }


def compiled_paths(found: Mapping[str, KernelRecord]) -> set[str]:
    """Return which committed kernels the extension contains: those of its one architecture."""
    arch, names = compiled_arch(), compiled_names(kernel_name(r) for r in found.values())
    return {path for path, r in found.items() if r.arch == arch and kernel_name(r) in names}


def print_architectures(found: Mapping[str, KernelRecord], terminal: Terminal) -> None:
    """Print every architecture with its number of kernels, and whether they have been run."""
    rows = tuple(
        (arch, on.gpu, str(sum(r.arch == arch for r in found.values())), _evidence(found, arch))
        for arch, on in TARGETS.items()
    )
    terminal.table(Table(("arch", "planned for", "kernels", "evidence"), rows, left=4))


def _evidence(found: Mapping[str, KernelRecord], arch: str) -> str:
    """Say what is known of an architecture's kernels, and of how many nothing is."""
    kernels = [record for record in found.values() if record.arch == arch]
    made = sum(not is_of_catalog(record) for record in kernels)
    shipped = [TARGETS[arch].evidence.value] if made < len(kernels) else []
    return "; ".join([*shipped, *([f"{made} generated, not measured"] if made else [])]) or "-"


def is_of_catalog(record: KernelRecord) -> bool:
    """Say whether a kernel is one of the product's, which the evidence is about."""
    shapes = [dict(s.dims) for recipe in catalog().values() for s in recipe.shapes]
    return record.recipe in catalog() and dict(record.shape) in shapes


def architectures_json(found: Mapping[str, KernelRecord]) -> Json:
    """Return the architectures as JSON data."""
    return [
        {
            "arch": arch,
            "gpu": on.gpu,
            "kernels": sum(record.arch == arch for record in found.values()),
            "generated": sum(r.arch == arch and not is_of_catalog(r) for r in found.values()),
            "evidence": on.evidence.name.lower(),
        }
        for arch, on in TARGETS.items()
    ]


def kernels_json(found: Mapping[str, KernelRecord], compiled: set[str]) -> Json:
    """Return the committed kernels as JSON data."""
    days = tuned_days()
    return [
        {
            "name": kernel_name(record),
            "path": path,
            "recipe": record.recipe,
            "shape": dict(record.shape),
            "dtype": record.dtype,
            "arch": record.arch,
            "buckets": [variant.bucket for variant in record.variants],
            "stacked": list(record.stacked),
            "tuned": days.get((record.arch, kernel_name(record))),
            "compiled": path in compiled,
        }
        for path, record in found.items()
    ]


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


def dims_text(shape: Shape) -> str:
    """Write a shape as `--shape` takes it: `K=4096,N=6144`."""
    return ",".join(f"{name}={size}" for name, size in shape.dims.items())


def kernel_name(record: KernelRecord) -> str:
    """Return the kernel's name here and in the dispatch table: `rms_norm_linear/K64_N48_fp16`."""
    return f"{record.recipe}/{record.stem}"


def buckets(record: KernelRecord) -> str:
    """Say which numbers of tokens or rows the variants serve: `M <= 8, 16, 32, any`."""
    served = dict.fromkeys(str(variant.bucket or "any") for variant in record.variants)
    if list(served) == ["any"]:
        return f"any {record.roles.counted}"
    return f"{record.roles.counted} <= {', '.join(served)}"


def beside(record: KernelRecord) -> str:
    """Say what a second kernel of the same muGraph takes: `, and stacks of lora_a, lora_b`."""
    return f", and stacks of {', '.join(record.stacked)}" if record.stacked else ""


def _yes(answer: bool) -> str:
    return "yes" if answer else "no"


VERB = Verb(DETAILS, add_arguments, run)
