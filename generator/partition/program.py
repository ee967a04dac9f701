"""A PyTorch function as a program: the kernels it is cut into, and the order of its steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from itertools import chain, zip_longest
from typing import Any

from mirage_kernels.generator.errors import (
    GraphError,
    OneDimError,
    PlanError,
    RecipeError,
    SearchError,
    ShapeError,
    VerifyError,
)
from mirage_kernels.generator.frontend.export import operator_of
from mirage_kernels.generator.ir import DType
from mirage_kernels.generator.partition.addressing import require_rows
from mirage_kernels.generator.partition.cutting import cut_otherwise, uses_apart
from mirage_kernels.generator.partition.document import Document, bytes_of
from mirage_kernels.generator.partition.extents import without_implied
from mirage_kernels.generator.partition.groups import FEW, Cuts, Grouping, Kind
from mirage_kernels.generator.partition.horizontal import launches_of
from mirage_kernels.generator.partition.packed import packed_in
from mirage_kernels.generator.partition.parts import Part, Step, dtype_name
from mirage_kernels.generator.partition.products import (
    ATTENTION,
    free_extents,
    products_of,
    require_one_type,
)
from mirage_kernels.generator.partition.rewriting import PRODUCTS
from mirage_kernels.generator.partition.speed import is_fast, is_of_few, is_slow
from mirage_kernels.generator.partition.trace import Function, Node, Trace
from mirage_kernels.generator.partition.twins import Use
from mirage_kernels.generator.pipeline import Result
from mirage_kernels.generator.recipe import Recipe

Most = Mapping[str, int]  # of dynamic extents
Limit = bool | dict[str, int]  # that products have few rows: always, never, up to an extent
Make = Callable[[Recipe], Result]
Ahead = Callable[[Sequence[Recipe]], None]  # told what will probably be made next
SLOW = "no fast schedule takes it, and a general kernel takes longer"
NO_KERNEL = (RecipeError, GraphError, ShapeError, SearchError, PlanError, VerifyError)


@dataclass(frozen=True)
class Way:
    """What a program does up to some extents: its parts, and what it says of those."""

    most: Most
    parts: tuple[Part, ...]
    steps: tuple[Step, ...]


@dataclass
class Program:
    """A function's program: its kernels, its ways, and why PyTorch runs what it runs."""

    trace: Trace
    dtype: DType
    arch: str
    kernels: dict[frozenset[str], Result] = field(default_factory=dict)
    reasons: dict[frozenset[str], str] = field(default_factory=dict)
    ways: list[Way] = field(default_factory=list)
    names: list[str] = field(default_factory=list)  # of recipes, those without a kernel too
    ahead: Ahead | None = None
    recipes: dict[tuple[frozenset[str], str, bool], Recipe | None] = field(default_factory=dict)
    crossed: set[frozenset[str]] = field(default_factory=set)  # two dims of a tensor would be one
    slow: set[str] = field(default_factory=set)  # nodes that kernels would take longer for
    apart: dict[frozenset[str], set[Use]] = field(default_factory=dict)  # twins of parts, by nodes

    @property
    def results(self) -> list[Result]:
        """The kernels that a way runs, each once."""
        parts = [p for way in self.ways for p in way.parts if p.kind is not Kind.CALL]
        used = {p.key for p in parts}
        return [result for nodes, result in self.kernels.items() if nodes in used]

    @property
    def name(self) -> str:
        """Name of the program."""
        return self.trace.function.named

    @property
    def document(self) -> dict[str, Any]:
        """What `mirage_kernels.load` reads."""
        inputs = [
            {"name": self.trace.inputs[n], "shape": self.trace.shape(n), "dtype": dtype_name(n)}
            | ({"called": self.trace.called[n]} if n in self.trace.called else {})
            for n in self.trace.in_order
            if n not in self.trace.constants_outside
        ]
        constants = [
            {"name": self.trace.inputs[n], "shape": [*x.shape], **bytes_of(x)}
            for n, x in self.trace.constants_outside.items()
        ]
        ways = [{"most": dict(w.most), "steps": list(w.steps)} for w in self.ways]
        own = self.name, self.dtype.value, self.arch
        return asdict(Document(*own, inputs, self.trace.returned, ways, constants))

    def recipe(self, part: Part, name: str, *, by_rows: bool) -> Recipe | None:
        """Return a part's recipe under a name, the same object whenever it is asked for."""
        key = (part.key, name, by_rows)
        if key not in self.recipes:
            self.recipes[key] = part.by_rows(name) if by_rows else part.recipe(name)
        return self.recipes[key]

    def lines(self) -> Iterator[str]:
        """Say of every way what it runs, and of operators why no kernel can be made of them."""
        for way in self.ways:
            limits = ", ".join(f"{dim} <= {n}" for dim, n in way.most.items())
            yield f"{limits or 'any extents' if len(self.ways) == 1 else limits or 'above'}:"
            for part, step in zip(way.parts, way.steps, strict=True):
                ops = ", ".join(operator_of(n).strip("_") for n in part.computing)
                if "kernel" in step:
                    yield f"  kernel {step['kernel']}: {ops}"
                elif part.runs:
                    first, trace = part.nodes[0], part.trace
                    few = len(self.ways) == 1 or _allows(way.most, _few(trace, first))
                    known = SLOW if few and first.name in self.slow else ""
                    reason = trace.refused.get(first, known)
                    yield f"  PyTorch: {ops}{reason and f': {reason}'}"

    def reason_lines(self) -> Iterator[str]:
        """Say why parts have no kernel, or are of several."""
        parts = [p for way in self.ways for p in way.parts]
        left = {n.name for p in parts if p.kind is Kind.CALL for n in p.nodes}
        whole = [p.key for p in parts if p.kind is not Kind.CALL]
        for nodes, reason in self.reasons.items():
            if any(nodes < key for key in whole):  # with a tensor taken twice it is one
                continue
            yield f"  {'no kernel' if nodes & left else 'several kernels'}: {reason}"


def partitioned(
    function: Function, dtype: DType, arch: str, make: Make, ahead: Ahead | None = None
) -> Program:
    """Cut a function into kernels, each made by `make`, and operators that PyTorch runs.

    `ahead` is told which recipes will come to `make` if all before them become kernels.

    Up to 64 rows a product is a kernel with what surrounds it; above, PyTorch multiplies. Where no
    kernel can be made of some nodes, PyTorch runs them. Raises RecipeError for a function that
    cannot be traced or whose extents depend on its dynamic dims in other ways than as multiples.
    """
    import torch

    trace = Trace(function, {DType.FP16: torch.float16, DType.BF16: torch.bfloat16}[dtype])
    require_one_type(trace)
    made = Program(trace, dtype, arch, ahead=ahead)
    for most in (*_most(trace), {}):
        made.ways.append(_way_of_columns(made, make, most))
    made.ways[:] = [
        way
        for way, more in zip_longest(made.ways, made.ways[1:])
        if more is None or way.steps != more.steps
    ]
    return made


def _most(trace: Trace) -> list[Most]:
    """Return up to which extents a function has ways of its own: where all products have few rows.

    And where some have, as those of one row for each sequence beside those of all its tokens.
    """
    limits = {n: x.items() for n, x in _limits(trace).items() if isinstance(x, dict)}
    multiplied = {*chain(*(x for n, x in limits.items() if operator_of(n) != ATTENTION))}
    left, found = {*chain(*limits.values())}, list[Most]()
    while left:
        least = {dim: min(n for d, n in left if d == dim) for dim, _ in sorted(left)}
        found.append(without_implied(least))
        left = (left & multiplied) - {*found[-1].items()}
    return [*found[:1], *found[1:][-1:]]


def _limits(trace: Trace) -> dict[Node, Limit]:
    """Return for nodes that kernels can be made of whether products have few rows."""
    return {n: _few(trace, n) for n in trace.nodes if n not in trace.refused}


def _few(trace: Trace, node: Node) -> Limit:
    """Say whether a product has few rows on one side: always, never, or up to an extent."""
    op, both = operator_of(node), (node, trace.pairs[node])
    if op == ATTENTION:
        queries = (int(n.args[0].meta["val"].shape[-2]) for n in both)
        sizes = [trace.size(*queries)]
    elif op in PRODUCTS:
        sizes = [trace.size(*own) for own in zip(*map(free_extents, both), strict=True)]
    else:
        return True
    if any(isinstance(size, int) and size <= FEW for size in sizes):
        return True
    most = {s["extent"]: FEW // s["times"] for s in sizes if isinstance(s, dict)}
    most = {dim: n for dim, n in most.items() if n > 0}
    return dict([most.popitem()]) if most else False


def _way_of_columns(made: Program, make: Make, most: Most) -> Way:
    """Return a way; packed products are several where one kernel takes these, else they are one."""
    limits, trace = _limits(made.trace), made.trace
    packed = {n.name for n in packed_in(trace.graph) if _allows(most, limits.get(n, False))}
    while packed:
        trace = Trace(trace.function, trace.dtype, packed)
        way = _way(made, trace, make, most)
        trace = way.parts[0].trace
        kernels = [{*p.nodes} for p in way.parts if p.kind is not Kind.CALL]
        whole = [n for n, own in trace.parted.items() if not any({*own} <= k for k in kernels)]
        if not whole:
            return way
        packed -= {*whole}
    return _way(made, made.trace, make, most)


def _allows(most: Most, limit: Limit) -> bool:
    """Say whether kernels multiply so many rows, up to some extents or of any."""
    if not isinstance(limit, dict):
        return limit
    found = ((dim, n) for dims, n in most.items() for dim in (dims, *dims.split("*")))
    return any(n <= limit.get(dim, 0) for dim, n in found)


def _way(made: Program, trace: Trace, make: Make, most: Most) -> Way:
    """Return a way, cut anew until every kernel of it could be made."""
    cuts, few = Cuts(), _few_rows(trace, most)
    while True:
        parts = launches_of(Grouping(trace, few, cuts))
        if made.ahead is not None:
            made.ahead(_next_recipes(made, parts))
        wrong = next((p for p in parts if not _is_made(made, make, p)), None)
        if wrong is None:
            parts = [p for p in parts if not {*p.results} & trace.twins.keys()]
            return Way(most, tuple(parts), tuple(_steps(made, trace, parts)))
        twice = _taken_twice(made, wrong)
        if twice == trace.twice:
            cut_otherwise(wrong, cuts)
        else:
            trace = Trace(trace.function, trace.dtype, trace.packed, twice)
            cuts, few = Cuts(), _few_rows(trace, most)


def _few_rows(trace: Trace, most: Most) -> Callable[[Node], bool]:
    """Return what says of a product whether kernels multiply so many rows."""
    limits = _limits(trace)
    return lambda n: _allows(most, limits[n])


def _taken_twice(made: Program, part: Part) -> set[Use]:
    """Return the uses that take twins of tensors, where a part has no kernel.

    There are more where two of its dims would be one. If they did not help they are given up.
    """
    twice, nodes = {*part.trace.twice}, frozenset(n.name for n in part.computing)
    if nodes not in made.apart and part.key in made.crossed:
        made.apart[nodes] = uses_apart(part)
        made.reasons.pop(part.key, None)  # it is tried again
        return twice | made.apart[nodes]
    own = made.apart.get(nodes, set())
    return twice - own if own <= twice else twice


def _is_made(made: Program, make: Make, part: Part) -> bool:
    """Make the kernel of a part; where there is none, note why."""
    if part.kind is Kind.CALL:
        return True
    nodes, known = part.key, len(made.names)
    if nodes not in made.kernels and nodes not in made.reasons:
        try:
            result = made.kernels[nodes] = _result(made, make, part)
            if result.record.no_plan:
                made.reasons[nodes] = f"{result.record.recipe}: {result.record.no_plan}"
            elif part.indexed:
                require_rows(part, result.request.recipe)
        except NO_KERNEL as error:
            made.reasons[nodes] = error.sentence
            made.kernels.pop(nodes, None)
            if isinstance(error, OneDimError):
                made.crossed.add(nodes)
                del made.names[known:]
    if nodes in made.kernels and is_slow(made.kernels[nodes], part):
        made.slow |= nodes
        return False
    return nodes in made.kernels


def _result(made: Program, make: Make, part: Part) -> Result:
    """Make the kernel of a part: for any number of rows, where a fast schedule takes them so.

    Raises RecipeError for a product of weights without rows, or with many.
    """
    name = _free_name(made.name, made.names, part)
    by_rows, fixed = _by_rows(made, part, name), is_of_few(part)
    if by_rows or not fixed:
        made.names.append(name)
    if by_rows and (fixed or (part.kind is Kind.PRODUCT and part.is_dynamic)):
        return make(by_rows)  # which is slow where it is general
    if by_rows:
        with suppress(*NO_KERNEL):
            result = make(by_rows)
            if is_fast(result):
                return result
    plain = None if fixed else made.recipe(part, name, by_rows=False)
    if plain is None:
        raise RecipeError(
            f"{operator_of(products_of(part.nodes)[0])} of rows of a static number: "
            "name them in `dynamic`, and kernels multiply them at the speed of memory"
        )
    return make(plain)


def _by_rows(made: Program, part: Part, name: str) -> Recipe | None:
    """Return a part's recipe of any number of rows, if it has one."""
    with suppress(*NO_KERNEL):
        return made.recipe(part, name, by_rows=True)
    return None


def _next_recipes(made: Program, parts: Sequence[Part]) -> list[Recipe]:
    """Return what kernels of parts are made of first, if all of these become kernels."""
    names, found = [*made.names], list[Recipe]()
    for part in parts:
        if part.kind is Kind.CALL or part.key in made.kernels or part.key in made.reasons:
            continue
        name = _free_name(made.name, names, part)
        first = _by_rows(made, part, name)
        with suppress(*NO_KERNEL):
            if first is None and not is_of_few(part):
                first = made.recipe(part, name, by_rows=False)
        if first is not None:
            names.append(name)
            found.append(first)
    return found


def _free_name(program: str, names: Sequence[str], part: Part) -> str:
    """Return a kernel's name, which no other of the program has, whatever became of that.

    So a program is cut to the same names where its kernels are known already.
    """
    base = f"{program}_{part.name}"
    numbered = (base if i == 1 else f"{base}_{i}" for i in range(1, len(names) + 2))
    return next(name for name in numbered if name not in names)


def _steps(made: Program, trace: Trace, parts: Sequence[Part]) -> Iterator[Step]:
    """Yield the steps of parts, each with the values that none behind it takes."""
    kept = {trace.name(n) for n in trace.results}
    twins = {trace.name(twin): trace.name(n) for twin, n in trace.twins.items()}
    last: dict[str, int] = {}
    for i, part in enumerate(parts):
        names = (trace.name(n) for n in (*part.taken, *part.results))
        last |= dict.fromkeys((twins.get(name, name) for name in names), i)
    for i, part in enumerate(parts):
        if part.kind is Kind.CALL:
            step = part.called()
        else:
            result = made.kernels[part.key]
            record = result.record
            step = part.step(result.request.recipe, f"{record.recipe}_{record.stem}")
        ended = sorted(name for name, at in last.items() if at == i and name not in kept)
        yield _of_tensors(step, twins) | {"last": ended}


def _of_tensors(step: Any, twins: Mapping[str, str]) -> Any:
    """Return a step whose values are tensors in the places of their twins."""
    if isinstance(step, list | tuple):
        return [_of_tensors(x, twins) for x in step]
    if not isinstance(step, dict) or not twins:
        return step
    return {k: twins.get(x, x) if k == "value" else _of_tensors(x, twins) for k, x in step.items()}
