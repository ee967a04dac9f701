"""One codec between frozen dataclasses and JSON: for records, measurements, manifests.

A field that has its default is left away. Reading checks every type and names the place of what is
wrong: `$.search.states`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, Field, fields, is_dataclass
from enum import Enum
from typing import TypeVar

import msgspec

from mirage_kernels.generator.ir.text import Json

T = TypeVar("T")


def to_data(value: object) -> Json:
    """Return a value as JSON data: dataclasses as objects, tuples as lists, enums as their values.

    Raises TypeError for a value that JSON has no form for.
    """
    if value is None or isinstance(value, str | int | float):
        return value
    if isinstance(value, Enum):
        return to_data(value.value)
    if isinstance(value, Mapping):
        return {str(name): to_data(item) for name, item in value.items()}
    if isinstance(value, Sequence):
        return [to_data(item) for item in value]
    if is_dataclass(value):
        given = {f.name: getattr(value, f.name) for f in fields(value)}
        left_away = {f.name for f in fields(value) if given[f.name] == _default(f)}
        return {name: to_data(v) for name, v in given.items() if name not in left_away}
    raise TypeError(f"JSON has no form for {type(value).__name__}")


def _default(field: Field[object]) -> object:
    return field.default_factory() if field.default_factory is not MISSING else field.default


def from_data(kind: type[T], data: Json) -> T:
    """Return JSON data as a value of a type; raises ValueError saying what is wrong, and where.

    A type that JSON does not know, such as a Counter, is made from what stands in its place.
    """
    return msgspec.convert(data, kind, dec_hook=lambda unknown, item: unknown(item))
