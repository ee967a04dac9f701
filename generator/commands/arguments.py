"""What several verbs take: words of the command line become values, or one clear error."""

from __future__ import annotations

import argparse
import contextlib
import os
import shlex
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from mirage_kernels.generator.bench.op_calls import op_call
from mirage_kernels.generator.build.compile import DEFAULT_ARCH, ROOT
from mirage_kernels.generator.errors import FileError, MirageError, RecipeError, TargetError
from mirage_kernels.generator.ir.dtypes import STORAGE_DTYPES, DType
from mirage_kernels.generator.recipe import Recipe, Shape, load_function, load_recipe
from mirage_kernels.generator.request import parse_shape
from mirage_kernels.generator.settings import STORE_VARIABLE
from mirage_kernels.generator.target import target
from mirage_kernels.generator.terminal import PROGRAM
from mirage_kernels.generator.tuning.catalog import CATALOG

if TYPE_CHECKING:
    from mirage_kernels.generator.partition.trace import Function

Loaded = TypeVar("Loaded")
Container = argparse.ArgumentParser | argparse._MutuallyExclusiveGroup
Argument = Callable[[Container], object]  # adds itself to a parser


def argument(name: str, metavar: str, help: str | None = None, **settings: Any) -> Argument:
    """Declare an argument with a value; settings are those of `ArgumentParser.add_argument`."""
    return lambda parser: parser.add_argument(name, metavar=metavar, help=help, **settings)


def flag(name: str, help: str) -> Argument:
    """Declare an argument that is there or not."""
    return lambda parser: parser.add_argument(name, action="store_true", help=help)


def one_of(*arguments: Argument) -> Argument:
    """Declare arguments of which a command takes one."""

    def add(parser: Container) -> None:
        group = parser.add_mutually_exclusive_group()
        for each in arguments:
            each(group)

    return add


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


def _known_arch(text: str) -> str:
    return target(text).arch


CORES = len(os.sched_getaffinity(0))  # that this process may use
JSON = flag("--json", "print one JSON document on stdout and nothing else")
ARCH = argument(
    "--arch", "ARCH", f"default: {DEFAULT_ARCH}", type=_known_arch, default=DEFAULT_ARCH
)
JOBS = argument("--jobs", "N", "default: one per core", type=positive, default=CORES)
STORE = argument(
    "--store",
    "DIR",
    f"where results of searches are kept (default: {STORE_VARIABLE}, or the user's cache)",
)
DTYPES = argument("--dtype", "fp16|bf16", "may be given twice", type=dtype, action="append")
SHAPES = argument(
    "--shape",
    "K=4096,N=6144",
    "sizes of the recipe's static dims; may be given several times",
    action="append",
)
MODEL = argument("--model", "CONFIG|NAME", "a Hugging Face config.json, or a name as llama-3.1-8b")
TP = argument("--tp", "N", "GPUs that share the model (default: 1)", type=positive, default=1)
SEPARATE = flag("--separate", "of a model: weights of q, k and v apart, not packed into one")
KERNELS = argument("--kernels", "DIR", "folder of emitted kernels (default: the package's own)")


def recipe(name_or_path: str) -> Recipe:
    """Load a recipe by name or file; a file is run without a trace on disk or on stdout."""
    return _of_file(load_recipe, name_or_path)


def drawn_recipe(name_or_path: str, verb: str) -> Recipe:
    """Load a recipe that a verb draws inputs for; raises RecipeError for rows by index tensors."""
    found = recipe(name_or_path)
    if found.indexed:
        raise RecipeError(
            f"{verb} draws the inputs of a recipe, and {found.name} takes rows that index tensors "
            "say",
            f"`{PROGRAM} generate` and `{PROGRAM} check` take it",
        )
    return found


def function(name_or_path: str) -> Function | None:
    """Load the PyTorch function that `file.py:Name` names, if it is one, as `recipe` does."""
    return _of_file(load_function, name_or_path)


def _of_file(load: Callable[[str], Loaded], name_or_path: str) -> Loaded:
    file = Path(name_or_path)
    before, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    try:
        with contextlib.redirect_stdout(sys.stderr):
            return load(str(file.resolve()) if file.is_file() else name_or_path)
    except SystemExit as stop:
        raise RecipeError(
            f"recipe file {name_or_path} calls exit({stop.code!r})",
            "a recipe file only defines a recipe",
        ) from stop
    finally:
        sys.dont_write_bytecode = before


def shapes(words: Sequence[str] | None, of: Recipe | None, verb: str) -> list[Shape]:
    """Read the words after --shape, which go with one recipe."""
    if words and of is None:
        raise MirageError("--shape needs a recipe", f"`{PROGRAM} {verb} RECIPE --shape ...`")
    return [parse_shape(text, of) for text in words or () if of is not None]


def command(program: str) -> str:
    """Return the command line of this process without the folders of this machine."""
    words = [Path(word).name if word.startswith("/") else word for word in sys.argv[1:]]
    return " ".join([program, *map(shlex.quote, words)])


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
    if given == "":
        raise FileError("--out is '', which names no folder", "write --out . for this one")
    folder = _own_folder(recipe_name) if given is None else Path(given)
    if folder.exists() and not folder.is_dir():
        raise FileError(f"{folder} is a file, not a folder", "choose another one: --out DIR")
    check_writable(folder)
    for inside in (folder / arch, folder / arch / Path(recipe_name).stem):
        if inside.exists():
            check_writable(inside)
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


def catalogs(named: str | None, folder: Path) -> tuple[Path, ...]:
    """Return the files of measured knobs that come before the package's: named, of the folder."""
    if named is not None and not Path(named).is_file():
        raise FileError(f"there is no catalog {named}", "`mirage-kernels tune DIR` writes one")
    own = folder / CATALOG
    return (*([Path(named)] if named else []), *([own] if own.is_file() else []))


def file_to_write(given: str, option: str) -> Path:
    """Return the file that an option names; raises FileError where it can't be written."""
    file = Path(given)
    if file.is_dir():
        raise FileError(f"{file} is a folder", f"{option} takes the name of a file to write")
    check_writable(file)
    return file


def check_writable(path: Path) -> None:
    """Raise FileError when a file or folder, which may not exist yet, could not be written."""
    existing = path if path.exists() else path.parent
    try:
        with path.open("a") if path.is_file() else tempfile.TemporaryFile(dir=existing):
            return
    except OSError as error:
        problem, hint = f"{existing}: {error.strerror}", "choose another place"
        if not existing.exists():
            problem, hint = f"{existing} does not exist", f"mkdir -p {existing}"
        raise FileError(f"{path} can't be written: {problem}", hint) from error
