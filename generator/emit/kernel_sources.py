"""The forms of an emitted kernel: what each schedule of the same muGraph brings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from mirage_kernels.generator.emit.part import Part
from mirage_kernels.generator.plan.program import TileProgram
from mirage_kernels.generator.schedules import RANKED
from mirage_kernels.generator.schedules.loop import producers_of, prologue_warps
from mirage_kernels.generator.schedules.producer_blocks.paired import pairs
from mirage_kernels.generator.schedules.producer_blocks.producers import makers
from mirage_kernels.generator.schedules.prologue import main_program
from mirage_kernels.generator.schedules.prologue import writer as prologue
from mirage_kernels.generator.schedules.schedule import Knobs, Variant


def parts_of(program: TileProgram, variants: Sequence[Variant]) -> list[Part]:
    """Return the forms of a kernel, each below those that it is written in terms of.

    Raises PlanError for an op that the device vocabulary lacks.
    """
    users = program.streamed
    if not any(_in_pairs(v.knobs) for v in variants):
        users = replace(users, producers=None)
    parts = [makers(program, users, variants)] if users.received else []
    parts += [pairs(users)] if users.received and users.producers else []
    fronted = [v for v in variants if prologue_warps(v.knobs)]
    used = {v.schedule for v in variants}
    for schedule in (s for s in reversed(RANKED.values()) if s.name in used):
        own = main_program(users) if schedule.name in {v.schedule for v in fronted} else users
        parts += schedule.write(own, variants)
    return [*parts, *(prologue.front(users, v.schedule) for v in fronted[:1])]


def _in_pairs(knobs: Knobs) -> bool:
    """Say whether producer blocks are in pairs."""
    producers = producers_of(knobs)
    return producers is not None and producers.groups > 0
