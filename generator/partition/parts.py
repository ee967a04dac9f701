"""A group of nodes as a recipe and as a step of its program's document."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from mirage_kernels.generator.errors import RecipeError
from mirage_kernels.generator.frontend.editing import is_view
from mirage_kernels.generator.frontend.export import dtype_of, operator_of, rounds
from mirage_kernels.generator.frontend.from_torch import (
    ROWS,
    TracedFunction,
    portions_recipe,
)
from mirage_kernels.generator.frontend.portions import Portion, Traced
from mirage_kernels.generator.frontend.positional.lower import Layout, flat
from mirage_kernels.generator.ir import DType, index_tensors
from mirage_kernels.generator.ir.indexed import RESULT
from mirage_kernels.generator.partition.extents import Size, dim_name, kernel_extents, singly
from mirage_kernels.generator.partition.groups import FEW, Kind
from mirage_kernels.generator.partition.indices import (
    Access,
    numbered,
    rows_step,
    strides_in_memory,
)
from mirage_kernels.generator.partition.places import Flow, Place, join_step
from mirage_kernels.generator.partition.products import is_wide, makes_rows
from mirage_kernels.generator.partition.reductions import reduces
from mirage_kernels.generator.partition.siblings import in_place, recipe_of, step_of
from mirage_kernels.generator.partition.trace import Node, Trace, base_of
from mirage_kernels.generator.partition.views import Own, strides_of
from mirage_kernels.generator.recipe import Recipe
from mirage_kernels.program_steps import call

if TYPE_CHECKING:
    import torch

Step = dict[str, Any]

LEAST_ROW = 32  # elements of rows of functions and sums, below which kernels take all at once


@dataclass(frozen=True)
class Part:
    """Nodes of a kernel, with the views it looks through; what it takes and what it gives."""

    trace: Trace
    kind: Kind
    nodes: tuple[Node, ...]
    inputs: tuple[Node, ...]
    results: tuple[Node, ...]
    places: Mapping[Node, Place] = field(default_factory=dict)  # of results, or what a cat joins
    gathers: Mapping[Node, Access] = field(default_factory=dict)  # of inputs, or of its own node
    members: tuple[Part, ...] = ()  # kernels that one launch runs, none for a kernel of its own
    siblings: tuple[Part, ...] = ()  # what a kernel computes whose rows come in parts, one by one

    @property
    def key(self) -> frozenset[str]:
        """Names of what its kernel depends on, in whichever trace of its function.

        They are its nodes and, with a colon, its inputs, what its results are parts of, what it
        gathers.
        """
        wholes = (p.whole for p in self.places.values())
        gathered = (x.node for x in self.indexed.values())
        others = (f"{n.name}:" for n in (*self.inputs, *wholes, *gathered))
        return frozenset((*(n.name for n in self.nodes), *others))

    @property
    def flow(self) -> Flow:
        """What it computes, takes and gives."""
        kinds = self.kind is Kind.CALL, self.kind is Kind.CHAIN
        return Flow(self.nodes, self.taken, self.results, *kinds)

    @property
    def indexed(self) -> dict[Node, Access]:
        """Inputs and results whose rows an index tensor says."""
        written = {n: p.write for n, p in self.places.items() if p.write and n in self.results}
        return {**self.gathers, **written}

    @property
    def taken(self) -> list[Node]:
        """The values that it takes, tables and index tensors among them."""
        more = (n for x in self.indexed.values() for n in (x.table, x.index))
        return [*dict.fromkeys((*self.inputs, *more))]

    @property
    def computing(self) -> list[Node]:
        """The nodes that are no views or constants."""
        return [n for n in self.nodes if not self.trace.is_free(n)]

    @property
    def runs(self) -> bool:
        """Say whether it is more than views, and no copy of what kernels write there."""
        if self.kind is Kind.CALL and self.gathers:
            return False
        written = self.kind is Kind.CALL and self.places
        return bool(self.computing) and not (written and not self.called()["copies"])

    @property
    def name(self) -> str:
        """Its first and its last operator; of kernels that one launch runs, those of each."""
        if self.members:
            return "_".join(dict.fromkeys(m.name for m in self.members))
        ops = [operator_of(n).strip("_") for n in self.computing]
        return "_".join(dict.fromkeys((ops[0], ops[-1])))

    @property
    def is_dynamic(self) -> bool:
        """Say whether an extent of an input is known at run time only."""
        return any(isinstance(s, dict) for n in self.inputs for s in self.trace.shape(n))

    def by_rows(self, name: str) -> Recipe | None:
        """Return its recipe with its rows, of a static number or of several dims, as one dim.

        None where no dim numbers rows, where one alone does that is dynamic, where products have
        many, and where only general kernels take its tensors.
        """
        shapes = (self.trace.shape(n) for n in self.inputs)
        several = any(len(shape) > 2 and isinstance(shape[0], dict) for shape in shapes)
        alone = self.kind in (Kind.CHAIN, Kind.PRODUCT) and not self.members
        if not alone or (self.is_dynamic and not several):
            return None
        if self.siblings:
            alike = in_place(self)[0].by_rows(name)
            return self.recipe(name, by_rows=True) if alike else None
        made = self.recipe(name, by_rows=True)
        if self.is_dynamic and made.inputs == self.recipe(name).inputs:
            return None
        function = made.reference
        assert isinstance(function, TracedFunction)
        rows = [function.extents[d] for d in made.dynamic]
        fitting = self.is_dynamic or max(rows, default=0) <= FEW
        if self.kind is Kind.CHAIN:
            widths = [made.shapes[0].dims[d] for d in made.static_dims]
            fitting = len(widths) == 1 and widths[0] >= LEAST_ROW
        return made if rows and fitting and not made.strided else None

    def recipe(self, name: str, *, by_rows: bool = False) -> Recipe:
        """Return its recipe; raises RecipeError for what kernels cannot be made of."""
        if self.siblings:
            return recipe_of(self, name, by_rows=by_rows)
        names = {n: self.trace.name(n) for n in self.inputs}
        dynamic: dict[str, dict[int, str]] = {}
        extents: dict[str, int] = {}
        for node, own in names.items():
            for at, size in enumerate(self.shape(node)):
                if isinstance(size, dict):
                    dim = dim_name(size)
                    dynamic.setdefault(own, {})[at] = dim
                    extents[dim] = ROWS * int(size["times"])
        rows = self.indexed.items()
        both: list[Callable[[Node], Node]] = [lambda n: n, self.trace.pairs.__getitem__]
        portions = [
            Portion(
                name,
                [*map(own, self.nodes)],
                {own(n): text for n, text in names.items()},
                [*map(own, self.results)],
                self.trace.where,
                {own(n): shape for n in self.inputs if (shape := self.stored(n, own))},
                {own(n): strides for n, strides in self.strides(own)},
                {own(n): access.rows(self.trace, *self.addressed(n, own)) for n, access in rows},
                stores={own(n): t for n in self.results if (t := self.stores(n))},
                one_dim=bool(self.members),
                by_rows=by_rows,
            )
            for own in both[: 1 + bool(dynamic)]
        ]
        run = self.reference()
        made = portions_recipe(name, run, portions, dynamic, rows=extents, is_part=True)
        ones = (names[n] for n in self.inputs if self.is_one(n))
        broadcast = tuple(n for n in ones if n in made.inputs)
        counts = tuple(len(m.results) for m in self.members)
        apart = made.apart and replace(made.apart, independent=counts, broadcast=broadcast)
        return replace(made, independent=counts, broadcast=broadcast, apart=apart)

    def stores(self, node: Node) -> DType | None:
        """Return the type of a result that is not of the kernel's own."""
        if is_wide(self.trace, node, self.nodes):
            return DType.FP32
        return dtype_of(node.meta["val"], node.name) if rounds(node) else None

    def stored(self, node: Node, own: Callable[[Node], Node]) -> tuple[int, ...]:
        """Return the extents of an input that lies side by side: one that a kernel stored.

        A single element is as many as the values that it goes to have in a dim, for the device
        reads it: other numbers of kernels come from the host.
        """
        if not self.is_one(node):
            shape = own(node).meta["val"].shape
            given = self.trace.twins.get(node, node) in self.trace.inputs
            apart = given or self.is_seen(node) or node in self.gathers
            return () if apart else tuple(map(int, shape)) or (1,)
        return tuple(both[own(node) is not node] for both in self._spread(node))

    def shape(self, node: Node) -> list[Size]:
        """Return the extents of an input as its kernel sees it."""
        if self.is_one(node):
            return [self.trace.size(*both) for both in self._spread(node)]
        return self.trace.shape(node)

    def _spread(self, node: Node) -> tuple[tuple[int, int], ...]:
        """Return in both traces what extents a kernel sees of an input with a single element."""
        found = {*self._spreads(node)}
        if len(found) != 1 or {0, 1} & {*next(iter(found))[0]}:
            raise RecipeError(f"{self.trace.name(node)} has one element, and no one width")
        return found.pop()

    def _spreads(self, node: Node) -> Iterator[tuple[tuple[int, int], ...]]:
        """Yield the last extents of what a single element goes to, 0 for what has no such.

        Of rows that a product multiplies it is the one in front: an element for each row goes to
        the product's results, where one for each column would go to what is summed.
        """
        for user in self.trace.users(node):
            if reduces(user) or is_view(user):
                yield ((0, 0),)
            elif self.is_one(user) and user in self.nodes and user not in self.results:
                yield from self._spreads(user)
            elif user in self.nodes:
                shapes = [n.meta["val"].shape or (0,) for n in (user, self.trace.pairs[user])]
                *_, rows, last = ((1, 1), *zip(*(map(int, x) for x in shapes), strict=True))
                yield (rows, (1, 1)) if makes_rows(user, self.nodes) else (last,)

    def strides(self, own: Own) -> Iterator[tuple[Node, tuple[int, ...]]]:
        """Yield inputs that PyTorch looks at, and results that have a place, with their strides."""
        seen = (n for n in self.inputs if self.is_seen(n) and n not in self.gathers)
        yield from ((n, strides_of(self.trace, n, own)) for n in seen)
        yield from (
            (n, strides_in_memory(access.seen(self.trace, n, own)))
            for n, access in self.gathers.items()
        )
        yield from ((n, place.strides(self.trace, n, own)) for n, place in self.places.items())

    def addressed(self, node: Node, own: Own) -> tuple[str, torch.Tensor]:
        """Return an input or a result whose rows an index says: its name, and how it lies."""
        if node in self.gathers:
            return self.trace.name(node), self.gathers[node].seen(self.trace, node, own)
        return self.trace.name(node), self.places[node].seen(self.trace, node, own)

    def is_seen(self, node: Node) -> bool:
        """Say whether an input is a view that PyTorch makes."""
        return base_of(self.trace, node) is not node and not self.is_one(node)

    def is_one(self, node: Node) -> bool:
        """Say whether an input has one element, whatever the dynamic extents."""
        return self.trace.shape(node) in ([], [1])

    def reference(self) -> Callable[..., Any]:
        """Return the function of its nodes: PyTorch's operators in order."""
        steps = [self.trace.call(n) for n in self.nodes]
        in_float64 = _exactly(steps)  # whose casts would make operands of several types
        whole = (n for n in self.inputs if not self.is_one(n))
        shapes = {self.trace.name(n): self.trace.shape(n) for n in whole}
        results = [self.trace.name(n) for n in self.results]

        def reference(**given: torch.Tensor) -> tuple[torch.Tensor, ...]:
            several = ((shapes[k], x.shape) for k, x in given.items() if k in shapes)
            sizes = ((s, n) for shape, own in several for s, n in zip(shape, own, strict=True))
            known = {s["extent"]: n // s["times"] for s, n in sizes if isinstance(s, dict)}
            extents = singly(known)
            values: dict[str, Any] = dict(given)
            exact = any(str(x.dtype) == "torch.float64" for x in given.values())
            for step in in_float64 if exact else steps:
                call(step, values, extents)
            return tuple(values[r] for r in results)

        ops = ", ".join(operator_of(n).strip("_") for n in self.computing)
        reference.__doc__ = f"{ops} of {self.trace.function.named}"
        return reference

    def called(self) -> Step:
        """Return how a program runs its node by PyTorch."""
        (node,) = self.nodes
        if self.gathers:
            return rows_step(self.trace, self.gathers[node])
        if self.places:
            return join_step(self.trace, node, self.places)
        return self.trace.call(node)

    def step(self, recipe: Recipe, symbol: str) -> Step:
        """Return how a program runs its kernel."""
        if self.siblings:
            return step_of(self, recipe, symbol)
        function = recipe.reference
        assert isinstance(function, TracedFunction)
        by_name = {self.trace.name(n): n for n in self.inputs}
        traced, orders = function.traced, function.orders
        return {
            "kernel": symbol,
            "inputs": [
                {
                    "value": n,
                    "shape": [
                        *kernel_extents(
                            layout, self.shape(by_name[n]), traced, recipe.grouped.get(n)
                        )
                    ],
                    "one": self.is_one(by_name[n]),
                }
                | self._counted(recipe, by_name[n], layout)
                | ({} if [*orders[n]] == sorted(orders[n]) else {"order": [*orders[n]]})
                | self._rows(by_name[n], layout)
                for n, layout in function.layouts.items()
            ]
            + [*self._indices(recipe)],
            "results": [
                {
                    "value": self.trace.name(n),
                    "shape": self.trace.shape(n),
                    "dtype": dtype_name(n),
                }
                | self._into(n, layout, traced)
                for n, layout in zip(self.results, traced.lowered.outputs, strict=True)
            ],
        }

    def _counted(self, recipe: Recipe, node: Node, layout: Layout) -> Step:
        """Return that an input has a kernel's rows where its shape, which is static, is silent."""
        static = all(isinstance(s, int) for s in self.shape(node))
        return {"by_row": True} if static and {*recipe.dynamic} & {*flat(layout)} else {}

    def _rows(self, node: Node, layout: Layout) -> Step:
        """Return which dims of an input stand in for a table's rows, nothing for other inputs."""
        if node not in self.gathers:
            return {}
        access, (name, seen) = self.gathers[node], self.addressed(node, _same)
        rows = access.rows(self.trace, name, seen)
        dims = [rows.place(layout), len(rows.numbers(layout))]
        return {"rows": {"of": self.trace.name(access.table), "dim": access.dim, "dims": dims}}

    def _indices(self, recipe: Recipe) -> Iterator[Step]:
        """Yield the index tensors that a kernel takes behind its inputs, each once."""
        function = recipe.reference
        assert isinstance(function, TracedFunction)
        results = function.traced.lowered.outputs
        names = {self.trace.name(n): n for n in self.inputs}
        layouts = {name: (names[name], x) for name, x in function.layouts.items()}
        layouts |= {f"{RESULT}{i}": (n, results[i]) for i, n in enumerate(self.results)}
        for own in index_tensors(recipe.indexed):
            node, layout = layouts[own.tensor]
            dims, shape = numbered(self.addressed(node, _same)[1]), self.trace.shape(node)
            pairs = [layout[d] for d in dims], [shape[d] for d in dims]
            index = self.trace.name(self.indexed[node].index)
            yield {
                "value": index,
                "shape": [*kernel_extents(*pairs, function.traced)],
                "one": False,
            }

    def _into(self, node: Node, layout: Layout, traced: Traced) -> Step:
        """Return where a result goes that is a part of another tensor, and its kernel's extents."""
        if node not in self.places:
            return {}
        place, shape = self.places[node], self.trace.shape(node)
        own = [*kernel_extents(layout, shape, traced)]
        if place.write is not None:
            name, seen = self.addressed(node, _same)
            rows = place.write.rows(self.trace, name, seen)
            at, count = rows.place(layout), len(rows.numbers(layout))
            own[at : at + count] = [self.trace.shape(place.whole)[place.write.dim]]
        scattered = {"scattered": True} if place.write is not None else {}
        return {"into": place.data(self.trace) | {"as": own} | scattered}


def _exactly(step: Any) -> Any:
    """Return steps as data with float64 in the place of all other real types."""
    if isinstance(step, list | tuple):
        return [_exactly(part) for part in step]
    if not isinstance(step, dict):
        return step
    if step.get("torch") in ("float16", "bfloat16", "float32"):
        return {"torch": "float64"}
    return {name: _exactly(part) for name, part in step.items()}


def _same(node: Node) -> Node:
    return node


def dtype_name(node: Node) -> str:
    """Return the element type of a value, as torch names it."""
    return str(node.meta["val"].dtype).removeprefix("torch.")
