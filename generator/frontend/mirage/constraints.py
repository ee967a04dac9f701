"""What a caller of superoptimize wants: grids, loops and maps, as Mirage's options say them.

Mirage enumerates what these lists hold. Here they say which of the muGraphs that were found will
do: grids and loop counts choose tile sizes, maps must be among those listed.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from mirage_kernels.generator.errors import MirageError
from mirage_kernels.generator.frontend.positional.lower import Layout
from mirage_kernels.generator.frontend.positional.program import AXES, NOWHERE
from mirage_kernels.generator.ir import Axis, Graph, Node, retile

Map = tuple[int, ...]
CONFIGS = ("attention", "mlp", "lora")
BACKENDS = ("cuda", "triton")
_LISTS = ("imaps", "omaps", "griddims", "blockdims", "fmaps", "franges")
# Options that steer Mirage's profiling and caches: taken, and without effect here.
IGNORED = (
    *("blockdims", "warmup_iters", "profile_iters", "use_graph_dataset", "use_cached_graphs"),
    *("save_codes", "is_formal_verified"),
)
_KNOWN = (*_LISTS, "config", "backend", "verbose", "jobs", "previous_checkpoint", *IGNORED)


@dataclass(frozen=True)
class Constraints:
    """The options of one call; None where anything will do."""

    imaps: tuple[Map, ...] | None = None
    omaps: tuple[Map, ...] | None = None
    griddims: tuple[Map, ...] | None = None
    fmaps: tuple[int, ...] | None = None
    franges: tuple[int, ...] | None = None
    config: str | None = None
    verbose: bool = False
    jobs: int = 1
    checkpoint: str | None = None  # of muGraphs to take in place of a search

    def text(self) -> str:
        """Say what is asked for, as it was written."""
        named = {n: getattr(self, n) for n in _LISTS if n != "blockdims"}
        return ", ".join(f"{n}={list(v)}" for n, v in named.items() if v is not None) or "none"


def read_options(options: Mapping[str, object]) -> Constraints:
    """Return the constraints that keyword options say; raise MirageError for unknown ones."""
    unknown = [name for name in options if name not in _KNOWN]
    if unknown:
        raise MirageError(
            f"superoptimize has no option {unknown[0]!r}", f"options: {', '.join(_KNOWN)}"
        )
    _one_of(options.get("config"), CONFIGS, "config")
    _one_of(options.get("backend"), BACKENDS, "backend")
    jobs = options.get("jobs", 1)
    config, checkpoint = options.get("config"), options.get("previous_checkpoint")
    if not isinstance(jobs, int) or jobs < 1:
        raise MirageError(f"jobs is {jobs!r}", "give a number of processes")
    return Constraints(
        imaps=_maps(options.get("imaps"), "imaps"),
        omaps=_maps(options.get("omaps"), "omaps"),
        griddims=_maps(options.get("griddims"), "griddims"),
        fmaps=_numbers(options.get("fmaps"), "fmaps"),
        franges=_numbers(options.get("franges"), "franges"),
        config=config if isinstance(config, str) else None,
        verbose=bool(options.get("verbose")),
        jobs=jobs,
        checkpoint=None if checkpoint is None else str(checkpoint),
    )


def _one_of(value: object, known: Sequence[str], name: str) -> None:
    if value is not None and value not in known:
        raise MirageError(f"superoptimize has no {name} {value!r}", f"{name}: {', '.join(known)}")


def _maps(value: object, name: str) -> tuple[Map, ...] | None:
    if value is None:
        return None
    wrong = MirageError(f"{name} is {value!r}", f"{name}=[(x, y, z), ...], whole numbers")
    if not isinstance(value, list | tuple):
        raise wrong
    found = []
    for item in value:
        if not isinstance(item, list | tuple) or len(item) != len(AXES):
            raise wrong
        found.append(_whole(item, wrong))
    return tuple(found)


def _numbers(value: object, name: str) -> tuple[int, ...] | None:
    if value is None:
        return None
    wrong = MirageError(f"{name} is {value!r}", f"{name}=[4, 16, ...], whole numbers")
    if not isinstance(value, list | tuple):
        raise wrong
    return _whole(value, wrong)


def _whole(values: Sequence[object], wrong: MirageError) -> tuple[int, ...]:
    found = tuple(v for v in values if isinstance(v, int) and not isinstance(v, bool))
    if len(found) != len(values):
        raise wrong
    return found


def fitted(graph: Graph, wanted: Constraints) -> Iterator[Graph]:
    """Yield a muGraph at every choice of tile sizes that gives it a wanted grid and loop."""
    for tiles in _tilings(graph, wanted):
        yield retile(graph, tiles) if tiles else graph


def _tilings(graph: Graph, wanted: Constraints) -> Iterator[dict[str, int]]:
    """Yield tile sizes, by dim, that give every block graph one of the wanted grids and loops."""
    choices = [list(_block_tilings(graph, node, wanted)) for node in graph.blocks]
    for combination in itertools.product(*choices):
        tiles: dict[str, int] = {}
        if all(tiles.setdefault(d, n) == n for each in combination for d, n in each.items()):
            yield tiles


def _block_tilings(graph: Graph, node: Node, wanted: Constraints) -> Iterator[dict[str, int]]:
    assert node.body is not None
    assert node.body.space is not None
    space = node.body.space
    sizes = {d.name: d.size for a in node.args for d in graph.values[a].type.dims}
    for counts in _axis_counts(wanted.griddims, len(space.grid)):
        for count in _loop_counts(wanted.franges, space.loop):
            pairs = list(zip(space.grid, counts, strict=True)) if counts else []
            if space.loop is not None and count is not None:
                pairs.append((space.loop, count))
            if all(n > 0 and sizes[axis.dim] % n == 0 for axis, n in pairs):
                yield {axis.tile_key: sizes[axis.dim] // n for axis, n in pairs}


def _loop_counts(franges: tuple[int, ...] | None, loop: Axis | None) -> Sequence[int | None]:
    """Return how often the loop may run; None leaves that open. No loop counts as one iteration."""
    if franges is None:
        return (None,)
    return franges if loop is not None else [None] * (1 in franges)


def _axis_counts(griddims: tuple[Map, ...] | None, axes: int) -> Iterator[tuple[int, ...]]:
    """Yield how many blocks each axis may have, x, y and z in any order; () leaves that open."""
    if griddims is None:
        yield ()
    for grid in griddims or ():
        counts = [n for n in grid if n != 1]
        if len(counts) <= axes:
            padded = [*counts, *[1] * (axes - len(counts))]
            yield from dict.fromkeys(itertools.permutations(padded))


def maps_fit(graph: Graph, layouts: Mapping[str, Layout], wanted: Constraints) -> bool:
    """Say whether every block graph cuts its tensors as the wanted maps say."""
    return all(_maps_fit(graph, node, layouts, wanted) for node in graph.blocks)


def _maps_fit(graph: Graph, node: Node, layouts: Mapping[str, Layout], wanted: Constraints) -> bool:
    assert node.body is not None
    for inner, outer in zip(node.body.inputs, node.args, strict=True):
        layout = layouts.get(outer) or tuple((d,) for d in graph.values[outer].type.names)
        if not _among(_positions(inner, layout), wanted.imaps):
            return False
        if wanted.fmaps is not None and _position(inner.loop_cut, layout) not in wanted.fmaps:
            return False
    for inner, value in zip(node.body.of("output"), node.outs, strict=True):
        layout = layouts.get(value.name) or tuple((d,) for d in value.type.names)
        if not _among(_positions(inner, layout), wanted.omaps):
            return False
    return True


def _positions(node: Node, layout: Layout) -> Map:
    found = tuple(_position(dim, layout) for dim in node.cuts)
    return (*found, *[NOWHERE] * (len(AXES) - len(found)))


def _position(dim: str | None, layout: Layout) -> int:
    return next((i for i, row in enumerate(layout) if dim in row), NOWHERE)


def _among(found: Map, wanted: tuple[Map, ...] | None) -> bool:
    """Say whether a map is one of those wanted, x, y and z in any order."""
    return wanted is None or sorted(found) in [sorted(m) for m in wanted]
