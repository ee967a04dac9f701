"""One codec between frozen dataclasses and JSON: for records, measurements, manifests.

A field that has its default is left away. Reading checks every type and names the place of what is
wrong: `$.search.states`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from typing import TypeVar

import msgspec

from mirage_kernels.generator.ir.text import Json

T = TypeVar("T")
Readers = Mapping[object, Callable[[Json], object]]  # of types that msgspec does not know


def to_data(value: object, written: Callable[[object], Json] | None = None) -> Json:
    """Return a value as JSON data: dataclasses as objects, tuples as lists, enums as their values.

    `written` returns the data of dataclasses that write themselves, None for others. Raises
    TypeError for a value that JSON has no form for.
    """
    if value is None or isinstance(value, str | int | float):
        return value
    if isinstance(value, Enum):
        return to_data(value.value)
    if isinstance(value, Mapping):
        return {str(name): to_data(item, written) for name, item in value.items()}
    if isinstance(value, Sequence):
        return [to_data(item, written) for item in value]
    if written is not None and (made := written(value)) is not None:
        return made
    if not is_dataclass(value):
        raise TypeError(f"JSON has no form for {type(value).__name__}")
    data: dict[str, Json] = {}
    for f in fields(value):
        given = getattr(value, f.name)
        default = f.default if f.default_factory is MISSING else f.default_factory()
        if given != default:
            data[f.name] = to_data(given, written)
    return data


def from_data(kind: type[T], data: Json, readers: Readers | None = None) -> T:
    """Return JSON data as a value of a type; raises ValueError saying what is wrong, and where.

    `readers` read the types of fields that are no dataclasses themselves.
    """
    return msgspec.convert(data, kind, dec_hook=lambda base, item: (readers or {})[base](item))
