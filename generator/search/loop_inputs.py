"""Programs that read everything in the loop that the loop cuts.

A block can hold its part of a long dim before the loop, and loop over other inputs alone: nominal
costs count the same bytes either way, so dozens of mixtures cost as much as the program that reads
every input tile by tile. That one needs the least shared memory, whatever the extents are, and is
what a kernel that streams its inputs runs; so a task with a loop keeps some of it.
"""

from __future__ import annotations

from dataclasses import replace

from mirage_kernels.generator.search.refine import Refined
from mirage_kernels.generator.search.settings import View


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
