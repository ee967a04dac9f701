"""Fingerprints: values evaluated on small random tensors; terms forget indices, these do not.

sum(x) * x and sum(x * x) have the same term. Two ways to make a value are merged only if they agree
in a finite field as well as in their terms, and a program's result must agree with its spec's. So
the search does not drown in programs whose terms are right and whose sums run over the wrong thing;
what is found is proved independently, with other draws and really block by block (`verify.py`).

A value is evaluated for all blocks and steps at once. A dim that the loop cuts becomes two axes,
the step's and the tile's; so does one that blocks split. From a setting's goals down only the
derivations that can lead to them are kept; from the inputs up each kept value is evaluated, once
for every meaning that its operands have. So a program taken from the refined graph agrees with its
spec on the draw, and only such programs are left to prove.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import product
from math import prod
from operator import itemgetter

import numpy as np

from mirage_kernels.generator.ir import OPS, DType, Graph, Node, parts_of
from mirage_kernels.generator.ir import Value as Edge
from mirage_kernels.generator.ir.infer import SCALAR
from mirage_kernels.generator.ir.ops import ACCUMS, COMBINES, MAXIMA
from mirage_kernels.generator.meaning.arrays import Arithmetic, Array, Parts, array_reading
from mirage_kernels.generator.meaning.field import (
    Field,
    field_arithmetic,
    inverse,
    random_parts,
    root_to_the,
)
from mirage_kernels.generator.meaning.walk import walk
from mirage_kernels.generator.search.cases import seen_dims
from mirage_kernels.generator.search.places import distances_of, places_of
from mirage_kernels.generator.search.sketch import BOTH, GRID, LOOP, Dims, Step, View
from mirage_kernels.generator.search.stacks import AXES, Made, digest, digests, stacked
from mirage_kernels.generator.search.values import LOAD, Saturation, Value, Values

STEP, PART_AXIS = "@step", "@part"
_CUTS = 2  # steps of a loop, and parts of a split
_TILE = 2
_WHOLE = _CUTS * _CUTS * _TILE  # extent of a dim that may be cut
_SHORT = 3  # of the others
_PRIME = 65267  # (p - 1) / 2 is prime too; small, for these draws only sort, they do not prove
_SEED = 7
_AT_ONCE = 1024  # results of a step
_MOST_BYTES = 2**28  # of results that are kept, for settings in which they are the same
MOST_FINGERPRINTS = 24  # of one value; of more the first ones found are kept, and the spec's own


class Fingerprints:
    """One draw for a spec: its tensors, and how values follow from them.

    `tensors` holds the spec's inputs and sources, `values` every value of it, `wanted` the digest
    of its result; dims in `long` may be cut.
    """

    def __init__(self, spec: Graph, long: frozenset[str]) -> None:
        exponents, spec = any(n.op == "exp" for n in spec.nodes), distances_of(spec).short(spec)
        self.spec, self.field = spec, Field(_PRIME, 4, 0x5DEECE66D, exponents, total=True)
        self.arithmetic = _looked_up(self.field)
        sizes = {d: _WHOLE if d in long else _SHORT for d in seen_dims(spec)}
        self._reading = array_reading(self.arithmetic, sizes, places_of(spec, sizes))
        rng = np.random.default_rng(_SEED)
        self.tensors: dict[str, Array] = {}
        for node in spec.inputs:
            names, real = node.out.type.names, node.out.type.dtype.is_real
            shape = tuple(sizes[d] for d in names)
            ends = (0, 2) if node.out.type.dtype is DType.BOOL else (1, _WHOLE)
            whole = (rng.integers(*ends, shape),) if not real else ()
            drawn = whole or random_parts(self.field, shape, rng)
            self.tensors[node.name] = Array(names, drawn, real=real)
        inputs = list(self.tensors.values())
        for node in spec.of("const", "size", "iota"):
            self.tensors[node.name] = self._reading[node.op](node, [])[0]
        self.values = walk(spec, inputs, self._reading)
        self.wanted = digest(self.values[spec.outputs[0]])
        self.spec_values = cache(self._spec_values)
        self._made, self._bytes = dict[object, list[Made]](), 0

    def _spec_values(self, dims: Dims, split: str | None) -> dict[bytes, frozenset[str]]:
        """Return the spec's values that have these dims, cut like this, by their digests."""
        found: dict[bytes, frozenset[str]] = {}
        for name, value in self.values.items():
            if set(value.dims) == {d for d, _ in dims}:
                seen = digest(self.view(value, dims, split))
                found[seen] = found.get(seen, frozenset()) | {name}
        return found

    def is_wanted(self, found: Refined, value: int) -> bool:
        """Say whether a value of a setting is the spec's result."""
        whole = self.values[self.spec.outputs[0]]
        part = self.view(whole, found.values[value].dims, found.setting.split)
        return digest(found.arrays[value]) == digest(part)

    def view(self, tensor: Array, dims: Dims, split: str | None) -> Array:
        """Return a tensor; dims that a loop or a split cuts have axes of two, then the rest."""
        for dim, cut in dims:
            parts = (PART_AXIS,) if dim == split and cut in (GRID, BOTH) else ()
            axes = (*parts, STEP) if cut in (LOOP, BOTH) else parts
            if axes:
                at, shape = tensor.dims.index(dim), tensor.parts[0].shape
                rest = tensor.extent(dim) // _CUTS ** len(axes)
                shape = (*shape[:at], *(_CUTS,) * len(axes), rest, *shape[at + 1 :])
                names = (*tensor.dims[:at], *axes, *tensor.dims[at:])
                tensor = Array(names, tuple(p.reshape(shape) for p in tensor.parts), tensor.real)
        return tensor

    def result(self, op: str, args: Sequence[Array], over: str) -> Array:
        """Return what an op makes of evaluated operands."""
        if op == "contract":
            return self.result("sum", [self.result("mul", args, "")], over)
        if op in ("sum", "accum", "combine", *MAXIMA):
            axis = STEP if op in ACCUMS else PART_AXIS if op in COMBINES else over
            (x,), join = args, self.arithmetic.largest if op in MAXIMA else self.arithmetic.total
            parts = join(x.parts, x.dims.index(axis))
            return Array(tuple(d for d in x.dims if d != axis), parts, x.real)
        return self._reading[op](Node(op, (), (Edge(op, SCALAR),)), args)[0]

    def results(
        self, step: Step, variants: Mapping[int, Sequence[Array]], keys: Sequence[object]
    ) -> list[Made]:
        """Return what a step makes of all variants of its operands, in the order of those.

        An operand that a step takes twice has one meaning. `variants` has those of each operand, in
        the order of the step. Operands with the same `keys` are equal, and what was made of these
        is not made again: most settings of a search have most of their values in common.
        """
        if not all(variants.values()):
            return []
        places = [[*variants].index(a) for a in step.args]
        asked = (step.op, step.over, *places, *keys)
        if asked not in self._made:
            made = self._computed(step, variants)
            kept = {id(m.stack): sum(part.nbytes for part in m.stack.parts) for m in made}
            self._bytes += sum(kept.values())
            if self._bytes > _MOST_BYTES:
                self._made, self._bytes = {}, sum(kept.values())
            self._made[asked] = made
        return self._made[asked]

    def _computed(self, step: Step, variants: Mapping[int, Sequence[Array]]) -> list[Made]:
        """Return the same, computed: of all variants of one form at once."""
        every = list(variants.values())
        if all(len(own) == 1 for own in every):
            array = self.result(step.op, [variants[a][0] for a in step.args], step.over)
            return [Made((0,) * len(every), digest(array), array)]
        room = max(1, _AT_ONCE // prod(map(len, every[1:])))
        stacks = [stacked(own, AXES[i], len(own) if i else room) for i, own in enumerate(every)]
        groups, found = [*product(*stacks)], list[Made]()
        for group in groups:
            operands = dict(zip(variants, (stack for _, stack in group), strict=True))
            made = self.result(step.op, [operands[a] for a in step.args], step.over)
            made = made.over((*AXES[: len(group)], *sorted({*made.dims}.difference(AXES))))
            chosen = product(*(numbers for numbers, _ in group))
            pairs = zip(chosen, digests(made, len(group)), strict=True)
            found += [Made(*pair, made, place) for place, pair in enumerate(pairs)]
        return found if len(groups) == 1 else sorted(found, key=itemgetter(0))


def _looked_up(field: Field) -> Arithmetic:
    """Return how the field's elements compute; quotients and exp are looked up."""
    plain = field_arithmetic(field)
    moduli = (field.p, field.q)
    inverses = [np.append(0, inverse(np.arange(1, m), m)) for m in moduli]
    powers = root_to_the(np.arange(moduli[1]), field)

    def divide(a: Parts, b: Parts) -> Parts:
        parts = zip(a, b, inverses, moduli, strict=False)
        return tuple(np.asarray(x) * table[np.asarray(y)] % m for x, y, table, m in parts)

    def exp(x: Parts) -> Parts:
        if len(x) == len(moduli):
            return (powers[np.asarray(x[1])],)
        return plain.elementwise["exp"](x)  # of another exp: refused; of a logarithm

    return replace(plain, elementwise={**plain.elementwise, "div": divide, "exp": exp})


def stored(value: Array, split: str | None) -> Array:
    """Return the tensor that blocks store: their parts lie side by side."""
    dims = tuple(parts_of(split or "") if d == PART_AXIS else d for d in value.dims)
    return Array(dims, value.parts, value.real)


@dataclass
class Refined(Values):
    """The values of a saturation that lead to some goals, one for every meaning."""

    arrays: list[Array] = field(default_factory=list)
    keys: list[object] = field(default_factory=list)  # the same for equal arrays
    fingerprints: dict[int, dict[bytes, int]] = field(default_factory=dict)  # by number before
    extra: set[int] = field(default_factory=set)  # the spec's own values beyond the most
    dropped: int = 0  # fingerprints beyond the most

    def variants(self, number: int) -> list[int]:
        """Return the refined values of a saturation's value."""
        return list(self.fingerprints.get(number, {}).values())

    def without_extra(self) -> Refined:
        """Return the same values without what is made of extra ones."""
        return self.where(lambda step: self.extra.isdisjoint(step.args))

    def where(self, kept: Callable[[Step], bool]) -> Refined:
        """Return the same values with the steps that are kept."""
        ways = [list(filter(kept, steps)) for steps in self.derivations]
        return replace(self, derivations=ways, extra=set())

    def with_spec_products(self, fingerprints: Fingerprints) -> Refined:
        """Return the same values without contractions along dims where the spec's own are there.

        Where a norm meets a product it is cheapest to divide after it, or to scale the weights;
        whether that is accurate depends on the storage type. A program that contracts what the spec
        contracts is as accurate as the spec, and weights go into its products as they are stored.
        Along a dim where a setting has none of the spec's products all are kept: a loop over keys
        sums weights that are not normalised yet.
        """

        meant = self.meant(fingerprints)
        products = {
            (node.over, *args)
            for node in fingerprints.spec.of("contract")
            for args in (node.args, node.args[::-1])
        }
        contractions = {s for ways in self.derivations for s in ways if s.op == "contract"}
        own = {
            s
            for s in contractions
            if any((s.over, a, b) in products for a, b in product(*map(meant, s.args)))
        }
        other = {s for s in contractions - own if s.over in {o.over for o in own}}
        return self.where(lambda step: step not in other)

    def with_spec_steps(self, fingerprints: Fingerprints) -> Refined:
        """Return the same values, those that the spec has as it makes them.

        The spec's other results are made so: a program that takes its own steps shares with them
        what they have in common.
        """
        meant, spec = self.meant(fingerprints), fingerprints.spec

        def is_own(value: int, step: Step) -> bool:
            nodes = [spec.producers[name] for name in meant(value)]
            ways = [n.args for n in nodes if (n.op, n.over) == (step.op, step.over)]
            ways += [args[::-1] for args in ways if OPS[step.op].commutative]
            pairs = (zip(args, map(meant, step.args), strict=True) for args in ways)
            return step.op == LOAD or not nodes or any(all(a in m for a, m in p) for p in pairs)

        ways = [[s for s in own if is_own(i, s)] for i, own in enumerate(self.derivations)]
        return replace(self, derivations=ways, extra=set())

    def meant(self, fingerprints: Fingerprints) -> Callable[[int], frozenset[str]]:
        """Return what says which of the spec's values a value is."""

        @cache
        def found(number: int) -> frozenset[str]:
            known = fingerprints.spec_values(self.values[number].dims, self.setting.split)
            return known.get(digest(self.arrays[number]), frozenset())

        return found

    def with_loop_inputs(self) -> Refined:
        """Return the same values without inputs that have the loop's dim and are read before it.

        A block can hold its part of a long dim before the loop, and loop over other inputs alone:
        nominal costs count the same bytes either way, so dozens of mixtures cost as much as the
        program that reads every input tile by tile. That one needs the least shared memory, and is
        what a kernel that streams its inputs runs.
        """
        early = {
            number
            for number, leaf in self.leaves.items()
            if isinstance(leaf, View)
            and leaf.loop_cut is None
            and self.setting.loop in self.values[number].names
        }
        kept = [[] if i in early else ways for i, ways in enumerate(self.derivations)]
        return replace(self, derivations=kept)

    def add(
        self,
        number: int,
        value: Value,
        step: Step,
        made: Made,
        own: Collection[bytes] = (),
    ) -> int | None:
        """Add a derivation of a value, of a new meaning too where there is room or it is in `own`.

        A meaning beyond the room is extra, and so is what is made of extra ones alone: it takes no
        room from others.
        """
        known, key = self.fingerprints.setdefault(number, {}), made.key
        usual = self.extra.isdisjoint(step.args)
        beyond = len(self.extra.intersection(known.values())) if self.extra else 0
        room = usual and len(known) - beyond < MOST_FINGERPRINTS
        if key not in known:
            if not room and key not in own:
                self.dropped += usual
                return None
            known[key] = len(self.values)
            self.values.append(value)
            array = made.array()
            self.arrays.append(array)
            self.keys.append((key, array.real, *sorted(array.dims)))
            self.derivations.append([])
            if not room:
                self.extra.add(known[key])
        elif room:
            self.extra.discard(known[key])
        self.derivations[known[key]].append(step)
        return known[key]


def refine(
    found: Saturation,
    goals: Sequence[int],
    fingerprints: Fingerprints,
    stored: Mapping[str, Mapping[str, Array]],
) -> Refined:
    """Return the refinement of what leads to some values of a saturation.

    `stored` has what tensors between kernels may be, under new names, by the names they go by.
    """
    refined, split = Refined(found.setting), found.setting.split
    for number in _operands_first(found, goals):
        value, leaf = found.values[number], found.leaves.get(number)
        if leaf is not None:
            name = leaf.tensor if isinstance(leaf, View) else leaf
            whole = stored[name] if name in stored else {name: fingerprints.tensors[name]}
            for variant, tensor in whole.items():
                array = fingerprints.view(tensor, value.dims, split)
                made = Made((), digest(array), array)
                loaded = refined.add(number, value, Step(LOAD, ()), made)
                if loaded is not None:
                    refined.derivations[loaded] = [Step(LOAD, ())]
                    own_leaf = variant if isinstance(leaf, str) else replace(leaf, tensor=variant)
                    refined.leaves[loaded] = own_leaf
        own = fingerprints.spec_values(value.dims, split)
        for step in (s for s in found.derivations[number] if s.op != LOAD):
            variants = {a: refined.variants(a) for a in step.args}
            arrays = {a: [refined.arrays[v] for v in each] for a, each in variants.items()}
            places = [([*variants].index(a), variants[a]) for a in step.args]
            keys = [tuple([refined.keys[v] for v in each]) for each in variants.values()]
            for made in fingerprints.results(step, arrays, keys):
                args = tuple([each[made.chosen[place]] for place, each in places])
                refined.add(number, value, Step(step.op, args, step.over), made, own)
    return refined


def _operands_first(found: Saturation, goals: Sequence[int]) -> list[int]:
    """Return the values that lead to the goals, every operand before its users."""
    order: dict[int, None] = {}
    todo = [(goal, False) for goal in reversed(goals)]
    while todo:
        number, ready = todo.pop()
        if ready:
            order[number] = None
        elif number not in order:
            todo.append((number, True))
            operands = {a for step in found.derivations[number] for a in step.args}
            todo += [(a, False) for a in sorted(operands, reverse=True) if a not in order]
    return list(order)
