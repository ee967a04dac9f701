"""Variants of an attention kernel: which schedule with which knobs serves how many query rows.

A call has as many rows per head of keys as query tokens times heads of the group; the last variant
takes any number, tile by tile.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from mirage_kernels.generator.errors import PlanError
from mirage_kernels.generator.ir import Json, parts_of
from mirage_kernels.generator.ir.codec import from_data
from mirage_kernels.generator.schedules.attention.knobs import AttentionKnobs
from mirage_kernels.generator.schedules.attention.program import AttentionProgram, AttentionRoles
from mirage_kernels.generator.schedules.flash_decode import knobs as flash_decode
from mirage_kernels.generator.schedules.flash_decode.knobs import FlashDecode
from mirage_kernels.generator.schedules.wgmma_attention import knobs as wgmma_attention
from mirage_kernels.generator.schedules.wgmma_attention.knobs import WgmmaAttention
from mirage_kernels.generator.target import Target

FEW_TILES_ROWS = 8  # up to which few work tiles have a variant: with more, registers do not suffice
PASSES_OF_A_SPLIT = 3  # in proofs: passes of the loop that a block makes
KNOBS: dict[str, type[AttentionKnobs]] = {k.schedule: k for k in (FlashDecode, WgmmaAttention)}


def read_knobs(data: Mapping[str, Json]) -> AttentionKnobs:
    """Read knobs among an object's fields; raises ValueError saying what is wrong."""
    name = data["schedule"]
    if name not in KNOBS:
        raise ValueError(f"there is no schedule of attention called {name}")
    return from_data(KNOBS[str(name)], dict(data))


@dataclass(frozen=True)
class AttentionVariant:
    """A kernel with fixed knobs, and the largest number of rows it is chosen for (0 = any)."""

    bucket: int
    knobs: AttentionKnobs
    few_tiles: bool = False  # for calls of few work tiles only, with much to read for each

    @property
    def is_dynamic(self) -> bool:
        """Say whether blocks claim whole work tiles, for calls of many."""
        return isinstance(self.knobs, FlashDecode) and self.knobs.dynamic > 0

    @property
    def name(self) -> str:
        """The name of its knobs: `UpTo8Rows`, `AnyRows`, `AnyRowsFewTiles`."""
        rows = f"UpTo{self.bucket}Rows" if self.bucket else "AnyRows"
        return f"{rows}{self.work_tiles.capitalize()}Tiles" if self.work_tiles else rows

    @property
    def work_tiles(self) -> str:
        """How many work tiles a call has that it serves: few, many; nothing where that is open."""
        return "few" if self.few_tiles else "many" if self.is_dynamic else ""

    def to_json(self) -> dict[str, Json]:
        """Return bucket, schedule and knobs as JSON data."""
        few: dict[str, Json] = {"few_tiles": 1} if self.few_tiles else {}
        return {"bucket": self.bucket, **few, **self.knobs.to_json()}

    def tiles(self, roles: AttentionRoles) -> dict[str, int]:
        """Return the tile sizes of the muGraph that this variant runs, by `Axis.tile_key`.

        Blocks split the keys into whole passes of the loop. With several tokens a tile's rows are
        those of two tokens here: rows do not know of each other.
        """
        keys = self.knobs.pass_keys
        tokens = min(2, self.knobs.rows) if roles.tokens else 1
        tiles = {roles.sequences: 1, roles.group: self.knobs.rows // tokens}
        if roles.heads:
            tiles[roles.heads] = 1
        if roles.tokens:
            tiles[roles.tokens] = tokens
        return tiles | {roles.keys: keys, parts_of(roles.keys): PASSES_OF_A_SPLIT * keys}


def attention_variants(program: AttentionProgram, on: Target) -> tuple[AttentionVariant, ...]:
    """Return one or two variants per bucket of rows; the last takes any number.

    Where blocks share a multiprocessor, one with a single large block serves few long work tiles.
    Buckets of more rows than a block can hold are left away. Raises PlanError for a depth whose
    lines are not 16-byte aligned, and where the shortest pipeline does not fit in any case.
    """
    _require_aligned(program)
    found = list(_of_few_rows(program, on))
    if not found:
        raise PlanError(
            f"{program.recipe}: {flash_decode.FEWEST_STAGES} stages of {program.depth} elements "
            f"need more shared memory than the {on.shared_bytes} bytes of a block"
        )
    many = wgmma_attention.rule(program, on)
    if many:
        return (*found, AttentionVariant(0, many))
    widest = max(v.bucket for v in found)
    return tuple(replace(v, bucket=0) if v.bucket == widest else v for v in found)


def _of_few_rows(program: AttentionProgram, on: Target) -> Iterator[AttentionVariant]:
    for rows in flash_decode.ROW_BUCKETS:
        knobs = flash_decode.rule(rows, program, on, flash_decode.BLOCK_SHAPES)
        if knobs is None:
            return
        large = flash_decode.rule(rows, program, on, (flash_decode.FEW_TILES,))
        if large and knobs.blocks > large.blocks and rows <= FEW_TILES_ROWS:
            yield AttentionVariant(rows, large, few_tiles=True)
        yield AttentionVariant(rows, knobs)


def _require_aligned(program: AttentionProgram) -> None:
    roles = program.roles
    for dim, depth in ((roles.depth, program.depth), (roles.more, program.more_depth)):
        if depth % 8:
            raise PlanError(
                f"{program.recipe}: lines of {depth} elements are not 16-byte aligned",
                f"choose {dim} as a multiple of 8",
            )


def with_dynamic(
    program: AttentionProgram, variants: Sequence[AttentionVariant]
) -> tuple[AttentionVariant, ...]:
    """Return variants and, before those of small blocks, the same with a dynamic tile scheduler."""
    found: list[AttentionVariant] = []
    for variant in variants:
        dynamic = flash_decode.dynamic(program, variant.knobs)
        if dynamic is not None and not variant.few_tiles:
            found.append(replace(variant, knobs=dynamic))
        found.append(variant)
    return tuple(found)
