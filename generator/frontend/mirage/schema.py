"""The JSON schema of Mirage's checkpoints: what objects hold, and what names of operators mean.

Two keys are ours, where the schema drops what an operator needs: `numbers` of clamp and
mul_scalar, `normalized_shape` of a norm over several dims.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta, MsgspecError, ValidationError, json

from mirage_kernels.generator.errors import FileError
from mirage_kernels.generator.frontend.positional.ops import ELEMENTWISE
from mirage_kernels.generator.frontend.positional.shapes import MOST_DIMS
from mirage_kernels.generator.frontend.positional.steps import NOWHERE, Extents, Step, Three
from mirage_kernels.generator.ir import DType

LARGEST = 2**62
Whole = Annotated[int, Meta(ge=-LARGEST, le=LARGEST)]
Number = Annotated[float, Meta(ge=-float(LARGEST), le=float(LARGEST))]

# Numbers of element types over the versions of the format; 940 and 941 have changed places.
DTYPES = {920: DType.BF16, 921: DType.FP16, 940: DType.FP16, 941: DType.FP16, 950: DType.FP32}
WRITTEN = {DType.FP16: 940, DType.BF16: 920, DType.FP32: 950}


@dataclass(frozen=True)
class XYZ:
    """A grid, a block, or the dims that a grid's axes cut."""

    x: Whole
    y: Whole
    z: Whole

    @property
    def three(self) -> Three:
        """The three numbers."""
        return (self.x, self.y, self.z)


@dataclass(frozen=True, kw_only=True)
class TensorData:
    """A tensor; its first `num_dims` extents count."""

    data_type: Whole
    dim: tuple[Whole, ...]
    guid: Whole
    layout: str | None = None
    num_dims: Whole

    def __post_init__(self) -> None:
        if not 1 <= self.num_dims <= min(len(self.dim), MOST_DIMS):
            raise ValueError(f"num_dims is {self.num_dims}, dim has {len(self.dim)} entries")

    @property
    def extents(self) -> Extents:
        """Extents of all dims."""
        return self.dim[: self.num_dims]


@dataclass(frozen=True, kw_only=True)
class BlockGraph:
    """A block graph."""

    graph_level: str = ""
    grid_dim: XYZ
    block_dim: XYZ
    forloop_range: Whole
    reduction_dimx: Whole
    smem_offset: Whole | None = None
    operators: tuple[Operator, ...]


@dataclass(frozen=True, kw_only=True)
class Operator:
    """An operator of a kernel graph or a block graph; `NEEDED` says what some must have."""

    op_type: str
    input_tensors: tuple[TensorData, ...]
    output_tensors: tuple[TensorData, ...]
    numbers: tuple[Number, ...] | None = None
    normalized_shape: tuple[Whole, ...] = ()  # Mirage's own files have none: a norm over one dim
    dtensor: TensorData | None = None
    input_map: XYZ | None = None
    input_strides: tuple[Whole, ...] = ()
    output_map: XYZ | None = None
    output_strides: tuple[Whole, ...] = ()
    forloop_dim: Whole | None = None
    bgraph: BlockGraph | None = None


@dataclass(frozen=True)
class Older:
    """An older file: an object that holds the graphs."""

    generated_graphs: list[list[Operator]]


NEEDED = {
    "kn_input_op": (),
    "kn_output_op": (),
    "kn_customized_op": ("bgraph",),
    "tb_input_op": ("input_map", "forloop_dim"),
    "tb_output_op": ("output_map",),
}


def read_graphs(text: bytes, name: str) -> list[list[Operator]]:
    """Return the graphs of a file; raise FileError naming the place of what breaks the schema."""
    try:
        if text.lstrip().startswith(b"{"):
            return json.decode(text, type=Older).generated_graphs
        return json.decode(text, type=list[list[Operator]])
    except ValidationError as error:
        hint = "docs/mirage.md describes the schema of checkpoints"
        raise FileError(f"{name}: {error}", hint) from error
    except (MsgspecError, UnicodeDecodeError) as error:
        raise FileError(f"{name} is no JSON: {error}", "is it a checkpoint of Mirage?") from error
    except RecursionError as error:
        raise FileError(f"{name} is nested too deeply") from error


_ACCUMULATIONS = {
    "nored": ("accum", ""),
    "red_ld_sum": ("accum", "sum"),
    "red_ld_mean": ("accum", "mean"),
    "red_ld_rms": ("accum", "rms"),
    "redtox_ld_sum": ("accum", "sum_todimx"),
    "nored_rescale": ("accum_rescale", ""),
    "red_ld_sum_rescale": ("accum_rescale", "sum"),
    "max": ("accum_max", ""),
}


def _op_types() -> dict[str, Step]:
    """Return what every op_type means, as a step without operands; size 0 is `reduction_dimx`."""
    found: dict[str, Step] = {}
    for level in ("kn", "tb"):
        names = [*ELEMENTWISE, "clamp", "mul_scalar", "matmul", "rms_norm"]
        found |= {f"{level}_{name}_op": Step(name) for name in names}
    for dim in range(MOST_DIMS):
        reduction = Step("reduction", dim=dim)
        found |= {f"{level}_reduction_{dim}_op": reduction for level in ("kn", "tb")}
        found[f"tb_reduction_{dim}_to_dimx_op"] = Step("reduction", dim=dim, size=0)
        found[f"tb_reduction_{dim}_max_op"] = Step("reduction_max", dim=dim)
        found[f"tb_concat_{dim}_op"] = Step("concat", dim=dim)
    for prefix in ("tb_accum", "tb_forloop_accum"):  # the older names, then those that are written
        for name, (op, kind) in _ACCUMULATIONS.items():
            found[f"{prefix}_{name}_op"] = Step(op, kind=kind)
    return found


OP_TYPES = _op_types()
_NAMES = {(name[:2], step): name for name, step in OP_TYPES.items()}


def op_type_of(level: str, step: Step, dimx: int = 1) -> str:
    """Return the name of an operator: the inverse of `OP_TYPES`."""
    if f"{level}_{step.op}_op" in NEEDED:
        return f"{level}_{step.op}_op"
    dim = NOWHERE if step.op == "rms_norm" else step.dim
    size = 0 if step.op == "reduction" and 1 < step.size == dimx else 1
    return _NAMES[level, Step(step.op, dim=dim, size=size, kind=step.kind)]
