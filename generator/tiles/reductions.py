"""A reduction of a tile program in CUDA: what a step adds, and what becomes of a result."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from mirage_kernels.generator.ir import Dim
from mirage_kernels.generator.tiles.formulas import Formulas, Place
from mirage_kernels.generator.tiles.program import Reduce
from mirage_kernels.generator.tiles.vectors import lanes


def write_reduction(f: Formulas, s: Reduce) -> None:
    """Write a reduction: lanes along the dim where operands are contiguous along it."""
    values = [s.value, *([s.other] if s.other else [])]
    over = next(d for v in values for d in f.dims_of(v) if d.name == s.over)
    outs, vector, width = lanes(f.program, s, values, over)
    across = vector != s.over  # neighbouring lanes have neighbouring results
    sums, steps = (width, 1) if across else (1, width)
    op = "Max" if s.op == "max" else "Sum"
    place = Place({}, vector, width, list(dict.fromkeys(x for v in values for x in f.reads(v))))
    counts = f"{prod(d.size for d in outs) // sums}, {over.size // steps}, {sums}"
    kinds = f"{op}, {f.program.threads}, {counts}, {str(across).lower()}, {f.at_once(place)}"
    with f.taking(place) as taken:
        step = "[[maybe_unused]] int i, [[maybe_unused]] int j, "

        def here() -> Place:
            at = f.coordinates(outs, sums)
            f.writer.line(f"[[maybe_unused]] const int {s.over}_at = j * {steps};")
            return replace(place, at={**at, s.over: f"{s.over}_at"})

        head = f"reduce<{taken}, {kinds}>(scratch, [&]({step}{taken}& taken) {{"
        with f.writer.block(head, "},"):
            if place.taken:
                f.take(here())
        head = f"[&]({step}const {taken}& taken, float (&joined)[{sums}]) {{"
        with f.writer.block(head, "},"):
            _join(f, s, values, here(), across=across)
        head = f"[&]([[maybe_unused]] int i, const float (&joined)[{sums}]) {{"
        with f.writer.block(head, "});"):
            _finish(f, s, outs, vector if across else "", sums)


def _join(f: Formulas, s: Reduce, values: Sequence[str], place: Place, *, across: bool) -> None:
    """Write what a step adds to a thread's share of results."""
    w, op = f.writer, "Max" if s.op == "max" else "Sum"
    made = f.write(values, place)
    first = next(v for v in values if s.over in f.program.type(v).names)
    uneven = f.is_uneven(first, s.over)
    if uneven and f.has_whole_vectors(first, s.over, place):
        w.line(f"if (!({f.inside(first, [s.over], replace(place, vector=''))})) return;")
        uneven = False
    with w.block(f"for (int e = 0; e < {place.width}; ++e) {{"):
        if uneven:
            w.line(f"if (!({f.inside(first, [s.over], place)})) continue;")
        to = f"joined[{'e' if across else 0}]"
        w.line(f"{to} = {op}::join({to}, {' * '.join(f'{m}[e]' for m in made)});")


def _finish(f: Formulas, s: Reduce, outs: Sequence[Dim], vector: str, sums: int) -> None:
    """Write what becomes of results."""
    tiles, at = f.program.tiles, f.coordinates(outs, sums)
    with f.writer.block(f"for (int e = 0; e < {sums}; ++e) {{"):
        if vector:
            at[vector] = f"({at[vector]} + e)"
        f.writer.line(f"float& to = {s.tile}[{f.in_tile(tiles[s.tile], at)}];")
        factor = tiles.get(s.rescale or s.factor)
        f.writer.write(*_result(s, f"[{f.in_tile(factor, at)}]" if factor else ""))


def _result(s: Reduce, at: str) -> list[str]:
    """Return the lines that finish a result; `at`: where its factor lies."""
    if not s.carried:
        return ["to = joined[e];"]
    if s.op == "max" and not s.rescale:
        return ["to = Max::join(to, joined[e]);"]
    if s.op == "max":
        return [
            "const float before = to;",
            "to = fmaxf(before, joined[e]);",
            f"{s.rescale}{at} = to == -INFINITY ? 1.0f : general::exp(before - to);",
        ]
    return [f"to = to * {s.factor}{at} + joined[e];" if s.factor else "to += joined[e];"]
