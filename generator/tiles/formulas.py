"""Formulas of a tile program as CUDA: what computes a value for a vector of elements at a place.

What does not vary along the vector is computed once, the rest in one loop over its elements.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from mirage_kernels.generator.emit.cuda import TYPES
from mirage_kernels.generator.emit.statements import OTHER_TYPES
from mirage_kernels.generator.emit.writer import Writer
from mirage_kernels.generator.ir import Dim, DType
from mirage_kernels.generator.tiles.offsets import Offsets
from mirage_kernels.generator.tiles.operations import computed_in, constant, operation
from mirage_kernels.generator.tiles.program import BlockProgram, Tile
from mirage_kernels.generator.tiles.rows import behind_first_row, find_rows, row_of
from mirage_kernels.generator.tiles.tensor_cores import COLUMNS
from mirage_kernels.generator.tiles.vectors import (
    at_once,
    has_uneven_rows,
    lies_anywhere,
    read_dims,
    widest,
)

CTYPES = {**TYPES, **OTHER_TYPES, DType.INT32: "int", DType.BOOL: "bool"}


@dataclass(frozen=True)
class Place:
    """Where formulas are computed: local coordinates by dim; dim and width of the vector.

    The places of a pass are those of `dims`, which reach beyond a tensor that is read in place
    where tiles are rounded up for tensor cores. What was read before is among what the thread has
    `taken`, and so are the `rows` that an index says of results. A vector that `lies` in memory as
    it is wanted is at hand by its own name; `found` names variables that hold rows. The value
    `sums` is what a thread has in a register.
    """

    at: Mapping[str, str]
    dims: Sequence[Dim]
    vector: str = ""
    width: int = 1
    taken: Sequence[str] = ()
    rows: Sequence[str] = ()
    lies: bool = False
    found: Mapping[str, str] = field(default_factory=dict)
    sums: str = ""


class Formulas(Offsets):
    """Writes the formulas of one block program, `storage` being its tensors' element type."""

    def __init__(self, program: BlockProgram, writer: Writer, storage: DType) -> None:
        super().__init__(program)
        self.writer, self.storage = writer, storage

    # -- places ------------------------------------------------------------------------------------

    def coordinates(self, dims: Sequence[Dim], width: int, index: str = "i") -> dict[str, str]:
        """Write the coordinates of a vector, the last dim the fastest, and return their names."""
        found, step = dict[str, str](), 1
        outermost = next((d for d in dims if d.size > 1), None)
        for place, d in enumerate(reversed(dims)):
            size = d.size // width if place == 0 else d.size
            text = index if step == 1 else f"{index} / {step}"
            text = text if d is outermost else f"{text} % {size}"
            text = "0" if size == 1 else text
            if place == 0 and width > 1:
                text = f"({text}) * {width}"
            self.writer.line(f"[[maybe_unused]] const int {d.name}_at = {text};")
            found[d.name] = f"{d.name}_at"
            step *= size
        return found

    def dims_of(self, value: str) -> tuple[Dim, ...]:
        """Return the dims of a value, rounded up as tiles are that have them."""
        p = self.program
        leaves = sorted(p.leaves(value), key=lambda x: x in p.tiles)  # what has a tile counts
        rounded = (x for x in leaves if x in p.tiles or read_dims(p, x) != p.type(x).dims)
        sizes = {d.name: d for x in rounded for d in read_dims(p, x)}
        return tuple(sizes.get(d.name, d) for d in p.type(value).dims)

    def is_uneven(self, value: str, dim: str, place: Place) -> bool:
        """Say whether the places of a pass may lie beyond the end of a value along a dim."""
        sizes = {d.name: d.size for d in place.dims}  # a dim that is not among them is tested
        return self.program.is_uneven(value, dim, sizes.get(dim, 0))

    def has_whole_vectors(self, value: str, dim: str, place: Place) -> bool:
        """Say whether each vector lies within a tensor along a dim, or all of it beyond."""
        whole, p = self.program.extents[dim], self.program
        along = place.vector == dim and self.is_wide(value, dim, place.width)
        fixed = not whole.dynamic and all(a.tile % place.width == 0 for a in p.space.reduced)
        return along and fixed and whole.size % place.width == 0

    def inside(self, value: str, dims: Sequence[str], place: Place) -> str:
        """Return the test that element `e` of a vector lies within the tensors along dims."""
        tests = []
        for d in dims:
            more = " + e" if d == place.vector else ""
            tests.append(f"{self.globally(value, d, place.at[d])}{more} < {self.limit(value, d)}")
        return " && ".join(tests)

    # -- memory ------------------------------------------------------------------------------------

    def tensor(self, name: str) -> str:
        """Return the name of an input's or output's tensor among the kernel's arguments."""
        return f"{name}_in" if self.program.node(name).op == "input" else name

    def in_tile(self, tile: Tile, at: Mapping[str, str]) -> str:
        """Return where an element lies in a tile."""
        terms = []
        for d in (d for d in tile.dims if d.size > 1 and at[d.name] != "0"):
            stride = tile.strides[d.name]
            terms.append(at[d.name] if stride == 1 else f"{at[d.name]} * {stride}")
        return " + ".join(terms) or "0"

    def in_tensor(self, value: str, place: Place, pointer: str) -> str:
        """Write the pointer to a vector of a tensor in device memory, its `stride` and `left`.

        Returns whether its elements may lie side by side, as a template argument.
        """
        w, p, type_ = self.writer, self.program, self.program.type(value)
        tensor = f"args.{self.tensor(value)}"
        if not type_.names:
            w.write("const int64_t stride = 1;", f"{pointer} = {tensor};", "const int left = 1;")
            return "false"
        last = type_.names[-1]
        vector = place.vector if place.vector in type_.names else last
        places = {d: (*self.offset(value, d), place.at[d]) for d in type_.names}
        single = value in p.single
        strides = {d.name: f"{tensor}_strides[{i}]" for i, d in enumerate(p.memory(value))}
        strides |= dict.fromkeys(set(type_.names) - {*strides}, "1")  # a vector of one element
        aligned, one = "false", ""
        if not lies_anywhere(type_):
            aligned, one = "kAligned", "kAligned ? 1 : "
        beside = f"{one if vector == last else ''}{strides[vector]}"
        w.line(f"const int64_t stride = {'0' if single else beside};")
        strides[last] = f"({one}{strides[last]})"
        rows = p.indexed[value].dims if value in p.indexed else ()
        moves = {d: [t for t in x if t != "0"] for d, x in places.items() if d not in rows}
        parts = [f"along<{aligned}>({' + '.join(m)}, {strides[d]})" for d, m in moves.items() if m]
        if value in p.indexed:
            w.line(f"const int64_t row = {place.found.get(value) or row_of(self, value, place)};")
            parts.append(behind_first_row(p.indexed[value], strides))  # of no row: anywhere
        offset = " + ".join(parts) or "0"
        packed = p.packed_strides(value)
        if packed and one:
            near = " + ".join(f"({t}) * {packed[d]}" for d in places for t in places[d])
            offset = f"(kAligned ? {near} : {offset})"
        w.line(f"{pointer} = {tensor}{'' if single else f' + {offset}'};")
        uneven = [d for d in type_.names if self.is_uneven(value, d, place)]
        inside = [
            f"{' + '.join(places[d])} < {self.limit(value, d)}" for d in uneven if d != vector
        ]
        left = str(place.width)
        if vector in uneven:
            left = f"{self.limit(value, vector)} - ({' + '.join(places[vector])})"
        if value in p.optional:
            inside.insert(0, f"{tensor} != nullptr")
        if value in p.indexed:
            inside.insert(0, "row >= 0")
        w.line(
            f"const int left = {' && '.join(inside)} ? {left} : 0;"
            if inside
            else f"const int left = {left};"
        )
        wide = self.is_wide(value, vector, place.width) and place.width <= widest(p, [value])
        wide |= self._is_shifted(value, place)
        return aligned if vector == last and wide and not single else "false"

    def reads(self, value: str) -> list[str]:
        """Return the tensors in device memory that a formula reads in place."""
        p = self.program
        tensors = (x for x in p.leaves(value) if x in p.tensors and p.type(x).dims)
        return [x for x in tensors if x not in p.tiles and x not in p.iotas]

    @contextmanager
    def taking(self, place: Place) -> Iterator[str]:
        """Write the type of what a thread takes at a place, and yield its name."""
        if not place.taken:
            yield "Nothing"
            return
        with self.writer.block("{"):
            with self.writer.block("struct Taken {", "};"):
                for x in place.taken:
                    kinds = f"{CTYPES[self.program.type(x).dtype]}, {self.count(x, place)}"
                    kind = "Uneven" if self._is_shifted(x, place) else "Vector"
                    self.writer.line(f"{kind}<{kinds}> {x};")
                for x in place.rows:
                    self.writer.line(f"int64_t {x}_row;")
            yield "Taken"

    def take(self, place: Place) -> None:
        """Write what reads vectors of tensors into `taken`.

        Rows are found first and once each: what they lead to comes last.
        """
        here = replace(place, found=find_rows(self, place))
        for name in sorted(place.taken, key=lambda name: name in here.found):
            with self.writer.block("{"):
                self.writer.line(f"taken.{name} = {self.read(name, here)};")
        for name in place.rows:
            self.writer.line(f"taken.{name}_row = {here.found[name]};")

    def read(self, name: str, place: Place) -> str:
        """Write the pointer to a vector of a tensor, and return what reads it."""
        beside = self.in_tensor(name, place, "const auto* from")
        kinds, given = f"{self.count(name, place)}, {beside}", "from, stride, left"
        if self._is_shifted(name, place):
            return f"read_uneven<{kinds}>({given}, args.{self.tensor(name)}_end)"
        read, own = f"read_within<{kinds}>({given})", self.program.indexed.get(name)
        return f"or_nan({read}, row)" if own is not None and own.unknown_is_nan else read

    def at_once(self, place: Place) -> int:
        """Return how many times a thread takes what it takes before it uses the first."""
        types = {x: self.program.type(x).dtype.bytes for x in place.taken}
        return at_once(sum(self.count(x, place) * n for x, n in types.items()))

    def _is_shifted(self, name: str, place: Place) -> bool:
        """Say whether a vector is read as two words, to be shifted into place."""
        return self.count(name, place) > 1 and has_uneven_rows(self.program.whole(name))

    def count(self, name: str, place: Place) -> int:
        """Return how many elements of a value a vector has."""
        return place.width if self._varies(name, place) else 1

    def _varies(self, name: str, place: Place) -> bool:
        """Say whether the elements of a vector are several of a value."""
        names = self.program.type(name).names
        return place.vector in names and name not in self.program.single

    # -- formulas ----------------------------------------------------------------------------------

    def write(self, values: Sequence[str], place: Place, *, again: bool = False) -> list[str]:
        """Write what computes values at a place, and return the names of the arrays they are in.

        `again` computes the values although they have tiles: to fill those.
        """
        w, p = self.writer, self.program
        texts, looped = dict[str, str](), list[tuple[str, str]]()
        for name in self._order(values, again):
            node, varies = p.node(name), place.vector in p.type(name).names
            if p.is_leaf(name) and not (again and name in values):
                texts[name] = "sum" if name == place.sums else self._leaf(name, place)
                continue
            text = operation(node, [texts[a] for a in node.args])
            if node.op == "div" and varies and place.vector not in p.type(node.args[1]).names:
                w.line(f"const float {name}_factor = tile::div(1.0f, {texts[node.args[1]]});")
                text = f"({texts[node.args[0]]}) * {name}_factor"
            if p.type(name).dtype is self.storage and name not in values:
                text = f"wide({CTYPES[self.storage]}({text}))"
            if varies:
                looped.append((name, text))
            else:
                w.line(f"const {self.kind(name)} {name}_v = {text};")
            texts[name] = f"{name}_v"
        self._keep(values, texts, looped, place)
        return [f"{value}_made" for value in values]

    def _keep(
        self,
        values: Sequence[str],
        texts: Mapping[str, str],
        looped: Sequence[tuple[str, str]],
        place: Place,
    ) -> None:
        """Write values into arrays: those that are `looped` element by element."""
        w = self.writer
        if not place.vector:
            for value in dict.fromkeys(values):
                w.line(f"{self.kind(value)} {value}_made[1] = {{{texts[value]}}};")
            return
        for value in dict.fromkeys(values):
            w.line(f"{self.kind(value)} {value}_made[{place.width}];")
        with w.block(f"for (int e = 0; e < {place.width}; ++e) {{"):
            for name, text in looped:
                w.line(f"const {self.kind(name)} {name}_v = {text};")
            for value in dict.fromkeys(values):
                w.line(f"{value}_made[e] = {texts[value]};")

    def _order(self, values: Sequence[str], again: bool) -> list[str]:
        """Return the values that formulas are made of, operands first."""
        p, found = self.program, dict[str, None]()

        def visit(name: str) -> None:
            if name in found:
                return
            if not p.is_leaf(name) or (again and name in values):
                for arg in p.node(name).args:
                    visit(arg)
            found[name] = None

        for value in values:
            visit(value)
        return list(found)

    def kind(self, name: str) -> str:
        """Return the type that a value is computed in."""
        return computed_in(self.program.type(name).dtype)

    def _leaf(self, name: str, place: Place) -> str:
        """Write what reads a value at hand, and return its text: in the loop where it varies."""
        w, p = self.writer, self.program
        node, type_ = p.node(name), p.type(name)
        if node.op == "const":
            return constant(node.value, type_.dtype)
        if node.op == "size":
            return f"{self.kind(name)}({self.extent(node.over)})"
        if name in p.iotas or node.op == "iota":
            dim = type_.names[0] if type_.names else node.over
            more = " + e" if place.vector == dim else ""
            return f"{self.kind(name)}({self.globally(name, dim, place.at[dim])}{more})"
        if name in p.held:
            return f"{name}_row"
        if not type_.dims:
            return f"{name}[0]" if name in p.tiles else f"{self.kind(name)}(args.{name})"
        varies, count = self._varies(name, place), self.count(name, place)
        if name in place.taken and place.lies:
            return f"wide({name}_v, e)"
        if name in place.taken and self._is_shifted(name, place):
            w.line(f"const auto {name}_v = shifted(taken.{name});")
            return f"wide({name}_v, e)"
        if name in place.taken:
            return f"wide(taken.{name}, {'e' if varies else 0})"
        w.line(f"{self.kind(name)} {name}_v[{count}];")
        if name in p.tiles:
            self._from_tile(name, place, count)
        else:
            with w.block("{"):
                beside = self.in_tensor(name, place, "const auto* from")
                w.line(f"widened(read_within<{count}, {beside}>(from, stride, left), {name}_v);")
        return f"{name}_v[{'e' if varies else 0}]"

    def _from_tile(self, name: str, place: Place, count: int) -> None:
        tile = self.program.tiles[name]
        at = f"{name} + {self.in_tile(tile, place.at)}"
        stride = tile.strides[place.vector] if count > 1 else 1
        if stride == 1:
            return self.writer.line(f"read({at}, {name}_v);")
        one = f"{name}_v[e] = wide(({at})[e * {stride}]);"
        return self.writer.line(f"for (int e = 0; e < {count}; ++e) {one}")


def layout(tile: Tile, lines: Sequence[Dim], over: str, depth: int) -> str:
    """Return the CuTe layout of an operand: its lines flattened, and the contracted dim.

    A vector is all columns of the tensor cores' instruction.
    """
    of_lines = [(d.size, tile.strides[d.name]) for d in lines[::-1]] or [(COLUMNS, 0)]
    shape, strides = (", ".join(f"Int<{n}>" for n in x) for x in zip(*of_lines, strict=True))
    inner = f"Stride<Stride<{strides}>, Int<{tile.strides[over]}>>"
    return f"Layout<Shape<Shape<{shape}>, Int<{depth}>>, {inner}>"
