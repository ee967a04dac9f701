"""What is asked of the pipeline, and what it tells on the way; needs nothing but recipes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from mirage_kernels.generator.errors import ShapeError
from mirage_kernels.generator.ir.dtypes import DType
from mirage_kernels.generator.recipe import Recipe, Shape
from mirage_kernels.generator.target import target


@dataclass(frozen=True)
class Event:
    """Something for a person to watch: a stage, how far it is, and one short line."""

    stage: str
    done: int
    total: int
    text: str


Progress = Callable[[Event], None]


@dataclass(frozen=True)
class Request:
    """One kernel to make: a recipe at a shape, in a storage type, for an architecture.

    `catalogs` are files of measured knobs, which come before the package's own.
    """

    recipe: Recipe
    shape: Shape
    dtype: DType
    arch: str = "sm_90a"
    catalogs: tuple[Path, ...] = ()

    @property
    def name(self) -> str:
        """What a person calls it: `rms_norm_linear K4096_N6144_fp16`."""
        return f"{self.recipe.name} {self.shape.kernel(self.dtype)}"


def requests(
    recipe: Recipe, arch: str, dtypes: Sequence[DType] | None, shapes: Sequence[Shape] | None
) -> list[Request]:
    """Return what to make: every shape of the catalog in every type, unless some are named."""
    target(arch)
    return [
        Request(recipe, shape, dtype, arch)
        for shape in (shapes or recipe.shapes)
        for dtype in (dtypes or recipe.dtypes)
    ]


def sizes_text(sizes: Mapping[str, int]) -> str:
    """Write sizes as `parse_shape` reads them: `K=4096,N=6144`."""
    return ",".join(f"{name}={size}" for name, size in sizes.items())


def parse_shape(text: str, recipe: Recipe) -> Shape:
    """Read `K=4096,N=6144`; raises ShapeError saying what does not fit.

    A shape of the catalog keeps the catalog's name for it.
    """
    dims: dict[str, int] = {}
    for item in text.split(","):
        name, equals, size = item.partition("=")
        if not equals or not size.strip().isdecimal():
            raise ShapeError(
                f"{item!r} in the shape {text!r} is not of the form NAME=NUMBER",
                f"write --shape {','.join(f'{n}=...' for n in recipe.static_dims)}",
            )
        if name.strip() in dims:
            raise ShapeError(f"the shape {text!r} gives {name.strip()} twice")
        dims[name.strip()] = int(size)
    named = Shape("given on the command line", dims)
    recipe.dims(named)
    ordered = {name: dims[name] for name in recipe.static_dims}
    known = (s for s in recipe.shapes if dict(s.dims) == ordered)
    return next(known, Shape(named.source, ordered))
