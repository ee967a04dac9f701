"""Formulas of a product's sums that threads compute where these are: in registers.

Scores become exponents so: a mask is added, the peak is found, sums are made, and what the next
product takes is all that goes to shared memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod

from mirage_kernels.generator.ir import Dim, DType
from mirage_kernels.generator.tiles.program import BlockProgram, Fragment, Tile
from mirage_kernels.generator.tiles.statements import (
    Apply,
    Fill,
    JoinRows,
    Reduce,
    Spill,
    Statement,
)


def with_register_formulas(program: BlockProgram) -> BlockProgram:
    """Return the program with formulas of products computed on their sums in registers.

    That is where all that reads a product's tile joins it along its rows or fills a tile with it,
    element by element: then it needs no tile of its own. Barriers are not placed yet.
    """
    for fragment in program.fragments.values():
        for phase, said in program.statements.items():
            at = _spilled(said, fragment.name)
            elsewhere = (s for p, x in program.statements.items() if p is not phase for s in x)
            if at is None or any(fragment.name in s.reads for s in elsewhere):
                continue
            chain = _Chain(program, fragment)
            if chain.takes(said[at + 1 :]):
                made = (*said[:at], *chain.made(said[at + 1 :]))
                tiles = {k: t for k, t in program.tiles.items() if k != fragment.name}
                statements = {**program.statements, phase: made}
                program = replace(program, tiles=tiles | chain.parts, statements=statements)
    return program


def _spilled(said: Sequence[Statement], name: str) -> int | None:
    """Return where a fragment goes to its tile, if nothing reads that before."""
    places = (i for i, s in enumerate(said) if isinstance(s, Spill) and s.fragment == name)
    at = next(places, None)
    return None if at is None or any(name in s.reads for s in said[:at]) else at


@dataclass
class _Chain:
    """What becomes of a fragment's sums, statement by statement: `held` is the value they are."""

    program: BlockProgram
    fragment: Fragment

    def __post_init__(self) -> None:
        self.held, self.parts, self.cleared = self.fragment.name, dict[str, Tile](), False

    def takes(self, said: Sequence[Statement]) -> bool:
        """Say whether every reader of the product computes with what registers hold."""
        if prod(d.size for d in self.fragment.batch) != 1:
            return False
        readers = [s for s in said if self.fragment.name in s.reads]
        fills = [s for s in readers if isinstance(s, Fill)]
        last = not fills or fills == readers[-1:]  # it changes what registers hold
        return bool(readers) and last and all(self.fits(s, self.fragment.name) for s in readers)

    def fits(self, s: Statement, held: str) -> bool:
        """Say whether a statement needs nothing but a thread's own sums and tiles beside them."""
        batch, rows, columns = ({d.name: d.size for d in x} for x in self.fragment.groups)
        if isinstance(s, Reduce):
            own = {d.name: d.size for d in self.program.tiles[s.tile].dims}
            alike = {*rows} == {s.over} and own == batch | columns
            return alike and not s.other and self.reads(s, held)
        if isinstance(s, Fill):
            own = {d.name: d.size for d in self.program.tiles[s.value].dims}
            return own == batch | rows | columns and self.reads(s, held)
        return False

    def reads(self, s: Reduce | Fill, held: str) -> bool:
        """Say whether a formula is made of sums and tiles: nothing is read of tensors in place."""
        p = self.program
        args = p.node(s.value).args if isinstance(s, Fill) else (s.value,)
        leaves = {x for a in args for x in p.leaves(a)}
        tensors = {x for x in leaves - {*p.tiles} - p.iotas if x in p.tensors and p.type(x).dims}
        return held in leaves and not tensors

    def made(self, said: Sequence[Statement]) -> Iterator[Statement]:
        """Yield the statements, those that compute with sums in their form for registers."""
        gone = self.fragment.name
        for s in said:
            reads = tuple(x for x in s.reads if x != gone)
            if self.held not in s.reads or not self.fits(s, self.held):
                yield s
            elif isinstance(s, Fill):
                yield Apply(reads, (), gone, self.held, s.value, s.ends)
                yield Spill((), s.writes, gone, s.value)
                self.held, self.cleared = s.value, {*s.ends} >= {d.name for d in self.fragment.rows}
            elif isinstance(s, Reduce):
                yield from self.join(s, {*reads})

    def join(self, s: Reduce, given: set[str]) -> Iterator[Statement]:
        """Yield what joins a fragment along its rows, warp by warp and then all of these."""
        p, f = self.program, self.fragment
        warps = Dim("warps", f.warps[0])
        parts = Tile(f"{s.tile}_of_warps", (*f.batch, *f.columns, warps), DType.FP32)
        self.parts[parts.name] = parts
        own = {x for x in p.leaves(s.value) if x in p.tiles} - {f.name, self.held}
        zeros = self.cleared and s.value == self.held and s.op == "sum"
        rest = {parts.name} | (given - own - {self.held})
        joined = replace(s, reads=tuple(sorted(rest)), parts=parts.name)
        yield JoinRows(tuple(sorted(own)), (parts.name,), f.name, self.held, joined, zeros)
        yield joined
