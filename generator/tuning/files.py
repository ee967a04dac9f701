"""The files of tuning: dataclasses as JSON, knobs of whichever schedule among them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TypeVar

from mirage_kernels.generator.errors import FileError
from mirage_kernels.generator.ir.codec import from_data, to_data
from mirage_kernels.generator.ir.text import Json
from mirage_kernels.generator.schedules import SCHEDULES
from mirage_kernels.generator.schedules.schedule import Knobs

T = TypeVar("T")
KNOBS: dict[str, type[Knobs]] = {name: s.knobs for name, s in SCHEDULES.items()}


def read_file(path: Path, kind: type[T], *, what: str, hint: str) -> T:
    """Read a JSON file that is `what`; raises FileError naming the file and what is wrong."""
    try:
        return read(kind, json.loads(path.read_text()))
    except OSError as error:
        raise FileError(f"{path} cannot be read: {error.strerror}", hint) from error
    except (ValueError, KeyError, TypeError) as error:
        raise FileError(f"{path} is not {what}: {type(error).__name__}: {error}", hint) from error


def read(kind: type[T], data: Json) -> T:
    """Return JSON data as a value of a type."""
    return from_data(kind, data, {Knobs: read_knobs})


def written(value: object) -> Json:
    """Return a value as JSON data."""
    return to_data(value, lambda v: v.to_json() if isinstance(v, Knobs) else None)


def read_knobs(data: Json) -> Knobs:
    """Read the knobs of any schedule; raises ValueError saying what is wrong."""
    if not isinstance(data, dict):
        raise ValueError(f"knobs must be an object, not {data!r}")
    name = str(data.get("schedule"))
    if name not in KNOBS:
        raise ValueError(f"there is no schedule called {name}")
    return from_data(KNOBS[name], data)
