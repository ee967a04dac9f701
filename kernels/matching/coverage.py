"""Whether this build has a kernel for a match, and which command makes one where it has none."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from mirage_kernels.dispatch import most_tokens
from mirage_kernels.matching.patterns import Pattern
from mirage_kernels.support import supports


@dataclass(frozen=True)
class Place:
    """Where a model runs: what its tensors are, and whether kernels must be there for them.

    CPU tensors run PyTorch's program at any size; `compiled_only` asks for kernels there, too.
    """

    dtype: torch.dtype
    device: torch.device
    compiled_only: bool = False

    def missing(self, pattern: Pattern, sizes: Mapping[str, int]) -> str:
        """Say why no op serves these sizes; empty where one does."""
        if pattern.op is None:
            return f"the library has no op for the recipe {pattern.recipe} yet"
        asked = None if self.compiled_only else self.device
        word = {"activation": pattern.activation} if pattern.activation else {}
        given = {"dtype": self.dtype, "device": asked, **word, **sizes}
        ask: Callable[..., bool] = supports
        is_served = ask(pattern.op_name, **given)
        needs_kernel = self.compiled_only or self.device.type != "cpu"
        if is_served and len(pattern.roots) > 1 and needs_kernel:
            # Without a kernel that makes the sum, too, an op is no better than its parts.
            is_served = most_tokens(pattern.recipe, self.dtype, **sizes) is not None
        return "" if is_served else "no kernel of this build has these sizes"


def command(pattern: Pattern, sizes: Mapping[str, int]) -> str:
    """Return the command that makes a kernel."""
    given = ",".join(f"{dim}={sizes[dim]}" for dim in pattern.static)
    return f"mirage-kernels generate {pattern.recipe} --shape {given}"
