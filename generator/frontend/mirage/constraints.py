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
from mirage_kernels.generator.ir.infer import extents_of

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
    found = tuple(_whole(item, wrong) for item in _listed(value, wrong))
    if any(len(item) != len(AXES) for item in found):
        raise wrong
    return found


def _numbers(value: object, name: str) -> tuple[int, ...] | None:
    if value is None:
        return None
    return _whole(value, MirageError(f"{name} is {value!r}", f"{name}=[4, 16, ...], whole numbers"))


def _listed(value: object, wrong: MirageError) -> Sequence[object]:
    if not isinstance(value, list | tuple):
        raise wrong
    return value


def _whole(value: object, wrong: MirageError) -> tuple[int, ...]:
    listed = _listed(value, wrong)
    found = tuple(v for v in listed if isinstance(v, int) and not isinstance(v, bool))
    if len(found) != len(listed):
        raise wrong
    return found


def fitted(graph: Graph, wanted: Constraints) -> Iterator[Graph]:
    """Yield a muGraph at every choice of tile sizes that gives it a wanted grid and loop."""
    choices = [list(_tilings(graph, node, wanted)) for node in graph.blocks]
    for combination in itertools.product(*choices):
        tiles: dict[str, int] = {}
        if all(tiles.setdefault(d, n) == n for each in combination for d, n in each.items()):
            yield retile(graph, tiles) if tiles else graph


def _tilings(graph: Graph, node: Node, wanted: Constraints) -> Iterator[dict[str, int]]:
    """Yield tile sizes, by dim, that give a block graph one of the wanted grids and loops."""
    assert node.body is not None
    assert node.body.space is not None
    grid, loop = node.body.space.grid, node.body.space.loop
    sizes = extents_of([graph.values[a].type for a in node.args])
    if wanted.franges is not None and loop is None and 1 not in wanted.franges:
        return  # no loop counts as one iteration
    loops: list[list[tuple[Axis, int]]] = [[]]
    if loop is not None and wanted.franges is not None:
        loops = [[(loop, n)] for n in wanted.franges]
    for counts in _axis_counts(wanted.griddims, len(grid)):
        for looped in loops:
            pairs = [*zip(grid, counts, strict=False), *looped]
            if all(n > 0 and sizes[axis.dim] % n == 0 for axis, n in pairs):
                yield {axis.tile_key: sizes[axis.dim] // n for axis, n in pairs}


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
    return all(
        _among(_positions(inner, layout), wanted.omaps if inner.op == "output" else wanted.imaps)
        and (inner.op == "output" or _loop_fits(_position(inner.loop_cut, layout), wanted.fmaps))
        for node in graph.blocks
        for inner, layout in _tensors(graph, node, layouts)
    )


def _tensors(
    graph: Graph, node: Node, layouts: Mapping[str, Layout]
) -> Iterator[tuple[Node, Layout]]:
    """Yield inputs and outputs of a block graph with the positional dims of their tensors."""
    assert node.body is not None
    names = (*node.args, *(value.name for value in node.outs))
    for inner, name in zip(node.body.of("input", "output"), names, strict=True):
        dims = graph.values[name].type.names
        yield inner, layouts.get(name) or tuple((d,) for d in dims)


def _loop_fits(position: int, fmaps: tuple[int, ...] | None) -> bool:
    return fmaps is None or position in fmaps


def _positions(node: Node, layout: Layout) -> Map:
    found = tuple(_position(dim, layout) for dim in node.cuts)
    return (*found, *[NOWHERE] * (len(AXES) - len(found)))


def _position(dim: str | None, layout: Layout) -> int:
    return next((i for i, row in enumerate(layout) if dim in row), NOWHERE)


def _among(found: Map, wanted: tuple[Map, ...] | None) -> bool:
    """Say whether a map is one of those wanted, x, y and z in any order."""
    return wanted is None or sorted(found) in [sorted(m) for m in wanted]
