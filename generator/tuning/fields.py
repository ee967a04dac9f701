"""Typed reading of JSON: what tuning's files hold, or a sentence about what is wrong with them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

from mirage_kernels.generator.errors import FileError
from mirage_kernels.generator.ir.text import Json

R = TypeVar("R")


def loaded(path: Path, read: Callable[[Json], R], *, what: str, hint: str) -> R:
    """Read a JSON file; raises FileError naming the file and what is wrong with it."""
    try:
        return read(json.loads(path.read_text()))
    except OSError as error:
        raise FileError(f"{path} cannot be read: {error.strerror}", hint) from error
    except (ValueError, KeyError, TypeError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise FileError(f"{path} is not {what}: {reason}", hint) from error


def text(data: Mapping[str, Json], name: str) -> str:
    """Return a text of an object."""
    value = data[name]
    if not isinstance(value, str):
        raise TypeError(f"{name} must be text, not {value!r}")
    return value


def number(data: Mapping[str, Json], name: str) -> float:
    """Return a number of an object."""
    value = data[name]
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name} must be a number, not {value!r}")
    return float(value)


def integer(data: Mapping[str, Json], name: str) -> int:
    """Return a whole number of an object."""
    value = data[name]
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be a whole number, not {value!r}")
    return value


def maybe(data: Mapping[str, Json], name: str) -> float | None:
    """Return a number of an object, None where it has none."""
    return None if data.get(name) is None else number(data, name)


def numbers(data: Mapping[str, Json], name: str) -> tuple[int, ...]:
    """Return a list of whole numbers of an object."""
    value = data[name]
    if not isinstance(value, list):
        raise TypeError(f"{name} must be a list, not {value!r}")
    return tuple(integer({name: item}, name) for item in value)


def floats(data: Mapping[str, Json], name: str) -> tuple[float, ...]:
    """Return a list of numbers of an object."""
    value = data[name]
    if not isinstance(value, list):
        raise TypeError(f"{name} must be a list, not {value!r}")
    return tuple(number({name: item}, name) for item in value)


def entry(data: Json) -> dict[str, Json]:
    """Return an object."""
    if not isinstance(data, dict):
        raise TypeError(f"an object was expected, not {data!r}")
    return data


def entries(data: Mapping[str, Json], name: str) -> list[dict[str, Json]]:
    """Return a list of objects of an object."""
    value = data[name]
    if not isinstance(value, list):
        raise TypeError(f"{name} must be a list, not {value!r}")
    return [entry(item) for item in value]


def integers(data: Mapping[str, Json], name: str) -> dict[str, int]:
    """Return an object of whole numbers."""
    inner = entry(data[name])
    return {key: integer(inner, key) for key in inner}


def texts(data: Mapping[str, Json], name: str) -> dict[str, str]:
    """Return an object of texts."""
    inner = entry(data[name])
    return {key: text(inner, key) for key in inner}
