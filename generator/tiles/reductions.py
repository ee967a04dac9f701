"""Reductions of a tile program in CUDA: what a step adds, and what becomes of results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

from mirage_kernels.generator.ir import Dim
from mirage_kernels.generator.tiles.formulas import CTYPES, Formulas, Place
from mirage_kernels.generator.tiles.program import THREADS_EACH, VECTOR_BYTES, BlockProgram
from mirage_kernels.generator.tiles.statements import Reduce
from mirage_kernels.generator.tiles.vectors import WIDTHS, at_once, lanes, summed_words

AT_WORK = 1024  # threads of a multiprocessor that sum up what memory holds: of 64 registers each
HOLDING = 512  # that hold rows, or read those that an index says: of 128 registers


def bounds(programs: Sequence[BlockProgram]) -> str:
    """Return the threads of a block and, where it joins what it reads in place, blocks at once.

    Left alone, ptxas makes room for more blocks: it uses some of what a thread reads at once before
    it reads the rest, and less is on its way (smooth_l1_loss of 2 x 134 MB: 70.0 us, mse 66.0).
    """
    threads, at_work = programs[0].threads, min(map(_at_work, programs))
    return f"{threads}, {max(1, at_work // threads)}" if at_work < THREADS_EACH else f"{threads}"


def _at_work(program: BlockProgram) -> int:
    """Return how many threads of a multiprocessor are to have room, all where nothing is wanted."""
    if program.held or program.indexed:
        return HOLDING
    leaves = {x for s in program.reductions for v in s.values for x in program.leaves(v)}
    read = (leaves & {*program.tensors}) - {*program.tiles} - program.iotas
    in_place = any(program.type(x).dims for x in read) and not program.fragments
    return AT_WORK if in_place else THREADS_EACH


@dataclass(frozen=True)
class Shares:
    """How threads share reductions: results in the order of lanes, the summed dim, vectors.

    The vector of a lane lies along a dim of the results, or along the summed one.
    """

    outs: tuple[Dim, ...]
    over: Dim
    vector: str
    width: int

    @staticmethod
    def of(f: Formulas, *said: Reduce) -> Shares:
        """Return how threads share one reduction, or several in one pass."""
        values = [v for s in said for v in s.values]
        over = next(d for v in values for d in f.dims_of(v) if d.name == said[0].over)
        outs, vector, width = lanes(f.program, said[0], values, over)
        return Shares(tuple(outs), over, vector, width)

    @property
    def dims(self) -> tuple[Dim, ...]:
        """Return the dims of what is read."""
        return (*self.outs, self.over)

    @property
    def across(self) -> bool:
        """Say whether neighbouring lanes have neighbouring results."""
        return self.vector != self.over.name

    @property
    def sums(self) -> int:
        """Return how many results a thread makes at once."""
        return self.width if self.across else 1

    @property
    def steps(self) -> int:
        """Return how many elements of the summed dim a thread takes at once."""
        return 1 if self.across else self.width


def in_one_pass(f: Formulas, a: Reduce, b: Reduce) -> bool:
    """Say whether reductions beside each other read the same tensor alike: it is read once then."""
    apart = (a.rescale, b.rescale, a.parts, b.parts)
    if (a.op, a.over) != (b.op, b.over) or any(apart):
        return False
    read, other = ({x for v in s.values for x in f.reads(v)} for s in (a, b))
    both = Shares.of(f, a)
    alike = both == Shares.of(f, b) == Shares.of(f, a, b)
    return bool(read & other) and alike and not both.across


def write_reductions(f: Formulas, said: Sequence[Reduce]) -> None:
    """Write a pass of reductions."""
    if said[0].parts:
        _write_of_warps(f, said[0])
    elif name := summed_words(f.program, said[0]):
        _write_words(f, said[0], name)
    else:
        _write_pass(f, said)


def _write_pass(f: Formulas, said: Sequence[Reduce]) -> None:
    """Write reductions with lanes along the dim along which operands are contiguous."""
    s, own, p = said[0], Shares.of(f, *said), f.program
    assert len(said) * own.sums <= WIDTHS[0]  # of a thread, as there is shared memory for
    values = [v for each in said for v in each.values]
    read = list(dict.fromkeys(x for v in values for x in f.reads(v)))
    place, sums = Place({}, own.dims, own.vector, own.width, read), len(said) * own.sums
    counts = f"{prod(d.size for d in own.outs) // own.sums}, {own.over.size // own.steps}, {sums}"
    kinds = f"{s.joins}, {p.threads}, {counts}, {str(own.across).lower()}, {f.at_once(place)}"
    with f.taking(place) as taken:
        step = "[[maybe_unused]] int i, [[maybe_unused]] int j, "

        def here() -> Place:
            at = f.coordinates(own.outs, own.sums)
            f.writer.line(f"[[maybe_unused]] const int {s.over}_at = j * {own.steps};")
            return replace(place, at={**at, s.over: f"{s.over}_at"})

        head = f"reduce<{taken}, {kinds}>(scratch, [&]({step}{taken}& taken) {{"
        with f.writer.block(head, "},"):
            if place.taken:
                f.take(here())
        head = f"[&]({step}const {taken}& taken, float (&joined)[{sums}]) {{"
        with f.writer.block(head, "},"):
            _join(f, said, here(), across=own.across)
        head = f"[&]([[maybe_unused]] int i, const float (&joined)[{sums}]) {{"
        end = _end(f, s, own.steps)
        with f.writer.block(head, f"}}, {end});" if end else "});"):
            results = Place(f.coordinates(own.outs, own.sums), own.outs, own.vector, own.sums)
            for i, each in enumerate(said):
                _finish(f, each, results, f"e + {i}" if i else "e")


def _write_words(f: Formulas, s: Reduce, name: str) -> None:
    """Write a sum over uneven rows of a tensor, whose words are summed up as they lie."""
    w, p, own = f.writer, f.program, Shares.of(f, s)
    *rows, columns = own.outs
    ctype, end = CTYPES[p.type(name).dtype], f"args.{f.tensor(name)}_end"
    counts = f"{prod(d.size for d in rows)}, {columns.size}, {own.over.size}"
    kinds = f"kAligned, {ctype}, {s.joins}, {p.threads}, {counts}, {at_once(VECTOR_BYTES)}"
    head = f"reduce_words<{kinds}>({s.tile}_parts, {end}, [&]([[maybe_unused]] int i, int j) {{"
    with w.block(head, "},"):
        at = {**f.coordinates(rows, 1), s.over: "j", columns.name: "0"}
        f.in_tensor(name, Place(at, own.dims, columns.name, own.width), "const auto* from")
        w.line(f"return Row<{ctype}>{{from, stride, left}};")
    head = f"[&](const Vector<{ctype}, {own.width}>& {name}_v, float (&joined)[{own.width}]) {{"
    with w.block(head, "},"):
        place = Place({}, own.dims, columns.name, own.width, [name], lies=True)
        (made,) = f.write([s.value], place)
        with w.block(f"for (int e = 0; e < {own.width}; ++e) {{"):
            w.line(f"joined[e] = {s.joins}::join(joined[e], {made}[e]);")
    with w.block("[&]([[maybe_unused]] int i, int c, const float (&joined)[1]) {", "});"):
        at = {**f.coordinates(rows, 1), columns.name: "c"}
        _finish(f, s, Place(at, own.outs), "e")


def _write_of_warps(f: Formulas, s: Reduce) -> None:
    """Write what joins what warps have joined of a fragment."""
    w, p, parts = f.writer, f.program, f.program.tiles[s.parts]
    *outs, warps = parts.dims
    head = f"each<{p.threads}, {prod(d.size for d in outs)}>([&]([[maybe_unused]] int i) {{"
    with w.block(head, "});"):
        at = f.coordinates(outs, 1)
        w.line(f"float joined[1] = {{{s.joins}::kIdentity}};")
        with w.block(f"for (int warp = 0; warp < {warps.size}; ++warp) {{"):
            place = f.in_tile(parts, {**at, warps.name: "warp"})
            w.line(f"joined[0] = {s.joins}::join(joined[0], {s.parts}[{place}]);")
        _finish(f, s, Place(at, outs), "e")


def _end(f: Formulas, s: Reduce, steps: int) -> str:
    """Return how many steps there are where the extent of the summed dim is known at run time."""
    if not f.program.extents[s.over].dynamic:
        return ""
    value = next(v for v in s.values if s.over in f.program.type(v).names)
    left = " - ".join((f.limit(value, s.over), *f.offset(value, s.over)))
    return f"({left} + {steps - 1}) / {steps}" if steps > 1 else left


def _join(f: Formulas, said: Sequence[Reduce], place: Place, *, across: bool) -> None:
    """Write what a step adds to a thread's share of results."""
    w, over = f.writer, said[0].over
    made = dict(zip(_values(said), f.write(_values(said), place), strict=True))
    first = next(v for v in made if over in f.program.type(v).names)
    uneven = f.is_uneven(first, over, place)
    if uneven and f.has_whole_vectors(first, over, place):
        w.line(f"if (!({f.inside(first, [over], replace(place, vector=''))})) return;")
        uneven = False
    with w.block(f"for (int e = 0; e < {place.width}; ++e) {{"):
        if uneven:
            w.line(f"if (!({f.inside(first, [over], place)})) continue;")
        for i, s in enumerate(said):
            to = f"joined[{'e' if across else i}]"
            w.line(
                f"{to} = {s.joins}::join({to}, {' * '.join(f'{made[v]}[e]' for v in s.values)});"
            )


def _values(said: Sequence[Reduce]) -> list[str]:
    return list(dict.fromkeys(v for s in said for v in s.values))


def _finish(f: Formulas, s: Reduce, place: Place, joined: str) -> None:
    """Write what becomes of a reduction's results, `joined` saying which is one of them."""
    tiles, at = f.program.tiles, {**place.at}
    with f.writer.block(f"for (int e = 0; e < {place.width}; ++e) {{"):
        if place.vector in at:
            at[place.vector] = f"({at[place.vector]} + e)"
        f.writer.line(f"float& to = {s.tile}[{f.in_tile(tiles[s.tile], at)}];")
        factor = tiles.get(s.rescale or s.factor)
        f.writer.write(*_result(s, f"[{f.in_tile(factor, at)}]" if factor else "", joined))


def _result(s: Reduce, at: str, joined: str) -> list[str]:
    """Return the lines that finish a result; `at`: where its factor lies."""
    if not s.carried:
        return [f"to = joined[{joined}];"]
    if s.is_max and not s.rescale:
        return [f"to = {s.joins}::join(to, joined[{joined}]);"]
    if s.is_max:
        return [
            "const float before = to;",
            f"to = fmaxf(before, joined[{joined}]);",
            f"{s.rescale}{at} = general::exp(before - to);",
        ]
    before = f"to * {s.factor}{at} + " if s.factor else ""
    return [f"to = {before}joined[{joined}];" if before else f"to += joined[{joined}];"]
