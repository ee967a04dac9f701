"""Extents of results: what each positional operator takes and gives, and how blocks cut tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

from mirage_kernels.generator.errors import GraphError
from mirage_kernels.generator.frontend.positional.program import (
    AXES,
    NOWHERE,
    Block,
    Extents,
    Step,
    Three,
)

ACCUMULATIONS = ("", "sum", "mean", "rms", "sum_todimx")
RESCALED = ("", "sum")
MOST_DIMS = 8
LARGEST = 2**40  # elements: beyond it no tensor is meant

# Step, extents of its operands, the block graph around it (None at kernel level) -> extents
# of its results.
ShapeRule = Callable[[Step, Sequence[Extents], "Block | None"], list[Extents]]


def _text(extents: Extents) -> str:
    return f"[{', '.join(map(str, extents))}]"


def check_extents(extents: Extents, what: str) -> Extents:
    """Return extents that a tensor can have; raise GraphError otherwise."""
    too_many = not 1 <= len(extents) <= MOST_DIMS
    if too_many or min(extents) < 1 or prod(extents) > LARGEST:
        raise GraphError(
            f"{what} has the dims {_text(extents)}",
            f"a tensor has 1 to {MOST_DIMS} dims, each of at least 1 element",
        )
    return extents


def check_position(step: Step, extents: Extents) -> None:
    """Raise GraphError for a step over a dim that its operand lacks."""
    if not 0 <= step.dim < len(extents):
        raise GraphError(f"{step.op} over dim {step.dim}: the tensor has the dims {_text(extents)}")


def _with(extents: Extents, dim: int, size: int) -> Extents:
    return (*extents[:dim], size, *extents[dim + 1 :])


def same(step: Step, args: Sequence[Extents], block: Block | None) -> list[Extents]:
    """Return the extents of the operand."""
    return [args[0]]


def broadcast(step: Step, args: Sequence[Extents], block: Block | None) -> list[Extents]:
    """Return the larger of two extents, dim by dim; one of them may be 1."""
    a, b = args
    if len(a) != len(b) or any(m != n and 1 not in (m, n) for m, n in zip(a, b, strict=True)):
        raise GraphError(
            f"{step.op} of {_text(a)} and {_text(b)}: the dims don't fit",
            "operands have equally many dims; each pair is equal, or one of them is 1",
        )
    return [tuple(map(max, a, b))]


def elementwise(step: Step, args: Sequence[Extents], block: Block | None) -> list[Extents]:
    """Return the extents of an elementwise result."""
    return (same if len(args) == 1 else broadcast)(step, args, block)


def matmul(step: Step, args: Sequence[Extents], block: Block | None) -> list[Extents]:
    """[..., M, K] and [..., K, N]  ->  [..., M, N]."""
    a, b = args
    if len(a) != len(b) or len(a) < 2 or a[-1] != b[-2] or a[:-2] != b[:-2]:
        raise GraphError(
            f"matmul of {_text(a)} and {_text(b)}: the dims don't fit",
            "operands are [..., M, K] and [..., K, N] with the same leading dims",
        )
    return [(*a[:-1], b[-1])]


def _shortened(extents: Extents, dim: int, size: int, what: str) -> Extents:
    if size < 1 or extents[dim] % size:
        raise GraphError(f"{what}: dim {dim} of {_text(extents)} does not reduce to {size}")
    return _with(extents, dim, size)


def reduction(step: Step, args: Sequence[Extents], block: Block | None) -> list[Extents]:
    """Shorten a dim to `step.size` elements."""
    return [_shortened(args[0], step.dim, step.size, step.op)]


def reduction_max(step: Step, args: Sequence[Extents], block: Block | None) -> list[Extents]:
    """Return the extents of a running maximum, twice: the other result is how much it grew."""
    return [_shortened(args[0], step.dim, 1, step.op)] * 2


def accum(step: Step, args: Sequence[Extents], block: Block | None) -> list[Extents]:
    """Keep the extents, or shorten the last dim as the kind of accumulation says."""
    assert block is not None
    if step.kind not in (ACCUMULATIONS if step.op == "accum" else RESCALED):
        raise GraphError(
            f"there is no {step.op} of the kind {step.kind!r}",
            f"kinds: None, {', '.join(filter(None, ACCUMULATIONS))}; rescaled: None, sum",
        )
    if not step.kind:
        return [args[0]]
    size = block.dimx if step.kind == "sum_todimx" else 1
    return [_shortened(args[0], len(args[0]) - 1, size, f"accumulation {step.kind!r}")]


def concat(step: Step, args: Sequence[Extents], block: Block | None) -> list[Extents]:
    """Add up one dim; the others are equal."""
    (a, b), at = args, step.dim
    if len(a) != len(b) or _with(a, at, 0) != _with(b, at, 0):
        raise GraphError(f"concat of {_text(a)} and {_text(b)} along dim {at}: the dims don't fit")
    return [_with(a, at, a[at] + b[at])]


def check_block(block: Block) -> None:
    """Raise GraphError for a grid, a loop or a `reduction_dimx` that cannot be."""
    if min(*block.grid, block.loop_range, block.dimx) < 1:
        raise GraphError(
            f"a block graph with grid {block.grid}, forloop_range {block.loop_range} and "
            f"reduction_dimx {block.dimx}",
            "all of them are at least 1",
        )


def cut_dims(maps: Three, grid: Three, what: str) -> list[tuple[str, int, int]]:
    """Return axis, dim and number of parts of every cut that a map makes on a grid.

    An axis of one block cuts nothing. Raises GraphError when two axes cut one dim.
    """
    cuts = [
        (axis, dim, count)
        for axis, dim, count in zip(AXES, maps, grid, strict=True)
        if count > 1 and dim != NOWHERE
    ]
    dims = [dim for _, dim, _ in cuts]
    if len(set(dims)) < len(dims):
        raise GraphError(f"{what}: two grid axes cut the same dim, map {maps} on grid {grid}")
    return cuts


def _check_named(extents: Extents, dim: int, what: str) -> None:
    if not 0 <= dim < len(extents):
        raise GraphError(f"{what} names dim {dim} of a tensor {_text(extents)}")


def tile_extents(step: Step, whole: Extents, block: Block) -> Extents:
    """Return the extents of the tile that a block's input gives its blocks in one iteration."""
    what = f"the input map {step.maps} of a tensor {_text(whole)}"
    cuts = [(dim, count) for _, dim, count in cut_dims(step.maps, block.grid, what)]
    if step.dim != NOWHERE:
        cuts.append((step.dim, block.loop_range))
    tile = whole
    for dim, count in cuts:
        _check_named(tile, dim, what)
        if tile[dim] % count:
            raise GraphError(
                f"{what}: dim {dim} of {tile[dim]} does not fall into {count} equal tiles",
                "Mirage's programs divide evenly: choose another grid or forloop_range",
            )
        tile = _with(tile, dim, tile[dim] // count)
    return tile


def stored_extents(step: Step, tile: Extents, block: Block) -> Extents:
    """Return the extents of the tensor that the blocks' tiles make together."""
    what = f"the output map {step.maps} of a tile {_text(tile)}"
    for _, dim, count in cut_dims(step.maps, block.grid, what):
        _check_named(tile, dim, what)
        tile = _with(tile, dim, tile[dim] * count)
    return check_extents(tile, "the output of a block graph")
