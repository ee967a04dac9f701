"""The general schedule: any block graph by one tile program, no shape of muGraph assumed.

Every kernel of the muGraph is a loop over stages of asynchronous copies, products on tensor cores
and reductions by warps (`generator/tiles`). Tiles, threads and stages are chosen by a model of time
for each bucket of the dynamic dim that has rows of products; the model weighs what is read against
how many bytes are on their way at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from math import inf
from typing import ClassVar, NamedTuple

from mirage_kernels.generator.errors import PlanError
from mirage_kernels.generator.ir import Dim, Graph, Indexed, retile
from mirage_kernels.generator.schedules.general.model import MOST_SUMS, kernels_us
from mirage_kernels.generator.schedules.general.options import LONG, choices, combines
from mirage_kernels.generator.schedules.general.reduction_kernels import planned_apart
from mirage_kernels.generator.schedules.schedule import Knobs, Schedule, Variant
from mirage_kernels.generator.target import Target
from mirage_kernels.generator.tiles.lower import block_programs
from mirage_kernels.generator.tiles.program import BlockProgram

BUCKETS = (16, 64, 0)  # extents of the counted dim; 0: any
FEWEST = 2  # a bucket more where no product rounds the counted dim up
SEVERAL = 8  # another one where it numbers products, as sequences do
MANY, FEW = 1024, 8  # what any extent of the counted dim, and of other dynamic dims, is planned for
SUMMED = 2048  # the same of a dim that blocks sum up parts of without a loop, as rows of a loss are


@dataclass(frozen=True)
class GeneralRoles:
    """The dim whose extent chooses a bucket, empty where there is one bucket."""

    counted: str = ""


@dataclass(frozen=True)
class GeneralKnobs(Knobs):
    """Tile sizes by `Axis.tile_key`, threads of a block, and stages of its loads."""

    schedule: ClassVar[str] = "general"
    cuts: tuple[tuple[str, int], ...]
    threads: int
    stages: int
    reduction_kernel: bool = False  # a second kernel joins parts of sums, not a cluster's blocks

    def tiles(self, roles: GeneralRoles) -> dict[str, int]:
        """Return the tile sizes of the muGraph."""
        return dict(self.cuts)


SCHEDULE = Schedule[Graph](
    knobs=GeneralKnobs,
    roles=GeneralRoles,
    fits=lambda graph, on: reasons_against(graph, on),
)


class Form(NamedTuple):
    """One of the ways in which kernels compute a muGraph."""

    graph: Graph
    reduction_kernel: bool

    def choices(self, sizes: Mapping[str, int]) -> dict[str, tuple[int, ...]]:
        """Return the values of every knob that are tried: no kernel joins a single part."""
        found = choices(self.graph, sizes)
        axes = (a for s in self.graph.spaces for a in s.reduced if self.reduction_kernel)
        for axis in axes:
            options = tuple(t for t in found[axis.tile_key] if t < sizes[axis.dim])
            found[axis.tile_key] = options or found[axis.tile_key]
        return found

    def knobs(self, chosen: Mapping[str, int]) -> GeneralKnobs:
        """Return knobs by their values' names, those of `choices`."""
        cuts = tuple((k, n) for k, n in chosen.items() if k not in ("threads", "stages"))
        return GeneralKnobs(cuts, chosen["threads"], chosen["stages"], self.reduction_kernel)

    def predict(self, knobs: GeneralKnobs, sizes: Mapping[str, int], on: Target) -> float:
        """Return the predicted microseconds with given knobs."""
        made = retile(self.graph, dict(knobs.cuts))
        return kernels_us(made, block_programs(made, knobs.threads, knobs.stages), sizes, on)


def forms_of(graph: Graph) -> list[Form]:
    """Return the forms of a muGraph: as it is, and with kernels that join what clusters would."""
    other = planned_apart(graph)
    return [Form(graph, False), *([Form(other, True)] if other is not None else [])]


def form_of(graph: Graph, knobs: GeneralKnobs) -> Graph:
    """Return the form of a muGraph that knobs are of.

    Raises PlanError where it has no such form.
    """
    own = planned_apart(graph) if knobs.reduction_kernel else graph
    if own is None:
        raise PlanError("no blocks combine sums that a kernel of its own could join")
    return own


def tiled(graph: Graph, knobs: GeneralKnobs) -> Graph:
    """Return the form of a muGraph that knobs are of, at their tiles."""
    return retile(form_of(graph, knobs), dict(knobs.cuts))


def required(graph: Graph, on: Target) -> list[Form]:
    """Return the forms of a muGraph that can be general kernels; raises PlanError for none."""
    for reason in reasons_against(graph, on):
        raise PlanError(reason)
    return [form for form in forms_of(graph) if not any(reasons(form.graph, on))]


def reasons_against(graph: Graph, on: Target) -> tuple[str, ...]:
    """Return why no form of a muGraph can be a general kernel."""
    against = [tuple(reasons(form.graph, on)) for form in forms_of(graph)]
    return against[0] if all(against) else ()


def reasons(graph: Graph, on: Target) -> Iterator[str]:
    """Yield what a general kernel cannot do of a form of a muGraph."""
    for node in graph.nodes:
        if node.op not in ("input", "output", "block", "iota", "const", "size"):
            yield f"{node.name} is a library's {node.op}: it is no kernel of its own"
    clusters = [s for s in graph.spaces if s.reduced and combines(graph, s)]
    if clusters and not on.has_clusters:
        yield f"{on.arch} has no clusters, whose blocks could combine their sums"
    for space in clusters:
        for axis in space.reduced if space.loop is None else ():
            if any(d.dynamic for d in _dims(graph) if d.name == axis.dim):
                yield f"blocks that sum along {axis.dim} in one step are as many as it is long"


def programs(
    graph: Graph, knobs: GeneralKnobs, indexed: Mapping[str, Indexed] | None = None
) -> tuple[BlockProgram, ...]:
    """Return the programs of a muGraph's kernels with given knobs; tensors may be `indexed`."""
    return block_programs(tiled(graph, knobs), knobs.threads, knobs.stages, indexed)


def _dims(graph: Graph) -> Iterator[Dim]:
    return (d for n in graph.nodes for v in n.outs for d in v.type.dims)


# -- choosing knobs --------------------------------------------------------------------------------


def roles_of(graph: Graph) -> GeneralRoles:
    """Return the first dynamic dim that only one operand of some product has, or blocks cut.

    One that is summed along, as keys are, chooses nothing, nor does one of a typical extent.
    """
    summed = _summed(graph)
    for kernel in graph.blocks:
        assert kernel.body is not None
        for node in kernel.body.of("contract"):
            names = [kernel.body.values[a].type.names for a in node.args]
            dims = [d for a in node.args for d in kernel.body.values[a].type.dims if d.dynamic]
            for d in dims:
                if not all(d.name in own for own in names) and d.name not in (node.over, *summed):
                    return GeneralRoles(d.name)
    dims = [d for n in graph.inputs for d in n.out.type.dims]
    dynamic = {d.name for d in dims if d.dynamic and not d.typical}
    cut = [a.dim for s in graph.spaces for a in s.grid if a.dim in dynamic and not a.reduced]
    return GeneralRoles(*cut[:1])


def buckets_of(graph: Graph, counted: str) -> tuple[int, ...]:
    """Return the extents of the counted dim that a graph has variants for."""
    if not counted:
        return BUCKETS[-1:]
    kernels = [k.body for k in graph.blocks if k.body]
    pairs = [
        [set(body.values[a].type.names) for a in node.args]
        for body in kernels
        for node in body.of("contract")
    ]
    if any(a - b and b - a and (counted in a) != (counted in b) for a, b in pairs):
        return BUCKETS
    return (FEWEST, *([SEVERAL] if any(counted in a & b for a, b in pairs) else []), *BUCKETS)


def sizes_for(graph: Graph, counted: str, size: int) -> dict[str, int]:
    """Return the extents that a bucket is planned for."""
    found = dict[str, int]()
    planned = dict.fromkeys(_summed(graph), SUMMED)
    planned |= {space.loop.dim: LONG for space in graph.spaces if space.loop}
    for d in _dims(graph):
        wanted = (size or MANY) if d.name == counted else planned.get(d.name, d.typical or FEW)
        found[d.name] = min(d.size, wanted) if d.dynamic else d.size
    return found


def _summed(graph: Graph) -> set[str]:
    """Return the dims that loops and splits go along."""
    return {a.dim for s in graph.spaces for a in (*s.reduced, *([s.loop] if s.loop else []))}


def predict(graph: Graph, knobs: GeneralKnobs, sizes: Mapping[str, int], on: Target) -> float:
    """Return the predicted microseconds of a muGraph, infinite where a block has no room."""
    return Form(form_of(graph, knobs), knobs.reduction_kernel).predict(knobs, sizes, on)


Times = dict[GeneralKnobs, float]  # predicted microseconds


def best_knobs(
    graph: Graph, sizes: Mapping[str, int], on: Target, *, starts: int = 3
) -> GeneralKnobs:
    """Return the knobs that are predicted to be fastest, as `explored` finds them.

    Raises PlanError where no form of the muGraph can be a kernel, or no block has room.
    """
    return _best_knobs(graph, tuple(sizes.items()), on, starts)


@lru_cache(maxsize=64)  # planning asks for what choosing has found
def _best_knobs(
    graph: Graph, sizes: tuple[tuple[str, int], ...], on: Target, starts: int
) -> GeneralKnobs:
    times = Times()
    for form in required(graph, on):
        best, seen = explored(form, dict(sizes), on, starts=starts)
        times[best] = seen[best]
    return fastest(times, on)


def fastest(times: Times, on: Target) -> GeneralKnobs:
    """Return the fastest of knobs; raises PlanError where no block has room."""
    best = min(times, key=lambda knobs: times[knobs])
    if times[best] == inf:
        raise PlanError(
            f"no block has room for the muGraph's tiles: {on.shared_bytes} bytes of shared memory, "
            f"{MOST_SUMS} sums of products for each thread",
            "shorter dims that nothing cuts may do",
        )
    return best


def explored(
    form: Form,
    sizes: Mapping[str, int],
    on: Target,
    *,
    starts: int = 3,
    fixed: Mapping[str, int] | None = None,
) -> tuple[GeneralKnobs, Times]:
    """Change one knob at a time from some starts; return the best knobs, and all that were seen.

    Knobs that are `fixed` stay.
    """
    options, times = form.choices(sizes), Times()
    options |= {name: (value,) for name, value in (fixed or {}).items()}

    def time(chosen: Mapping[str, int]) -> float:
        made = form.knobs(chosen)
        if made not in times:
            times[made] = form.predict(made, sizes, on)
        return times[made]

    ends = [{k: values[place] for k, values in options.items()} for place in (0, -1)]
    middle = {k: values[len(values) // 2] for k, values in options.items()}
    found = []
    for chosen in (middle, *ends)[:starts]:
        better = True
        while better:
            before = time(chosen)
            for name, values in options.items():
                chosen = min(({**chosen, name: v} for v in values), key=time)
            better = time(chosen) < before
        found.append(chosen)
    return form.knobs(min(found, key=time)), times


def planned_sizes(graph: Graph) -> dict[int, dict[str, int]]:
    """Return the extents that each bucket is planned for."""
    counted = roles_of(graph).counted
    return {size: sizes_for(graph, counted, size) for size in buckets_of(graph, counted)}


def variants_of(chosen: Mapping[int, GeneralKnobs]) -> tuple[Variant[GeneralKnobs], ...]:
    """Return a variant per bucket; one serves those beside each other that have the same knobs."""
    found = [Variant(size, knobs) for size, knobs in chosen.items()]
    kept = [a for a, b in pairwise(found) if a.knobs != b.knobs]
    return (*kept, found[-1])
