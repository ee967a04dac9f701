"""The names that dynamic dims were given, in a graph that was lowered with names of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from mirage_kernels.generator.errors import RecipeError
from mirage_kernels.generator.frontend.positional.lower import InputDim, Lowered, sizes_of
from mirage_kernels.generator.frontend.positional.program import Tensor
from mirage_kernels.generator.ir import Graph

Dynamic = Mapping[str, Mapping[int, str]]  # names by tensor and dim
Dims = Dynamic | Sequence[Mapping[int, str] | None]  # the same by tensor or in their order


def names_of(
    lowered: Lowered, names: Sequence[str], dynamic: Dynamic
) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return new names for dims, and those that dynamic dims were given, of inputs by their names.

    A dim that is not dynamic gets a new name where a dynamic one has its own. Dynamic dims that are
    one with what is in front of them have its name. Raises RecipeError for one that is split.
    """
    wanted: dict[str, str] = {}
    for tensor, dims in dynamic.items():
        if tensor not in names:
            raise RecipeError(f"there is no input {tensor!r}", f"inputs: {', '.join(names)}")
        for at, name in dims.items():
            row = lowered.inputs[names.index(tensor)][at]
            if not row:
                continue
            if len(row) > 1:
                raise RecipeError(f"dim {at} of {tensor} is split: it cannot be dynamic")
            same = sum(
                other == name or other == f"{name}{n}" for n, other in enumerate(wanted.values(), 1)
            )
            wanted.setdefault(row[0], f"{name}{same + 1}" if same else name)
    return _of_all(lowered, wanted), tuple(dict.fromkeys(wanted.values()))


def _of_all(lowered: Lowered, wanted: Mapping[str, str]) -> dict[str, str]:
    """Return the names that are wanted, and new ones for others that have these."""
    taken = {*wanted.values()}
    own = [d for d in sizes_of(lowered.graph) if d not in wanted]
    free = (f"D{i}" for i in range(1000) if f"D{i}" not in {*own, *taken})
    return {**wanted} | {d: next(free) for d in own if d in taken}


def renamed(lowered: Lowered, wanted: Mapping[str, str]) -> Lowered:
    """Return a graph where dims have the names that are wanted; others that have these get new."""
    new = _of_all(lowered, wanted)

    def row_of(row: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(new.get(d, d) for d in row)

    layouts = [tuple(tuple(map(row_of, t)) for t in x) for x in (lowered.inputs, lowered.outputs)]
    return Lowered(_renamed(lowered.graph, new), *layouts)


def shared_dims(inputs: Mapping[str, Tensor], dynamic: Dynamic) -> list[list[InputDim]]:
    """Return the dims of inputs that have one name, for each name that several have."""
    found: dict[str, list[InputDim]] = {}
    for name, tensor in inputs.items():
        for at, dim in dynamic.get(name, {}).items():
            found.setdefault(dim, []).append((tensor, at))
    return [dims for dims in found.values() if len(dims) > 1]


def _renamed(graph: Graph, new: Mapping[str, str]) -> Graph:
    nodes = []
    for node in graph.nodes:
        outs = tuple(
            replace(
                v,
                type=replace(
                    v.type,
                    dims=tuple(replace(d, name=new.get(d.name, d.name)) for d in v.type.dims),
                ),
            )
            for v in node.outs
        )
        groups = tuple((new.get(d, d), n) for d, n in node.grouped)
        nodes.append(replace(node, outs=outs, over=new.get(node.over, node.over), grouped=groups))
    return replace(graph, nodes=tuple(nodes))
