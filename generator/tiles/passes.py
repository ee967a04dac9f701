"""Kernels whose threads go through elements once: no tile needs to hold what they read.

They make all results element by element, or sums side by side, or hold rows in registers: where a
row fits the lanes of a warp, these join their shares of it, and go on with what they have read.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import replace

from mirage_kernels.generator.ir import OPS, Dim, DType, Graph, Kind, Node, Phase, TensorType
from mirage_kernels.generator.tiles.program import WARP, BlockProgram, joined_by
from mirage_kernels.generator.tiles.statements import Reduce, Rows, Store
from mirage_kernels.generator.tiles.vectors import WIDTHS, has_uneven_rows

_JOINS = ("sum", "contract", "amax", "peak")
_PLAIN = (Kind.ELEMENTWISE, Kind.SOURCE, Kind.OUTPUT)


def is_one_pass(body: Graph) -> bool:
    """Say whether threads make all results of a block element by element, in the same order."""
    plain = all(OPS[n.op].kind in _PLAIN for n in body.nodes)
    loop = body.space is not None and body.space.loop is not None
    return plain and not loop and alike_results(body)


def alike_results(body: Graph) -> bool:
    """Say whether all results of a block have the same dims in the same order."""
    stored = body.of("output")
    orders = {n.out.type.names for n in stored}
    made = {frozenset(body.values[n.args[0]].type.names) for n in stored}
    return len(orders) == 1 and made == {*map(frozenset, orders)}


def are_one_pass(body: Graph, names: AbstractSet[str]) -> bool:
    """Say whether threads make values in one pass: all results of a block, or sums side by side.

    These take inputs alone, and go along one dim, which is contiguous in all that they read.
    """
    if is_one_pass(body):
        return True
    kinds = {n.name: OPS[n.op].kind for n in body.nodes}
    plain = (Kind.ELEMENTWISE, Kind.SOURCE)
    said = [n for n in body.nodes if kinds[n.name] not in plain]
    first = next((i for i, n in enumerate(said) if n.name in names), 0)
    sums = said[first : first + len(names)]
    if {n.name for n in sums} != names or {kinds[x] for x in names} != {Kind.REDUCE}:
        return False

    def leaves(name: str) -> set[str]:
        args = body.producers[name].args if kinds[name] is Kind.ELEMENTWISE else ()
        return set[str]().union(*map(leaves, args)) if args else {name}

    read = {x for n in sums for a in n.args for x in leaves(a)}
    orders = [t.names for t in (body.values[x].type for x in read) if t.dims]
    alike = len({(n.op, n.over, n.out.type.dims) for n in sums}) == 1
    inputs = all(kinds[x] is Kind.SOURCE for x in read)
    return alike and inputs and all(order[-1] == sums[0].over for order in orders)


def with_held_rows(program: BlockProgram) -> BlockProgram:
    """Return the program of a kernel whose rows fit the lanes of a warp with these held by threads.

    Any other program is returned as it is.
    """
    rows = held_rows(program.body, program.extents)
    if rows is None or rows.joins[0].over in program.scattered:
        return program
    said = {**dict.fromkeys(Phase, ()), Phase.BEFORE: (rows,)}
    return replace(program, tiles={}, statements=said)


def held_rows(body: Graph, extents: Mapping[str, Dim]) -> Rows | None:
    """Return the one statement of a kernel whose threads can hold rows, else nothing.

    It joins along one dim, which no axis cuts. That is contiguous in all that has it, and all
    results do: so a thread goes on with the vectors that it has joined its share of.
    """
    joins = [n for n in body.nodes if OPS[n.op].kind not in _PLAIN]
    if not joins or body.space is None or body.space.loop or body.space.reduced:
        return None
    over, stored = joins[0].over, body.of("output")
    if any(n.op not in _JOINS or n.over != over for n in joins) or not alike_results(body):
        return None
    row, size = extents[over], body.values[joins[0].args[0]].type.dims
    whole = not row.dynamic and next((d.size for d in size if d.name == over), 0) == row.size
    lanes = 1 << (-(-row.size // WIDTHS[0]) - 1).bit_length()
    types = [n.out.type for n in (*body.inputs, *stored) if over in n.out.type.names]
    if not whole or lanes > WARP or not all(_is_even(t, over, extents) for t in types):
        return None
    if any(over not in n.out.type.names for n in stored):
        return None
    made = tuple(_join(n) for n in joins)
    return Rows((), (), made, tuple(Store((), (), n.name, n.args[0]) for n in stored), lanes)


def _is_even(tile: TensorType, over: str, extents: Mapping[str, Dim]) -> bool:
    """Say whether rows of a tensor are whole vectors along a dim."""
    whole = TensorType(tuple(extents[d] for d in tile.names), tile.dtype)
    even = whole.dims[-1].size % WIDTHS[0] == 0 and not has_uneven_rows(whole)
    return tile.names[-1] == over and even and tile.dtype is not DType.BOOL


def _join(node: Node) -> Reduce:
    value, other = (*node.args, "")[:2]
    return Reduce((), (), node.name, value, other, joined_by(node), node.over)
