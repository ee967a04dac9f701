"""The attention program: what one block does with its share of keys, statement by statement.

Its muGraphs are of the form "blocks split L, loop over L, combine" with a running maximum. A work
tile is one sequence, one head of the cache and one tile of query rows. All key blocks of all work
tiles are split evenly over the blocks of a grid as large as the GPU, and a block's keys over its
warps. What a block has of one work tile is a work item; the blocks that share a work tile combine
in the same kernel, each relative to its own maximum (csrc/tile/attention).

`lower.py` makes it of the muGraph's tile program, `interpret.py` runs it. Flash decode and
attention by wgmma both carry it out, and the writer (`writer.py`) reads nothing else. Which dim has
which role follows from the tile program alone: no recipe is named here.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from mirage_kernels.generator.errors import PlanError
from mirage_kernels.generator.ir import DType, TensorType
from mirage_kernels.generator.plan.program import needed


class Place(Enum):
    """What a value is to the block: the dims that it varies along, of those the plan knows."""

    QUERIES = "rows x depth"  # the tile of queries, once per work item
    KEYS = "keys x depth"  # one step's lines of the cache
    SCORES = "keys x rows"  # accumulators of their product, and what is computed of them
    KEY_VECTOR = "keys"
    ROW_VECTOR = "rows"
    DEPTH_VECTOR = "depth"
    SCALAR = "scalar"  # one number; of each sequence, perhaps


@dataclass(frozen=True)
class AttentionRoles:
    """Which role each dim of the program has."""

    keys: str  # looped over, and split between blocks
    depth: str  # contracted for the scores; the values have it too
    rows: tuple[str, ...]  # of queries only: tokens of a sequence if it has any, heads of a group
    heads: str  # of keys and values; "" if there is one, without a dim
    sequences: str
    more: str = ""  # contracted for the scores too, where the values are not as long as the keys

    @property
    def tokens(self) -> str:
        """The dim of several query tokens per sequence; "" if there is one."""
        return self.rows[0] if len(self.rows) > 1 else ""

    @property
    def group(self) -> str:
        """The dim of the query heads that share a head of keys."""
        return self.rows[-1]

    def place(self, type_: TensorType) -> Place | None:
        """Return what a value with these dims is; None if the plan has no place for it."""
        words = {self.keys: "keys", self.depth: "depth", self.more: "depth"}
        words |= {**dict.fromkeys(self.rows, "rows"), self.heads: "", self.sequences: ""}
        found = sorted({words.get(d, "?") for d in type_.names} - {""}, key="keys rows depth".find)
        return next((p for p in Place if p.value == (" x ".join(found) or "scalar")), None)

    @property
    def counted(self) -> str:
        """What buckets count: query rows, `T*G`."""
        return "*".join(self.rows)


class Do(Enum):
    """What a statement does; the sources first."""

    QUERIES = "queries"  # the work item's tile of queries
    KEYS = "keys"  # the step's lines of the keys
    LENGTH = "length"  # of the work item's sequence, in keys
    VECTOR = "vector"  # an input along the depth only, perhaps by head
    ROW_VECTORS = "row vectors"  # the lines of an input by query heads, one per query row
    KEY_POSITIONS = "key positions"  # 0, 1, .. along the keys
    ROW_TOKENS = "row tokens"  # 0, 1, .. along the query tokens
    TOKEN_COUNT = "token count"  # how many query tokens the sequence has
    MAP = "map"  # elementwise, broadcast by kind
    LINE_SUM = "line sum"  # of the products of two tiles, or of one tile, along the depth
    SCORES = "scores"  # the step's keys times the resident queries
    MORE_QUERIES = "more queries"  # what the queries have along a dim that the values lack
    MORE_KEYS = "more keys"  # the same of the step's keys
    MORE_SCORES = "more scores"  # their product
    RAISE = "raise"  # the running peak; all that is carried is rescaled to it
    SUM = "sum"  # the carried sum += sum over the step's keys
    PRODUCT = "product"  # the carried product += values times weights
    SOFTMAX = "online softmax"  # the last three, with what they are computed of, as one statement
    STORE = "store"  # one element of the result


@dataclass(frozen=True)
class Step:
    """One statement of an attention program."""

    do: Do
    out: str
    args: tuple[str, ...]
    type: TensorType  # of `out`
    op: str = ""  # of a map
    covers: tuple[Step, ...] = ()  # the statements that an online-softmax step stands for

    @property
    def dtype(self) -> DType:
        """Element type of the result."""
        return self.type.dtype


@dataclass(frozen=True)
class Carried:
    """A sum that is carried: its name in the loop, and once the blocks have combined."""

    name: str
    whole: str
    type: TensorType


Literal = float | int | str  # an fp32 constant, an int32 one, a dim's extent by its name
WIDEST_PARTITIONED = 256  # elements that a warp has at once, 16 bytes to a lane


@dataclass(frozen=True)
class AttentionProgram:
    """All that the writer needs; statements in order, by phase of the kernel."""

    recipe: str
    roles: AttentionRoles
    tensors: Mapping[str, str]  # role -> input: queries, keys, values
    scalars: tuple[str, ...]  # fp32 inputs without dims, in recipe order
    integers: tuple[str, ...]  # the same of int32
    vectors: tuple[str, ...]  # inputs along the depth, by head or for all, in recipe order
    depth: int  # extent of the contracted dim
    literals: Mapping[str, Literal]  # of constants and extents, by name
    before: tuple[Step, ...]  # once per work item
    resident: str  # the operand that all steps multiply their keys with
    more_resident: str  # the same along the dim that the values lack; "" if there is none
    more_depth: int  # extent of that dim
    peak: str
    sum: Carried
    product: Carried
    loop: tuple[Step, ...]  # once per step of keys
    after: tuple[Step, ...]  # once per element of the result

    @property
    def key_work(self) -> int:
        """Return what steps do with keys: 0 products, 1 sums of lines too, 2 new lines of them."""
        if any(s.do is Do.MAP and self.roles.place(s.type) is Place.KEYS for s in self.loop):
            return 2
        return int(any(s.do is Do.LINE_SUM for s in self.loop))

    @property
    def sizes(self) -> tuple[int, int, int]:
        """Return what the shared memory of a block depends on, beside knobs."""
        return self.depth, self.more_depth, self.key_work

    @property
    def partitioned(self) -> frozenset[str]:
        """Return the values of the queries' side that threads share, 16 bytes of a line to each.

        These are all that the resident tile is computed from. None, if nothing is computed, or if
        something else needs one of them: then lanes hold them as the products want them.
        """
        wanted = needed(self.before, {self.resident})
        tiles = {s.out for s in wanted if self.roles.place(s.type) is not Place.SCALAR}
        others = (s for s in (*self.before, *self.loop, *self.after) if s not in wanted)
        used = {a for s in others for a in s.args}
        kinds = {s.do for s in wanted if s.out in tiles}
        fits = self.key_work > 0 and not self.roles.more and self.depth <= WIDEST_PARTITIONED
        alone = Do.MAP in kinds and Do.ROW_TOKENS not in kinds and not used & tiles
        return frozenset(tiles if fits and alone else ())


def form_name(program: AttentionProgram) -> str:
    """Return a name for what a program computes and how; extents and tiles are no part of it."""
    loop = (one for s in program.loop for one in s.covers or (s,))
    steps = (*program.before, *loop, *program.after)
    text = "\n".join(f"{s.do.value} {s.op} {s.out} {' '.join(s.args)}" for s in steps)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def require(holds: object, sentence: str, hint: str = "") -> None:
    """Refuse a muGraph, with the reason, unless what attention needs of it holds."""
    if not holds:
        raise PlanError(sentence, hint)
