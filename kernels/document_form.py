"""The form of a program's document, as `mirage-kernels generate` writes it: to check what is read.

`program_steps.py` says what the parts mean. Fields that are not named here are allowed.
"""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import UNSET, Meta, Struct, UnsetType, convert, field

Name = str
Count = Annotated[int, Meta(ge=0)]


class Multiple(Struct):
    """A multiple of a dynamic extent, or of the product of several."""

    extent: str
    times: int


Shape = list[int | Multiple]


class Input(Struct):
    """A tensor that the function takes."""

    name: Name
    shape: Shape
    dtype: str
    called: Name = ""


class Constant(Struct):
    """A tensor that the document has."""

    name: Name
    shape: list[Count]
    dtype: str
    bytes: str


class Returned(Struct):
    """What the function returns: one of these."""

    value: Name | UnsetType = UNSET
    none: bool | UnsetType = UNSET
    pairs: list[tuple[Any, Returned]] | UnsetType = field(default=UNSET, name="dict")
    several: list[Returned] | UnsetType = field(default=UNSET, name="list")
    fixed: list[Returned] | UnsetType = field(default=UNSET, name="tuple")

    def __post_init__(self) -> None:
        """Raise ValueError where it is none of these, or several."""
        kinds = (self.value, self.none, self.pairs, self.several, self.fixed)
        if len([kind for kind in kinds if kind is not UNSET]) != 1:
            raise ValueError("Expected one of value, none, dict, list, tuple")


class InMemory(Struct):
    """Which dims of a stand-in are in the place of a table's rows."""

    of: Name
    dim: Count
    dims: tuple[Count, Count]


class Taken(Struct):
    """A tensor that a kernel takes."""

    value: Name
    shape: Shape
    one: bool
    by_row: bool = False
    order: list[Count] = []
    rows: InMemory | None = None


class Range(Struct, kw_only=True):
    """A range of a tensor along one dim; the whole tensor has none."""

    dim: Count | UnsetType = UNSET
    start: Count | UnsetType = UNSET
    size: Count | UnsetType = UNSET
    step: Count = 1

    def __post_init__(self) -> None:
        """Raise ValueError where only some of it is told."""
        if len({kind is UNSET for kind in (self.dim, self.start, self.size)}) != 1:
            raise ValueError("Expected dim, start and size")


class Place(Range, kw_only=True):
    """Where a kernel writes a result."""

    value: Name
    shape: Shape = []
    seen: Shape = []
    seen_as: Shape = field(name="as")
    scattered: bool = False


class Made(Struct):
    """A result of a kernel."""

    value: Name
    shape: Shape
    dtype: str
    into: Place | None = None


class Piece(Range, kw_only=True):
    """What is copied into a tensor."""

    piece: Name


class Step(Struct):
    """What all steps tell: the values that no step behind takes."""

    last: list[Name]


class Kernel(Step):
    """A step that launches a kernel."""

    kernel: Name
    inputs: list[Taken]
    results: list[Made]


class Call(Step):
    """A step that PyTorch runs."""

    call: Name
    args: list[Any]
    named: dict[str, Any]
    result: Name


class Rows(Step):
    """A step that names a stand-in for rows that an index tensor says."""

    rows: Name
    dim: Count
    index: Name
    result: Name


class Join(Step):
    """A step that copies parts into a tensor that no kernel wrote there."""

    join: Name
    copies: list[Piece]
    result: Name


class Way(Struct):
    """The steps up to some extents."""

    most: dict[str, int]
    steps: list[dict[str, Any]]


class Document(Struct):
    """A program."""

    name: Name
    dtype: str
    arch: Annotated[str, Meta(pattern=r"^sm_\d+a?$")]
    inputs: list[Input]
    returns: Returned
    ways: Annotated[list[Way], Meta(min_length=1)]
    constants: list[Constant]
    origin: str = ""
    kernels: dict[str, str] = {}


STEPS = {"kernel": Kernel, "rows": Rows, "join": Join}  # a step that is none of these is a call


def require_document(data: object) -> None:
    """Raise ValueError where data is no document, saying what is wrong and where."""
    document = convert(data, Document)
    for i, way in enumerate(document.ways):
        for j, step in enumerate(way.steps):
            kind = next((kind for name, kind in STEPS.items() if name in step), Call)
            try:
                convert(step, kind)
            except ValueError as error:
                raise ValueError(f"{error}, of `$.ways[{i}].steps[{j}]`") from error
    if most := document.ways[-1].most:
        raise ValueError(f"Its last way takes no more than {most}")
