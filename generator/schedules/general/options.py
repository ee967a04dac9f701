"""The knobs of a general kernel that are tried: tile sizes by axis, threads and stages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

from mirage_kernels.generator.ir import MOST_PARTS, Axis, Graph, Kind, Space, held_dims, ops_of_kind
from mirage_kernels.generator.ir.dtypes import STORAGE_DTYPES
from mirage_kernels.generator.ir.ops import COMBINES
from mirage_kernels.generator.meaning.cost import contiguous_dims
from mirage_kernels.generator.tiles.vectors import has_uneven_rows

LONG = 4096  # of a dynamic dim that is summed along
THREADS = (64, 128, 256, 512)
STAGES = (2, 3, 4, 5, 6)
LEAST_OF_PRODUCT = 8  # elements of a tile along its dims: fewer are computed as so many
LITTLE = 8  # times fewer elements than the largest tensor of a muGraph
LEAST_PART = 64  # elements of a sum's part along a contiguous dim
GRID_TILES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
WORD_TILES = (24, 56, 120, 248)  # of uneven rows that are summed up: 4, 8, 16, 32 words hold them
WIDE_TILES = (512, 1024, 2048, 4096, 8192)  # of a dim along which blocks sum up the same
ROWS = (1, 2, 4, 8)  # of a dim that is summed along and contiguous in no tensor, besides
LOOP_TILES = (16, 32, 64, 128, 256, 512, 1024, 2048)
MOST_BLOCKS = 8  # of a cluster, on all architectures that have them
CLUSTERS = (1, 2, 4, 6, MOST_BLOCKS)  # that hold a row; six may leave fewer processors idle
PARTS = (1, 2, 4, MOST_BLOCKS, 32, 128, 512, LONG)  # over 8: another kernel adds them
MORE_PARTS = (3, 6, 16)  # that are measured besides: how many blocks run at once is no power of two
LOOPED_PARTS = (1, 2, 4, MOST_BLOCKS, 16, MOST_PARTS)  # of a dim of any extent, in loops

_SUMS = ops_of_kind(Kind.REDUCE, Kind.STABILISER)


def combines(graph: Graph, space: Space) -> bool:
    """Say whether the blocks of a kernel combine what they sum, in a cluster."""
    bodies = (k.body for k in graph.blocks if k.body is not None and k.body.space == space)
    return any(n.op in COMBINES for body in bodies for n in body.nodes)


def choices(graph: Graph, sizes: Mapping[str, int]) -> dict[str, tuple[int, ...]]:
    """Return the values of every knob that are tried, by name; tile sizes by `Axis.tile_key`."""
    found: dict[str, tuple[int, ...]] = {}
    of_products, again = _product_dims(graph), _summed_again(graph)
    in_words = _summed_in_words(graph)
    along, held = set[str](), set[str]()
    dynamic, little = _dynamic(graph), _of_little(graph, sizes) - of_products
    for kernel in graph.blocks:
        assert kernel.body is not None
        along |= contiguous_dims(kernel.body)
        held |= held_dims(kernel.body)
    for space in graph.spaces:
        for axis in space.axes:
            options = _tiles(axis, space.loop, sizes[axis.dim], wide=axis.dim in again)
            if axis.dim in in_words and sizes[axis.dim] > WORD_TILES[-1]:
                options = WORD_TILES
            if axis.reduced and axis.dim in held:
                options = tuple(sorted({_part(sizes[axis.dim], n) for n in CLUSTERS}))
            elif axis.reduced and not combines(graph, space):
                few = axis.dim in dynamic and space.loops_over(axis)
                least = LEAST_PART if axis.dim in along - little else 1
                options = _part_tiles(sizes[axis.dim], least, LOOPED_PARTS if few else PARTS)
            elif axis is space.loop and axis.dim not in along:
                options = (*ROWS, *options)
            if axis.dim in of_products:
                options = tuple(t for t in options if t >= LEAST_OF_PRODUCT) or options[-1:]
            shared = set(found.get(axis.tile_key, options)) & set(options)
            found[axis.tile_key] = tuple(sorted(shared)) or options
    stages = STAGES if any(s.loop for s in graph.spaces) else STAGES[:1]
    threads = THREADS[1:] if held else THREADS  # parts of long rows are work for many
    return {**found, "threads": threads, "stages": stages}


def _summed_in_words(graph: Graph) -> set[str]:
    """Return the last dims of tensors whose uneven rows a kernel sums up, and nothing else."""
    found = set[str]()
    for kernel in graph.blocks:
        body, types = kernel.body, [graph.values[a].type for a in kernel.args]
        types = [t for t in types if t.dims]
        if not body or not body.space or body.space.loop or body.space.reduced or len(types) != 1:
            continue
        (given,) = types
        over = {d for d in given.dims[:-1] if d.name in {n.over for n in body.of(*_SUMS)}}
        uneven = given.dtype in STORAGE_DTYPES and has_uneven_rows(given)
        if uneven and over and not any(d.dynamic for d in over):
            found.add(given.names[-1])
    return found


def _product_dims(graph: Graph) -> set[str]:
    """Return the dims whose tiles are rounded up for products: depth, last of rows and columns."""
    found = set[str]()
    for kernel in graph.blocks:
        assert kernel.body is not None
        for node in kernel.body.of("contract"):
            a, b = (kernel.body.values[x].type.names for x in node.args)
            own = ([d for d in mine if d not in other] for mine, other in ((a, b), (b, a)))
            found |= {node.over, *(dims[-1] for dims in own if dims)}
    return found


def _of_little(graph: Graph, sizes: Mapping[str, int]) -> set[str]:
    """Return the dims along which only small tensors are contiguous: a number of each long row."""
    types = [graph.values[a].type for k in graph.blocks for a in k.args]
    elements = {t: prod(sizes.get(d.name, d.size) for d in t.dims) for t in types if t.dims}
    most = max(elements.values(), default=0)
    large = {t.names[-1] for t, count in elements.items() if count * LITTLE >= most}
    return {t.names[-1] for t in elements} - large


def _part_tiles(size: int, least: int, parts: Sequence[int]) -> tuple[int, ...]:
    return tuple(sorted({-(-size // n // least) * least for n in parts}))


def more_parts(size: int) -> tuple[int, ...]:
    """Return other lengths of the parts of a sum, whole steps of most loops."""
    return _part_tiles(size, LEAST_PART, MORE_PARTS)


def _part(size: int, blocks: int) -> int:
    """Return the elements of each of so many blocks of a cluster."""
    return max(LEAST_PART, -(-size // blocks // LEAST_PART) * LEAST_PART)


def _summed_again(graph: Graph) -> set[str]:
    """Return the static dims whose blocks each sum up an input that the dim does not cut.

    The fewer blocks there are along such a dim, the less often the input is read.
    """
    found = set[str]()
    for body in (k.body for k in graph.blocks if k.body):
        grid = body.space.grid if body.space else ()
        sums = {n.over for n in body.nodes if n.op in _SUMS}
        for node in (n for n in body.inputs if sums & {*n.out.type.names}):
            cuts = zip(grid, node.cuts, strict=False)
            found |= {axis.dim for axis, cut in cuts if cut is None}
    return found - _dynamic(graph) - _product_dims(graph)


def _dynamic(graph: Graph) -> set[str]:
    return {d.name for v in graph.values.values() for d in v.type.dims if d.dynamic}


def _tiles(axis: Axis, loop: Axis | None, size: int, *, wide: bool) -> tuple[int, ...]:
    if axis.reduced:
        return tuple(sorted({_part(size, n) for n in (1, 2, 4, MOST_BLOCKS)}))
    wanted = LOOP_TILES if axis is loop else (*GRID_TILES, *(WIDE_TILES if wide else ()))
    whole = next((t for t in wanted if t >= size), wanted[-1])
    return tuple(t for t in wanted if t <= whole)
