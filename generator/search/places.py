"""Which positions small extents stand for, so that masks leave something, and hide something.

A window `row + 56 < column` hides all of the first few columns. So a proof at small extents takes
other positions of the same dims: some that lie side by side, or at equal distances.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from mirage_kernels.generator.ir import DType, Graph, Node
from mirage_kernels.generator.ir.distances import Distances
from mirage_kernels.generator.meaning.arrays import Array, Places, array_reading
from mirage_kernels.generator.meaning.reals import FLOAT64
from mirage_kernels.generator.search.cases import summed_dims

_ATTEMPTS = 1000  # windows are narrow
_SEED = 7


def places_of(spec: Graph, sizes: Mapping[str, int]) -> Places:
    """Return positions along dims that have fewer elements here than in the spec.

    None where the first ones do, where lengths say what is seen, or positions are numbers.
    """
    cut = {n.over: n.out.type.dims[0] for n in spec.of("iota")}
    cut = {d: dim for d, dim in cut.items() if not dim.dynamic and sizes[d] < dim.size}
    if not cut or not _are_masks_alone(spec):
        return {}
    found: Places = {}
    for places in _drawn({d: (sizes[d], dim.size) for d, dim in cut.items()}):
        leaves, hides = _seen(spec, sizes, places)
        if leaves and hides:
            return places
        found = found or (places if leaves else {})
    return found


def distances_of(spec: Graph) -> Distances:
    """Return what conditions compare with in proofs: as it is where short extents have places."""
    dims = [n.out.type.dims[0] for n in spec.of("iota")]
    static = bool(dims) and not any(d.dynamic for d in dims)
    return Distances({}) if static and _are_masks_alone(spec) else Distances.of(spec)


def leaves_some(
    spec: Graph, sizes: Mapping[str, int], places: Places, given: Mapping[str, Array]
) -> bool:
    """Say whether masks leave something of everything that is summed; `given`: what they take."""
    return _seen(spec, sizes, places, given)[0]


def _are_masks_alone(spec: Graph) -> bool:
    """Say whether positions are compared with positions and numbers, and are nothing else."""
    whole = [n for n in spec.nodes if n.op in ("input", "size") and not _is_real(n)]
    taken = [n for n in spec.nodes if any(_type(spec, a) is DType.INT32 for a in n.args)]
    return not whole and not any(map(_is_real, taken))


def _is_real(node: Node) -> bool:
    return bool(node.out.type.dtype.is_real)


def _type(spec: Graph, name: str) -> DType:
    return spec.values[name].type.dtype


def _drawn(extents: Mapping[str, tuple[int, int]]) -> Iterator[Places]:
    """Yield positions: the first ones, then others side by side and at distances in turn."""
    yield {d: np.arange(few) for d, (few, _) in extents.items()}
    rng = np.random.default_rng(_SEED)
    for attempt in range(_ATTEMPTS):
        places = {}
        for dim, (few, size) in extents.items():
            step = int(rng.integers(1, size // few + 1)) if attempt % 2 else 1
            first = int(rng.integers(0, size - step * (few - 1)))
            places[dim] = first + step * np.arange(few)
        yield places


def _seen(
    spec: Graph, sizes: Mapping[str, int], places: Places, given: Mapping[str, Array] | None = None
) -> tuple[bool, bool]:
    """Say whether masks leave something of everything that is summed, and whether all hide some."""
    reading, summed = array_reading(FLOAT64, sizes, places), summed_dims(spec)
    found = dict(given or {})
    for node in spec.nodes:
        if not _is_real(node) and node.name not in found:
            found[node.name] = reading[node.op](node, [found[a] for a in node.args])[0]
    leaves = hides = True
    for mask in (found[n.args[0]] for n in spec.of("where")):
        held, axes = mask.parts[0], [i for i, d in enumerate(mask.dims) if d in summed]
        leaves &= bool(np.all(np.any(held, axis=tuple(axes)))) if axes else True
        hides &= not np.all(held)
    return leaves, hides
