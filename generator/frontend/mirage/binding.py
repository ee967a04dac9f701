"""A recipe in a positional program's terms: which tensor is which input, which dim is which.

Recipes have names, programs have positions. A choice pairs them so that extents agree; there may be
several, in canonical order: tensors in the program's own order first. Under a choice the recipe's
spec is stated over the program's own dims, of which one of the recipe's may be several: then both
run on the same inputs. A recipe may give one name to dims that only have the same extent (a head's
D): what they are is followed from value to value. Inputs of the recipe that the program lacks are
held at a value (eps = 0, a norm weight of 1).
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from mirage_kernels.generator.errors import GraphError, RecipeError, VerifyError
from mirage_kernels.generator.frontend.declarations import dims_of
from mirage_kernels.generator.frontend.positional.lower import Layout, Lowered, flat
from mirage_kernels.generator.ir import Builder, Dim, DType, Graph, Level, Node, TensorType, Value
from mirage_kernels.generator.ir.infer import SCALAR
from mirage_kernels.generator.recipe import Recipe, Shape, trace

Held = Mapping[str, float | str]  # input -> the number it is held at, or the dim whose extent
Row = tuple[str, ...]  # the dims of the program that one dim of the recipe consists of; () if 1
Dims = tuple[str | None, ...]  # the recipe's dims of a tensor by position, None where it has none
MOST_ORDERS = 720  # orders of the inputs that are tried: those of six tensors
MOST_CHOICES = 4096


@dataclass(frozen=True)
class Choice:
    """A pairing as a person reads it: per tensor its name and dims, None where the extent is 1."""

    inputs: tuple[tuple[str, Dims], ...]
    outputs: tuple[Dims, ...]

    def __str__(self) -> str:
        return ", ".join(
            f"{name}[{' '.join(d if d else '1' for d in dims)}]" for name, dims in self.inputs
        )


@dataclass(frozen=True)
class Bound:
    """A spec stated over a program's dims, and the program without dims that the spec lacks.

    `ties` are rows that the recipe gives one name: their extents must stay equal.
    """

    choice: Choice
    spec: Graph
    graph: Graph
    ties: tuple[tuple[Row, ...], ...]


@dataclass(frozen=True)
class Terms:
    """A recipe, and at what its inputs are held that a program lacks.

    Raises RecipeError for a held input that the recipe lacks, or one held at none of its dims.
    """

    recipe: Recipe
    held: Held
    specs: dict[tuple[int, ...], Graph] = field(default_factory=dict)  # by static extents

    def __post_init__(self) -> None:
        inputs = self.recipe.inputs
        dims = {d for text in inputs.values() for d in dims_of(text)}
        for name, value in self.held.items():
            if name not in inputs:
                raise RecipeError(
                    f"{self.recipe.name} has no input {name!r} to hold",
                    f"inputs: {', '.join(inputs)}",
                )
            if isinstance(value, str) and value not in dims:
                raise RecipeError(
                    f"{name} is held at {value!r}, which is no number and no dim of "
                    f"{self.recipe.name}",
                    f"dims: {', '.join(sorted(dims))}",
                )

    def bindings(self, program: Lowered) -> Iterator[Bound]:
        """Yield the program in the recipe's terms; raise VerifyError where it does not fit."""
        recipe, results = self.recipe, [tuple(text.split()) for text in self.recipe.results]
        free = {n: dims_of(text) for n, text in recipe.inputs.items() if n not in self.held}
        ours = ", ".join(f"{name}[{' '.join(dims)}]" for name, dims in free.items())
        if (len(free), len(results)) != (len(program.inputs), len(program.outputs)):
            raise VerifyError(
                f"{recipe.name} takes {ours} and gives {len(results)} result, "
                f"the graph takes {len(program.inputs)} tensors and gives {len(program.outputs)}",
                "inputs that the graph lacks can be held at a value: --hold eps=0,norm_weight=1",
            )
        fitting = False
        for choice, extents in itertools.islice(_choices(free, results, program), MOST_CHOICES):
            spec = self.spec(extents)
            with contextlib.suppress(VerifyError, GraphError):
                bound = bound_as(choice, spec, program, self.held)
                fitting = True
                yield bound
        if not fitting:
            theirs = ", ".join(str(shape(layout, program)) for layout in program.inputs)
            raise VerifyError(
                f"no input of {recipe.name} fits: it takes {ours}, the graph {theirs}"
            )

    def spec(self, extents: Mapping[str, int]) -> Graph:
        """Return the recipe's spec at given extents."""
        sizes = {name: extents.get(name, 1) for name in self.recipe.static_dims}
        key = tuple(sizes.values())
        if key not in self.specs:
            self.specs[key] = trace(self.recipe, Shape("a checkpoint", sizes), DType.FP16)
        return self.specs[key]


def shape(layout: Layout, program: Lowered) -> list[int]:
    """Return the positional extents of an input or result."""
    return [math.prod(program.extents[part] for part in row) for row in layout]


def _choices(
    free: Mapping[str, Row], results: Sequence[Row], program: Lowered
) -> Iterator[tuple[Choice, dict[str, int]]]:
    """Yield the choices in which extents agree, with the extents of the recipe's dims."""
    shapes = [shape(layout, program) for layout in (*program.inputs, *program.outputs)]
    for order in itertools.islice(itertools.permutations(free), MOST_ORDERS):
        wanted = [*(free[name] for name in order), *results]
        for found, extents in _named(list(zip(wanted, shapes, strict=True)), {}):
            inputs = tuple(zip(order, found, strict=False))
            yield Choice(inputs, tuple(found[len(order) :])), extents


def _named(
    tensors: Sequence[tuple[Row, Sequence[int]]], known: dict[str, int]
) -> Iterator[tuple[list[Dims], dict[str, int]]]:
    """Yield names of all tensors' positions that agree with the extents known so far."""
    if not tensors:
        yield [], known
        return
    wanted, extents = tensors[0]
    slots: list[str | None] = [*wanted, *[None] * max(0, len(extents) - len(wanted))]
    for dims in dict.fromkeys(itertools.permutations(slots, len(extents))):
        named = [(d, n) for d, n in zip(dims, extents, strict=True) if d is not None]
        absent = dict.fromkeys(wanted, 1)  # what has no position is of one element
        now = {**absent, **dict(named)}
        spare = math.prod(extents) == math.prod(n for _, n in named)
        if spare and all(known.get(d, n) == n for d, n in now.items()):
            for rest, sizes in _named(tensors[1:], known | now):
                yield [dims, *rest], sizes


def bound_as(choice: Choice, spec: Graph, program: Lowered, held: Held) -> Bound:
    """Return a spec over a program's dims; raise VerifyError where a choice gives it no meaning."""
    restating = _Restating(choice, program)
    restating.take_inputs(spec, held)
    for node in spec.nodes:
        if node.op != "input":
            restating.take(node)
    types = {name: value.type for name, value in program.graph.values.items()}
    whole = Builder(Level.KERNEL, None, list(program.graph.nodes), types)
    ours, theirs = [], []
    for i, named in enumerate(zip(choice.outputs, program.outputs, strict=True)):
        rows = _rows(*named)
        ours.append(restating.result(spec.outputs[i], rows))
        theirs.append(_over(whole, program.graph.outputs[i], rows))
    ties = tuple(tuple(rows) for rows in restating.rows.values() if len(rows) > 1)
    return Bound(choice, restating.builder.graph(ours), whole.graph(theirs), ties)


def _rows(dims: Dims, layout: Layout) -> dict[str, Row]:
    """Return what the dims of a tensor are that have a name."""
    return {d: row for d, row in zip(dims, layout, strict=True) if d is not None}


def _over(builder: Builder, name: str, rows: Mapping[str, Row]) -> str:
    """Return a value without its dims of one element that the recipe has no name for."""
    spare = [d for d in builder.types[name].names if d not in flat(list(rows.values()))]
    return _summed(builder, name, spare)


def _emit(builder: Builder, op: str, args: Sequence[str], over: str = "") -> str:
    value = Value(builder.free_name(f"{op}_of_{args[0]}"), SCALAR)
    return builder.add(Node(op, tuple(args), (value,), over=over))


def _summed(builder: Builder, name: str, row: Sequence[str]) -> str:
    for part in reversed(row):
        name = _emit(builder, "sum", [name], part)
    return name


class _Restating:
    """A spec over a program's dims as far as it is made; of every value, what its dims are."""

    def __init__(self, choice: Choice, program: Lowered) -> None:
        self.choice, self.program = choice, program
        self.builder = Builder(Level.KERNEL)
        self.made: dict[str, tuple[str, dict[str, Row]]] = {}  # by name in the spec
        self.rows: dict[str, list[Row]] = {}  # all that a dim of the spec is
        tensors = [*(dims for _, dims in choice.inputs), *choice.outputs]
        for named in zip(tensors, (*program.inputs, *program.outputs), strict=True):
            for dim, row in _rows(*named).items():
                if row not in self.rows.setdefault(dim, []):
                    self.rows[dim].append(row)

    def take_inputs(self, spec: Graph, held: Held) -> None:
        """Take the program's inputs for the spec's, and numbers for those that are held."""
        given = zip(self.choice.inputs, self.program.inputs, self.program.graph.inputs, strict=True)
        for (name, dims), layout, node in given:
            stated = spec.values[name].type
            if not stated.dtype.is_real:
                raise VerifyError(f"{name} holds {stated.dtype.value}")
            rows = dict.fromkeys(stated.names, ()) | _rows(dims, layout)
            self.made[name] = self.builder.add(node), rows
        for name, value in held.items():
            type_ = TensorType((), spec.values[name].type.dtype)
            if isinstance(value, str):
                self.made[name] = self.extent(value, type_), {}
            else:
                self.made[name] = self.source("const", type_, value=value), {}

    def source(self, op: str, type_: TensorType, over: str = "", value: float = 0.0) -> str:
        """Add a number, an extent or positions."""
        out = Value(self.builder.free_name(f"{op}_{over}"), type_)
        return self.builder.add(Node(op, (), (out,), over=over, value=value))

    def extent(self, dim: str, type_: TensorType) -> str:
        """Return the extent of a dim of the spec: a product of extents."""
        found = self.source("const", type_, value=1.0)
        for part in self.rows.get(dim, [()])[0]:
            found = _emit(self.builder, "mul", [found, self.source("size", type_, part)])
        return found

    def positions(self, dim: str, dtype: DType) -> str:
        """Return the positions along a dim: those of its outer part times the inner extent, ..."""
        scalar = TensorType((), dtype)
        found = self.source("const", scalar)
        for part in self.rows.get(dim, [()])[0]:
            along = TensorType((Dim(part, self.program.extents[part]),), dtype)
            outer = _emit(self.builder, "mul", [found, self.source("size", scalar, part)])
            found = _emit(self.builder, "add", [outer, self.source("iota", along, part)])
        return found

    def take(self, node: Node) -> None:
        """Add what a node of the spec computes; raise VerifyError where dims are confused."""
        args, rows = [self.made[a][0] for a in node.args], self.joined(node)
        if node.op == "const":
            name = self.source("const", node.out.type, value=node.value)
        elif node.op == "size":
            name = self.extent(node.over, node.out.type)
        elif node.op == "iota":
            name = self.positions(node.over, node.out.type.dtype)
            rows = {node.over: self.rows.get(node.over, [()])[0]}
        elif node.over:
            product = _emit(self.builder, "mul", args) if len(args) > 1 else args[0]
            name = _summed(self.builder, product, rows.pop(node.over))
        else:
            name = _emit(self.builder, node.op, args)
        self.made[node.name] = name, rows

    def joined(self, node: Node) -> dict[str, Row]:
        """Return what the dims of a node's operands are."""
        rows: dict[str, Row] = {}
        for dim, row in (pair for a in node.args for pair in self.made[a][1].items()):
            if rows.setdefault(dim, row) != row:
                raise VerifyError(f"{dim} is two dims of the graph in {node.name}")
        parts = flat(list(rows.values()))
        if len(set(parts)) < len(parts):
            raise VerifyError(f"two dims of {node.name} are one dim of the graph")
        if node.args and node.over and node.over not in rows:
            raise VerifyError(f"{node.name} sums along {node.over} of what is held")
        return rows

    def result(self, name: str, wanted: Mapping[str, Row]) -> str:
        """Return a result of the spec; raise VerifyError where its dims are not the program's."""
        made, rows = self.made[name]
        if any(row != wanted.get(dim, ()) for dim, row in rows.items()):
            raise VerifyError(f"{name} has other dims than the graph's result")
        return _over(self.builder, made, wanted)
