"""Checkpoints of Mirage: JSON files with lists of muGraphs, read and written.

A file is a list of graphs (older files: an object that holds it as `generated_graphs`), a graph a
list of operators in topological order. Tensors carry a guid by which operators refer to them. What
breaks the schema is an error of the file; an operator that is none of ours is a reason why one
graph is not parsed.

Two keys are ours, where the schema drops what an operator needs: `numbers` of clamp and
mul_scalar, `normalized_shape` of a norm over several dims.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, TypedDict

from msgspec import Meta, MsgspecError, ValidationError, json

from mirage_kernels.generator.errors import FileError, GraphError
from mirage_kernels.generator.frontend.positional.ops import ELEMENTWISE, POSITIONAL
from mirage_kernels.generator.frontend.positional.program import (
    MOST_DIMS,
    NOWHERE,
    Extents,
    Frame,
    Program,
    Step,
    Tensor,
    Three,
)
from mirage_kernels.generator.ir import DType, dumps
from mirage_kernels.generator.ir.codec import to_data

LARGEST = 2**62
Whole = Annotated[int, Meta(ge=-LARGEST, le=LARGEST)]
Number = Annotated[float, Meta(ge=-float(LARGEST), le=float(LARGEST))]

# Numbers of element types over the versions of the format; 940 and 941 have changed places.
DTYPES = {920: DType.BF16, 921: DType.FP16, 940: DType.FP16, 941: DType.FP16, 950: DType.FP32}
WRITTEN = {DType.FP16: 940, DType.BF16: 920, DType.FP32: 950}


class XYZ(TypedDict):
    """A grid, a block, or the dims that a grid's axes cut."""

    x: Whole
    y: Whole
    z: Whole


NO_MAP: XYZ = {"x": NOWHERE, "y": NOWHERE, "z": NOWHERE}


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


_MEMORY = (("kn", "Dmem", 10_000_000), ("tb", "Smem", 20_000_000))  # with its first guid
OP_TYPES = _op_types()
_NAMES = {(name[:2], step): name for name, step in OP_TYPES.items()}


def read_checkpoint(path: Path) -> list[Program | str]:
    """Return every graph of a checkpoint, or why it is not parsed.

    Raises FileError for a file that breaks the schema, with the place that does.
    """
    try:
        text = path.read_bytes()
        if text.lstrip().startswith(b"{"):
            graphs = json.decode(text, type=Older).generated_graphs
        else:
            graphs = json.decode(text, type=list[list[Operator]])
    except OSError as error:
        raise FileError(f"{path}: {error.strerror}", "check the path") from error
    except ValidationError as error:
        hint = "docs/mirage.md describes the schema of checkpoints"
        raise FileError(f"{path.name}: {error}", hint) from error
    except (MsgspecError, UnicodeDecodeError) as error:
        hint = "is it a checkpoint of Mirage?"
        raise FileError(f"{path.name} is no JSON: {error}", hint) from error
    except RecursionError as error:
        raise FileError(f"{path.name} is nested too deeply") from error
    found: list[Program | str] = []
    for i, graph in enumerate(graphs):
        place = f"{path.name}, graph {i}"
        if not graph:
            raise FileError(f"{place}: the graph has no operators")
        try:
            found.append(_Reading(Program(), place).read(graph))
        except GraphError as error:
            found.append(error.sentence)
    return found


class _Reading:
    """A graph as far as it is read: its tensors by guid, what a block's next inputs are tiles of.

    Raises FileError for what contradicts itself, GraphError for what no operator of ours means.
    """

    def __init__(self, program: Program, place: str, bound: Iterable[Tensor] = ()) -> None:
        self.program, self.place, self.bound = program, place, list(bound)
        self.level = "tb" if program.frame else "kn"
        self.known: dict[int, Tensor] = {}

    def read(self, operators: Sequence[Operator]) -> Program:
        graph = self.place
        for i, item in enumerate(operators):
            self.place = f"{graph}, operator {i}"
            for name in NEEDED.get(item.op_type, ()):
                if getattr(item, name) is None:
                    raise self.wrong(f"Object missing required field `{name}`")
            for data in item.input_tensors:
                if data.guid not in self.known:
                    raise self.wrong(f"no operator before it makes the tensor {data.guid}")
                self.require_extents(data, self.known[data.guid])
            made = self.made(item, [self.known[t.guid] for t in item.input_tensors])
            if len(item.output_tensors) != len(made):
                raise self.wrong(f"has {len(item.output_tensors)} output tensors, not {len(made)}")
            for data, tensor in zip(item.output_tensors, made, strict=True):
                if data.guid in self.known:
                    raise self.wrong(f"tensor {data.guid} is made twice")
                self.require_extents(data, tensor)
                self.known[data.guid] = tensor
        return self.program

    def require_extents(self, data: TensorData, tensor: Tensor) -> None:
        if data.extents != tensor.dims:
            raise self.wrong(
                f"tensor {data.guid} is declared {list(data.extents)}, it is {list(tensor.dims)}"
            )

    def made(self, item: Operator, args: list[Tensor]) -> Sequence[Tensor]:
        if item.op_type == f"{self.level}_output_op":
            self.output(item, args)
            return []
        if item.op_type == "tb_input_op" and self.program.frame:
            assert item.input_map is not None
            assert item.forloop_dim is not None
            if not self.bound:
                raise self.wrong("the block graph takes more tensors than its operator")
            return [self.program.tile(self.bound.pop(0), _three(item.input_map), item.forloop_dim)]
        if item.op_type == "kn_input_op" and not self.program.frame:
            if not item.output_tensors:
                raise self.wrong("has 0 output tensors, not 1")
            data = item.output_tensors[0]
            if data.data_type not in DTYPES:
                raise GraphError(f"no element type of ours has the number {data.data_type}")
            return [self.program.input(data.extents, DTYPES[data.data_type], item.input_strides)]
        if item.bgraph and item.op_type == "kn_customized_op" and not self.program.frame:
            return self.customized(item.bgraph, args)
        if item.op_type not in OP_TYPES or not item.op_type.startswith(self.level):
            name = item.op_type[:40]
            raise GraphError(f"there is no operator {name!r} here", "see docs/mirage.md")
        return self.program.apply(self.step(item, args), args)

    def step(self, item: Operator, args: Sequence[Tensor]) -> Step:
        step = OP_TYPES[item.op_type]
        if POSITIONAL[step.op].numbers:
            if item.numbers is None:
                raise GraphError(
                    f"the file does not say with which numbers {item.op_type} computes"
                )
            return replace(step, numbers=item.numbers)
        if step.op == "rms_norm" and args:
            return replace(step, dim=args[0].num_dims - max(1, len(item.normalized_shape)))
        if step.op == "reduction" and self.program.frame and step.size == 0:
            return replace(step, size=self.program.frame.dimx)
        if step.op == "reduction":  # to as many elements as its result declares
            left = [n for t in item.output_tensors for n in t.extents[step.dim : step.dim + 1]]
            return replace(step, size=(*left, 1)[0])
        return step

    def output(self, item: Operator, args: list[Tensor]) -> None:
        """Add a result of the kernel graph, or what every block stores."""
        if len(args) != 1:
            raise self.wrong(f"has {len(args)} input tensors, not 1")
        if self.program.frame is None:
            self.program.results += args
            return
        if item.forloop_dim not in (None, NOWHERE):
            what = f"{item.op_type} stores every iteration"
            raise GraphError(f"{what}: there is no operator for that")
        assert item.output_map is not None
        self.program.store(args[0], _three(item.output_map))

    def customized(self, graph: BlockGraph, args: list[Tensor]) -> Sequence[Tensor]:
        """Add a hand-written or found kernel: a block graph applied to tensors."""
        grid, threads = _three(graph.grid_dim), _three(graph.block_dim)
        frame = Frame(grid, threads, graph.forloop_range, graph.reduction_dimx)
        inner = _Reading(Program(frame), self.place, args)
        block = inner.read(graph.operators)
        if inner.bound:
            raise self.wrong("its block graph takes fewer tensors than the operator")
        if not args or not block.of("output"):
            raise self.wrong("its block graph has no inputs or no outputs")
        return self.program.customized(block, args)

    def wrong(self, sentence: str) -> FileError:
        return FileError(f"{self.place}: {sentence}", "was the file changed by hand?")


def _three(named: XYZ) -> Three:
    return (named["x"], named["y"], named["z"])


def _xyz(three: Three) -> XYZ:
    return {"x": three[0], "y": three[1], "z": three[2]}


def checkpoint_text(programs: Iterable[Program]) -> str:
    """Return a checkpoint file that holds the given programs."""
    return dumps([to_data(_operators(program)) for program in programs])


def _operators(graph: Program, kernel: Operator | None = None) -> tuple[Operator, ...]:
    """Return the operators of a graph; of a block graph, given the kernel that it is part of."""
    sources = iter(kernel.input_tensors if kernel else ())
    results = iter(kernel.output_tensors if kernel else ())
    items = []
    for step in graph.steps:
        item, maps = _operator(step, graph), _xyz(step.maps)
        if step.op == "input" and kernel:
            item = replace(item, dtensor=next(sources), input_map=maps, forloop_dim=step.dim)
        elif step.op == "input":
            item = replace(item, input_map=maps, input_strides=step.outs[0].layout)
        elif step.op == "output":
            item = replace(item, dtensor=next(results), output_map=maps)
        elif step.block and step.block.frame:
            frame = step.block.frame
            body = BlockGraph(
                graph_level="thread_block_graph",
                grid_dim=_xyz(frame.grid),
                block_dim=_xyz(frame.threads),
                forloop_range=frame.loop_range,
                reduction_dimx=frame.dimx,
                smem_offset=0,
                operators=_operators(step.block, item),
            )
            item = replace(item, bgraph=body)
        items.append(item)
    for tensor in () if kernel else graph.outputs:
        item = _operator(Step("output", (tensor.guid,)), graph)
        items.append(replace(item, output_map=NO_MAP, output_strides=tensor.layout))
    return tuple(items)


def _operator(step: Step, graph: Program) -> Operator:
    """Return an operator with what all have."""
    level, memory, first_guid = _MEMORY[graph.frame is not None]
    op_type = f"{level}_{step.op}_op"
    if op_type not in NEEDED:
        to_dimx = step.op == "reduction" and graph.frame and 1 < step.size == graph.frame.dimx
        dim = NOWHERE if step.op == "rms_norm" else step.dim
        op_type = _NAMES[level, Step(step.op, dim=dim, size=0 if to_dimx else 1, kind=step.kind)]
    taken, made = (
        tuple(
            TensorData(
                data_type=WRITTEN[t.dtype],
                dim=(*t.dims, *(0,) * (4 - t.num_dims)),
                guid=first_guid + t.guid,
                layout=f"{memory}RowMajor",
                num_dims=t.num_dims,
            )
            for t in tensors
        )
        for tensors in ([graph.tensors[a] for a in step.args], step.outs)
    )
    return Operator(
        op_type=op_type,
        input_tensors=taken,
        output_tensors=made,
        numbers=step.numbers or None,
        normalized_shape=step.outs[0].dims[step.dim :] if step.op == "rms_norm" else (),
    )
