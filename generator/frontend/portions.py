"""Nodes that torch.export made as a graph of named dims, and how their tensors lie in memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

from mirage_kernels.generator.errors import GraphError, RecipeError
from mirage_kernels.generator.frontend.dim_names import Dynamic, names_of, renamed, shared_dims
from mirage_kernels.generator.frontend.editing import is_view
from mirage_kernels.generator.frontend.export import applied, dtype_of, input_of, rounds
from mirage_kernels.generator.frontend.masks import is_positional, shown
from mirage_kernels.generator.frontend.merging import (
    are_rows,
    as_one,
    behind,
    gaps_of,
    grouped,
    lies_apart,
    merged,
    without_ones,
)
from mirage_kernels.generator.frontend.positional.lower import (
    InputDim,
    Layout,
    Lowered,
    flat,
    lower,
    sizes_of,
)
from mirage_kernels.generator.frontend.positional.program import Program, Step
from mirage_kernels.generator.frontend.rows import Rows, indexed_of
from mirage_kernels.generator.frontend.static_rows import with_rows
from mirage_kernels.generator.frontend.steps import Steps
from mirage_kernels.generator.ir import DType, Graph, Indexed
from mirage_kernels.generator.ir.indexed import RESULT

Found = dict[Any, Any]  # what nodes are to kernels
Strides = tuple[int, ...]


@dataclass(frozen=True)
class Portion:
    """Nodes of a graph that torch.export made, what they read by name, and what they give."""

    name: str
    nodes: Sequence[Any]
    inputs: Mapping[Any, str]
    results: Sequence[Any]
    where: Callable[[Any], str]  # a node is called in the source
    shapes: Mapping[Any, tuple[int, ...]] = field(default_factory=dict)  # of inputs side by side
    strides: Mapping[Any, Strides] = field(default_factory=dict)  # of others and of results
    indexed: Mapping[Any, Rows] = field(default_factory=dict)  # inputs and results
    stores: Mapping[Any, DType] = field(default_factory=dict)  # types of results of others
    one_dim: bool = False  # dynamic dims of one name are one dim, whether they meet or not
    by_rows: bool = False  # rows that dims number become one dynamic dim, where there are some
    grouped: bool = True  # scales of groups of weights are read so, where that can be


@dataclass(frozen=True)
class Traced:
    """A function's graph of named dims; its inputs, and how results and inputs are laid out.

    `shapes` has the extents of the function's own inputs: those of dynamic dims by name, and how
    many of the graph's are one of the function's.
    """

    lowered: Lowered
    names: tuple[str, ...]  # of inputs
    dtypes: tuple[DType, ...]
    dynamic: tuple[str, ...]
    shapes: tuple[tuple[int | tuple[str, int], ...], ...]
    strided: bool = False  # something lies apart in memory that fast schedules take side by side
    indexed: tuple[Indexed, ...] = ()
    stores: Mapping[int, DType] = field(default_factory=dict)  # by the number of a result

    @property
    def graph(self) -> Graph:
        """The graph."""
        return self.lowered.graph

    def extent(self, dim: str, wanted: int) -> int:
        """Return an extent of a dynamic dim that the function may be called with, from `wanted`."""
        steps = (n[1] for x in self.shapes for n in x if not isinstance(n, int) and n[0] == dim)
        step = math.lcm(*steps)
        return -(-wanted // step) * step


def traced(portion: Portion, dynamic: Dynamic) -> Traced:
    """Return a portion's graph; raises RecipeError for what kernels cannot be made of."""
    program = Program()
    found, dtypes = _inputs(portion, program)
    _apply(portion, program, found)
    names = tuple(portion.inputs.values())
    tensors = dict(zip(names, program.inputs, strict=True)) if portion.one_dim else {}
    lowered = _lowered(program, shared_dims(tensors, dynamic))
    for made, node in zip(program.results, portion.results, strict=True):
        shape = tuple(node.meta["val"].shape) or (1,)
        if tuple(made.dims) != shape:
            raise RecipeError(
                f"a result of {portion.name} has the dims {list(shape)} by broadcasting alone",
                "return it without the dims that nothing varies along",
            )
    given = [x.layout for x in program.inputs]
    strides = [*given, *(portion.strides.get(n, ()) for n in portion.results)]
    lying = [*zip(_layouts(lowered), strides, strict=True)]
    strided = any(lies_apart(layout, own) for layout, own in lying)
    gaps = [gaps_of(layout, sizes_of(lowered.graph), own) for layout, own in lying]
    lowered = _with_whole(lowered, names, dynamic, {*chain(*gaps)})
    new, named = names_of(lowered, names, dynamic)
    lowered = renamed(lowered, new)
    gaps = [{new.get(dim, dim) for dim in own} for own in gaps]
    if portion.grouped and not (strided or portion.indexed):
        lowered = grouped(lowered, {*named, *chain(*gaps)})
    if portion.by_rows and not (portion.indexed or portion.stores or DType.BOOL in dtypes):
        lowered, named = with_rows(lowered, {*chain(*gaps)}, named)
    shapes = tuple(
        tuple(_sizes(lowered, named, layout, tensor.dims, dynamic.get(name, {})))
        for name, layout, tensor in zip(names, lowered.inputs, program.inputs, strict=True)
    )
    strided = strided or any(gaps[len(given) :])
    kept = [tuple(filter(None, x)) if portion.by_rows else x for x in lowered.inputs]
    strided = strided or any(
        own and not are_rows(rows, named) for rows, own in zip(kept, gaps, strict=False)
    )
    rows = [portion.indexed.get(n) for n in (*portion.inputs, *portion.results)]
    gaps += [own.apart(x) for own, x in zip(rows, _layouts(lowered), strict=True) if own]
    apart = {*chain(*gaps)}
    lowered = merged(without_ones(lowered, {*named, *apart, *_whole(lowered)}), named, apart)
    called = (*names, *(f"{RESULT}{i}" for i in range(len(portion.results))))
    indexed = indexed_of(zip(called, rows, _layouts(lowered), strict=True))
    results = enumerate(portion.results)
    stores = {i: portion.stores[node] for i, node in results if node in portion.stores}
    strided = strided or bool(indexed)
    return Traced(lowered, names, tuple(dtypes), named, shapes, strided, indexed, stores)


def _with_whole(
    lowered: Lowered, names: Sequence[str], dynamic: Dynamic, gaps: Collection[str]
) -> Lowered:
    """Return a graph where dynamic dims of inputs that it splits are one dim, if they can be."""
    for tensor, dim in (
        (names.index(n), d) for n, dims in dynamic.items() if n in names for d in dims
    ):
        row = lowered.inputs[tensor][dim]
        lowered = (as_one(lowered, row, gaps) if len(row) > 1 else None) or lowered
    return lowered


def _sizes(
    lowered: Lowered,
    named: Sequence[str],
    layout: Layout,
    extents: Sequence[int],
    at: Collection[int],
) -> Iterator[int | tuple[str, int]]:
    """Yield the extents of an input: numbers, or a dynamic dim and how many of its are one.

    Those `at` some places are dynamic. One that is part of another in front of it has one element.
    """
    sizes = sizes_of(lowered.graph)
    for i, (row, size) in enumerate(zip(layout, extents, strict=True)):
        if row and row[0] in named:
            inner = behind(layout, i, named)
            whole = math.prod(extents[j] for j in inner if j not in at)
            yield row[0], whole // math.prod(sizes[d] for j in inner for d in layout[j])
        else:
            yield 1 if i in at and not row else size


def _layouts(lowered: Lowered) -> tuple[Layout, ...]:
    """Return how inputs, then results are laid out."""
    return (*lowered.inputs, *lowered.outputs)


def _whole(lowered: Lowered) -> set[str]:
    """Return the dims that tensors have in front, and all of a vector or matrix."""
    every = [flat(x) for x in _layouts(lowered)]
    return {d for x in every for d in (x if len(x) < 3 else x[:1])}


def _inputs(portion: Portion, program: Program) -> tuple[Found, list[DType]]:
    """Add a portion's inputs to a program; return them, and their types."""
    found, dtypes = Found(), list[DType]()
    for node, name in portion.inputs.items():
        value = node.meta["val"]
        dtypes.append(dtype_of(value, name))
        extents = portion.shapes.get(node) or tuple(int(n) for n in value.shape) or (1,)
        strides = () if node in portion.shapes else tuple(value.stride()) or (1,)
        own = portion.strides.get(node, strides)
        found[node] = input_of(program, extents, dtypes[-1], own)
    return found, dtypes


def _apply(portion: Portion, program: Program, found: Found) -> None:
    """Add a portion's nodes and results to a program."""
    for node in portion.nodes:
        if node.op != "call_function":
            raise RecipeError(f"{portion.name} has a {node.op} in its graph", "none is known here")
        try:
            found[node] = applied(program, node, found)
        except GraphError as error:
            raise RecipeError(f"{portion.where(node)}: {error.sentence}", error.hint) from error
        if rounds(node) and any(u in portion.nodes and not is_view(u) for u in node.users):
            raise RecipeError(
                f"{portion.where(node)}: it rounds to 8 bits what the kernel computes with",
                "kernels round what they store alone",
            )
    results = list[Any]()
    for node in portion.results:
        made = shown(Steps(program), found[node])
        results.append(Steps(program)("mul", made, 1.0) if made in results else made)
    if is_positional(results):
        raise RecipeError(f"{portion.name} returns positions or a mask", "kernels make numbers")
    program.results.extend(results)


def _lowered(program: Program, shared: Sequence[Sequence[InputDim]]) -> Lowered:
    """Return a program's graph; dims of results that are alike are the same where they can be."""
    first, *others = program.results
    like = [x for x in others if x.dims == first.dims]
    tied = replace(program, steps=[*program.steps], tensors=[*program.tensors])
    with suppress(GraphError):
        for other in like:
            tied.apply(Step("alike"), (first, other))
        return lower(tied, shared)
    return lower(program)
