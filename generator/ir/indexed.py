"""Tensors that a kernel takes or writes row by row, where an index tensor says.

To a program, its search and its proof such a tensor is one like others, `cos [M, D]`. Only its
address differs: in memory it is `[rows, D]`, and its element `[m, d]` lies at `[index[m], d]`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from mirage_kernels.generator.ir.graph import Dim, TensorType

RESULT = "result_"  # in front of a result's number, in place of a name


@dataclass(frozen=True)
class Indexed:
    """How an input or a result is addressed through an index tensor.

    An index that is none of a row's reads zeros and writes nothing. Where two write one row, it is
    open whose elements it holds behind. Rows may lie in pages, in memory `[rows, page, D]`: row r
    is row r % page of page r // page, of fewer than 2^31.
    """

    tensor: str  # an input's name, or `result_0`
    dims: tuple[str, ...]  # what numbers the index tensor's elements, none where that has one
    place: int  # of the rows among the dims in memory; they are not the last
    rows: Dim
    by: str  # name of the index tensor
    dtype: str  # int32 or int64; int: either, as each call says
    wraps: bool = False  # negative numbers count from the last row
    page: Dim | None = None  # of rows, whose pages `rows` counts
    unknown_is_nan: bool = False  # an index that is none of a row's reads NaN

    @property
    def counts(self) -> tuple[Dim, ...]:
        """How many rows there are: so many, or pages of so many."""
        return (self.rows, self.page) if self.page else (self.rows,)

    def memory(self, dims: Iterable[Dim]) -> tuple[Dim, ...]:
        """Return the dims of the tensor in memory, of those that a program gives it."""
        own = [d for d in dims if d.name not in self.dims]
        return (*own[: self.place], *self.counts, *own[self.place :])

    def numbers(self, type_: TensorType) -> tuple[Dim, ...]:
        """Return the dims of the index tensor."""
        return tuple(type_.dim(d) for d in self.dims)


def index_tensors(indexed: Sequence[Indexed]) -> list[Indexed]:
    """Return the first that each index tensor addresses: so kernels take index tensors."""
    found: dict[str, Indexed] = {}
    for one in indexed:
        found.setdefault(one.by, one)
    return [*found.values()]


def of_results(indexed: Sequence[Indexed], outputs: Sequence[str]) -> dict[str, Indexed]:
    """Return tensors that are indexed by their names in a graph with such results."""
    names = {f"{RESULT}{i}": name for i, name in enumerate(outputs)}
    return {names.get(x.tensor, x.tensor): x for x in indexed}
