"""What names a kernel in a catalog."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mirage_kernels.generator.ir.text import Json
from mirage_kernels.generator.tuning.fields import integers, text


@dataclass(frozen=True)
class Key:
    """What names a kernel: recipe, static extents, element type."""

    recipe: str
    dtype: str
    shape: Mapping[str, int]

    @property
    def name(self) -> str:
        """`rms_norm_linear/K4096_N6144_fp16`."""
        dims = "_".join(f"{name}{size}" for name, size in self.shape.items())
        return f"{self.recipe}/{dims}_{self.dtype}"

    def to_json(self) -> dict[str, Json]:
        """Return the key as JSON data."""
        return {"recipe": self.recipe, "dtype": self.dtype, "shape": dict(self.shape)}

    @staticmethod
    def read(data: Mapping[str, Json]) -> Key:
        """Read what `to_json` makes."""
        return Key(text(data, "recipe"), text(data, "dtype"), integers(data, "shape"))
