"""Telling values apart that terms confuse, as far as results depend on them.

Terms forget indices: sum(x) * x and sum(x * x) have the same one. From the goals down, only the
derivations that can lead to them are kept; from the inputs up, each kept value is evaluated on one
random draw (`fingerprints.py`), once for every meaning that its operands have. So a program taken
from the refined graph agrees with its spec on that draw, and only such programs are left to prove.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import combinations, product

from mirage_kernels.generator.meaning.arrays import Array
from mirage_kernels.generator.search.fingerprints import Fingerprints, digest
from mirage_kernels.generator.search.settings import View
from mirage_kernels.generator.search.sketch import Leaf, Step
from mirage_kernels.generator.search.values import LOAD, Saturation, Value, Values

MOST_FINGERPRINTS = 24  # of one value; of more the first ones found are kept, and the spec's own

Sources = Callable[[Leaf], Sequence[tuple[Leaf, Array]]]  # what a leaf may be, whole


@dataclass
class Refined(Values):
    """The values of a saturation that lead to some goals, one for every meaning."""

    arrays: list[Array] = field(default_factory=list)
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

        @cache
        def meant(number: int) -> frozenset[str]:
            """Return which of the spec's values a value is."""
            known = fingerprints.spec_values(self.values[number].dims, self.setting.split)
            return known.get(digest(self.arrays[number]), frozenset())

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
        self, number: int, made: tuple[Value, Array, Step], own: Collection[bytes] = ()
    ) -> int | None:
        """Add a derivation of a value, of a new meaning too where there is room or it is in `own`.

        A meaning beyond the room is extra, and so is what is made of extra ones alone: it takes no
        room from others.
        """
        value, array, step = made
        known, key = self.fingerprints.setdefault(number, {}), digest(array)
        usual = self.extra.isdisjoint(step.args)
        beyond = len(self.extra.intersection(known.values())) if self.extra else 0
        room = usual and len(known) - beyond < MOST_FINGERPRINTS
        if key not in known:
            if not room and key not in own:
                self.dropped += usual
                return None
            known[key] = len(self.values)
            self.values.append(value)
            self.arrays.append(array)
            self.derivations.append([])
            if not room:
                self.extra.add(known[key])
        elif room:
            self.extra.discard(known[key])
        self.derivations[known[key]].append(step)
        return known[key]


def refine(
    found: Saturation, goals: Sequence[int], fingerprints: Fingerprints, sources: Sources
) -> Refined:
    """Return the refinement of what leads to some values of a saturation."""
    refined, split = Refined(found.setting), found.setting.split
    for number in _operands_first(found, goals):
        value = found.values[number]
        for leaf, whole in sources(found.leaves[number]) if number in found.leaves else ():
            viewed = isinstance(leaf, View)
            array = fingerprints.view(whole, value.dims, split) if viewed else whole
            loaded = refined.add(number, (value, array, Step(LOAD, ())))
            if loaded is not None:
                refined.derivations[loaded] = [Step(LOAD, ())]
                refined.leaves[loaded] = leaf
        own = fingerprints.spec_values(value.dims, split)
        for step in (s for s in found.derivations[number] if s.op != LOAD):
            for args in product(*map(refined.variants, step.args)):
                both = combinations(zip(step.args, args, strict=True), 2)
                if any(a == b and x != y for (a, x), (b, y) in both):
                    continue  # the same operand twice has one meaning
                array = fingerprints.result(step.op, [refined.arrays[a] for a in args], step.over)
                refined.add(number, (value, array, Step(step.op, args, step.over)), own)
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
