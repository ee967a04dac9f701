"""Copies of tensors to tiles in CUDA: vectors by all threads, without waiting."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from mirage_kernels.generator.tiles.formulas import CTYPES, Formulas, Place
from mirage_kernels.generator.tiles.program import VECTOR_BYTES, BlockProgram, Tile
from mirage_kernels.generator.tiles.rows import require_zeros
from mirage_kernels.generator.tiles.statements import Load
from mirage_kernels.generator.tiles.vectors import (
    WIDTHS,
    at_once,
    is_shifted,
    lies_anywhere,
    tile_width,
    widest,
)


def vector_of(program: BlockProgram, tile: Tile, values: Sequence[str] = ()) -> int:
    """Return how many elements of a tile a thread takes at once, of `values` in device memory."""
    if not tile.dims:
        return 1
    most = min(VECTOR_BYTES // tile.dtype.bytes, widest(program, values, tile.dims[-1].name))
    if not values:  # nothing of a tensor: all threads share the elements
        most = min(most, max(1, prod(d.size for d in tile.dims) // program.threads))
    widths = (VECTOR_BYTES, *WIDTHS)  # of 8 bits there are as many in a vector
    return next(w for w in widths if w <= most and tile.dims[-1].size % w == 0)


def write_load(f: Formulas, s: Load, to: str) -> None:
    """Write a load to a tile that begins at `to`."""
    w, p, tile = f.writer, f.program, f.program.tiles[s.value]
    require_zeros(p, s.value)
    if is_shifted(p, s.value):
        return _write_uneven(f, s, to)
    if _has_long_rows(f, s):
        return _write_rows(f, s, to)
    width = vector_of(p, tile, [s.value])
    count = prod(d.size for d in tile.dims) // width
    with w.block(f"each<{p.threads}, {count}>([&]([[maybe_unused]] int i) {{", "});"):
        last = tile.dims[-1].name if tile.dims else ""
        place = Place(f.coordinates(tile.dims, width), tile.dims, last, width)
        beside = f.in_tensor(s.value, place, "const auto* from")
        load = "load_vector" if _is_copied(p, s, width) else "load_elements"
        start = f"{to} + {f.in_tile(tile, place.at)}"
        w.line(f"{load}<{width}, {beside}>({start}, from, stride, left);")
    return None


def _is_copied(p: BlockProgram, s: Load, width: int) -> bool:
    """Say whether vectors go to a tile as they are, 16 bytes at once."""
    tile, own = p.tiles[s.value], p.type(s.value)
    if lies_anywhere(own):
        return False
    return tile.dtype is own.dtype and width * tile.dtype.bytes == VECTOR_BYTES


def _has_long_rows(f: Formulas, s: Load) -> bool:
    """Say whether threads take several rows each of a tensor whose rows lie anywhere, evenly."""
    p, tile = f.program, f.program.tiles[s.value]
    long = [d for d in tile.dims if d.size > 1]
    width = vector_of(p, tile, [s.value])
    if len(long) != 2 or long[-1] is not tile.dims[-1] or not _is_copied(p, s, width):
        return False
    vectors = long[-1].size // width
    known = s.value in p.indexed or p.packed_strides(s.value)
    return not known and p.threads % vectors == 0 and p.threads < long[0].size * vectors


def _write_rows(f: Formulas, s: Load, to: str) -> None:
    """Write a load of rows: a thread's pointer moves by the rows that all threads take at once."""
    w, p, tile = f.writer, f.program, f.program.tiles[s.value]
    row, column = (d for d in tile.dims if d.size > 1)
    width, tensor = vector_of(p, tile, [s.value]), f"args.{f.tensor(s.value)}"
    place = [d.name for d in p.memory(s.value)].index(row.name)
    counts = f"{p.threads}, {column.size // width}, {row.size}, {tile.strides[row.name]}"
    head = f"load_rows<kAligned, {counts}>({to}, {tensor}_strides[{place}], "
    with w.block(f"{head}[&](int row_at, int column_at) {{", "});"):
        at = dict.fromkeys(tile.names, "0") | {row.name: "row_at", column.name: "column_at"}
        f.in_tensor(s.value, Place(at, tile.dims, column.name, width), "const auto* from")
        w.line(f"return Row<{CTYPES[tile.dtype]}>{{from, stride, left}};")


def _write_uneven(f: Formulas, s: Load, name: str) -> None:
    """Write a load of rows that begin anywhere: threads read several vectors, then put them."""
    w, p, tile = f.writer, f.program, f.program.tiles[s.value]
    ctype, width = CTYPES[p.type(s.value).dtype], tile_width(p, s.value)
    taken, place = f"Uneven<{ctype}, {width}>", Place({}, tile.dims, tile.dims[-1].name, width)
    together = max(1, at_once(VECTOR_BYTES) // 2)  # words are twice the registers
    counts = f"{prod(d.size for d in tile.dims) // width}, {together}"
    index = "[[maybe_unused]] int i"
    head = f"each_taken<{taken}, {p.threads}, {counts}>("
    with w.block(f"{head}[&]({index}, {taken}& taken) {{", "},"):
        here = replace(place, at=f.coordinates(tile.dims, width))
        w.line(f"taken = {f.read(s.value, here)};")
    with w.block(f"[&]({index}, const {taken}& taken) {{", "});"):
        to = f"{name} + {f.in_tile(tile, f.coordinates(tile.dims, width))}"
        w.line(f"*reinterpret_cast<Vector<{ctype}, {width}>*>({to}) = shifted(taken);")
