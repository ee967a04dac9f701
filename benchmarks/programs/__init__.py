"""PyTorch functions that stand for what users bring: each with its inputs at stated sizes.

`level1` and `level2` name KernelBench's programs of products, elementwise functions, reductions,
softmax and norms, written anew; `OUT` says why its others are left out. `serving` has what decoding
needs beside them, `others` what the generator never saw while it was written, layers of published
models (`layers`) among it, `recorded` the programs of Mirage's interface.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

import torch

Size = int | str  # "M" is the number of rows, "2M" twice as many; "T" of a program's tokens
Inputs = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Program:
    """A function of tensors, the shapes of these, and the rows at which it is measured.

    `at` has tensors of whole numbers, each one more than the one before: the first. `by` names for
    a table or a cache the tensor that says which of its rows are read or written. `tokens` is how
    many each row has, where that is a dynamic dim too; rows are those of all tokens together.
    `types` has the tensors of 8 bits, whole numbers of standard deviation 32 and fp8 of 1, and of
    fp32. `scales` of such have the standard deviation 1/2048, so that layers of them stay in range.
    Of tensors with `parts` so much of what they hold is needed: keys in a window, say.
    """

    name: str
    run: Callable[..., object]
    shapes: Mapping[str, tuple[Size, ...]]
    rows: tuple[int, ...]
    at: Mapping[str, int]
    by: Mapping[str, str] = field(default_factory=dict, kw_only=True)
    tokens: int = field(default=1, kw_only=True)
    types: Mapping[str, torch.dtype] = field(default_factory=dict, kw_only=True)
    scales: Collection[str] = field(default=(), kw_only=True)
    parts: Mapping[str, float] = field(default_factory=dict, kw_only=True)

    @property
    def recipe(self) -> str:
        """Name of its recipe."""
        return self.name.replace("/", "_")

    def sizes(self, rows: int) -> dict[str, tuple[int, ...]]:
        """Return the extents of its inputs at a number of rows."""

        def size(given: Size) -> int:
            if isinstance(given, int):
                return given
            if given == "T":
                return self.tokens
            return rows // self.tokens * int(given.removesuffix("M") or 1)

        return {name: tuple(map(size, shape)) for name, shape in self.shapes.items()}

    def inputs(self, rows: int, dtype: torch.dtype, device: str = "cpu") -> Inputs:
        """Return inputs drawn with standard deviation 1, weights scaled by their last dim's root.

        On the device `meta` they have no elements.
        """
        made: Inputs = {}
        for i, (name, sizes) in enumerate(self.sizes(rows).items()):
            if name in self.at or device == "meta":
                own = self.types.get(name, dtype)
                made[name] = torch.empty(sizes, dtype=own, device=device)
                if name in self.at:
                    numbers = torch.arange(made[name].numel(), device=device)
                    made[name] = (numbers + self.at[name]).reshape(sizes)
                continue
            generator = torch.Generator(device).manual_seed(i)
            drawn = torch.randn(sizes, generator=generator, device=device)
            own = self.types.get(name)
            if name in self.scales:
                drawn /= 2048
            elif own is not None and not own.is_floating_point:
                drawn = (32 * drawn).round().clamp(-127, 127)
            elif own is None and sizes == self.shapes[name] and len(sizes) > 1:
                drawn /= sizes[-1] ** 0.5
            made[name] = drawn.to(own or dtype)
        return made

    def bytes_moved(self, inputs: Inputs, results: Sequence[torch.Tensor]) -> int:
        """Return the bytes of inputs and results, each once; of tables the rows that are named.

        Of tensors with parts these.
        """
        moved = sum(x.numel() * x.element_size() for x in results)
        for name, tensor in inputs.items():
            elements = tensor.numel()
            if name in self.by:
                elements = inputs[self.by[name]].numel() * (elements // len(tensor))
            moved += round(elements * self.parts.get(name, 1)) * tensor.element_size()
        return moved


PROGRAMS: dict[str, Program] = {}


def program(
    name: str,
    *,
    rows: tuple[int, ...],
    at: Mapping[str, int] = MappingProxyType({}),
    by: Mapping[str, str] = MappingProxyType({}),
    tokens: int = 1,
    types: Mapping[str, torch.dtype] = MappingProxyType({}),
    scales: Collection[str] = (),
    parts: Mapping[str, float] = MappingProxyType({}),
    **shapes: tuple[Size, ...],
) -> Callable[[Callable[..., object]], Callable[..., object]]:
    """Register a function under a name, with the shapes of its parameters (see `Program`)."""

    def register(run: Callable[..., object]) -> Callable[..., object]:
        assert name not in PROGRAMS, name
        about = {"by": by, "tokens": tokens, "types": types, "scales": scales, "parts": parts}
        PROGRAMS[name] = Program(name, run, shapes, rows, at, **about)
        return run

    return register
