"""Every block graph of at most so many ops: what the search's pruning is compared with.

Nothing here knows abstract terms. A program is an expression over the views and constants of one
setting; equal subexpressions are one op. All expressions with n ops follow from those with fewer,
by type rules alone: dims are cut alike wherever they meet, values of the loop and values after it
don't mix, a sum over a split dim is partial until the blocks combine. Each one whose type is the
result's is evaluated and compared with the spec.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property

from small import ON

from mirage_kernels.generator.errors import GraphError
from mirage_kernels.generator.ir import OPS, DType, Graph
from mirage_kernels.generator.meaning.arrays import Array
from mirage_kernels.generator.search.problem import Problem
from mirage_kernels.generator.search.sketch import (
    BOTH,
    GRID,
    LOOP,
    BlockSketch,
    Dims,
    Limits,
    Setting,
    Step,
    View,
)
from mirage_kernels.generator.search.stacks import digest

KINDS = {DType.INT32: "int", DType.BOOL: "bool"}  # of all others: "real"
COUNTING = ("add", "sub", "mul", "max")  # ops on whole numbers that make whole numbers


@dataclass(frozen=True)
class Type:
    """What the type rules look at: how each dim is cut, what is partial, when, what kind."""

    dims: Dims
    partial: bool  # one block's part of the sum over the split dim
    phase: str  # "before", "loop", "after", "joined"
    kind: str

    def mixes_blocks(self, split: str | None) -> bool:
        """Return whether a value after the blocks' combine depends on one block's own."""
        own = self.partial or dict(self.dims).get(split or "") in (GRID, BOTH)
        return self.phase == "joined" and own


@dataclass
class Enumeration:
    """All expressions of one setting, by number; those below `leaves` are inputs and constants."""

    spec: Graph
    setting: Setting
    most_ops: int
    steps: list[Step] = field(default_factory=list)
    types: list[Type] = field(default_factory=list)
    ops: list[frozenset[int]] = field(default_factory=list)  # subexpressions, itself included
    values: dict[int, Array | None] = field(default_factory=dict)  # None: an exp of an exp
    sources: list[View | str] = field(default_factory=list)
    typed: dict[tuple[object, ...], Type | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        problem = self.problem
        known, split = problem.fingerprints, self.setting.split
        for tensor in problem.tensors:
            for view in self.setting.views(tensor, problem.roles):
                dims, phase = view.dims(tensor.dims), "loop" if view.loop_cut else "before"
                type_ = Type(dims, False, phase, KINDS.get(tensor.dtype, "real"))
                number = self._add(Step("load", ()), type_)
                self.values[number] = known.view(known.tensors[tensor.name], dims, split)
                self.sources.append(view)
        for node in self.spec.of("const", "size"):
            kind = KINDS.get(node.out.type.dtype, "real")
            number = self._add(Step("load", ()), Type(frozenset(), False, "before", kind))
            self.values[number] = known.tensors[node.name]
            self.sources.append(node.name)
        self.ops = [frozenset() for _ in self.sources]
        self.leaves = len(self.sources)
        self.by_size = [list(range(self.leaves))]

    @cached_property
    def problem(self) -> Problem:
        """Names, dims and vocabulary of the spec, and how tensors may be cut."""
        return Problem(self.spec, Limits(), ON)

    def run(self) -> list[int]:
        """Return the expressions that equal the spec in the small field."""
        wanted, final = self.problem.fingerprints.wanted, cache(self._is_final)
        found = []
        for size in range(1, self.most_ops + 1):
            made = []
            for step in self._steps_of(size):
                type_ = self._type_of(step)
                if type_ is None or (size == self.most_ops and not final(type_)):
                    continue
                number = self._add(step, type_)
                made.append(number)
                if final(type_) and self._loops(number) and self.meaning(number) == wanted:
                    found.append(number)
            self.by_size.append(made)
        return found

    def _loops(self, number: int) -> bool:
        """Return whether the loop cuts an input, if there is one."""
        read = {a for n in self.ops[number] for a in self.steps[n].args if a < self.leaves}
        views = [v for v in (self.sources[a] for a in read) if isinstance(v, View)]
        return self.setting.loop is None or any(v.loop_cut for v in views)

    def _add(self, step: Step, type_: Type) -> int:
        number = len(self.steps)
        self.steps.append(step)
        self.types.append(type_)
        self.ops.append(frozenset({number}).union(*(self.ops[a] for a in step.args)))
        return number

    def _steps_of(self, size: int) -> Iterator[Step]:
        """Yield every step whose result has `size` ops, each once."""
        words = self.problem.vocabulary
        one, two, three = (words.elementwise[n] for n in (1, 2, 3))
        for a in self.by_size[size - 1]:
            yield from (Step(op, (a,)) for op in one)
            yield from (Step("sum", (a,), d) for d in words.sums)
            yield Step("accum", (a,))
            if self.setting.split:
                yield Step("combine", (a,), self.setting.split)
        for a, b in self._pairs(size):
            yield from (Step(op, (a, b)) for op in two if a <= b or not OPS[op].commutative)
            yield from (Step("contract", (a, b), d) for d in words.contractions if a <= b)
        for op in three:
            yield from (Step(op, triple) for triple in self._choices(size))

    def _pairs(self, size: int) -> Iterator[tuple[int, int]]:
        """Yield operands that have `size - 1` ops together."""
        for a in self._up_to(size - 1):
            for b in self._beside(self.ops[a], size):
                yield a, b

    def _choices(self, size: int) -> Iterator[tuple[int, int, int]]:
        """Yield a truth value and two numbers that have `size - 1` ops together."""
        every = list(self._up_to(size - 1))
        numbers = [n for n in every if self.types[n].kind == "real"]
        for condition in (n for n in every if self.types[n].kind == "bool"):
            for a in numbers:
                for b in self._beside(self.ops[condition] | self.ops[a], size):
                    yield condition, a, b

    def _up_to(self, size: int) -> Iterator[int]:
        return itertools.chain(*self.by_size[: size + 1])

    def _beside(self, ops: frozenset[int], size: int) -> Iterator[int]:
        """Yield the expressions that have `size - 1` ops together with some that are there."""
        missing = size - 1 - len(ops)
        if missing == 0:  # nothing new: one of the ops, or a leaf
            yield from range(self.leaves)
            yield from ops
        elif missing > 0:
            yield from (n for n in self.by_size[missing] if ops.isdisjoint(self.ops[n]))
            larger = itertools.chain(*self.by_size[missing + 1 : size])
            yield from (n for n in larger if len(ops | self.ops[n]) == size - 1)

    def _type_of(self, step: Step) -> Type | None:
        """Return the type of a step's result, one object for equal types; None: it has none."""
        args = [self.types[a] for a in step.args]
        key = (step.op, step.over, *map(id, args))
        if key not in self.typed:
            made = self._typed(step, args)
            self.typed[key] = self.typed.setdefault((made,), made)
        return self.typed[key]

    def _typed(self, step: Step, args: Sequence[Type]) -> Type | None:
        phases = {a.phase for a in args} - {"before"}
        dims = frozenset[tuple[str, str]]().union(*(a.dims for a in args))
        if len(phases) > 1 or len({d for d, _ in dims}) < len(dims):
            return None
        met = Type(dims, any(a.partial for a in args), phases.pop() if phases else "before", "real")
        if step.op in ("accum", "combine"):
            return self._carried(step.op, met, args[0].kind)
        if step.over:
            numbers = all(a.kind == "real" and step.over in dict(a.dims) for a in args)
            return self._summed(met, step.over) if numbers else None
        return self._elementwise(step.op, met, args)

    def _carried(self, op: str, met: Type, kind: str) -> Type | None:
        if kind != "real":
            return None
        if op == "combine":
            ready = met.partial and met.phase in ("before", "after")
            return Type(met.dims, False, "joined", "real") if ready else None
        if met.phase != "loop" or any(how in (LOOP, BOTH) for _, how in met.dims):
            return None
        split = self.setting.split is not None and self.setting.loop == self.setting.split
        return Type(met.dims, met.partial or split, "after", "real")

    def _summed(self, met: Type, over: str) -> Type | None:
        how = dict(met.dims)[over]
        one_part = how == GRID
        if one_part and over != self.setting.split:
            return None
        made = Type(met.dims - {(over, how)}, met.partial or one_part, met.phase, "real")
        return None if made.mixes_blocks(self.setting.split) else made

    def _elementwise(self, op: str, met: Type, args: Sequence[Type]) -> Type | None:
        kind = _kind_of(op, [a.kind for a in args])
        made = Type(met.dims, met.partial, met.phase, kind or "")
        # An op on numbers has the dims of one of its operands: no outer products.
        outer = kind == "real" and not any(a.dims == met.dims for a in args)
        return None if not kind or outer or made.mixes_blocks(self.setting.split) else made

    def _is_final(self, type_: Type) -> bool:
        """Return whether a value can leave the kernel as its result."""
        setting = self.setting
        last = "joined" if setting.split else "after" if setting.loop else "before"
        cut = {d for d, how in type_.dims if how == GRID}
        return (
            (type_.kind, type_.partial, type_.phase) == ("real", False, last)
            and {d for d, _ in type_.dims} == set(self.problem.roles.output)
            and cut == set(setting.grid) - {setting.split}
        )

    def value(self, number: int) -> Array | None:
        """Return an expression in every block and step; None for an exp of an exp."""
        if number not in self.values:
            step = self.steps[number]
            args = [a for a in map(self.value, step.args) if a is not None]
            try:
                undefined = len(args) < len(step.args)
                result = self.problem.fingerprints.result
                self.values[number] = None if undefined else result(step.op, args, step.over)
            except GraphError:
                self.values[number] = None
        return self.values[number]

    def meaning(self, number: int) -> bytes:
        """Return what expressions of equal value have in common."""
        value = self.value(number)
        return b"" if value is None else digest(value)

    def sketch(self, number: int) -> BlockSketch:
        """Return an expression as the search would hand it on."""
        made = sorted(self.ops[number])
        used = sorted({a for n in made for a in self.steps[n].args if a < self.leaves})
        place = {old: new for new, old in enumerate((*used, *made))}
        steps = [self.steps[n] for n in made]
        dims = tuple(d for d in self.problem.order if d in self.problem.roles.output)
        return BlockSketch(
            self.setting,
            tuple(self.sources[i] for i in used),
            tuple(Step(s.op, tuple(place[a] for a in s.args), s.over) for s in steps),
            ((place[number], dims),),
        )


def _kind_of(op: str, kinds: Sequence[str]) -> str | None:
    """Return what kind of value an elementwise op makes of operands of some kinds."""
    if op == "where":
        return "real" if kinds == ["bool", "real", "real"] else None
    if op in ("less", "both"):
        return "bool" if kinds == [{"less": "int", "both": "bool"}[op]] * 2 else None
    if set(kinds) == {"int"} and op in COUNTING:
        return "int"
    return "real" if set(kinds) == {"real"} else None
