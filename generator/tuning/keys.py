"""What names a kernel in a catalog."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Key:
    """What names a kernel: recipe, element type, static extents."""

    recipe: str
    dtype: str
    shape: Mapping[str, int]

    @property
    def name(self) -> str:
        """`rms_norm_linear/K4096_N6144_fp16`."""
        dims = "_".join(f"{name}{size}" for name, size in self.shape.items())
        return f"{self.recipe}/{dims}_{self.dtype}"
