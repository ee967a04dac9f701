"""The forms of an emitted kernel: what each schedule of the same muGraph brings.

A form is one text for all shapes and element types: templates over a `Config`, which a shape's own
file defines (`forms.py`). Where one text is wanted (a candidate that is measured) the forms stand
below one another in it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from mirage_kernels.generator.emit.header import OF_THE_FORM, Header
from mirage_kernels.generator.emit.writer import Writer
from mirage_kernels.generator.plan.program import TileProgram
from mirage_kernels.generator.schedules.batched_lora import writer as batched_lora
from mirage_kernels.generator.schedules.cluster_split_k import writer as cluster_split_k
from mirage_kernels.generator.schedules.loop import producers_of, prologue_warps
from mirage_kernels.generator.schedules.producer_blocks import writer as producer_blocks
from mirage_kernels.generator.schedules.producer_blocks.paired import write_producers
from mirage_kernels.generator.schedules.producer_blocks.producers import write_makers
from mirage_kernels.generator.schedules.prologue import main_program, prologue_program
from mirage_kernels.generator.schedules.prologue import writer as prologue
from mirage_kernels.generator.schedules.register_operand import writer as register_operand
from mirage_kernels.generator.schedules.schedule import Knobs, Variant
from mirage_kernels.generator.schedules.sliced_k import writer as sliced_k

MAKERS, PAIRS, SLICES, FRONT = "producers", "paired_producers", "sliced_k", "prologue"
HELD, SPLIT, ROW_WISE, ELEMENTWISE = (
    "register_operand",
    "cluster_split_k",
    "row_wise",
    "elementwise",
)
# A form comes after those that it may be written in terms of.
NAMES = (MAKERS, ROW_WISE, ELEMENTWISE, SLICES, PAIRS, HELD, SPLIT, FRONT)
_MAIN = (ROW_WISE, ELEMENTWISE, SLICES)  # whose header describes the muGraph
_ABOUT = {
    ROW_WISE: "row-wise: a block holds a token whole in registers",
    ELEMENTWISE: "elementwise: every block takes a piece of a token",
    SLICES: "sliced-K: each warp of a block streams its own slice of the depth; they add up their "
    "sums after the loop",
    HELD: "register-operand wgmma: tokens are the A operand in registers, weights are read from "
    "shared memory",
    SPLIT: "cluster split-K: two blocks of a cluster share rows and split the depth",
    MAKERS: "producer blocks: the first blocks of a launch compute {} once, for all others",
    "stacked": "producer blocks: a first launch computes {}, each token's with its own slice",
    PAIRS: "producer blocks with register operands: pairs that split the depth compute {} for "
    "pairs of consumer blocks",
    FRONT: "prologue kernel: a launch before the main one computes {} once, a block per token",
}
# What the other plans bring: the vocabulary that they include, and their kernels.
_PLANS = {
    "register_operand": (
        HELD,
        register_operand.INCLUDES,
        register_operand.held_kernel,
    ),
    "cluster_split_k": (
        SPLIT,
        cluster_split_k.INCLUDES,
        cluster_split_k.split_kernel,
    ),
}


@dataclass(frozen=True)
class Part:
    """One form, written."""

    name: str
    about: str
    includes: tuple[str, ...]  # of the vocabulary
    beside: tuple[str, ...]  # the forms that it is written in terms of
    lines: tuple[str, ...]

    def text(self, header: Header, files: Mapping[str, str]) -> str:
        """Return the form as a file of its own; `files`: those of the forms, by name."""
        writer = Writer()
        said = OF_THE_FORM if self.name in _MAIN else OF_THE_FORM[:1]
        header.of_form(f"{self.about}.", said).write(writer, "//")
        writer.line("#pragma once")
        writer.line()
        for include in sorted({*self.includes, "variants.h"}):
            writer.line(f'#include "{include}"')
        writer.line()
        write_includes(writer, [files[name] for name in self.beside])
        writer.line("namespace mirage::generated {")
        writer.line("namespace {")
        writer.line()
        writer.lines += self.lines
        writer.line("}  // namespace")
        writer.line("}  // namespace mirage::generated")
        return writer.text()


def write_includes(writer: Writer, files: Sequence[str]) -> None:
    """Write the includes of files beside a file, if it needs any."""
    for file in sorted(files):
        writer.line(f'#include "{file}"')
    if files:
        writer.line()


def parts_of(program: TileProgram, variants: Sequence[Variant]) -> list[Part]:
    """Return the parts of a kernel, each below those that it is written in terms of.

    Raises PlanError for an op that the device vocabulary lacks.
    """
    users = program.streamed
    if not any(_in_pairs(v.knobs) for v in variants):
        users = replace(users, producers=None)
    fronted = any(prologue_warps(v.knobs) for v in variants)
    plans = [plan for plan in _PLANS if any(v.schedule == plan for v in variants)]
    parts = []
    if users.received:
        parts.append(_makers(program, users, variants))
    if any(v.schedule not in _PLANS for v in variants):
        parts.append(_slices(users, variants))
    if users.received and users.producers:
        parts.append(_pairs(users))
    for plan in plans:
        parts.append(_boxed(main_program(users) if fronted else users, plan))
    if fronted:
        (plan,) = plans
        parts.append(_front(users, plan))
    return parts


def _in_pairs(knobs: Knobs) -> bool:
    """Say whether producer blocks are in pairs."""
    producers = producers_of(knobs)
    return producers is not None and producers.groups > 0


def _lines(write: Callable[..., None], *given: object) -> tuple[str, ...]:
    writer = Writer()
    write(writer, *given)
    return tuple(writer.lines)


def _makers(program: TileProgram, users: TileProgram, variants: Sequence[Variant]) -> Part:
    (kept,) = users.received
    about = _ABOUT["stacked" if users.stacked else MAKERS].format(kept.args[0])
    includes = (
        batched_lora.INCLUDES if users.stacked else ("tile/producer_blocks/intermediate.cuh",)
    )
    lines = _lines(write_makers, program, variants)
    return Part(MAKERS, about, (*includes, "tile/tile.cuh"), (), lines)


def _pairs(users: TileProgram) -> Part:
    (kept,) = users.received
    about = _ABOUT[PAIRS].format(kept.args[0])
    return Part(
        PAIRS,
        about,
        producer_blocks.PAIRED,
        (MAKERS,),
        _lines(write_producers, users),
    )


def _slices(users: TileProgram, variants: Sequence[Variant]) -> Part:
    name = SLICES if users.loop else ELEMENTWISE if users.parted else ROW_WISE
    includes = (
        *sliced_k.includes(users),
        *producer_blocks.includes(replace(users, producers=None)),
    )
    beside = (MAKERS,) if users.received else ()
    lines = _lines(sliced_k.slices_kernel, users, variants)
    return Part(name, _ABOUT[name], includes, beside, lines)


def _boxed(users: TileProgram, plan: str) -> Part:
    """Return a schedule whose tensors come as TMA tiles."""
    name, vocabulary, write = _PLANS[plan]
    beside = (MAKERS,) if users.received else ()
    beside = (*beside, PAIRS) if users.received and users.producers else beside
    includes = (*vocabulary, *producer_blocks.includes(users))
    lines = _lines(write, users)
    return Part(name, _ABOUT[name], (*includes, "tile/tile.cuh"), beside, lines)


def _front(users: TileProgram, plan: str) -> Part:
    about = _ABOUT[FRONT].format(prologue_program(users).output.name)
    lines = _lines(prologue.write_front, users, plan)
    beside = (_PLANS[plan][0],)
    return Part(FRONT, about, (*prologue.INCLUDES, "tile/tile.cuh"), beside, lines)
