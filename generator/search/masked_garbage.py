"""Stale data: what stands at positions that a spec masks must not show in any result.

Buffers of keys and values hold old or no data beyond a sequence's length. The spec's masks say
which elements of which inputs nothing looks at; that results do not depend on them is confirmed by
evaluating the spec on other values there. No recipe and no input is named.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from mirage_kernels.generator.ir import DType, Graph
from mirage_kernels.generator.meaning.arrays import Array, array_reading
from mirage_kernels.generator.meaning.reals import FLOAT64, round_to
from mirage_kernels.generator.meaning.walk import results, walk

Bools = npt.NDArray[np.bool_]
Sizes = Mapping[str, int]

SAME = 1e-9  # relative difference of float64 results up to which they are the same


def hidden_positions(
    spec: Graph, inputs: Sequence[Array], sizes: Sizes, *, seed: int
) -> dict[int, Bools]:
    """Return by number of an input which of its elements no result of `spec` depends on.

    Only inputs with such elements are listed; `spec` is safe from overflow.
    """
    masks = _masks(spec, inputs, sizes)
    if not masks:
        return {}
    reading = array_reading(FLOAT64, sizes)
    wanted = results(spec, inputs, reading)
    rng = np.random.default_rng((seed, 5))
    found, others = {}, list(inputs)
    for i, x in enumerate(inputs):
        hidden = _hidden(x, masks)
        if not hidden.any():
            continue
        drawn = np.where(hidden, rng.standard_normal(hidden.shape), x.parts[0])
        changed = [*others[:i], Array(x.dims, (drawn,)), *others[i + 1 :]]
        if _same(results(spec, changed, reading), wanted):
            found[i], others = hidden, changed
    return found


def with_garbage(
    inputs: Sequence[Array], hidden: Mapping[int, Bools], magnitude: float, dtype: DType
) -> list[Array]:
    """Return the inputs with `magnitude`, of either sign, wherever `hidden` says."""
    rng = np.random.default_rng(4)
    made = list(inputs)
    for i, at in hidden.items():
        garbage = np.asarray(round_to(rng.choice((-magnitude, magnitude), at.shape), dtype))
        made[i] = Array(inputs[i].dims, (np.where(at, garbage, inputs[i].parts[0]),))
    return made


def _masks(spec: Graph, inputs: Sequence[Array], sizes: Sizes) -> list[Array]:
    """Return the values of all conditions by which `spec` chooses between two values."""
    conditions = sorted({n.args[0] for n in spec.of("where")})
    if not conditions:
        return []
    values = walk(spec, inputs, array_reading(FLOAT64, sizes))
    return [values[name] for name in conditions]


def _hidden(x: Array, masks: Sequence[Array]) -> Bools:
    """Return where every mask is false for all that meets an element of `x`."""
    seen = np.zeros(x.parts[0].shape, np.bool_)
    for mask in masks:
        beyond = tuple(i for i, d in enumerate(mask.dims) if d not in x.dims)
        dims = tuple(d for d in mask.dims if d in x.dims)
        met = Array(dims, (np.any(mask.parts[0], axis=beyond),), real=False)
        seen |= np.asarray(met.over(x.dims).parts[0], np.bool_)
    return ~seen if x.real else np.zeros_like(seen)


def _same(found: Sequence[Array], wanted: Sequence[Array]) -> bool:
    def close(a: Array, b: Array) -> bool:
        return np.allclose(a.over(b.dims).parts[0], b.parts[0], rtol=SAME, atol=SAME)

    return all(map(close, found, wanted))
