"""One codec between frozen dataclasses and JSON: for records, measurements, manifests.

A field that has its default is left away. Reading checks every type and names the place of what is
wrong: `$.search.states`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, Field, fields, is_dataclass
from enum import Enum
from types import UnionType
from typing import TypeVar, get_args, get_origin, get_type_hints

import msgspec

from mirage_kernels.generator.ir.text import Json

T = TypeVar("T")
Readers = Mapping[object, Callable[[Json], object]]  # of types that have many forms


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
    if is_dataclass(value):
        given = {f.name: getattr(value, f.name) for f in fields(value)}
        left_away = {f.name for f in fields(value) if given[f.name] == _default(f)}
        return {name: to_data(v, written) for name, v in given.items() if name not in left_away}
    raise TypeError(f"JSON has no form for {type(value).__name__}")


def _default(field: Field[object]) -> object:
    return field.default_factory() if field.default_factory is not MISSING else field.default


def from_data(kind: type[T], data: Json, readers: Readers | None = None) -> T:
    """Return JSON data as a value of a type; raises ValueError saying what is wrong, and where.

    `readers` read the types of a dataclass's fields that they name.
    """
    if not readers:
        return msgspec.convert(data, kind)
    value: T = _read(kind, data, readers)  # type: ignore[assignment]
    return value


def _read(kind: object, data: Json, readers: Readers) -> object:
    if kind in readers:
        return readers[kind](data)
    inner = get_args(kind)
    if get_origin(kind) is tuple:
        return tuple(_read(inner[0], item, readers) for item in msgspec.convert(data, list))
    if get_origin(kind) is dict:
        items = msgspec.convert(data, dict).items()
        return {name: _read(inner[1], item, readers) for name, item in items}
    if get_origin(kind) is UnionType and inner[1] is type(None):
        return None if data is None else _read(inner[0], data, readers)
    if isinstance(kind, type) and is_dataclass(kind):
        given, types = msgspec.convert(data, dict), get_type_hints(kind)
        missing = [f.name for f in fields(kind) if f.name not in given and _default(f) is MISSING]
        if missing:
            raise ValueError(f"{kind.__name__} lacks {missing[0]}")
        known = (f.name for f in fields(kind) if f.name in given)
        return kind(**{name: _read(types[name], given[name], readers) for name in known})
    return msgspec.convert(data, type=kind)
