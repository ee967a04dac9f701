"""`generate --model` and `list --model`: the kernels of a model's decode step."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from mirage_kernels.generator.build.selection import kernel_name
from mirage_kernels.generator.commands import arguments as given
from mirage_kernels.generator.commands import extension
from mirage_kernels.generator.commands.making import Made, generate_all
from mirage_kernels.generator.errors import MirageError
from mirage_kernels.generator.frontend.decode_steps import Need, call_arguments, needs
from mirage_kernels.generator.frontend.models import Model, load_model
from mirage_kernels.generator.ir.dtypes import STORAGE_DTYPES, DType
from mirage_kernels.generator.recipe import Recipe, catalog
from mirage_kernels.generator.records.files import all_or_nothing
from mirage_kernels.generator.records.folder import emitted, write
from mirage_kernels.generator.request import Request, sizes_text
from mirage_kernels.generator.terminal import Terminal, counted

COMPILED, EMITTED, MISSING, NO_RECIPE = "compiled", "emitted", "missing", "no recipe"
IN_EVERY_BUILD = "in every build"


@dataclass(frozen=True)
class There:
    """What there is already of an architecture: names of kernels."""

    recipes: Mapping[str, Recipe]
    emitted: frozenset[str]
    compiled: frozenset[str]

    def state(self, need: Need, dtype: DType) -> str:
        """Say what there is of a kernel that a model needs."""
        if need.is_hand_written:
            return IN_EVERY_BUILD
        found = need.found(self.recipes)
        if found is None:
            return NO_RECIPE
        name = f"{need.recipe}/{found[1].kernel(dtype)}"
        return COMPILED if name in self.compiled else EMITTED if name in self.emitted else MISSING


def _there(arch: str, folder: Path) -> There:
    """Return what the extension holds, and what was emitted into a folder."""
    package = emitted(given.package_kernels(), arch)
    compiled = {kernel_name(package[path]) for path in extension.compiled_paths(package)}
    present = emitted(folder, arch) if folder.is_dir() else {}
    names = frozenset(kernel_name(record) for record in present.values())
    return There(catalog(), names, frozenset(compiled))


def _needs(model: Model, arguments: argparse.Namespace) -> list[Need]:
    return needs(model, arguments.tp, packed=not arguments.separate)


def _print_notes(model: Model, terminal: Terminal) -> None:
    for note in model.notes:
        terminal.line(f"note: {note}")


# -- list ------------------------------------------------------------------------------------------


def list_model(arguments: argparse.Namespace, terminal: Terminal) -> int:
    """Print each kernel that a model needs, and what there is of it in both types."""
    model = load_model(arguments.model)
    wanted = _needs(model, arguments)
    there = _there(arguments.arch, given.kernels_folder(arguments.kernels))
    rows = [
        {
            "step": need.step,
            "recipe": need.recipe,
            "static dims": sizes_text(need.dims),
            **{dtype.value: there.state(need, dtype) for dtype in STORAGE_DTYPES},
        }
        for need in wanted
    ]
    terminal.table(rows, left=5)
    states = {row[dtype.value] for row in rows for dtype in STORAGE_DTYPES}
    if MISSING in states:
        named = shlex.quote(arguments.model)
        options = f"--model {named} --tp {arguments.tp} --arch {arguments.arch}"
        options += " --separate" if arguments.separate else ""
        terminal.line(f"next: mirage-kernels generate {options} --out DIR")
    if NO_RECIPE in states:
        terminal.line("no recipe: PyTorch computes this step")
    told = call_arguments(model)
    words = ", ".join(f"{k}={v if isinstance(v, str) else f'{v:.6g}'}" for k, v in told.items())
    terminal.line(f"arguments of the calls: {words}")
    _print_notes(model, terminal)
    document = {"model": arguments.model, "tp": arguments.tp, "kernels": rows}
    terminal.document({**document, "arguments": told, "notes": [*model.notes]})
    return 0


# -- generate --------------------------------------------------------------------------------------


def generate_model(arguments: argparse.Namespace, terminal: Terminal) -> int:
    """Generate the kernels of a model that neither the folder nor the extension has.

    What fails is said at the end, with exit code 1; the other kernels are written all the same.
    """
    from mirage_kernels.generator.commands.generate import made_json, next_step, print_kernels

    if arguments.recipe or arguments.shape:
        raise MirageError(
            "--model says which recipes and shapes there are to generate",
            "leave out RECIPE and --shape, or --model",
        )
    folder = given.output_folder(arguments.out, "rms_norm_linear", arguments.arch)
    there = _there(arguments.arch, folder)
    model = load_model(arguments.model)
    needed = _needs(model, arguments)
    catalogs = given.catalogs(arguments.catalog, folder)
    wanted, missing = _requests(needed, arguments, there, catalogs)
    _print_notes(model, terminal)
    terminal.line(
        f"{arguments.model}, TP {arguments.tp}: {counted(len(wanted), 'kernel')}, "
        f"{len(wanted) - len(missing)} there already, {len(missing)} for {folder}"
    )
    if arguments.dry_run or not missing:
        rows = [{"kernel": r.name, "arch": r.arch, "shape from": r.shape.source} for r in missing]
        terminal.table(rows, left=3)
        terminal.document({"folder": str(folder), "kernels": [r.name for r in missing]})
        return 0
    made, written, failures = list[Made](), list[Path](), list[str]()

    def failed(request: Request, error: MirageError) -> None:
        failures.append(f"{request.name}: {error.sentence}")

    for alike in _by_recipe(missing):
        some = generate_all(alike, arguments, terminal, failed)
        with all_or_nothing():
            written += write([result for result, _ in some], folder)
        made += some
    print_kernels(made, terminal)
    for failure in failures:
        terminal.line(f"FAILED {failure}")
    terminal.line(f"{counted(len(written), 'file')} in {folder}")
    terminal.line(f"next: {next_step(folder, [request.recipe.name for request in missing])}")
    kernels = [made_json(m) for m in made]
    paths = [str(path) for path in written]
    terminal.document({"kernels": kernels, "written": paths, "failed": failures})
    return 1 if failures else 0


def _requests(
    needed: Sequence[Need],
    arguments: argparse.Namespace,
    there: There,
    catalogs: tuple[Path, ...],
) -> tuple[list[Request], list[Request]]:
    """Return all kernels that have a recipe, and those of them to make."""
    wanted, missing = list[Request](), list[Request]()
    for need in needed:
        found = need.found(there.recipes)
        for dtype in (arguments.dtype or STORAGE_DTYPES) if found is not None else ():
            assert found is not None
            wanted.append(Request(*found, dtype, arguments.arch, catalogs))
            missing += wanted[-1:] if there.state(need, dtype) == MISSING else []
    return wanted, missing


def _by_recipe(requests: Sequence[Request]) -> Iterator[list[Request]]:
    """Yield requests of one recipe after those of another: what is written is whole then."""
    for name in dict.fromkeys(request.recipe.name for request in requests):
        yield [request for request in requests if request.recipe.name == name]
