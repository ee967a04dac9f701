"""A recipe's PyTorch reference, compared with its program before anything is searched for.

Errors and times are given beside the reference's: were it another function, they would say nothing,
and the muGraph would still be proved equal to the program alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from mirage_kernels.generator.errors import RecipeError
from mirage_kernels.generator.frontend.export import has_eight_bits
from mirage_kernels.generator.frontend.from_torch import TracedFunction
from mirage_kernels.generator.ir import DType, Graph, Node
from mirage_kernels.generator.meaning.arrays import Array, array_reading, relative_error
from mirage_kernels.generator.meaning.reals import FLOAT64
from mirage_kernels.generator.meaning.walk import results
from mirage_kernels.generator.recipe import Recipe
from mirage_kernels.generator.search.distributions import DISTRIBUTIONS
from mirage_kernels.generator.search.gate import Gate
from mirage_kernels.generator.search.stabilise import stabilise

if TYPE_CHECKING:
    import torch

# Of float64 results. Programs that compute something in between in fp32, or even round it to
# 16 bits, stay below; another function does not.
LARGEST_DIFFERENCE = 0.05
FAR = 1e3  # standard deviation of inputs whose exponentials overflow in float64
MOST_ELEMENTS = 2**26  # of all inputs of a traced function, which are drawn at its own sizes


def require_reference(source: Recipe, spec: Graph, dtype: DType) -> None:
    """Raise RecipeError if the recipe's reference computes something else than its program.

    Both run on the CPU in float64, at extents of their own: static dims are small there. A recipe
    may have no reference, None.
    """
    import torch

    if source.reference is None:
        return
    own = f"the reference of recipe {source.name}"
    gate = Gate(spec, source, dtype)
    sizes, inputs = _examples(source, spec, gate)
    if not inputs:
        return  # its sizes are too large here, and its trace was made by rule
    listed = ", ".join(f"{name}={size}" for name, size in sizes.items())
    made = _referred(source, spec, inputs, listed)
    if all(isinstance(x, torch.Tensor) and bool(x.isnan().all()) for x in made):
        inputs = [replace(x, parts=(np.abs(x.parts[0]),)) for x in inputs]  # as of a logarithm
        made = _referred(source, spec, inputs, listed)
    if len(made) != len(source.results):
        raise RecipeError(
            f"{own} returns {len(made)} results, the recipe has {len(source.results)}",
            "return the output and then what `also` names, as a tuple",
        )
    safe = stabilise(spec, dtype)
    exact = results(safe, inputs, array_reading(FLOAT64, sizes))
    names = ("output", *source.also)
    for name, text, mine, theirs in zip(names, source.results, exact, made, strict=True):
        dims = tuple(text.split())
        shape = tuple(sizes[dim] for dim in dims)
        if not isinstance(theirs, torch.Tensor):
            hint = "return a tensor, or a tuple of them"
            raise RecipeError(f"{own} returns {type(theirs).__name__}", hint)
        if tuple(theirs.shape) != shape:
            raise RecipeError(
                f"{own} returns its {name} of the shape {tuple(theirs.shape)}, "
                f"where {text} are {shape}",
                "it takes the inputs, and returns the results, with the dims that the recipe gives",
            )
        found = Array(dims, (np.asarray(theirs.double().cpu().numpy()),))
        wanted = _as_stored(mine.over(dims), theirs.dtype)
        finite = np.isfinite(wanted.parts[0])  # the root of what is drawn may be nan
        if np.array_equal(found.parts[0][finite], wanted.parts[0][finite]):
            continue
        difference = relative_error(found, wanted, at=finite)
        if not difference <= LARGEST_DIFFERENCE:
            raise RecipeError(
                f"{own} computes another {name} than its program: "
                f"they differ by {difference:.1e} of it, in float64 with {listed}",
                "one of them is wrong; the program is what kernels are made of",
            )
    _require_safe(source, spec, safe, (sizes, inputs), listed)


def _as_stored(x: Array, dtype: torch.dtype) -> Array:
    """Return a program's result as a reference stores it, rounded to 8 bits."""
    import torch

    if not has_eight_bits(dtype):
        return x
    stored = torch.from_numpy(np.asarray(x.parts[0])).to(dtype).double()
    return Array(x.dims, (stored.numpy(),))


def _require_safe(
    source: Recipe,
    spec: Graph,
    safe: Graph,
    examples: tuple[Mapping[str, int], list[Array]],
    listed: str,
) -> None:
    """Raise RecipeError if exponentials of a program overflow where its reference is finite.

    The numeric gate measures against the program itself, which must be safe for that. Rows of which
    masks hide everything are not finite on near inputs either.
    """
    import torch

    sizes, inputs = examples
    if not spec.of("exp"):
        return
    far = [
        replace(x, parts=(FAR * np.asarray(x.parts[0], np.float64),)) if x.real else x
        for x in inputs
    ]
    made = _referred(source, spec, far, listed)
    reading = array_reading(FLOAT64, sizes)
    both = (results(safe, given, reading) for given in (inputs, far))
    for text, near, mine, theirs in zip(source.results, *both, made, strict=True):
        assert isinstance(theirs, torch.Tensor)
        wanted, dims = theirs.double().cpu().numpy(), tuple(text.split())
        right, seen = (np.isfinite(x.over(dims).parts[0]) for x in (mine, near))
        if (np.isfinite(wanted) & seen & ~right).any():
            raise RecipeError(
                f"exponentials of the program of recipe {source.name} overflow where its reference "
                f"is finite, on inputs of standard deviation {FAR:g}",
                "write them as exp(x - max(x)), or as softmax and logsumexp",
            )


def _referred(
    source: Recipe, spec: Graph, inputs: Sequence[Array], listed: str
) -> Sequence[object]:
    """Return what a recipe's reference makes of inputs; `listed` says their extents."""
    try:
        return source.reference_results(*map(_given, spec.inputs, inputs))
    except Exception as error:  # the recipe's own code may raise anything
        raise RecipeError(
            f"the reference of recipe {source.name} fails on float64 tensors with {listed}: "
            f"{type(error).__name__}: {error}",
            "it is called with other sizes, too, on the CPU: take sizes from the tensors' shapes",
        ) from error


def _given(node: Node, array: Array) -> torch.Tensor | float:
    """Return an input as the reference takes it: float64, int32 or bool, or a number."""
    import torch

    every = tuple(slice(None, None, dict(node.grouped).get(d, 1)) for d in node.out.type.names)
    tensor = torch.from_numpy(np.array(array.parts[0][every]))
    mask = tensor.dtype is torch.bool
    whole = tensor.double() if array.real else tensor if mask else tensor.int()
    return whole if whole.dim() else whole.item()


def _examples(source: Recipe, spec: Graph, gate: Gate) -> tuple[Mapping[str, int], list[Array]]:
    """Return extents and inputs of them; a traced function's own, none if these are too large."""
    traced = source.reference
    if not isinstance(traced, TracedFunction):
        return gate.sizes(), gate.inputs(DISTRIBUTIONS[0])
    sizes, types = traced.extents, [n.out.type for n in spec.inputs]
    if sum(prod(sizes[d] for d in t.names) for t in types) > MOST_ELEMENTS:
        return sizes, []
    rng = np.random.default_rng(0)
    return sizes, [_drawn(source, n, sizes, rng) for n in spec.inputs]


def _drawn(source: Recipe, node: Node, sizes: Mapping[str, int], rng: np.random.Generator) -> Array:
    """Return an input's numbers, alike for neighbours that have one element."""
    type_ = node.out.type
    drawn: np.ndarray[Any, Any] = rng.standard_normal([sizes[d] for d in type_.names])
    if type_.dtype is DType.INT32:
        least, largest = source.range_of(node.name, sizes)
        drawn = rng.integers(least, largest + 1, drawn.shape)
    elif type_.dtype is DType.BOOL:
        drawn = np.asarray(drawn > 0)
    for dim, count in node.grouped:
        axis = node.out.type.names.index(dim)
        drawn = drawn.take(np.arange(drawn.shape[axis]) // count * count, axis)
    return Array(type_.names, (drawn,), type_.dtype.is_real)
