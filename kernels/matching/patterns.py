"""The recipes' PyTorch references as terms: what is looked for in a model.

A reference is traced once for each set of optional inputs, with a number that nothing else has in
the place of each run-time number. A recipe whose program is no formula of rows (attention), or that
no op of this library computes, gives no pattern, or one that is reported alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import combinations
from typing import TYPE_CHECKING

import torch
from torch._ops import OpOverload
from torch._subclasses import FakeTensorMode

from mirage_kernels import registration as registration  # registers the ops
from mirage_kernels.matching.terms import Term, Terms, bare
from mirage_kernels.matching.trace import function_terms

if TYPE_CHECKING:
    from mirage_kernels.generator.recipe import Recipe

# Ops that are called otherwise than the recipe whose reference they compute.
_OPS = {
    ("gated_mlp", "norm_weight"): "rms_norm_gated_mlp",
    ("rms_norm", "addend"): "rms_norm_add",
}
_EXTENTS = (3, 48, 80, 5, 7, 11)  # of the dims of a reference: what they are does not matter


@dataclass(frozen=True, eq=False)
class Pattern:
    """One form of a recipe: a formula, its inputs as leaves, and the op that computes it."""

    recipe: str
    op: OpOverload | None
    activation: str
    roots: tuple[Term, ...]  # the output's, then those of what is returned beside it
    tensors: Mapping[Term, str]
    numbers: Mapping[float, str]
    dims: Mapping[str, tuple[str, ...]]  # of each input
    static: tuple[str, ...]

    @property
    def op_name(self) -> str:
        """The op without its overload; the recipe where there is none."""
        return self.recipe if self.op is None else self.op.overloadpacket.__name__

    @property
    def weight(self) -> int:
        """How much of a program it covers."""
        return sum(map(size_of, self.roots))

    def is_by_token(self, name: str) -> bool:
        """Say whether an input has a row for every token."""
        return self.dims[name][0] not in self.static


def size_of(term: Term) -> int:
    """Return how many operators a formula has; products count more than all else."""
    own = 100 if term.op == "linear" else 1
    return own + sum(map(size_of, term.args))


@cache
def patterns() -> tuple[Pattern, ...]:
    """Return the patterns of all recipes, those that cover most first."""
    from mirage_kernels.generator.recipe import catalog

    found: dict[object, Pattern] = {}
    for source in catalog().values():
        for left_out in _left_out(source):
            made = _pattern(source, left_out)
            if made is not None:
                found.setdefault(_shape_of(made), made)
    return tuple(sorted(found.values(), key=lambda p: -p.weight))


def _shape_of(pattern: Pattern) -> object:
    """Return what makes two patterns one: the plain form of a recipe is also its full form."""
    return tuple(_text(root, pattern) for root in pattern.roots)


def _text(term: Term, pattern: Pattern) -> str:
    if term in pattern.tensors:
        return pattern.tensors[term]
    if term.is_const:
        return pattern.numbers.get(term.value, repr(term.value))
    if term.op == "round":
        return _text(term.args[0], pattern)
    return f"{term.op}({', '.join(sorted(_text(a, pattern) for a in term.args))})"


def _left_out(source: Recipe) -> Iterator[frozenset[str]]:
    """Return the sets of inputs that a call may leave out, none first."""
    for count in range(len(source.optional) + 1):
        yield from map(frozenset, combinations(source.optional, count))


def _pattern(source: Recipe, left_out: frozenset[str]) -> Pattern | None:
    """Return the pattern of a recipe's reference; None where it is no formula of rows."""
    if source.reference is None or any(":" in text for text in source.inputs.values()):
        return None
    if len(source.output.split()) != 2:
        return None
    extents = dict(zip((*source.dynamic, *source.static_dims), _EXTENTS, strict=False))
    terms = Terms()
    with FakeTensorMode():
        given = _inputs(source, left_out, extents)
        tensors, roots = function_terms(source.reference, given, terms)
    numbers = {
        _single(x): n for n, x in given.items() if isinstance(x, float) and n not in left_out
    }
    dims = {n: tuple(source.inputs[n].split()) for n in tensors}
    names = {term: name for name, term in tensors.items()}
    roots = [bare(root) for root in roots]
    if not all(_is_closed(root, names) for root in roots):
        return None
    op = _op(source, {*names.values(), *numbers.values()}, has_more=bool(source.also))
    word = source.choices.get("activation", "")
    static = tuple(source.static_dims)
    return Pattern(source.name, op, word, tuple(roots), names, numbers, dims, static)


def _inputs(
    source: Recipe, left_out: frozenset[str], extents: Mapping[str, int]
) -> dict[str, object]:
    given: dict[str, object] = {}
    for place, (name, text) in enumerate(source.inputs.items(), start=1):
        dims = text.split()
        if name in left_out:
            given[name] = None if dims else 0.0
        elif dims:
            given[name] = torch.empty([extents[d] for d in dims], dtype=torch.bfloat16)
        else:
            given[name] = 0.1234567 * place
    return given


def _single(number: float) -> float:
    """Return a number in single precision, as some of PyTorch's functions take it."""
    return float(torch.tensor(number, dtype=torch.float32))


def _is_closed(term: Term, inputs: Mapping[Term, str]) -> bool:
    """Say whether a formula is one of its inputs alone."""
    if term in inputs:
        return True
    return term.op != "leaf" and all(_is_closed(a, inputs) for a in term.args)


def _op(source: Recipe, names: set[str], *, has_more: bool) -> OpOverload | None:
    """Return the overload that takes these inputs; None where the library has none."""
    family = source.family or source.name
    chosen = (op for (f, name), op in _OPS.items() if f == family and name in source.inputs)
    packet = getattr(torch.ops.mirage_kernels, next(chosen, family), None)
    if packet is None:
        return None
    overload = "residual" if has_more else "default"
    if overload not in packet.overloads():
        return None
    found: OpOverload = getattr(packet, overload)
    taken = {argument.name for argument in found._schema.arguments}
    return found if names <= taken else None
