"""How many neighbouring elements a thread takes at once, and along which dim they lie."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from mirage_kernels.generator.ir import Dim, DType, TensorType
from mirage_kernels.generator.ir.dtypes import EIGHT_BITS
from mirage_kernels.generator.tiles.program import VECTOR_BYTES, BlockProgram, Tile
from mirage_kernels.generator.tiles.statements import Reduce

WIDTHS = (8, 4, 2, 1)  # elements of a vector
SHARED_AT_ONCE = 4  # what a thread computes of tiles alone, without a loop
BYTES_AT_ONCE, MOST_AT_ONCE = 64, 16  # that a thread reads of a tensor, one after the other


def lanes(
    program: BlockProgram, s: Reduce, values: Sequence[str], over: Dim
) -> tuple[list[Dim], str, int]:
    """Return the results in the order of lanes, the dim of a lane's vector, and its width."""
    tile, known = program.tiles[s.tile], program.tiles
    leaves = [x for v in values for x in program.leaves(v)]
    leaves = [x for x in leaves if program.type(x).dims and x not in program.iotas]
    orders = [[d.name for d in (known.get(x) or program.type(x)).dims] for x in leaves]
    last = [order[-1] for order in orders]
    fitting = [d for d in last if d in tile.names]
    fitting = [s.over, *fitting] if s.over in last or not last else fitting
    # Along which fewest values lie apart: those are read one by one.
    vector = min(fitting, key=lambda d: sum(d in order[:-1] for order in orders), default="")
    outs = sorted(tile.dims, key=lambda d: d.name == vector)
    size = next((d.size for d in (*outs, over) if d.name == vector), 1)
    read = [x for x in leaves if x not in known]
    most = widest(program, [x for x in read if not _shifts(program, x, vector)], vector)
    return outs, vector, next(w for w in WIDTHS if w <= most and size % w == 0)


def widest(program: BlockProgram, values: Sequence[str], along: str = "") -> int:
    """Return how many elements of tensors threads may take at once `along` a dim.

    One where an index tensor says where each lies, and one of uneven rows: neighbouring threads
    take neighbouring elements then, where no row but the first is aligned. But see `is_shifted`.
    """
    if along in program.scattered:
        return 1
    whole = [program.whole(v) for v in values if v in program.tensors]
    if any(map(has_uneven_rows, whole)):
        return 1
    return VECTOR_BYTES if all(t.dtype in EIGHT_BITS for t in whole) else WIDTHS[0]


def is_shifted(program: BlockProgram, value: str) -> bool:
    """Say whether threads read vectors of a tensor's uneven rows, each of two aligned words.

    They are shifted into place then: sums over 4096 rows of 4095 take 490 us, element by element
    615 (H200, 2.1 GB).
    """
    names = program.type(value).names
    if not names or not _shifts(program, value, names[-1]):
        return False
    if value in program.tiles:
        return tile_width(program, value) > 1
    for s in program.reductions:
        leaves = [x for v in s.values for x in program.leaves(v)]
        over = next(d for x in leaves for d in read_dims(program, x) if d.name == s.over)
        _, vector, width = lanes(program, s, s.values, over)
        if value in leaves and vector == names[-1] and width > 1:
            return True
    return False


def summed_words(program: BlockProgram, s: Reduce) -> str:
    """Return the tensor whose aligned words a sum goes through, or nothing.

    Words of uneven rows begin eight rows on where they began: threads that take every eighth row
    sum up words as they lie, and put the sums in place at the end. It has one tensor, its rows
    are summed whole, and the results are along them.
    """
    leaves = {x for v in s.values for x in program.leaves(v)}
    varied = [x for x in leaves if program.type(x).dims]
    results = program.tiles[s.tile].dims
    if s.carried or s.other or len(varied) != 1 or varied[0] in program.tiles or not results:
        return ""
    (name,), columns, over = varied, results[-1], program.extents[s.over]
    if columns.name != program.type(name).names[-1] or not _shifts(program, name, columns.name):
        return ""
    whole = not over.dynamic and program.type(name).dim(s.over).size == over.size
    threads = word_parts(program.threads, columns.size)
    return name if whole and threads and name not in program.optional else ""


def word_parts(threads: int, columns: int) -> int:
    """Return how many threads share the rows of each word of some columns: a multiple of eight."""
    width = WIDTHS[0]
    return 0 if columns % width else threads // (columns // width + 1) // width * width


def words_at_work(program: BlockProgram, value: str) -> float:
    """Return which part of the threads sums up words of a tensor as they lie, if a sum does."""
    for s in program.reductions:
        if summed_words(program, s) == value:
            columns = program.tiles[s.tile].dims[-1].size
            words = columns // WIDTHS[0] + 1
            return word_parts(program.threads, columns) * words / program.threads
    return 0.0


def with_parts(program: BlockProgram) -> BlockProgram:
    """Return a program with tiles for the sums of words that threads leave each other."""
    tiles = dict(program.tiles)
    for s in program.reductions:
        if summed_words(program, s):
            columns = program.tiles[s.tile].dims[-1]
            parts = Dim("parts", word_parts(program.threads, columns.size))
            tiles[f"{s.tile}_parts"] = Tile(f"{s.tile}_parts", (parts, columns), DType.FP32)
    return replace(program, tiles=tiles)


def widest_read(program: BlockProgram, value: str) -> int:
    """Return how many elements of a tensor threads read at once, as a reduction or a copy does."""
    return WIDTHS[0] if is_shifted(program, value) else widest(program, [value])


def tile_width(program: BlockProgram, value: str) -> int:
    """Return how many elements of uneven rows are shifted at once on their way to a tile."""
    row = program.tiles[value].dims[-1].size
    return next(w for w in WIDTHS if row % w == 0)


def read_dims(program: BlockProgram, value: str) -> tuple[Dim, ...]:
    """Return the dims of a value at hand as threads read it: uneven rows as whole vectors."""
    if value in program.tiles:
        return program.tiles[value].dims
    own = program.type(value)
    if value not in program.tensors or not uneven_row(own, program.extents):
        return own.dims
    size = -(-own.dims[-1].size // WIDTHS[0]) * WIDTHS[0]
    return (*own.dims[:-1], replace(own.dims[-1], size=size))


def uneven_row(tile: TensorType, extents: Mapping[str, Dim]) -> str:
    """Return the last dim of a tensor if a block takes uneven rows of it whole, else nothing."""
    whole = TensorType(tuple(extents[d] for d in tile.names), tile.dtype)
    shifted = whole.dtype.bytes * WIDTHS[0] == VECTOR_BYTES and has_uneven_rows(whole)
    return tile.names[-1] if shifted and tile.dims[-1].size == whole.dims[-1].size else ""


def _shifts(program: BlockProgram, value: str, along: str) -> bool:
    """Say whether vectors `along` a dim may be shifted into place as they are read."""
    if value not in program.tensors or value in program.indexed or not program.type(value).dims:
        return False
    whole = program.whole(value)
    halves = whole.dtype.bytes * WIDTHS[0] == VECTOR_BYTES
    return halves and has_uneven_rows(whole) and program.type(value).names[-1] == along


def at_once(vector: int) -> int:
    """Return how often a thread reads so many bytes of memory before it waits for the first."""
    if not vector:
        return SHARED_AT_ONCE
    wanted = BYTES_AT_ONCE if vector <= VECTOR_BYTES else 2 * BYTES_AT_ONCE
    return max(1, min(MOST_AT_ONCE, wanted // vector))


def lies_anywhere(tensor: TensorType) -> bool:
    """Say whether a tensor is read one by one: whole numbers, which are few, at any strides."""
    return tensor.dtype is DType.INT32


def has_uneven_rows(tensor: TensorType) -> bool:
    """Say whether the rows of a whole tensor are known to be no multiples of a vector.

    Those of a mask of any length count as such: it is one byte for several of other tensors. Whole
    numbers do not: they are read one by one.
    """
    row = tensor.dims[-1:]
    if lies_anywhere(tensor):
        return False
    if len(tensor.dims) < 2 or row[0].dynamic:
        return len(tensor.dims) > 1 and tensor.dtype is DType.BOOL
    return row[0].size * tensor.dtype.bytes % VECTOR_BYTES != 0
