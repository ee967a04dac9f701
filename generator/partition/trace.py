"""A PyTorch function as `torch.export` finds it at two extents: its nodes, their sizes, as data."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING, Any

from mirage_kernels.generator.errors import GraphError, RecipeError
from mirage_kernels.generator.frontend.chosen import Chosen, Counted
from mirage_kernels.generator.frontend.declarations import TAKEN
from mirage_kernels.generator.frontend.dim_names import Dims
from mirage_kernels.generator.frontend.editing import CASTS, arguments_of, is_view, mutates
from mirage_kernels.generator.frontend.examples import bound, cast_of, in_type, require_examples
from mirage_kernels.generator.frontend.export import (
    BRANCHES,
    LONGER,
    applied,
    called_names,
    dtype_of,
    ends_of,
    exported,
    has_eight_bits,
    input_names,
    input_of,
    name_of,
    operator_of,
    place_of,
    returned_by,
    rounds,
)
from mirage_kernels.generator.frontend.from_torch import Examples, by_name, dims_by_name, longer_by
from mirage_kernels.generator.frontend.masks import SOURCES, is_mask
from mirage_kernels.generator.frontend.positional.program import Program
from mirage_kernels.generator.partition.constants import constants_of
from mirage_kernels.generator.partition.extents import Size, dynamic_extents, more_of, size_of
from mirage_kernels.generator.partition.passes import prepare
from mirage_kernels.generator.partition.rewriting import regions
from mirage_kernels.generator.partition.twins import Use

if TYPE_CHECKING:
    import torch

Node = Any  # torch.fx.Node
_DIM = re.compile(r"[BDKMN]\d*(_\d+)?")  # what recipes name dims
MOST_CONSTANT = 2**16  # elements of a tensor that a program's document has


@dataclass(frozen=True)
class Function:
    """A PyTorch function or module, and what it is traced with (`from_torch` says how)."""

    run: Callable[..., Any]
    examples: Examples
    dynamic: Dims
    name: str = ""

    @property
    def named(self) -> str:
        """Name of its program."""
        return self.name or name_of(self.run)


class Trace:
    """A function's nodes at two extents of every dynamic dim; `pairs` has those of both traces.

    Products named in `packed` are several, in `parted` by these names: each of a slice of columns.
    Uses in `twice` take `twins` of tensors.
    """

    def __init__(
        self,
        function: Function,
        dtype: torch.dtype,
        packed: Collection[str] = (),
        twice: Collection[Use] = (),
    ) -> None:
        self.packed, self.twice = packed, {*twice}
        self.function, self.dtype = function, dtype
        dynamic = dims_by_name(function.run, function.dynamic)
        own, given = bound(function.run, by_name(function.run, function.examples))
        require_examples(function.named, given, dynamic)
        run, typed = in_type(own, given, dtype)
        both = [longer_by(typed, dynamic, {})]
        if extents := dynamic_extents(both[0], dynamic):
            both.append(longer_by(typed, dynamic, more_of(extents)))
        self.run, self.examples = run, both[0]
        self.cast = cast_of(given, typed)  # what a caller of another type may have to know
        hints = (self.cast or BRANCHES, LONGER)
        self.programs = [exported(run, x, hint) for x, hint in zip(both, hints, strict=False)]
        self.copies, self.parted, self.twins = prepare(self.programs, packed, twice)
        first, last = (list(p.graph.nodes) for p in (self.programs[0], self.programs[-1]))
        if [str(n.target) for n in first] != [str(n.target) for n in last]:
            raise RecipeError(
                f"{function.named} calls other operators at another extent of a dynamic dim",
                "make that dim static, or take extents from the tensors' shapes",
            )
        self.pairs = dict(zip(first, last, strict=True))
        named = input_names(self.programs[0])
        self._dims = {*chain(*(dims.values() for dims in dynamic.values()))}
        self.inputs = {n: f"{x}_" if self._is_taken(x) else x for n, x in named.items()}
        self.called = {n: name for n, name in named.items() if self._is_taken(name)}
        users = called_names(self.programs[0])
        self.called |= {n: c for n, c in users.items() if c != n.name}
        self.in_order = sorted(self.inputs, key=lambda n: n not in users)  # parameters come last
        longer = dynamic_extents(both[-1], dynamic)
        self.extents = {dim: (n, longer[dim]) for dim, n in extents.items()}
        writes = any(map(mutates, first))
        self._ends: Sequence[Node | None] = ends_of(self.programs[0], function.named, writes=writes)
        self.results: Sequence[Node] = [n for n in self._ends if n is not None]
        self.constants_outside = constants_of(self.programs[0])
        self.nodes = _used([n for n in first if n.op == "call_function"], self.results)
        for node in first:
            self._require_known(node)

    def _require_known(self, node: Node) -> None:
        """Raise RecipeError for a large constant, and for extents that only values say."""
        import torch

        if node in self.constants_outside and self.constants_outside[node].numel() > MOST_CONSTANT:
            shape = [*self.constants_outside[node].shape]
            raise RecipeError(
                f"{self.function.named} takes a tensor {shape} that is neither an input nor made of"
                f" inputs, and has more than {MOST_CONSTANT} elements",
                "let it be an argument, or a parameter or buffer of a module",
            )
        made = node.meta.get("val")
        several = made if isinstance(made, list | tuple) else [made]
        shapes = (x.shape for x in several if isinstance(x, torch.Tensor))
        if any(not isinstance(n, int) for shape in shapes for n in shape):
            raise RecipeError(
                f"{self.where(node)}: extents of its result depend on values of tensors",
                "extents are static, or multiples of a dim that `dynamic` names",
            )

    @property
    def graph(self) -> Any:
        """The first trace's graph."""
        return self.programs[0].graph

    def where(self, node: Node) -> str:
        """Return an operator and the line that calls it."""
        return place_of(self.run, self.examples, node)

    def name(self, node: Node) -> str:
        """Return the name of a value."""
        made = str(node.name)
        taken = made in self.inputs.values() or self._is_taken(made)
        return self.inputs.get(node) or (f"{made}_" if taken else made)

    @property
    def returned(self) -> dict[str, Any]:
        """Return how results lie in what the function returns."""
        return returned_by(self.programs[0], (n and self.name(n) for n in self._ends))

    def size(self, a: int, b: int) -> Size:
        """Return an extent that is so large in the two traces; raises RecipeError for others."""
        found = size_of(a, b, self.extents)
        if found is not None:
            return found
        raise RecipeError(
            f"an extent of {self.function.named} is {a} and {b} where "
            + ", ".join(f"{dim} is {m} and {n}" for dim, (m, n) in self.extents.items()),
            "extents are static, or multiples of dynamic dims and of their products",
        )

    def shape(self, node: Node) -> list[Size]:
        """Return the extents of a value."""
        shapes = (node.meta["val"].shape, self.pairs[node].meta["val"].shape)
        return [self.size(int(a), int(b)) for a, b in zip(*shapes, strict=True)]

    def users(self, node: Node) -> list[Node]:
        """Return the nodes that take a value, the function's end aside."""
        return [u for u in node.users if u in self._known]

    @cached_property
    def _known(self) -> set[Node]:
        return {*self.nodes}

    def _is_taken(self, name: str) -> bool:
        """Say whether something else may have a name: a word of C++ or Python, a dim."""
        return name in TAKEN or name in self._dims or bool(_DIM.fullmatch(name))

    @property
    def refused(self) -> dict[Node, str]:
        """Return why a kernel cannot be made of nodes, each looked at by itself."""
        return self._formed[0]

    @cached_property
    def _formed(self) -> tuple[dict[Node, str], dict[Node, Any]]:
        """Return the reasons of those that are refused, and what all nodes are to kernels."""
        stored = set[Node]()
        while True:
            reasons, found = self._formed_with(stored)
            taken = {base_of(self, a) for n in reasons for a in n.all_input_nodes}
            masks = ((n, found.get(n)) for n in taken - stored)
            more = {n for n, x in masks if isinstance(x, Chosen) and x.is_alternative}
            if not more:
                return reasons, found
            stored |= more

    def _formed_with(self, stored: Collection[Node]) -> tuple[dict[Node, str], dict[Node, Any]]:
        """Form all nodes; masks that are `stored` are PyTorch's, and as boolean inputs then."""
        program, found, reasons = Program(), dict[Node, Any](), dict[Node, str]()
        for node in self.inputs:
            found[node] = self._input(program, node)
        for node in self.nodes:
            try:
                if node in stored:
                    raise GraphError("it is a mask where one of several conditions holds")
                for given in (a for a in node.all_input_nodes if found.get(a) is None):
                    raise GraphError(f"it takes {self._said(given)}")
                if any(memory_of(self, n) in self.inputs for n in written_by(node)):
                    raise GraphError("it writes over an input")
                for n in written_by(node):
                    if (n in reasons and mutates(n)) or self._is_shown(n, node):
                        raise GraphError("it writes over what others look at")
                found[node] = self._made(program, node, found)
            except (GraphError, RecipeError) as error:
                reasons[node] = error.sentence
                if node.target is operator.getitem and not is_view(node.args[0]):
                    reasons.setdefault(node.args[0], error.sentence)  # one of its results
                found[node] = self._input(program, node)
        return reasons, found

    @cached_property
    def written(self) -> set[Node]:
        """Return the memory that operators write over."""
        return {memory_of(self, w) for n in self.nodes for w in written_by(n)}

    @cached_property
    def _order(self) -> dict[Node, int]:
        return {n: i for i, n in enumerate(self.graph.nodes)}

    def _is_shown(self, written: Node, by: Node) -> bool:
        """Say whether what an operator writes over is a view, or others look at it or take it."""
        if written.op == "call_function" and base_of(self, written) is not written:
            return True
        others = (u for u in written.users if u is not by)
        return any(
            u.op == "output" or is_view(u) or self._order[u] > self._order[by] for u in others
        )

    def _said(self, node: Node) -> str:
        """Return the name of a value that a kernel does not take, with its type, and why."""
        dtype = getattr(node.meta.get("val"), "dtype", None)
        if dtype is None:
            return f"{self.name(node)}, which no kernel takes"
        whole = "int" in str(dtype)
        why = ": kernels take whole numbers as indices" if whole else ", which no kernel takes"
        return f"{self.name(node)} of {dtype}{why}"

    @cached_property
    def constants(self) -> set[Node]:
        """Return positions and masks, which kernels make where they use them.

        No input goes into them but those of whole numbers and truth values.
        """
        found, alone, (refused, formed) = set[Node](), set[Node](), self._formed
        for node in (n for n in self.nodes if n not in refused):
            own = node.all_input_nodes
            if alone.issuperset(own) if own else operator_of(node) in SOURCES:
                alone.add(node)
            if node in alone or is_mask(formed[node]) or isinstance(formed[node], Counted):
                found.add(node)
        return found

    @cached_property
    def widened(self) -> set[Node]:
        """Return casts to fp32 of what is rounded, which the kernels that take them repeat.

        PyTorch, or the function's caller, takes none of them, and nothing is written in between.
        """
        region, found = regions(self.graph), set[Node]()
        for node in (n for n in self.nodes if operator_of(n) in CASTS and n not in self.refused):
            given, made = (x.meta["val"].dtype for x in (node.args[0], node))
            if (given is self.dtype or has_eight_bits(given)) and made.itemsize > given.itemsize:
                taken = [*self._seen_by(node)]
                kept = any(n in self.refused or n.op == "output" for n in taken)
                found |= set() if kept or any(region[n] != region[node] for n in taken) else {node}
        return found

    def _seen_by(self, node: Node) -> Iterator[Node]:
        """Yield what takes a value or views of it, and these."""
        for user in node.users:
            yield user
            if user.op == "call_function" and is_view(user):
                yield from self._seen_by(user)

    @cached_property
    def repeated(self) -> set[Node]:
        """Return what each kernel that takes it makes itself: masks, and casts that round nothing.

        They are no part of what a kernel stores.
        """
        return self.constants | self.widened

    def made_from(self, node: Node) -> Iterator[Node]:
        """Yield a value, or what a mask is made from that kernels make where they use it."""
        if node not in self.constants:
            yield node
            return
        for taken in node.all_input_nodes:
            yield from self.made_from(taken)

    def is_free(self, node: Node) -> bool:
        """Say whether a node computes nothing: a view, or what a kernel makes where it is used."""
        return is_view(node) or node in self.repeated or node in self.twins

    def _made(self, program: Program, node: Node, found: Mapping[Node, Any]) -> Any:
        """Return what a node is to kernels; of what it rounds to 8 bits, what they store."""
        made = applied(program, node, found)
        return self._input(program, node) if rounds(node) else made

    @staticmethod
    def _input(program: Program, node: Node) -> Any:
        try:
            value = node.meta["val"]
            return input_of(
                program, tuple(map(int, value.shape)) or (1,), dtype_of(value, node.name)
            )
        except (RecipeError, GraphError, AttributeError):  # of whole numbers, or several tensors
            return None

    # -- as data -----------------------------------------------------------------------------------

    def call(self, node: Node) -> dict[str, Any]:
        """Return a node as a step that PyTorch runs; raises RecipeError for what is no data."""
        other = self.pairs[node]
        pairs = zip(node.args, other.args, strict=True)
        name = "getitem" if node.target is operator.getitem else str(node.target)
        if name == "aten.view.default" and memory_of(self, node) not in self.written:
            name = "aten.reshape.default"  # kernels may leave a value otherwise than PyTorch does
        return {
            "call": name,
            "args": [self._data(a, b) for a, b in pairs],
            "named": {
                k: self._data(a, other.kwargs[k]) for k, a in node.kwargs.items() if k != "layout"
            },
            "result": self.name(node),
        }

    def _data(self, a: Any, b: Any) -> Any:
        import torch

        if isinstance(a, torch.fx.Node):
            return {"value": self.name(a)}
        if isinstance(a, list | tuple):
            return [self._data(x, y) for x, y in zip(a, b, strict=True)]
        if isinstance(a, int) and not isinstance(a, bool):
            return self.size(a, b)
        if isinstance(a, torch.device):
            return {"device": ""}
        if isinstance(a, torch.dtype | torch.memory_format):
            return {"torch": str(a).removeprefix("torch.")}
        if a is None or isinstance(a, bool | float | str):
            return a
        raise RecipeError(f"{self.function.named} gives an operator {a!r}, which is no plain value")


def base_of(trace: Trace, node: Node) -> Node:
    """Return what a view looks at, through all views; one of several results is no view."""
    while node not in trace.inputs and is_view(node):
        if node.target is operator.getitem and not is_view(node.args[0]):
            break
        node = node.all_input_nodes[0]
    return node


def memory_of(trace: Trace, node: Node) -> Node:
    """Return what a value lies in: what views and operators that write over it look at."""
    base = base_of(trace, node)
    if base in trace.inputs or not (mutates(base) or base in trace.twins):
        return base
    return memory_of(trace, base.all_input_nodes[0])


def written_by(node: Node) -> list[Node]:
    """Return the operands that an operator writes over."""
    if not mutates(node):
        return []
    infos = ((a.name, a.alias_info) for a in node.target._schema.arguments)
    ends = [name for name, info in infos if info is not None and info.is_write]
    given = arguments_of(node)
    several = (given[name] for name in ends)
    return [n for x in several for n in (x if isinstance(x, list | tuple) else [x]) if n]


def _used(nodes: Sequence[Node], results: Sequence[Node]) -> list[Node]:
    """Return the nodes that results are made from, and those that write over something."""
    used = {*results}
    for node in reversed(nodes):
        if node in used or mutates(node):
            used.update((node, *node.all_input_nodes))
    return [n for n in nodes if n in used]
