"""Extents of results: Mirage's rules for what each operator takes and gives, by position."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mirage_kernels.generator.errors import GraphError
from mirage_kernels.generator.frontend.mirage.program import (
    AXES,
    NOWHERE,
    Block,
    Extents,
    Step,
    Three,
)

UNARY = ("exp", "log", "sqrt", "square", "sigmoid", "silu", "gelu", "relu", "tanh")
WITH_NUMBERS = {"mul_scalar": 1, "clamp": 2}
BINARY = ("add", "sub", "mul", "div")
ACCUMULATIONS = ("", "sum", "mean", "rms", "sum_todimx")
RESCALED = ("", "sum")
MOST_DIMS = 8
LARGEST = 2**40  # elements: beyond it no tensor is meant

Rule = Callable[[Step, Sequence[Extents], "Block | None"], list[Extents]]


def _text(extents: Extents) -> str:
    return f"[{', '.join(map(str, extents))}]"


def check_extents(extents: Extents, what: str) -> Extents:
    """Return extents that a tensor can have; raise GraphError otherwise."""
    elements = 1
    for n in extents:
        elements *= n
    if not extents or len(extents) > MOST_DIMS or min(extents) < 1 or elements > LARGEST:
        raise GraphError(
            f"{what} has the dims {_text(extents)}",
            f"a tensor has 1 to {MOST_DIMS} dims, each of at least 1 element",
        )
    return extents


def _same(step: Step, args: Sequence[Extents], block: Block | None) -> list[Extents]:
    if len(step.numbers) != WITH_NUMBERS.get(step.op, 0):
        raise GraphError(
            f"{step.op} takes {WITH_NUMBERS.get(step.op, 0)} numbers, not {len(step.numbers)}"
        )
    return [args[0]]


def _broadcast(step: Step, args: Sequence[Extents], block: Block | None) -> list[Extents]:
    a, b = args
    fits = len(a) == len(b) and all(m == n or 1 in (m, n) for m, n in zip(a, b, strict=True))
    if not fits:
        raise GraphError(
            f"{step.op} of {_text(a)} and {_text(b)}: the dims don't fit",
            "operands have equally many dims; each pair is equal, or one of them is 1",
        )
    return [tuple(max(m, n) for m, n in zip(a, b, strict=True))]


def _matmul(step: Step, args: Sequence[Extents], block: Block | None) -> list[Extents]:
    a, b = args
    if len(a) != len(b) or len(a) < 2 or a[-1] != b[-2] or a[:-2] != b[:-2]:
        raise GraphError(
            f"matmul of {_text(a)} and {_text(b)}: the dims don't fit",
            "operands are [..., M, K] and [..., K, N] with the same leading dims",
        )
    return [(*a[:-1], b[-1])]


def _position(step: Step, extents: Extents) -> int:
    if not 0 <= step.dim < len(extents):
        raise GraphError(f"{step.op} over dim {step.dim}: the tensor has the dims {_text(extents)}")
    return step.dim


def _shortened(extents: Extents, position: int, size: int, what: str) -> Extents:
    if size < 1 or extents[position] % size:
        raise GraphError(f"{what}: dim {position} of {_text(extents)} does not reduce to {size}")
    return (*extents[:position], size, *extents[position + 1 :])


def _reduction(step: Step, args: Sequence[Extents], block: Block | None) -> list[Extents]:
    return [_shortened(args[0], _position(step, args[0]), step.size, step.op)]


def _reduction_max(step: Step, args: Sequence[Extents], block: Block | None) -> list[Extents]:
    shorter = _shortened(args[0], _position(step, args[0]), 1, step.op)
    return [shorter, shorter]  # the running maximum, and by how much it grew


def _rms_norm(step: Step, args: Sequence[Extents], block: Block | None) -> list[Extents]:
    _position(step, args[0])
    return [args[0]]


def _accum(step: Step, args: Sequence[Extents], block: Block | None) -> list[Extents]:
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


def _concat(step: Step, args: Sequence[Extents], block: Block | None) -> list[Extents]:
    a, b = args
    at = _position(step, a)
    if len(a) != len(b) or (a[:at], a[at + 1 :]) != (b[:at], b[at + 1 :]):
        raise GraphError(f"concat of {_text(a)} and {_text(b)} along dim {at}: the dims don't fit")
    return [(*a[:at], a[at] + b[at], *a[at + 1 :])]


RULES: dict[str, tuple[int, Rule]] = {  # op: number of operands, rule
    **dict.fromkeys((*UNARY, *WITH_NUMBERS), (1, _same)),
    **dict.fromkeys(BINARY, (2, _broadcast)),
    "matmul": (2, _matmul),
    "reduction": (1, _reduction),
    "rms_norm": (1, _rms_norm),
    "reduction_max": (1, _reduction_max),
    "accum": (1, _accum),
    "accum_rescale": (2, _accum),
    "accum_max": (1, _same),
    "concat": (2, _concat),
}
BLOCK_ONLY = ("reduction_max", "accum", "accum_rescale", "accum_max", "concat")


def result_extents(step: Step, args: Sequence[Extents], block: Block | None) -> list[Extents]:
    """Return the extents of a step's results; raise GraphError where its operands don't fit."""
    if step.op not in RULES or (block is None and step.op in BLOCK_ONLY):
        level = "kernel" if block is None else "block"
        known = [op for op in RULES if block is not None or op not in BLOCK_ONLY]
        raise GraphError(f"a {level} graph has no operator {step.op!r}", f"there are {known}")
    arity, rule = RULES[step.op]
    if arity != len(args):
        raise GraphError(f"{step.op} takes {arity} operands, not {len(args)}")
    return [check_extents(e, f"the result of {step.op}") for e in rule(step, args, block)]


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


def _scaled(extents: Extents, dim: int, factor: int, what: str) -> Extents:
    if not 0 <= dim < len(extents):
        raise GraphError(f"{what} names dim {dim} of a tensor {_text(extents)}")
    return (*extents[:dim], extents[dim] * factor, *extents[dim + 1 :])


def tile_extents(step: Step, whole: Extents, block: Block) -> Extents:
    """Return the extents of the tile that a block's input gives its blocks in one iteration."""
    what = f"the input map {step.maps} of a tensor {_text(whole)}"
    cuts = [(dim, count) for _, dim, count in cut_dims(step.maps, block.grid, what)]
    if step.dim != NOWHERE:
        cuts.append((step.dim, block.loop_range))
    tile = whole
    for dim, count in cuts:
        _scaled(tile, dim, 1, what)
        if tile[dim] % count:
            raise GraphError(
                f"{what}: dim {dim} of {tile[dim]} does not fall into {count} equal tiles",
                "Mirage's programs divide evenly: choose another grid or forloop_range",
            )
        tile = (*tile[:dim], tile[dim] // count, *tile[dim + 1 :])
    return tile


def stored_extents(step: Step, tile: Extents, block: Block) -> Extents:
    """Return the extents of the tensor that the blocks' tiles make together."""
    what = f"the output map {step.maps} of a tile {_text(tile)}"
    for _, dim, count in cut_dims(step.maps, block.grid, what):
        tile = _scaled(tile, dim, count, what)
    return check_extents(tile, "the output of a block graph")
