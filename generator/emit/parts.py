"""The parts of an emitted kernel: what each plan of the same muGraph brings.

A kernel of one part is one file. One of several has a file for each, beside that which dispatches;
where one text is wanted (a candidate that is measured) the parts stand below one another in it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from mirage_kernels.generator.emit import adapters, apart, apart_held, front, held, slices, split
from mirage_kernels.generator.emit.header import IN_FRONT, Header
from mirage_kernels.generator.emit.makers import write_makers
from mirage_kernels.generator.emit.writer import Writer
from mirage_kernels.generator.plan.apart import users_of
from mirage_kernels.generator.plan.front import behind, front_of
from mirage_kernels.generator.plan.program import TileProgram
from mirage_kernels.generator.plan.variants import Knobs, Variant

SHAPE = "shape"  # what all parts have in common: element type, extents
MAKERS, PAIRS, SLICES, FRONT = "makers", "held_makers", "slices", "front"
HELD, SPLIT = "held", "split"
NAMES = (SHAPE, MAKERS, SLICES, PAIRS, HELD, SPLIT, FRONT)
_ABOUT = {
    SLICES: "each warp of a block streams a slice of the depth; their sums meet after the loop",
    HELD: "tokens are held in registers, on the M side of products with weights as they lie in "
    "shared memory",
    SPLIT: "two blocks of a cluster share rows and split the depth",
    MAKERS: "the first blocks of a launch make {} once, for all others",
    "stacked": "a launch in front makes {}, each token's with its own slice",
    PAIRS: "blocks that hold tokens, in pairs that split the depth, make {} for users that do",
    FRONT: "a launch in front of that of held tokens makes {} once, a block per token",
}
# What the other plans bring: the vocabulary that they include, and their kernels.
_PLANS = {
    HELD: (held.INCLUDES, held.held_kernel),
    SPLIT: (split.INCLUDES, split.split_kernel),
}


@dataclass(frozen=True)
class Part:
    """One part, written."""

    name: str  # in front of the ending of a file of its own
    about: str
    includes: tuple[str, ...]  # of the vocabulary
    beside: tuple[str, ...]  # the parts that it is written in terms of
    buckets: tuple[int, ...]  # of the variants that it serves
    lines: tuple[str, ...]

    def text(self, header: Header) -> str:
        """Return the part as a file of its own; `header` is the kernel's."""
        writer = Writer()
        said = [header.launches[b] for b in self.buckets if b in header.launches]
        launched = f" What {header.stem}.cu launches: {'; '.join(said)}." if said else ""
        paragraph = (self.name.capitalize().replace("_", " "), f"{self.about}.{launched}")
        Header(header.command, header.stem, [paragraph]).write(writer, "//")
        writer.line("#pragma once")
        writer.line()
        for include in sorted(self.includes):
            writer.line(f'#include "{include}"')
        writer.line()
        write_beside(writer, header.stem, self.beside)
        writer.line("namespace mirage::generated {")
        writer.line("namespace {")
        writer.line()
        writer.lines += self.lines
        writer.line("}  // namespace")
        writer.line("}  // namespace mirage::generated")
        return writer.text()


def file_of(stem: str, part: str) -> str:
    """Return the name of a part's file."""
    return f"{stem}.{part}.cuh"


def write_beside(writer: Writer, stem: str, parts: Sequence[str]) -> None:
    """Write the includes of files beside a file, if it needs any."""
    for part in sorted(parts):
        writer.line(f'#include "{file_of(stem, part)}"')
    if parts:
        writer.line()


def parts_of(program: TileProgram, variants: Sequence[Variant]) -> list[Part]:
    """Return the parts of a kernel, each below those that it is written in terms of.

    Raises PlanError for an op that the device vocabulary lacks.
    """
    users = users_of(program)
    users = replace(users, paired=any(v.knobs.maker_groups for v in variants))
    fronted = any(v.knobs.front for v in variants)
    plans = sorted({v.knobs.plan for v in variants} - {""})
    parts = []
    if users.received:
        parts.append(_makers(program, users, variants))
    if any(not v.knobs.plan for v in variants):
        parts.append(_slices(users, variants))
    if users.received and users.paired:
        parts.append(_pairs(users, variants))
    for plan in plans:
        parts.append(_boxed(behind(users) if fronted else users, variants, plan))
    if fronted:
        (plan,) = plans
        parts.append(_front(users, variants, plan))
    return parts


def _lines(write: Callable[..., None], *given: object) -> tuple[str, ...]:
    writer = Writer()
    write(writer, *given)
    return tuple(writer.lines)


def _serving(variants: Sequence[Variant], serves: Callable[[Knobs], bool]) -> tuple[int, ...]:
    return tuple(v.bucket for v in variants if serves(v.knobs))


def _makers(program: TileProgram, users: TileProgram, variants: Sequence[Variant]) -> Part:
    (kept,) = users.received
    about = _ABOUT["stacked" if users.stacked else MAKERS].format(kept.args[0])
    includes: tuple[str, ...] = ("tile/apart.cuh", "tile/tile.cuh")
    serves = _serving(variants, lambda knobs: knobs.apart and not knobs.maker_groups)
    if users.stacked:
        includes, serves = (*adapters.INCLUDES, "tile/tile.cuh"), (IN_FRONT,)
    return Part(MAKERS, about, includes, (SHAPE,), serves, _lines(write_makers, program, variants))


def _pairs(users: TileProgram, variants: Sequence[Variant]) -> Part:
    (kept,) = users.received
    about = _ABOUT[PAIRS].format(kept.args[0])
    serves = _serving(variants, lambda knobs: bool(knobs.maker_groups))
    return Part(
        PAIRS, about, apart_held.INCLUDES, (SHAPE, MAKERS), serves, _lines(held.held_makers, users)
    )


def _slices(users: TileProgram, variants: Sequence[Variant]) -> Part:
    serves = _serving(variants, lambda knobs: not knobs.plan)
    includes = (*slices.includes(users), *apart.includes(replace(users, paired=False)))
    beside = (SHAPE, MAKERS) if users.received else (SHAPE,)
    own = [v for v in variants if not v.knobs.plan]
    lines = _lines(slices.slices_kernel, users, own)
    return Part(SLICES, _ABOUT[SLICES], includes, beside, serves, lines)


def _boxed(users: TileProgram, variants: Sequence[Variant], plan: str) -> Part:
    """Return a plan whose tensors come as boxes."""
    vocabulary, write = _PLANS[plan]
    beside = (SHAPE, MAKERS) if users.received else (SHAPE,)
    beside = (*beside, PAIRS) if users.received and users.paired else beside
    serves = _serving(variants, lambda knobs: knobs.plan == plan)
    includes = (*vocabulary, *apart.includes(users))
    return Part(
        plan, _ABOUT[plan], (*includes, "tile/tile.cuh"), beside, serves, _lines(write, users)
    )


def _front(users: TileProgram, variants: Sequence[Variant], plan: str) -> Part:
    about = _ABOUT[FRONT].format(front_of(users).output.name)
    serves = _serving(variants, lambda knobs: bool(knobs.front))
    lines = _lines(front.write_front, users, plan)
    return Part(FRONT, about, (*front.INCLUDES, "tile/tile.cuh"), (SHAPE, plan), serves, lines)
