"""Words of the command line become values: recipes, shapes, dtypes, folders; or one clear error."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from mirage_kernels.generator.bench.op_calls import op_call
from mirage_kernels.generator.build.compile import DEFAULT_ARCH, ROOT
from mirage_kernels.generator.errors import FileError, MirageError, RecipeError, TargetError
from mirage_kernels.generator.ir.dtypes import STORAGE_DTYPES, DType
from mirage_kernels.generator.recipe import Recipe, load_recipe
from mirage_kernels.generator.settings import STORE_VARIABLE
from mirage_kernels.generator.target import target
from mirage_kernels.generator.terminal import PROGRAM, Terminal


class Parser(argparse.ArgumentParser):
    """Argparse whose complaints are errors like all others: a sentence and a hint."""

    def error(self, message: str) -> NoReturn:
        """Raise instead of printing the usage and leaving."""
        raise MirageError(message, f"`{self.prog} --help` shows what it takes")


@dataclass(frozen=True)
class Verb:
    """One verb: what its help says beyond the summary, its arguments, and what it does.

    `run` returns the exit code: 0, or 1 where the answer is no (a difference, a failed row).
    """

    details: str
    add_arguments: Callable[[Parser], None]
    run: Callable[[argparse.Namespace, Terminal], int]


def add_json(parser: Parser) -> None:
    """Add `--json`, which every verb takes."""
    parser.add_argument(
        "--json", action="store_true", help="print one JSON document on stdout and nothing else"
    )


def add_effort(parser: Parser) -> None:
    """Add for which architecture to generate, and with how many processes."""
    parser.add_argument(
        "--arch", default=DEFAULT_ARCH, metavar="ARCH", help=f"default: {DEFAULT_ARCH}"
    )
    add_jobs(parser)


def add_jobs(parser: Parser) -> None:
    """Add `--jobs N`."""
    parser.add_argument(
        "--jobs", type=positive, default=cores(), metavar="N", help="default: one per core"
    )


def add_store(parser: Parser) -> None:
    """Add `--store DIR`."""
    parser.add_argument(
        "--store",
        metavar="DIR",
        help=f"where results of searches are kept (default: {STORE_VARIABLE}, or the user's cache)",
    )


def add_workload(parser: Parser) -> None:
    """Add `--dtype` and `--shape`; both may be given several times."""
    parser.add_argument(
        "--dtype", action="append", type=dtype, metavar="fp16|bf16", help="may be given twice"
    )
    parser.add_argument(
        "--shape",
        action="append",
        metavar="K=4096,N=6144",
        help="sizes of the recipe's static dims; may be given several times",
    )


def add_kernels(parser: Parser) -> None:
    """Add `--kernels DIR`."""
    parser.add_argument(
        "--kernels", metavar="DIR", help="folder of emitted kernels (default: the package's own)"
    )


def cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0))


def positive(text: str) -> int:
    """Read a whole number of at least 1."""
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)


def positives(text: str) -> tuple[int, ...]:
    """Read whole numbers between commas: `1,8,16`."""
    return tuple(positive(word) for word in text.split(","))


def dtype(text: str) -> DType:
    """Read a storage dtype."""
    known = {d.value: d for d in STORAGE_DTYPES}
    if text not in known:
        raise TargetError(f"kernels have no dtype {text!r}", f"dtypes: {', '.join(known)}")
    return known[text]


def known_arch(text: str) -> str:
    """Return the architecture; raises TargetError for one without facts."""
    return target(text).arch


def recipe(name_or_path: str) -> Recipe:
    """Load a recipe by name or file; a file is run without a trace on disk or on stdout."""
    file = Path(name_or_path)
    try:
        with contextlib.redirect_stdout(sys.stderr), _no_bytecode():
            return load_recipe(str(file.resolve()) if file.is_file() else name_or_path)
    except SystemExit as stop:
        raise RecipeError(
            f"recipe file {name_or_path} calls exit({stop.code!r})",
            "a recipe file only defines a recipe",
        ) from stop


@contextlib.contextmanager
def _no_bytecode() -> Iterator[None]:
    before, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    try:
        yield
    finally:
        sys.dont_write_bytecode = before


def is_checkout() -> bool:
    """Say whether this package is imported from a source checkout, not from a wheel."""
    return (ROOT / "csrc").is_dir() and (ROOT / "kernels").is_dir()


def package_kernels() -> Path:
    """Return the folder of the package that holds emitted kernels."""
    return ROOT / "kernels" if is_checkout() else ROOT


def kernels_folder(given: str | None) -> Path:
    """Return the folder to read emitted kernels from; raises FileError where there is none."""
    folder = package_kernels() if given is None else Path(given)
    if not folder.exists():
        raise FileError(f"folder {folder} does not exist", "check the path after --kernels")
    if not folder.is_dir():
        raise FileError(f"{folder} is not a folder", "--kernels takes one that holds sm_90a/...")
    return folder


def output_folder(given: str | None, recipe_name: str, arch: str) -> Path:
    """Return the folder to write a recipe's kernels to.

    Without `--out` it is the checkout's kernels/ for recipes that the library has an op for,
    generated/ for others of the catalog, and for a recipe file outside of it kernels/ beside it.
    Raises FileError now, not after minutes of search.
    """
    folder = Path(given) if given is not None else _own_folder(recipe_name)
    if folder.exists() and not folder.is_dir():
        raise FileError(f"{folder} is a file, not a folder", "choose another one: --out DIR")
    check_writable(folder if folder.exists() else folder.parent, what=str(folder))
    for inside in (folder / arch, folder / arch / Path(recipe_name).stem):
        if inside.exists():
            check_writable(inside, what=str(inside))
    return folder


def _own_folder(recipe_name: str) -> Path:
    file = Path(recipe_name)
    if recipe_name.endswith(".py") and file.resolve().parent != ROOT / "recipes":
        return file.parent / "kernels"
    if op_call(file.stem) is None:
        return Path("generated")
    if not is_checkout():
        raise FileError(
            "this is an installed package, not a source checkout: it has no folder to write to",
            "name one: --out DIR",
        )
    return ROOT / "kernels"


def check_writable(existing: Path, *, what: str) -> None:
    """Raise FileError when `what`, which is `existing` or lies in it, could not be written."""
    elsewhere = "choose another place"
    if not existing.exists():
        problem, hint = f"{existing} does not exist", f"mkdir -p {existing}"
    elif existing.is_file() and str(existing) == what and os.access(existing, os.W_OK):
        return
    elif not existing.is_dir():
        problem, hint = f"{existing} is not a folder", elsewhere
    else:
        try:
            tempfile.TemporaryFile(dir=existing).close()  # a file without a name
        except OSError as error:
            problem, hint = f"{existing}: {error.strerror}", elsewhere
        else:
            return
    raise FileError(f"{what} can't be written: {problem}", hint)


def verb_program(verb: str) -> str:
    """Return how help texts name a verb: `mirage-kernels check`."""
    return f"{PROGRAM} {verb}"
