"""Running positional programs on torch tensors: CPU tensors in our interpreter.

The interpreter computes in fp32 and rounds where the graph stores. Blocks run one after another,
iteration by iteration: this shows what a graph computes, not how fast.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from mirage_kernels.generator.errors import MirageError
from mirage_kernels.generator.frontend.mirage.lower import Layout, Lowered
from mirage_kernels.generator.frontend.mirage.program import Extents, Tensor
from mirage_kernels.generator.ir import DType, Graph, with_precision
from mirage_kernels.generator.meaning.arrays import Array, array_reading
from mirage_kernels.generator.meaning.reals import STORAGE, round_to
from mirage_kernels.generator.meaning.walk import results

if TYPE_CHECKING:
    import torch

TORCH_NAMES = {DType.FP16: "float16", DType.BF16: "bfloat16", DType.FP32: "float32"}


@dataclass(frozen=True)
class Signature:
    """What a program takes and gives, by position."""

    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]


def extents_of(graph: Graph) -> dict[str, int]:
    """Return the extent of every dim of a kernel graph's tensors."""
    return {d.name: d.size for n in graph.nodes for v in n.outs for d in v.type.dims}


def torch_dtype(dtype: DType) -> torch.dtype:
    """Return torch's element type."""
    import torch

    if dtype not in TORCH_NAMES:
        raise MirageError(f"torch tensors of {dtype.value} are not supported here")
    found: torch.dtype = getattr(torch, TORCH_NAMES[dtype])
    return found


def check_arguments(given: Sequence[torch.Tensor], signature: Signature) -> None:
    """Raise MirageError for tensors that are not what the program takes."""
    import torch

    if len(given) != len(signature.inputs):
        raise MirageError(
            f"the graph takes {len(signature.inputs)} tensors, {len(given)} are given",
            "call it as graph(inputs=[...]) with the tensors in the order of new_input",
        )
    for i, (x, tensor) in enumerate(zip(given, signature.inputs, strict=True), start=1):
        if not isinstance(x, torch.Tensor):
            raise MirageError(f"input {i} is {type(x).__name__}, not a torch tensor")
        extents = tuple(n for n in tensor.extents if n != 1)
        if tuple(n for n in x.shape if n != 1) != extents:
            raise MirageError(
                f"input {i} has the shape {list(x.shape)}, not {list(tensor.extents)}"
            )
        if x.dtype != torch_dtype(tensor.dtype):
            raise MirageError(
                f"input {i} holds {x.dtype}, not {torch_dtype(tensor.dtype)}",
                "convert the tensor, or give new_input another dtype",
            )
        if x.device != given[0].device:
            raise MirageError(f"input {i} is on {x.device}, input 1 on {given[0].device}")


def run_on_cpu(
    lowered: Lowered, given: Sequence[torch.Tensor], signature: Signature
) -> list[torch.Tensor]:
    """Return the program's results on CPU tensors."""
    storage = signature.inputs[0].dtype
    graph = with_precision(lowered.graph, storage)
    sizes = extents_of(graph)
    arrays = [_array(x, layout, sizes) for x, layout in zip(given, lowered.inputs, strict=True)]
    made = results(graph, arrays, array_reading(STORAGE, sizes))
    return [
        _tensor(x, layout, tensor)
        for x, layout, tensor in zip(made, lowered.outputs, signature.outputs, strict=True)
    ]


def _array(x: torch.Tensor, layout: Layout, sizes: Mapping[str, int]) -> Array:
    import torch

    names = tuple(name for row in layout for name in row)
    data = x.detach().to(torch.float32).reshape([sizes[n] for n in names])
    return Array(names, (np.asarray(data.numpy()),))


def _tensor(x: Array, layout: Layout, tensor: Tensor) -> torch.Tensor:
    import torch

    names = tuple(name for row in layout for name in row)
    data = round_to(np.asarray(x.over(names).parts[0], np.float32), tensor.dtype)
    whole = torch.from_numpy(np.ascontiguousarray(data)).reshape(tensor.extents)
    stored = whole.to(torch_dtype(tensor.dtype))
    return stored if not tensor.strides else _strided(stored, tensor.strides)


def _strided(x: torch.Tensor, strides: Extents) -> torch.Tensor:
    """Return the tensor in memory as `mark_output` wants it."""
    import torch

    span = 1 + sum((n - 1) * s for n, s in zip(x.shape, strides, strict=True))
    room = torch.empty(max(span, math.prod(x.shape)), dtype=x.dtype)
    laid_out = torch.as_strided(room, x.shape, strides)
    laid_out.copy_(x)
    return laid_out
