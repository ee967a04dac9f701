"""What values of a spec's search are made with: its ops, sums, constants, and the terms it needs.

Both pruners are here: what an op makes of which terms, and whether the spec can need it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache

from mirage_kernels.generator.ir import OPS, DType, Graph, Kind
from mirage_kernels.generator.ir.ops import MAXIMA
from mirage_kernels.generator.meaning.abstract import (
    abstract_reading,
    elementwise,
    reduced,
    source,
    target_term,
)
from mirage_kernels.generator.meaning.terms import Terms
from mirage_kernels.generator.meaning.walk import walk
from mirage_kernels.generator.search.sketch import Limits, TensorInfo
from mirage_kernels.generator.search.stabilise import stabilise

# Values of a setting where the spec contracts nothing: nearly any two of them might be needed
# together then, and testing whether they are takes the time (nine products in the square of three).
VALUES_OF_SUMS = 250
SUMS = ("sum", "accum", "combine", "contract")
MET = {"add": "add", "sub": "add", "mul": "mul", "div": "div"}  # as `Terms.may_contain` has them


class Vocabulary:
    """What values are made with: the spec's ops by arity, the dims it sums along, its constants.

    And what each op makes of which terms, under both pruners. All settings of a spec share it.
    """

    def __init__(self, spec: Graph, terms: Terms, limits: Limits) -> None:
        self.terms, self.limits, self.target = terms, limits, target_term(terms, spec)
        used = {n.op for n in spec.nodes}
        own = [op for op in OPS if op in used and OPS[op].kind is Kind.ELEMENTWISE]
        self.elementwise = {n: tuple(op for op in own if OPS[op].arity == n) for n in (1, 2, 3)}
        self.sums = tuple(dict.fromkeys(n.over for n in spec.of("sum")))
        self.maxima = tuple(dict.fromkeys(n.over for n in spec.of("amax")))
        self.contractions = tuple(dict.fromkeys(n.over for n in spec.of("contract")))
        slow = limits.prune_abstract and not self.contractions
        self.most_values = min(limits.values, VALUES_OF_SUMS) if slow else limits.values
        self.zero = terms.leaf("const", "0")
        self.choices = {
            atom[2][1:]  # so far the target's atoms are the only ones
            for atom in terms.atoms
            if atom[:2] == ("fn", "where") and len(atom[2]) == 3
        }
        self.constants = [
            TensorInfo(n.name, (), source(terms, n), n.out.type.dtype)
            for n in spec.of("const", "size")
        ]
        inputs = [terms.leaf("input", n.name) for n in spec.inputs]
        of_spec = walk(spec, inputs, abstract_reading(terms))
        self.outer, self.lifting = _new_dims(spec, of_spec)
        self.arguments = _arguments(spec)
        # An exponential that gets a peak is taken whole: exp(a) exp(b) for exp(a + b) overflows.
        safe = stabilise(spec, DType.FP16) is not spec
        self.exponents = {of_spec[n.args[0]] for n in spec.of("exp")} if safe else None
        # Counts of inputs are packed into one number: adding and comparing them are single steps.
        capacity = terms.occurrences(self.target)
        counted = sorted(name for name, n in capacity.items() if n < 0x80)  # more are not limited
        self.shift = {name: 8 * i for i, name in enumerate(counted)}
        self.high_bits = sum(0x80 << s for s in self.shift.values())
        self.room = sum(capacity[name] << s for name, s in self.shift.items()) | self.high_bits
        once: tuple[Callable[..., object], ...] = (self.result, self.ops_on, self._occurrences)
        for operation in once:
            setattr(self, operation.__name__, cache(operation))

    def result(
        self, op: str, args: tuple[int, ...], over: str, parts: tuple[str, ...]
    ) -> int | None:
        """Return the term of an op on terms, or None when it can't be needed."""
        if op in (*SUMS, *MAXIMA):
            product = self.terms.mul(*args) if op == "contract" else args[0]
            term = reduced(self.terms, op, product, over, parts)
        elif op == "exp" and self.exponents is not None and args[0] not in self.exponents:
            return None
        else:
            term = elementwise(self.terms, op, args)
        needed = not self.limits.prune_abstract or self.terms.contains(self.target, term)
        return term if needed else None

    def ops_on(self, low: int, high: int) -> tuple[tuple[str, bool], ...]:
        """Return the ops on two terms that can be needed, and whether with operands swapped.

        None where the operands together count an input more often than the target does. A
        contraction can be needed only where the product of its operands can.
        """
        room = self.room - self._occurrences(low) - self._occurrences(high)
        if self.limits.prune_abstract and room & self.high_bits != self.high_bits:
            return ()
        ops = []
        for op in self.elementwise[2]:
            if self._is_needed(op, low, high):
                ops.append((op, False))
            if not OPS[op].commutative and self._is_needed(op, high, low):
                ops.append((op, True))
        if self._is_needed("mul", low, high):
            ops.append(("contract", False))
        return tuple(ops)

    def _is_needed(self, op: str, a: int, b: int) -> bool:
        """Return whether an op on two terms can be needed: what clearly can't is not made."""
        if self.limits.prune_abstract and op in MET:
            other = self.result("neg", (b,), "", ()) if op == "sub" else b
            if other is None or not self.terms.may_contain(self.target, MET[op], a, other):
                return False
        return self.result(op, (a, b), "", ()) is not None

    def takes(self, op: str, dims: frozenset[str], *, whole: bool) -> bool:
        """Return whether a function may be needed of a value with these dims, a whole one or not.

        Parts of a product have no dims that it lacks, and the root of part of a sum leads nowhere.
        """
        known = self.arguments.get(op)
        return known is None or (whole and any(dims <= argument for argument in known))

    def _occurrences(self, term: int) -> int:
        """Return the packed counts of a term; inputs that the target lacks don't count."""
        counts = self.terms.occurrences(term).items()
        return sum(min(n, 127) << self.shift[name] for name, n in counts if name in self.shift)

    def is_chosen_between(self, a: int, b: int) -> bool:
        """Return whether the program may choose between two terms: a mask, or a choice it makes."""
        return b == self.zero or (a, b) in self.choices or not self.limits.prune_abstract


def _arguments(spec: Graph) -> dict[str, set[frozenset[str]]]:
    """Return the dims of what the spec takes roots of, where that comes apart in many ways.

    sqrt(a * b) is sqrt(a) * sqrt(b), so products and quotients do; what is added, as eps is, does
    not.
    """
    found: dict[str, set[frozenset[str]]] = {}
    for node in spec.of("sqrt"):
        (argument,) = node.args
        dims = frozenset(spec.values[argument].type.names)
        found.setdefault(node.op, set()).add(dims)
        if spec.producers[argument].op not in ("mul", "div", "sum", "contract"):
            return {}
    return found


def _new_dims(
    spec: Graph, terms: Mapping[str, int]
) -> tuple[frozenset[tuple[int, frozenset[str]]], set[str]]:
    """Return the spec's elementwise outer products of numbers, and its ops that lift positions.

    An outer product is known by its term and its dims: a slope times a distance, say.
    """
    outer, lifting = set[tuple[int, frozenset[str]]](), set[str]()
    for node in (n for n in spec.nodes if OPS[n.op].kind is Kind.ELEMENTWISE):
        types, dims = [spec.values[a].type for a in node.args], {*node.out.type.names}
        if not node.out.type.dtype.is_real:
            continue
        if DType.INT32 in {type_.dtype for type_ in types}:
            lifting.add(node.op)
        if all({*type_.names} != dims for type_ in types):
            outer.add((terms[node.name], frozenset(dims)))
    return frozenset(outer), lifting
