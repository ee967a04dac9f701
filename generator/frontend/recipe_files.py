"""Recipe files: Python of the user's, run as a module; what it raises becomes one sentence."""

from __future__ import annotations

import importlib.util
import re
import traceback
from pathlib import Path
from types import ModuleType

from mirage_kernels.generator.errors import RecipeError
from mirage_kernels.generator.frontend.symbolic import unknown_operator

_MISSING_NAME = re.compile(r"cannot import name '(\w+)' from 'mirage_kernels.generator.language'")


def run_file(path: Path) -> ModuleType:
    """Run a recipe file. Raises RecipeError with the line that fails."""
    spec = importlib.util.spec_from_file_location(path.stem, path.resolve())
    if spec is None or spec.loader is None:
        raise RecipeError(f"recipe file {path} cannot be read as Python")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except RecipeError:
        raise
    except Exception as error:  # the file is the user's: it may raise anything
        raise _failure_of(path, error) from error
    return module


def _failure_of(path: Path, error: Exception) -> RecipeError:
    """Return what to say of an error that a recipe file raised: its line, or the missing op."""
    missing = _MISSING_NAME.match(str(error))
    if missing:
        return unknown_operator(missing[1])
    own = str(path.resolve())
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename == own]
    line = frames[-1].lineno if frames else getattr(error, "lineno", None)
    return RecipeError(
        f"{path.name}, line {line}: {type(error).__name__}: {error}",
        "the recipe file must run as Python; nothing was written",
    )
