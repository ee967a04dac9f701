"""Calls of generated programs: tensors drawn from a signature, results of one kernel of another.

The times are those of `benchmarks/programs`: calls go round sets of tensors that together exceed
the L2 cache, so that all are read from memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mirage_kernels.element_types import TYPES
from mirage_kernels.generator.bench.measure import Clock
from mirage_kernels.generator.bench.workload import poisoned
from mirage_kernels.program_library import ProgramKernel, read_kernel

UNITS = 8  # in the last place: how far right results of two kernels are apart, as a norm
MOST_SETS = 400  # of tensors, that calls go round


@dataclass(frozen=True)
class ProgramCall:
    """A call of a program: the function that launches it, and the extents of its dynamic dims."""

    symbol: str
    sizes: Mapping[str, int]

    def read(self, file: Path) -> ProgramKernel:
        """Load a candidate; raises ImportError for what is none."""
        return read_kernel(file, self.symbol)

    def draw(self, kernel: ProgramKernel, device: str) -> list[Tensor]:
        """Draw the tensors.

        Standard deviation 1, matrices without a dynamic dim scaled by their last dim's root; whole
        numbers from 1 to the longest extent, those of 8 bits from all that there are.
        """
        signature, source = kernel.signature, torch.Generator(device).manual_seed(0)
        extents = {**signature["static"], **self.sizes}
        made = []
        for wanted in signature["tensors"]:
            dims, kind = wanted["dims"], TYPES[wanted["dtype"]]
            shape = [extents[dim] for dim in dims]
            if kind.itemsize == 1 and kind is not torch.bool:
                least = 0 if kind is torch.uint8 else -127
                drawn = torch.randint(least, 128, shape, generator=source, device=device)
                drawn = (drawn / 64 if kind.is_floating_point else drawn).to(kind)
            elif not kind.is_floating_point:
                most = max(extents.values()) + 1 if kind is torch.int32 else 2
                drawn = torch.randint(1, most, shape, generator=source, device=device).to(kind)
            else:
                drawn = torch.randn(shape, generator=source, device=device, dtype=kind)
                if len(dims) > 1 and not set(dims) & set(self.sizes):
                    drawn /= shape[-1] ** 0.5
            made.append(drawn)
        return made


@dataclass
class ProgramBuffers:
    """The tensors of a call, shared by all candidates, and what they must compute."""

    call: ProgramCall
    rule: Path  # the library of the rule's choice
    clock: Clock
    bytes_per_us: float  # of memory

    @cached_property
    def given(self) -> list[Tensor]:
        """The tensors."""
        return self.call.draw(self.call.read(self.rule), self.clock.device)

    @cached_property
    def sets(self) -> list[list[Tensor]]:
        """The tensors and copies of them."""
        count = min(self.clock.sets(sum(t.nbytes for t in self.given)), MOST_SETS)
        return [self.given, *([t.clone() for t in self.given] for _ in range(count - 1))]

    @cached_property
    def wanted(self) -> list[Tensor]:
        """What the rule's choice computes."""
        return self._results(self.call.read(self.rule))

    def peers(self) -> dict[str, float]:
        """Return the floor: the time to read and write all tensors once."""
        made = self.call.read(self.rule).results(self.given)
        moved = sum(t.numel() * t.element_size() for t in (*self.given, *made))
        return {"floor_us": moved / self.bytes_per_us}

    def candidate(self, file: Path) -> dict[str, float | str]:
        """Compare a candidate's results with the rule's; where they are right, measure its time."""
        kernel = self.call.read(file)
        found = self._results(kernel)
        error = max(distance(a, b) for a, b in zip(found, self.wanted, strict=True))
        allowed = UNITS * max(torch.finfo(t.dtype).eps for t in found) / 2
        if not error <= allowed:
            return {"failed": f"it is {error:.2e} from the rule's results, {allowed:.2e} allowed"}
        made, scalars = kernel.results(self.given), self._scalars(kernel)
        calls = [partial(kernel.run, given, scalars, made) for given in self.sets]
        return {"us": self.clock.per_call(calls), "error": error}

    def _results(self, kernel: ProgramKernel) -> list[Tensor]:
        made = list(poisoned(kernel.results(self.given)))
        kernel.run(self.given, self._scalars(kernel), made)
        return made

    def _scalars(self, kernel: ProgramKernel) -> Sequence[float]:
        named: Sequence[Any] = kernel.signature["scalars"]
        return [0.5] * len(named)


def distance(found: Tensor, wanted: Tensor) -> float:
    """Return the relative Frobenius distance of what is finite in the second; the rest is equal.

    Where it is not, the distance is infinite or NaN.
    """
    a, b = found.float(), wanted.float()
    odd = ~torch.isfinite(b)
    if not torch.equal(a[odd].nan_to_num(nan=0.0), b[odd].nan_to_num(nan=0.0)):
        return float("inf")
    a, b = a.masked_fill(odd, 0), b.masked_fill(odd, 0)
    return float((a - b).norm() / b.norm().clamp_min(1e-30))
