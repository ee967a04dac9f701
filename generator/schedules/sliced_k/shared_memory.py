"""What a block has in shared memory beside its ring: where sums meet, and what is kept."""

from __future__ import annotations

from dataclasses import dataclass

from mirage_kernels.generator.plan.program import Do, Layout, Roles, Statement, TileProgram
from mirage_kernels.generator.schedules.producer_blocks import ROW_TILE
from mirage_kernels.generator.schedules.sliced_k.knobs import SlicedK

OCTET = 8  # elements of two bytes, in 16
KEPT_ALIGNMENT = 128  # bytes: what lies behind begins where banks do


@dataclass(frozen=True)
class Meeting:
    """Partial sums of all warps, side by side in shared memory."""

    name: str
    layout: Layout
    barrier: bool  # before it
    inner: int = 0  # lines along the inner dim that a block has, in whole row tiles

    def bytes(self, knobs: SlicedK) -> int:
        """Return their size (csrc/tile/reduce/across_warps.cuh)."""
        elements = {
            Layout.ACCUM: knobs.tokens * (knobs.rows + 4),
            Layout.TOKEN_SUMS: knobs.tokens,
            Layout.ROW_SUMS: knobs.rows,
            Layout.INNER_ACCUM: knobs.tokens * (self.inner + 4),
        }
        return elements[self.layout] * knobs.warps * 4


@dataclass(frozen=True)
class Kept:
    """What is kept in shared memory: what products after the loop read or make, statistics."""

    name: str
    layout: Layout
    inner: int  # extent of the inner dim; 0: it has none
    since: int  # barriers after the last meeting before it is written; -1: from the start

    def bytes(self, knobs: SlicedK) -> int:
        """Return their size (csrc/tile/mma/resident.cuh)."""
        if self.layout is Layout.ACCUM:
            return knobs.tokens * (knobs.rows + 4) * 4
        if self.layout is Layout.TOKEN_SUMS:
            return knobs.tokens * 4
        lines = knobs.rows if self.layout is Layout.FACTORS else knobs.tokens
        return kept_bytes(lines, self.inner)


def kept_bytes(lines: int, inner: int) -> int:
    """Return what lines of the inner dim take (csrc/tile/mma/resident.cuh)."""
    pitch = (inner // OCTET | 1) * OCTET
    return -(-lines * pitch * 2 // KEPT_ALIGNMENT) * KEPT_ALIGNMENT


def kept_areas(program: TileProgram) -> tuple[Kept, ...]:
    """Return what is kept: fetched tiles, totals of stages, products."""
    early = (*program.fetches, *program.statistics, *program.received)
    products = program.products
    if program.received:  # one warp multiplies while the others stream
        early, products = (*early, *products), ()
    found = [Kept(s.out, s.layout, _inner(program.roles, s), -1) for s in early]
    since = 0
    for s in (*(s for stage in program.stages for s in stage.statements), *products):
        since += s.barrier
        if s.do is not Do.KEEP and s.do is not Do.CONTRACT:
            continue
        found.append(Kept(s.out, s.layout, _inner(program.roles, s), since))
    return tuple(found)


def _inner(roles: Roles, s: Statement) -> int:
    dim = roles.inner_of(s.type)
    return dim.size if dim else 0


def own_inner(program: TileProgram, s: Statement) -> int:
    """Return the lines along the inner dim that a block has, in whole row tiles."""
    return _padded(_inner(program.roles, s))


def _padded(lines: int) -> int:
    return -(-lines // ROW_TILE) * ROW_TILE
