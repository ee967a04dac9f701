"""Statements about sums that tensor cores keep in registers, in CUDA."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from mirage_kernels.generator.ir import Dim, DType
from mirage_kernels.generator.tiles.formulas import CTYPES, Formulas, Place, layout
from mirage_kernels.generator.tiles.program import Fragment
from mirage_kernels.generator.tiles.statements import Apply, Contract, JoinRows, Scale, Spill

LINES = "[[maybe_unused]] Line row, [[maybe_unused]] Line column"


@contextmanager
def _elements(f: Formulas, own: Fragment) -> Iterator[dict[str, str]]:
    """Open a loop over the elements of a fragment and yield the place of one."""
    with f.writer.block(f"for (int batch = 0; batch < {own.extents[0]}; ++batch) {{"):
        head = f"{own.name}_sums[batch].every([&](float& sum, {LINES}) {{"
        with f.writer.block(head, "});"):
            yield _place(f, own)


def _place(f: Formulas, own: Fragment) -> dict[str, str]:
    """Write the coordinates of an element, and return their names."""
    return {
        **f.coordinates(own.batch, 1, "batch"),
        **_along(f, own.rows, "row"),
        **_along(f, own.columns, "column"),
    }


def _along(f: Formulas, dims: Sequence[Dim], line: str) -> dict[str, str]:
    """Write the coordinates of a row or column along its dims, and return their names."""
    found, step = dict[str, str](), 1
    outermost = next((d for d in dims if d.size > 1), None)
    for d in reversed(dims):
        text = f"coordinate<{step}, {0 if d is outermost else d.size}>({line})"
        found[d.name] = f"{d.name}_at"
        f.writer.line(f"[[maybe_unused]] const int {d.name}_at = {text if d.size > 1 else '0'};")
        step *= d.size
    return found


def write_scale(f: Formulas, s: Scale) -> None:
    """Write what multiplies a fragment by a tile."""
    with _elements(f, f.program.fragments[s.fragment]) as at:
        place = f.in_tile(f.program.tiles[s.factor], at)
        f.writer.line(f"sum *= {s.factor}[{place}];")


def write_spill(f: Formulas, s: Spill) -> None:
    """Write what copies a fragment to a tile."""
    tile, own = f.program.tiles[s.tile], f.program.fragments[s.fragment]
    with _elements(f, own) as at:
        place = f.in_tile(tile, at)
        one = "" if own.columns else "if (column == 0) "
        f.writer.line(f"{one}{s.tile}[{place}] = {CTYPES[tile.dtype]}(sum);")


def write_contract(f: Formulas, s: Contract) -> None:
    """Write what adds a product to a fragment."""
    w, p = f.writer, f.program
    own, a, b = p.fragments[s.fragment], p.tiles[s.a], p.tiles[s.b]
    depth = next(d.size for d in a.dims if d.name == s.over)
    flags = ", ".join("false" if t.dims[-1].name == s.over else "true" for t in (a, b))
    with w.block(f"for (int batch = 0; batch < {own.extents[0]}; ++batch) {{"):
        at = f.coordinates(own.batch, 1, "batch")
        operands = []
        for tile, lines in ((a, own.rows), (b, own.columns)):
            start = f.in_tile(tile, {**dict.fromkeys(tile.names, "0"), **at})
            operands += [f"{tile.name} + {start}", f"{layout(tile, lines, s.over, depth)}{{}}"]
        call = f"{own.name}_sums[batch].template add<{depth}, {flags}>"
        w.line(f"{call}({', '.join(operands)});")


def write_apply(f: Formulas, s: Apply) -> None:
    """Write what computes a formula of a fragment's sums in their place, rounded as its tile is."""
    w, own, dtype = f.writer, f.program.fragments[s.fragment], f.program.tiles[s.value].dtype
    with _elements(f, own) as at:
        place = Place(at, (*own.rows, *own.columns), sums=s.held)
        (made,) = f.write([s.value], place, again=True)
        text = f"{made}[0]" if dtype is DType.FP32 else f"rounded<{CTYPES[dtype]}>({made}[0])"
        if s.ends:
            text = f"{f.inside(s.value, s.ends, place)} ? {text} : 0.0f"
        w.line(f"sum = {text};")


def write_join_rows(f: Formulas, s: JoinRows) -> None:
    """Write what joins a formula of a fragment's sums along the rows of each warp."""
    w, own, join = f.writer, f.program.fragments[s.fragment], s.join
    head = f"{own.name}_sums[0].template join_rows<{join.joins}>("
    with w.block(f"{head}[&](float sum, {LINES}) {{", "},"):
        at = _place(f, own)
        place = Place(at, (*own.rows, *own.columns), sums=s.held)
        (made,) = f.write([join.value], place)
        text = f"{made}[0]"
        if not s.zeros and f.is_uneven(join.value, join.over, place):
            inside = f.inside(join.value, [join.over], place)
            text = f"{inside} ? {text} : {join.joins}::kIdentity"
        w.line(f"return {text};")
    with w.block("[&](int warp, Line column, float joined) {", "});"):
        at = {**_along(f, own.columns, "column"), "warps": "warp"}
        one = "" if own.columns else "if (column == 0) "
        w.line(f"{one}{join.parts}[{f.in_tile(f.program.tiles[join.parts], at)}] = joined;")
