"""Rows that index tensors say, in CUDA: which one a place has, and how far it is from the first."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from mirage_kernels.generator.errors import PlanError
from mirage_kernels.generator.ir import Dim, Indexed
from mirage_kernels.generator.tiles.program import BlockProgram

if TYPE_CHECKING:
    from mirage_kernels.generator.tiles.formulas import Formulas, Place

INDICES = {"int32": "int", "int64": "int64_t", "int": "void"}  # in C++


def index_arguments(own: Indexed) -> list[str]:
    """Return the fields of a kernel's arguments that hold an index tensor."""
    fields = [f"const {INDICES[own.dtype]}* {own.by}_index;"]
    fields += [f"int64_t {own.by}_index_strides[{max(1, len(own.dims))}];"]
    return [*fields, *([f"int {own.by}_index_bytes;"] if own.dtype == "int" else [])]


def require_zeros(program: BlockProgram, value: str) -> None:
    """Raise PlanError for a tensor with a tile whose unknown rows are NaN."""
    own = program.indexed.get(value)
    if own is not None and own.unknown_is_nan:
        raise PlanError(
            f"{value} is staged in shared memory, where rows that {own.by} does not say are zeros",
            "NaN may be what is read element by element",
        )


def row_of(f: Formulas, value: str, place: Place) -> str:
    """Return which row of its tensor a place has, as an index tensor says; -1: none."""
    if value in place.rows:
        return f"taken.{value}_row"
    own = f.program.indexed[value]
    at = f"args.{own.by}_index"
    places = {d: (*f.offset(value, d), place.at[d]) for d in own.dims}
    steps = [
        f"({' + '.join(places[d])}) * {at}_strides[{i}]"
        for i, d in enumerate(own.dims)
        if [*places[d]] != ["0"]
    ]
    tests = [
        f"{' + '.join(places[d])} < {f.limit(value, d)}"
        for d in own.dims
        if f.is_uneven(value, d, place)
    ]
    rows = " * ".join(f"int64_t({_count(d)})" for d in own.counts) if own.page else _count(own.rows)
    number = " + ".join((at, *steps))
    if own.dtype == "int":
        number = f"{at}, {' + '.join(steps) or '0'}, {at}_bytes"
    given = f"{number}, {' && '.join(tests) or 'true'}, {rows}"
    return f"row_of<{str(own.wraps).lower()}>({given})"


def find_rows(f: Formulas, place: Place) -> dict[str, str]:
    """Write variables for the rows of what is taken and stored, each once; return their names."""
    indexed, found, texts = f.program.indexed, dict[str, str](), dict[str, str]()
    plain = replace(place, rows=())
    for name in (x for x in (*place.taken, *place.rows) if x in indexed):
        text = row_of(f, name, plain)
        if text not in texts:
            again = sum(x.startswith(f"{indexed[name].by}_index_row") for x in texts.values())
            texts[text] = f"{indexed[name].by}_index_row{again or ''}"
            f.writer.line(f"const int64_t {texts[text]} = {text};")
        found[name] = texts[text]
    return found


def behind_first_row(own: Indexed, strides: Mapping[str, str]) -> str:
    """Return how far `row` is from the first one."""
    if own.page is None:
        return f"row * {strides[own.rows.name]}"
    near = f"{strides[own.rows.name]}, {strides[own.page.name]}"
    return f"in_pages(row, {_count(own.page)}, {near})"


def _count(dim: Dim) -> str:
    return f"args.{dim.name}" if dim.dynamic else str(dim.size)
