"""Where barriers stand: before what reads others' writes, or writes what others read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from mirage_kernels.generator.ir import Phase
from mirage_kernels.generator.tiles.program import BlockProgram
from mirage_kernels.generator.tiles.statements import Arrive, Barrier, Combine, Load, Statement


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
            made[phase] = tuple(_joined(said, seen))
            continue
        made[phase] = tuple(_placed(said, seen))
    return replace(program, statements=made)


def _joined(said: Sequence[Statement], seen: _Seen) -> list[Statement]:
    """Return what a cluster's blocks do together, with barriers of their own and of all of them.

    Blocks read tiles of each other behind a barrier of the cluster alone, and none leaves before
    all have read. Nobody writes what others read: a tile is written once here.
    """
    cluster, last = Barrier(cluster=True), [s for s in said if isinstance(s, Combine)][-1]
    made, fresh = list[Statement]([cluster]), set[str]()
    seen.clear()
    for s in said:
        if isinstance(s, Combine) and fresh & {*s.reads}:
            made.append(cluster)
            seen.clear()
            fresh.clear()
        made += _placed([s], seen)
        fresh |= {*s.writes}
        made += [Arrive()] if s is last else []
    return [*made, cluster]


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
