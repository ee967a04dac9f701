"""Stores of a tile program in CUDA, what rows that threads hold join to, and what is one pass."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from math import prod

from mirage_kernels.generator.ir import Dim, Phase
from mirage_kernels.generator.tiles.formulas import Formulas, Place
from mirage_kernels.generator.tiles.program import VECTOR_BYTES, WARP
from mirage_kernels.generator.tiles.reductions import in_one_pass
from mirage_kernels.generator.tiles.shares import DEALT, dealt
from mirage_kernels.generator.tiles.statements import Combine, Reduce, Rows, Statement, Store
from mirage_kernels.generator.tiles.vectors import WIDTHS, widest

MOST = 8  # statements of a pass


@dataclass(frozen=True)
class Pass:
    """How threads go through the elements of results: dims, how many of the last at once, where."""

    dims: tuple[Dim, ...]
    width: int
    of_one: bool  # block of a cluster, which stores for all
    dealt: bool  # to the blocks of a cluster

    @staticmethod
    def of(f: Formulas, s: Store) -> Pass:
        """Return the pass of a store."""
        p, type_ = f.program, f.program.type(s.output)
        sizes = {d.name: d.size for d in f.dims_of(s.value)}
        dims = tuple(Dim(d.name, sizes[d.name]) for d in type_.dims if d.name in sizes)
        beside = dims[-1].size if dims and type_.names[-1] == dims[-1].name else 1
        most = widest(p, [s.output], dims[-1].name if dims else "")
        most = min(VECTOR_BYTES // type_.dtype.bytes, most)
        share = bool(dealt(p, s))
        of_one = s in p.statements[Phase.JOINED] and not p.is_held(s.output) and not share
        return Pass(dims, next(x for x in WIDTHS if x <= most and beside % x == 0), of_one, share)


def in_passes(f: Formulas, said: Sequence[Statement]) -> Iterator[list[Statement]]:
    """Yield statements one by one, but those beside each other together that are one pass.

    Stores are if they are of one order, reductions if they read the same alike.
    """
    found = list[Statement]()
    for s in said:
        if found and len(found) < MOST and _is_one_pass(f, found[-1], s):
            found.append(s)
            continue
        if found:
            yield found
        found = [s]
    if found:
        yield found


def _is_one_pass(f: Formulas, before: Statement, s: Statement) -> bool:
    if isinstance(before, Store) and isinstance(s, Store):
        return Pass.of(f, before) == Pass.of(f, s)
    return isinstance(before, Reduce) and isinstance(s, Reduce) and in_one_pass(f, before, s)


def write_stores(f: Formulas, stores: Sequence[Store]) -> None:
    """Write a pass. What several results are made of is read once."""
    p, own = f.program, Pass.of(f, stores[0])
    names = {d.name for d in own.dims}
    parts = {d: "0" for s in stores for d in p.type(s.output).names if d not in names}
    if own.of_one:
        f.writer.line("if (cluster_rank() == 0)")
    with taking(f, own, stores, [s.value for s in stores], parts) as place:
        _write_all(f, stores, place)


def write_combine(f: Formulas, s: Combine) -> None:
    """Write what a block of a cluster makes of their tiles: all of it, or what is dealt to it."""
    w, p = f.writer, f.program
    to, tile = p.tiles[s.tile], p.tiles[s.value]
    counts = f"{p.threads}, {prod(d.size for d in to.dims)}"
    each = f"each_dealt<{counts}, {DEALT}>" if dealt(p, s) else f"each<{counts}>"
    with w.block(f"{each}([&]([[maybe_unused]] int i) {{", "});"):
        at = f.coordinates(to.dims, 1)
        mine = f"{s.value} + {f.in_tile(tile, at)}"
        made = f"general::combine<{'Max' if s.op == 'max' else 'Sum'}>({mine})"
        if s.peak:
            peak = f"{s.peak} + {f.in_tile(p.tiles[s.peak], at)}"
            made = f"general::combine_rescaled({mine}, {peak})"
        w.line(f"{s.tile}[{f.in_tile(to, at)}] = {made};")


def write_rows(f: Formulas, s: Rows) -> None:
    """Write a pass whose threads join what they have taken of a row before they store."""
    own = Pass.of(f, s.stores[0])
    dims = (*own.dims[:-1], replace(own.dims[-1], size=s.lanes * WIDTHS[0]))
    own = replace(own, dims=dims, width=WIDTHS[0])
    whole = str(prod(d.size for d in dims) // WIDTHS[0] % WARP == 0).lower()
    values = [v for x in s.joins for v in x.values] + [x.value for x in s.stores]
    with taking(f, own, s.stores, values, {}) as place:
        for join in s.joins:
            f.writer.line(f"float {join.tile}_row = {join.joins}::kIdentity;")
            with f.writer.block("{"):
                _write_share(f, join, place)
            joined = f"join_lanes<{join.joins}, {s.lanes}, {whole}>({join.tile}_row)"
            f.writer.line(f"{join.tile}_row = {joined};")
        _write_all(f, s.stores, place)


def _write_share(f: Formulas, join: Reduce, place: Place) -> None:
    """Write what a thread's vector of a row joins to: nothing where that lies beyond the row."""
    made, row = f.write(join.values, place), f"{join.tile}_row"
    if f.is_uneven(join.value, join.over, place):
        f.writer.line(f"if ({f.inside(join.value, [join.over], replace(place, vector=''))})")
    with f.writer.block(f"for (int e = 0; e < {place.width}; ++e) {{"):
        f.writer.line(f"{row} = {join.joins}::join({row}, {' * '.join(f'{x}[e]' for x in made)});")


def _write_all(f: Formulas, stores: Sequence[Store], place: Place) -> None:
    """Write stores of vectors at a place."""
    w, made = f.writer, f.write([s.value for s in stores], place)
    for s, value in zip(stores, made, strict=True):
        with w.block("{") if len(stores) > 1 else nullcontext():
            aligned = f.in_tensor(s.output, place, "auto* to")
            w.line(f"write_within<{place.width}, {aligned}>(to, stride, left, {value});")


@contextmanager
def taking(
    f: Formulas, own: Pass, stores: Sequence[Store], values: Sequence[str], more: dict[str, str]
) -> Iterator[Place]:
    """Open a loop of all threads over vectors that reads some of them before it uses one.

    Reads would wait for the stores before them otherwise: no compiler knows them apart. The rows
    that an index says of results are among what is read.
    """
    w, p, width = f.writer, f.program, own.width
    counts = f"{p.threads}, {prod(d.size for d in own.dims) // width}"
    counts += f", {DEALT // width}" if own.dealt else ""
    kind = "_dealt" if own.dealt else ""
    read = dict.fromkeys(x for v in values for x in f.reads(v))
    rows = [s.output for s in stores if s.output in p.indexed]
    place = Place({}, own.dims, own.dims[-1].name if own.dims else "", width, [*read], rows)
    if not place.taken:
        head = f"each{kind}<{counts}>([&]([[maybe_unused]] int i) {{"
        with w.block(head, "});"):
            yield replace(place, at=f.coordinates(own.dims, width) | more, rows=())
        return
    with f.taking(place) as taken:
        more_at_once = "" if own.dealt else f", {f.at_once(place)}"
        head = f"each_taken{kind}<{taken}, {counts}{more_at_once}>([&]"
        with w.block(f"{head}([[maybe_unused]] int i, Taken& taken) {{", "},"):
            f.take(replace(place, at=f.coordinates(own.dims, width) | more))
        with w.block("[&]([[maybe_unused]] int i, const Taken& taken) {", "});"):
            yield replace(place, at=f.coordinates(own.dims, width) | more)
