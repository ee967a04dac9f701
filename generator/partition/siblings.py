"""Products of one tensor by several weights, as queries, keys and values are: one kernel.

    linear(x, q), linear(x, k)  ->  linear(x, [q, k]), whose rows come in parts

It is searched for and proved with one weight that has the rows of all; its blocks find whose rows
theirs are. Weights and results stay tensors of their own, and lie where they lay.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from mirage_kernels.generator.errors import RecipeError
from mirage_kernels.generator.frontend.declarations import dims_of
from mirage_kernels.generator.frontend.editing import CASTS, is_op, is_view
from mirage_kernels.generator.frontend.export import operator_of
from mirage_kernels.generator.frontend.from_torch import TracedFunction
from mirage_kernels.generator.partition.trace import Node
from mirage_kernels.generator.recipe import Recipe

if TYPE_CHECKING:
    import torch

    from mirage_kernels.generator.partition.parts import Part

MOST = 4  # products of a kernel: results of a launch
ROWS = 8  # of 16 bits that lie at a multiple of 16 bytes
Step = dict[str, Any]


def alike(nodes: Sequence[Node], inputs: Mapping[Node, str]) -> object:
    """Return what products share that may be siblings, None of nodes that are no such.

    Beside a linear there may be what scales its weight, or its result, as one of 8 bits is: with
    a number for all, for each row, for each group of one, or for each block of some.
    """
    linears = [n for n in nodes if is_op(n, "linear")]
    if len(linears) != 1 or not all(is_op(n, "linear", "mul", *CASTS) for n in nodes):
        return None
    x, n = linears[0].args[0], int(linears[0].meta["val"].shape[-1])
    taken = [a for node in nodes for a in node.all_input_nodes if a not in (x, *nodes)]
    weights = [w for w in map(_given, taken) if w not in nodes]
    shapes = [tuple(map(int, w.meta["val"].shape)) for w in weights]
    of_inputs = x not in (*weights, *nodes) and all(w in inputs for w in weights)
    if not (of_inputs and weights and n % ROWS == 0):
        return None
    rows = [_rows_of_one(s, n) for s in shapes]
    if any(count is None for count in rows):
        return None
    behind = (s[1:] if count else s for count, s in zip(rows, shapes, strict=True))
    return x, tuple(map(operator_of, nodes)), tuple(zip(rows, behind, strict=True))


def _rows_of_one(shape: tuple[int, ...], n: int) -> int | None:
    """Return for how many rows of so many a tensor has one element, 0: all; None of others."""
    if shape in ((), (1,)):
        return 0
    of_blocks = len(shape) > 1 and n % shape[0] == 0
    return n // shape[0] if of_blocks or shape[0] == n else None


def _given(node: Node) -> Node:
    """Return what a node is a view of, or a cast."""
    while is_op(node, *CASTS) or is_view(node):
        node = node.all_input_nodes[0]
    return node


def with_siblings(part: Part) -> Part:
    """Return a part whose products are siblings, with what each of them computes."""
    return replace(part, siblings=tuple(_one(part, n) for n in part.nodes if n in part.results))


def _one(part: Part, result: Node) -> Part:
    needed, own = [result], set[Node]()
    while needed:
        node = needed.pop()
        if node not in own and node in part.nodes:
            own.add(node)
            needed += node.all_input_nodes
    nodes = tuple(n for n in part.nodes if n in own)
    taken = dict.fromkeys(a for n in nodes for a in n.all_input_nodes)  # alike in all siblings
    return replace(
        part,
        nodes=nodes,
        inputs=tuple(n for n in taken if n in part.inputs),
        results=(result,),
    )


def in_place(part: Part) -> list[Part]:
    """Return the siblings of a part, with the places of their results."""
    places = part.places.items()
    return [
        replace(one, places={n: p for n, p in places if n in one.results}) for one in part.siblings
    ]


def by_parts(recipe: Recipe, given: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return what siblings compute of the tensors that a call of their kernel gives."""
    function = recipe.reference
    assert isinstance(function, _Siblings)
    return function.by_parts(given)


def recipe_of(part: Part, name: str, *, by_rows: bool) -> Recipe:
    """Return the recipe of siblings; raises RecipeError where they are not alike after all."""
    several = [one.recipe(name, by_rows=by_rows) for one in in_place(part)]
    first = several[0]
    dims, rows = dims_of(first.output), [r.shapes[0].dims for r in several]
    dim = dims[-1]
    shared = [{d: n for d, n in own.items() if d != dim} for own in rows]
    declared = {
        (tuple(r.inputs.values()), r.output, r.strided, r.also == {}, _groups(r)) for r in several
    }
    if len(declared) > 1 or any(own != shared[0] for own in shared) or dim not in rows[0]:
        raise RecipeError(f"{name} multiplies one tensor by weights that differ by more than rows")
    if first.strided or first.also or first.indexed:
        raise RecipeError(f"{name} has results that lie apart in memory")
    parts = tuple(own[dim] for own in rows)
    shape = replace(first.shapes[0], dims={**rows[0], dim: sum(parts)})
    made = replace(first, shapes=(shape,), reference=_Siblings(several, dim), row_parts=parts)
    return replace(made, apart=None)


def _groups(recipe: Recipe) -> tuple[tuple[tuple[str, int], ...], ...]:
    """Return of how many neighbours each input has one element."""
    return tuple(tuple(recipe.grouped.get(n, {}).items()) for n in recipe.inputs)


class _Siblings(TracedFunction):
    """What siblings compute of whole tensors: of each weight's rows its own."""

    def __init__(self, recipes: Sequence[Recipe], dim: str) -> None:
        first = recipes[0].reference
        assert isinstance(first, TracedFunction)
        super().__init__(first.function, first.traced, first.given, first.rows)
        each = [dims_of(text) for text in recipes[0].inputs.values()]
        self.recipes, self.dim = recipes, dim
        self.cut = [own.index(dim) if dim in own else None for own in each]
        self.shared = [recipes[0].grouped.get(n, {}).get(dim, 1) for n in recipes[0].inputs]

    @property
    def parts(self) -> list[int]:
        """Return how many rows each has."""
        return [r.shapes[0].dims[self.dim] for r in self.recipes]

    @property
    def extents(self) -> dict[str, int]:
        """Return the extents that it may be called with."""
        return {**super().extents, self.dim: sum(self.parts)}

    def by_parts(self, given: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Compute what each of them does with its part of each tensor, or with the whole."""
        left, count = iter(given), len(self.recipes)
        each = (
            [next(left)] * count if at is None else [next(left) for _ in self.recipes]
            for at in self.cut
        )
        pairs = zip(self.recipes, zip(*each, strict=True), strict=True)
        return [made for one, own in pairs for made in one.reference_results(*own)]

    def __call__(self, *tensors: torch.Tensor) -> torch.Tensor:
        """Compute the results of whole tensors, side by side."""
        import torch

        given = list[torch.Tensor]()
        for x, at, rows in zip(tensors, self.cut, self.shared, strict=True):
            lengths = [n // rows for n in self.parts]
            given += [x] if at is None else torch.split(x, lengths, at)
        return torch.cat(self.by_parts(given), dim=-1)


def step_of(part: Part, recipe: Recipe, symbol: str) -> Step:
    """Return how a program runs a kernel of siblings: with each tensor that comes in parts."""
    function = recipe.reference
    assert isinstance(function, _Siblings)
    pairs = zip(in_place(part), function.recipes, strict=True)
    several = [one.step(own, symbol) for one, own in pairs]
    inputs = list[Step]()
    given = zip(*(s["inputs"] for s in several), strict=True)
    for at, own in zip(function.cut, given, strict=True):
        inputs += own if at is not None else own[:1]
    return {**several[0], "inputs": inputs, "results": [s["results"][0] for s in several]}
