"""Where barriers stand: before what reads others' writes, or writes what others read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from mirage_kernels.generator.ir import Phase
from mirage_kernels.generator.tiles.program import Barrier, BlockProgram, Load, Statement


class _Seen:
    """What the block's threads have done since their last barrier."""

    def __init__(self) -> None:
        self.reads, self.writes, self.loads = set[str](), set[str](), set[str]()

    def clear(self) -> None:
        self.reads.clear()
        self.writes.clear()

    def barrier(self, s: Statement) -> Barrier | None:
        """Return the barrier that has to stand before a statement."""
        copies = bool(self.loads & {*s.reads})
        hazard = self.writes & {*s.reads, *s.writes} or self.reads & {*s.writes}
        if copies:
            self.loads.clear()
        if not copies and not hazard:
            return None
        self.clear()
        return Barrier(copies=copies)

    def note(self, s: Statement) -> None:
        self.reads |= {*s.reads}
        self.writes |= {*s.writes}


def with_barriers(program: BlockProgram) -> BlockProgram:
    """Return the program with a barrier wherever one is needed, and nowhere else.

    A step of the loop begins with one that also waits for the step's loads.
    """
    seen, made = _Seen(), dict[Phase, tuple[Statement, ...]]()
    for phase in (Phase.BEFORE, Phase.LOOP, Phase.AFTER, Phase.JOINED):
        said = program.statements[phase]
        if phase is Phase.LOOP and said:
            loads = [s for s in said if isinstance(s, Load)]
            rest = [s for s in said if not isinstance(s, Load)]
            step = [Barrier(copies=True), *loads, *_placed(rest, _Seen())]
            made[phase] = tuple(step)
            seen = _Seen()
            for s in rest:
                seen.note(s)
            continue
        if phase is Phase.JOINED and said:
            cluster = Barrier(cluster=True)
            made[phase] = (cluster, *_placed(said, _Seen()), cluster)
            continue
        made[phase] = tuple(_placed(said, seen))
    return replace(program, statements=made)


def _placed(statements: Sequence[Statement], seen: _Seen) -> list[Statement]:
    made: list[Statement] = []
    for s in statements:
        if isinstance(s, Load):
            seen.loads |= {*s.writes}
        else:
            barrier = seen.barrier(s)
            made += [barrier] if barrier else []
            seen.note(s)
        made.append(s)
    return made
