"""`check`: re-verify every committed muGraph, re-emit every committed source."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path

from mirage_kernels.generator.commands.arguments import (
    JOBS,
    JSON,
    KERNELS,
    argument,
    is_checkout,
    kernels_folder,
    recipe,
)
from mirage_kernels.generator.errors import FileError, RecipeError
from mirage_kernels.generator.records.folder import check, emitted, without_plan
from mirage_kernels.generator.terminal import Terminal, counted

DETAILS = """\
Every muGraph is proved again, and every source must be, byte for byte, what the generator emits
from it. Exit code 1 and a diff where anything differs. Kernels of a recipe file need the file.

examples:
  mirage-kernels check
  mirage-kernels check path/to/my_recipe.py --kernels path/to/kernels
"""
ARGUMENTS = (
    argument("files", nargs="*", metavar="FILE", help="recipe files beside the catalog"),
    *(KERNELS, JOBS, JSON),
)


def run(arguments: argparse.Namespace, terminal: Terminal) -> int:
    """Print every difference with its diff."""
    if arguments.kernels is None and not is_checkout():
        raise FileError(
            "this is an installed package: it holds compiled kernels, not their sources",
            "check a source checkout, or give its folder: --kernels DIR",
        )
    folder = kernels_folder(arguments.kernels)
    files = [_recipe_file(file) for file in arguments.files]
    count = len(emitted(folder)) + len(without_plan(folder))
    if not count:
        raise FileError(
            f"{folder} holds no kernels to check",
            "`mirage-kernels generate rms_norm_linear` makes some; --kernels DIR looks elsewhere",
        )
    with terminal.watch(f"checking {counted(count, 'kernel')} in {folder}") as progress:
        differences = check(folder, progress=progress, jobs=arguments.jobs, recipe_files=files)
    for difference in differences:
        terminal.line(f"{difference.path}: {difference.reason}")
        if difference.diff:
            terminal.line(difference.diff.rstrip("\n"))
    terminal.line(
        f"{counted(len(differences), 'difference')} in {counted(count, 'kernel')}; "
        "`mirage-kernels generate RECIPE` makes them anew"
        if differences
        else f"{counted(count, 'kernel')}: every muGraph proved again, every source as emitted"
    )
    terminal.document(
        {
            "folder": str(folder),
            "kernels": count,
            "differences": [asdict(difference) for difference in differences],
        }
    )
    return 1 if differences else 0


def _recipe_file(given: str) -> str:
    """Return the whole path of a recipe file that loads; raises RecipeError for anything else."""
    if not given.endswith(".py"):
        raise RecipeError(
            f"{given} is no recipe file",
            "kernels of the catalog's recipes are checked without naming them; --kernels DIR",
        )
    recipe(given)
    return str(Path(given).resolve())
