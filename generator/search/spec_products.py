"""Programs whose matrix products are the spec's own.

Where a norm meets a product it is cheapest to divide after it, or to scale the weights; whether
that is accurate depends on the storage type. A program that contracts what the spec contracts is as
accurate as the spec, and weights go into its products as they are stored. So a task with a loop
keeps some of these even where enough other programs are cheaper.

Along a dim where a setting has none of the spec's products all are kept: a loop over keys sums
weights that are not normalised yet.
"""

from __future__ import annotations

from dataclasses import replace

from mirage_kernels.generator.search.fingerprints import Fingerprints, digest
from mirage_kernels.generator.search.refine import Refined
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
