"""Programs that a task with a loop keeps, whatever is cheaper.

Those whose matrix products are the spec's own. Where a norm meets a product it is cheapest to
divide after it, or to scale the weights; whether that is accurate depends on the storage type. A
program that contracts what the spec contracts is as accurate as the spec, and weights go into its
products as they are stored. Along a dim where a setting has none of the spec's products all are
kept: a loop over keys sums weights that are not normalised yet.

Those that read everything in the loop that the loop cuts. A block can hold its part of a long dim
before the loop, and loop over other inputs alone: nominal costs count the same bytes either way, so
dozens of mixtures cost as much as the program that reads every input tile by tile. That one needs
the least shared memory, whatever the extents are, and is what a kernel that streams its inputs
runs.
"""

from __future__ import annotations

from dataclasses import replace

from mirage_kernels.generator.search.fingerprints import Fingerprints, digest
from mirage_kernels.generator.search.refine import Refined
from mirage_kernels.generator.search.settings import View
from mirage_kernels.generator.search.values import Step


def with_spec_products(refined: Refined, fingerprints: Fingerprints) -> Refined:
    """Return the same values without contractions along dims where the spec's own are there."""
    products = [(node.over, node.args) for node in fingerprints.spec.of("contract")]
    meant: dict[int, frozenset[str]] = {}

    def operand(number: int) -> frozenset[str]:
        """Return which of the spec's values a value is."""
        if number not in meant:
            known = fingerprints.spec_values(refined.values[number].dims, refined.setting.split)
            meant[number] = known.get(digest(refined.arrays[number]), frozenset())
        return meant[number]

    def is_own(step: Step) -> bool:
        a, b = map(operand, step.args)
        return any(
            over == step.over and ((left in a and right in b) or (left in b and right in a))
            for over, (left, right) in products
        )

    contractions = {s for ways in refined.derivations for s in ways if s.op == "contract"}
    own = set(filter(is_own, contractions))
    dims = {s.over for s in own}
    other = {s for s in contractions - own if s.over in dims}
    kept = [[s for s in ways if s not in other] for ways in refined.derivations]
    return replace(refined, derivations=kept, extra=set())


def with_loop_inputs(refined: Refined) -> Refined:
    """Return the same values without inputs that have the loop's dim and are read before it."""
    loop = refined.setting.loop
    held = {
        number
        for number, leaf in refined.leaves.items()
        if isinstance(leaf, View) and leaf.loop_cut is None and loop in refined.values[number].names
    }
    kept = [[] if i in held else ways for i, ways in enumerate(refined.derivations)]
    return replace(refined, derivations=kept)
