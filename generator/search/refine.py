"""Telling values apart that terms confuse, as far as results depend on them.

Terms forget indices: sum(x) * x and sum(x * x) have the same one. From the goals down, only the
derivations that can lead to them are kept; from the inputs up, each kept value is evaluated on one
random draw (`fingerprints.py`), once for every meaning that its operands have. So a program taken
from the refined graph agrees with its spec on that draw, and only such programs are left to prove.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from itertools import product

from mirage_kernels.generator.meaning.arrays import Array
from mirage_kernels.generator.search.fingerprints import Fingerprints, digest
from mirage_kernels.generator.search.settings import Setting, View
from mirage_kernels.generator.search.values import LOAD, Saturation, Step, Value

MOST_FINGERPRINTS = 24  # of one value; of more the first ones found are kept, and the spec's own

Leaf = View | str
Sources = Callable[[Leaf], Sequence[tuple[Leaf, Array]]]  # what a leaf may be, whole


@dataclass
class Refined:
    """The values of a saturation that lead to some goals, one for every meaning."""

    setting: Setting
    values: list[Value] = field(default_factory=list)
    arrays: list[Array] = field(default_factory=list)
    derivations: list[list[Step]] = field(default_factory=list)
    leaves: dict[int, Leaf] = field(default_factory=dict)
    fingerprints: dict[int, dict[bytes, int]] = field(default_factory=dict)  # by number before
    extra: set[int] = field(default_factory=set)  # the spec's own values beyond the most
    dropped: int = 0  # fingerprints beyond the most

    def variants(self, number: int) -> list[int]:
        """Return the refined values of a saturation's value."""
        return list(self.fingerprints.get(number, {}).values())

    def without_extra(self) -> Refined:
        """Return the same values without what is made of extra ones."""
        if not self.extra:
            return self
        kept = [[s for s in w if self.extra.isdisjoint(s.args)] for w in self.derivations]
        return replace(self, derivations=kept, extra=set())


def refine(
    found: Saturation, goals: Sequence[int], fingerprints: Fingerprints, sources: Sources
) -> Refined:
    """Return the refinement of what leads to some values of a saturation."""
    refined = Refined(found.setting)
    for number in _operands_first(found, goals):
        known = refined.fingerprints.setdefault(number, {})
        own = fingerprints.spec_values(found.values[number].dims, found.setting.split)
        for step in found.derivations[number]:
            if step.op == LOAD:
                _load(refined, found, number, (fingerprints, sources))
                continue
            choices = [refined.variants(a) for a in step.args]
            for args in product(*choices):
                if any(
                    step.args[i] == step.args[j] and args[i] != args[j] for i, j in _pairs(args)
                ):
                    continue  # the same operand twice has one meaning
                array = fingerprints.result(step.op, [refined.arrays[a] for a in args], step.over)
                made = Step(step.op, args, step.over)
                _add(refined, known, (found.values[number], array, made), own)
    return refined


def _pairs(args: Sequence[int]) -> list[tuple[int, int]]:
    return [(i, j) for j in range(len(args)) for i in range(j)]


def _add(
    refined: Refined,
    known: dict[bytes, int],
    made: tuple[Value, Array, Step],
    own: Collection[bytes] = (),
) -> int | None:
    """Add a derivation, of a new meaning too where there is room or it is in `own`.

    A meaning beyond the room is extra, and so is what is made of extra ones alone: it takes no
    room from others.
    """
    value, array, step = made
    key = digest(array)
    number = known.get(key)
    room = refined.extra.isdisjoint(step.args) and (
        len(known) - len(refined.extra.intersection(known.values())) < MOST_FINGERPRINTS
    )
    if number is None:
        if not room and key not in own:
            refined.dropped += refined.extra.isdisjoint(step.args)
            return None
        number = known[key] = len(refined.values)
        refined.values.append(value)
        refined.arrays.append(array)
        refined.derivations.append([])
        if not room:
            refined.extra.add(number)
    elif room:
        refined.extra.discard(number)
    refined.derivations[number].append(step)
    return number


def _load(
    refined: Refined, found: Saturation, number: int, draw: tuple[Fingerprints, Sources]
) -> None:
    fingerprints, sources = draw
    value, known = found.values[number], refined.fingerprints[number]
    for leaf, whole in sources(found.leaves[number]):
        array = whole
        if isinstance(leaf, View):
            array = fingerprints.view(whole, value.dims, found.setting.split)
        made = _add(refined, known, (value, array, Step(LOAD, ())))
        if made is not None:
            refined.derivations[made] = [Step(LOAD, ())]
            refined.leaves[made] = leaf


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
