"""Checkpoints of Mirage: JSON files with lists of muGraphs, read and written.

A file is a list of graphs (older files: an object that holds it as `generated_graphs`), a graph a
list of operators in topological order. Tensors carry a guid by which operators refer to them. What
breaks the schema is an error of the file; an operator that is none of ours is a reason why one
graph is not parsed.

Two keys are ours, where the schema drops what an operator needs: `numbers` of clamp and
mul_scalar, `normalized_shape` of a norm over several dims.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from mirage_kernels.generator.errors import FileError, GraphError
from mirage_kernels.generator.frontend.mirage.reader import Item, read_json
from mirage_kernels.generator.frontend.positional.ops import ELEMENTWISE, POSITIONAL
from mirage_kernels.generator.frontend.positional.program import (
    AXES,
    NOWHERE,
    Block,
    Extents,
    Program,
    Step,
    Tensor,
    Three,
    row_major,
)
from mirage_kernels.generator.frontend.positional.recorder import Recorder
from mirage_kernels.generator.frontend.positional.shapes import MOST_DIMS, check_extents
from mirage_kernels.generator.ir import DType
from mirage_kernels.generator.ir.text import Json, dumps

# Numbers of element types over the versions of the format; 940 and 941 have changed places.
DTYPES = {920: DType.BF16, 921: DType.FP16, 940: DType.FP16, 941: DType.FP16, 950: DType.FP32}
_WRITTEN = {DType.FP16: 940, DType.BF16: 920, DType.FP32: 950}
_FIRST_GUID = {"Dmem": 10_000_000, "Smem": 20_000_000}
_PADDED = 4  # entries of `dim`
_NO_MAP: dict[str, Json] = dict.fromkeys(AXES, NOWHERE)

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
    """Return what every op_type means, as a step without operands."""
    found: dict[str, Step] = {}
    for level in ("kn", "tb"):
        names = [*ELEMENTWISE, "clamp", "mul_scalar", "matmul", "rms_norm"]
        found |= {f"{level}_{name}_op": Step(name) for name in names}
        for dim in range(MOST_DIMS):
            found[f"{level}_reduction_{dim}_op"] = Step("reduction", dim=dim)
    for dim in range(MOST_DIMS):
        found[f"tb_reduction_{dim}_to_dimx_op"] = Step("reduction", dim=dim, size=0)
        found[f"tb_reduction_{dim}_max_op"] = Step("reduction_max", dim=dim)
        found[f"tb_concat_{dim}_op"] = Step("concat", dim=dim)
    for prefix in ("tb_accum", "tb_forloop_accum"):  # the older names, then those that are written
        for name, (op, kind) in _ACCUMULATIONS.items():
            found[f"{prefix}_{name}_op"] = Step(op, kind=kind)
    return found


OP_TYPES = _op_types()
_NAMES = {(name[:2], step): name for name, step in OP_TYPES.items()}


@dataclass(frozen=True)
class Imported:
    """One graph of a checkpoint: its program, or why it is not parsed."""

    number: int
    program: Program | None
    reason: str = ""


def read_checkpoint(path: Path) -> list[Imported]:
    """Return every graph of a checkpoint; raise FileError for a file that breaks the schema."""
    top = read_json(path)
    if isinstance(top.data, dict):
        top = top["generated_graphs"]
    return [_imported(i, graph) for i, graph in enumerate(top.items("graph"))]


def _imported(number: int, graph: Item) -> Imported:
    try:
        return Imported(number, parse(graph))
    except GraphError as error:
        return Imported(number, None, error.sentence)


def parse(graph: Item) -> Program:
    """Return one graph as a program.

    Raises FileError where it breaks the schema, GraphError for what no operator of ours means.
    """
    reading = _Reading(Recorder())
    outputs: list[int] = []
    for item in graph.items("operator"):
        op_type = item["op_type"].text()
        if op_type == "kn_input_op":
            reading.kernel_input(item)
        elif op_type == "kn_output_op":
            outputs.append(reading.operands(item, 1)[0].number)
        elif op_type == "kn_customized_op":
            reading.customized(item)
        else:
            reading.operator(item, "kn")
    if not reading.recorder.steps:
        raise FileError(f"{graph.place}: the graph has no operators")
    return reading.recorder.program(outputs)


@dataclass
class _Reading:
    """A graph as far as it is read: its recorder, its tensors by guid."""

    recorder: Recorder
    known: dict[int, Tensor] = field(default_factory=dict)
    bound: list[Tensor] = field(default_factory=list)  # what a block's inputs are tiles of

    def operator(self, item: Item, level: str) -> None:
        """Read an ordinary operator and check its results against their declared dims."""
        op_type = item["op_type"].text()
        meaning = OP_TYPES.get(op_type)
        if meaning is None or not op_type.startswith(level):
            raise GraphError(f"there is no operator {op_type[:40]!r} here", "see docs/mirage.md")
        args, step = self.operands(item), meaning
        if POSITIONAL[step.op].numbers:
            step = replace(step, numbers=_numbers(item, op_type))
        if step.op == "reduction":
            step = replace(step, size=self.reduced_size(item, step))
        if step.op == "rms_norm" and args:
            step = replace(step, dim=len(args[0].extents) - _normed_dims(item))
        self.declare(item, self.recorder.apply(step, args))

    def reduced_size(self, item: Item, step: Step) -> int:
        """Return how many elements a reduction leaves: as its result declares."""
        if step.size == 0:
            assert self.recorder.frame is not None
            return self.recorder.frame.dimx
        results = item["output_tensors"].items("tensor")
        sizes = (_extents(r)[step.dim : step.dim + 1] for r in results)
        return next((size for found in sizes for size in found), 1)

    def operands(self, item: Item, count: int | None = None) -> list[Tensor]:
        """Return the tensors that an operator takes."""
        items = list(item["input_tensors"].items("tensor"))
        if count is not None and len(items) != count:
            raise FileError(f"{item.place}: has {len(items)} input tensors, not {count}")
        return [self.operand(i) for i in items]

    def operand(self, item: Item) -> Tensor:
        guid = item["guid"].whole()
        if guid not in self.known:
            raise FileError(f"{item.place}: no operator before it makes the tensor {guid}")
        made = self.known[guid]
        if _extents(item) != made.extents:
            raise FileError(
                f"{item.place}: tensor {guid} is declared {list(_extents(item))}, "
                f"it was made {list(made.extents)}"
            )
        return made

    def declare(self, item: Item, made: Sequence[Tensor]) -> None:
        """Check what an operator makes against what the file declares; name it by guid."""
        items = list(item["output_tensors"].items("tensor"))
        if len(items) != len(made):
            raise FileError(f"{item.place}: has {len(items)} output tensors, not {len(made)}")
        for declared, tensor in zip(items, made, strict=True):
            guid, extents = declared["guid"].whole(), _extents(declared)
            if guid in self.known:
                raise FileError(f"{declared.place}: tensor {guid} is made twice")
            if extents != tensor.extents:
                raise FileError(
                    f"{declared.place}: is declared {list(extents)}, "
                    f"computed are {list(tensor.extents)}"
                )
            self.known[guid] = tensor

    def kernel_input(self, item: Item) -> None:
        """Read an input of the kernel graph with its strides."""
        outputs = list(item["output_tensors"].items("tensor"))
        if len(outputs) != 1:
            raise FileError(f"{item.place}: has {len(outputs)} output tensors, not 1")
        extents = check_extents(_extents(outputs[0]), outputs[0].place)
        given = item.get("input_strides")
        strides = () if given is None else tuple(i.whole() for i in given.items())
        if strides and len(strides) != len(extents):
            raise FileError(f"{item.place}: {len(strides)} strides for {len(extents)} dims")
        self.declare(item, [self.recorder.input(extents, _dtype(outputs[0]), strides)])

    def customized(self, item: Item) -> None:
        """Read a hand-written or found kernel: a block graph applied to tensors."""
        args = self.operands(item)
        graph = item["bgraph"]
        frame = Block(
            _three(graph["grid_dim"]),
            _three(graph["block_dim"]),
            graph["forloop_range"].whole(),
            graph["reduction_dimx"].whole(),
            (),
        )
        inner = _Reading(Recorder(frame), bound=list(args))
        for operator in graph["operators"].items("operator"):
            inner.block_step(operator)
        if inner.bound:
            raise FileError(f"{item.place}: its block graph takes fewer tensors than the operator")
        if not args or not inner.recorder.stored:
            raise FileError(f"{item.place}: its block graph has no inputs or no outputs")
        self.declare(item, self.recorder.customized(inner.recorder, args))

    def block_step(self, item: Item) -> None:
        """Read an operator of a block graph."""
        op_type = item["op_type"].text()
        if op_type == "tb_input_op":
            if not self.bound:
                raise FileError(
                    f"{item.place}: the block graph takes more tensors than its operator"
                )
            dim, maps = item["forloop_dim"].whole(), _three(item["input_map"])
            self.declare(item, [self.recorder.tile(self.bound.pop(0), maps, dim)])
        elif op_type == "tb_output_op":
            (tile,) = self.operands(item, 1)
            cut = item.get("forloop_dim")
            if cut is not None and cut.whole() != NOWHERE:
                raise GraphError(f"{op_type} stores every iteration: there is no operator for that")
            self.recorder.store(tile, _three(item["output_map"]))
            self.declare(item, ())
        else:
            self.operator(item, "tb")


def _numbers(item: Item, op_type: str) -> tuple[float, ...]:
    """Return the numbers of an operator; Mirage's own files leave them out."""
    given = item.get("numbers")
    if given is None:
        raise GraphError(f"the file does not say with which numbers {op_type} computes")
    return tuple(i.number() for i in given.items())


def _normed_dims(item: Item) -> int:
    """Return over how many of the last dims a norm runs; Mirage's own files don't say: one."""
    given = item.get("normalized_shape")
    return 1 if given is None else len(list(given.items()))


def _three(item: Item) -> Three:
    return (item["x"].whole(), item["y"].whole(), item["z"].whole())


def _extents(item: Item) -> Extents:
    count = item["num_dims"].whole()
    dims = tuple(i.whole() for i in item["dim"].items())
    if not 1 <= count <= min(len(dims), MOST_DIMS):
        raise FileError(f"{item.place}: num_dims is {count}, dim has {len(dims)} entries")
    return dims[:count]


def _dtype(item: Item) -> DType:
    number = item["data_type"].whole()
    if number not in DTYPES:
        raise GraphError(f"{item.place}: no element type of ours has the number {number}")
    return DTYPES[number]


def checkpoint_text(programs: Iterable[Program]) -> str:
    """Return a checkpoint file that holds the given programs."""
    return dumps([_graph_json(program) for program in programs])


def _graph_json(program: Program) -> Json:
    tensors = {t.number: t for t in program.tensors()}
    items: list[Json] = [_kernel_json(step, tensors) for step in program.steps]
    for number in program.outputs:
        output = _step_json("kn_output_op", Step("output", (number,)), tensors, "Dmem")
        items.append({**output, "output_map": _NO_MAP, **_strides("output", tensors[number])})
    return items


def _strides(kind: str, tensor: Tensor) -> dict[str, Json]:
    return {f"{kind}_strides": list(tensor.strides or row_major(tensor.extents))}


def _kernel_json(step: Step, tensors: Mapping[int, Tensor]) -> Json:
    data = _step_json(_op_type("kn", step), step, tensors, "Dmem")
    if step.op == "input":
        return {**data, "input_map": _NO_MAP, **_strides("input", step.outs[0])}
    if step.block is not None:
        data["bgraph"] = _block_json(step, step.block, tensors)
    return data


def _op_type(level: str, step: Step, dimx: int = 1) -> str:
    """Return the name of an operator: the inverse of `OP_TYPES`."""
    if step.op in ("input", "output", "customized"):
        return f"{level}_{step.op}_op"
    dim = NOWHERE if step.op == "rms_norm" else step.dim
    size = 0 if step.op == "reduction" and 1 < step.size == dimx else 1
    return _NAMES[level, Step(step.op, dim=dim, size=size, kind=step.kind)]


def _step_json(
    op_type: str, step: Step, tensors: Mapping[int, Tensor], memory: str
) -> dict[str, Json]:
    data: dict[str, Json] = {
        "op_type": op_type,
        "input_tensors": [_tensor_json(tensors[a], memory) for a in step.args],
        "output_tensors": [_tensor_json(t, memory) for t in step.outs],
    }
    if step.numbers:
        data["numbers"] = list(step.numbers)
    if step.op == "rms_norm":
        data["normalized_shape"] = list(step.outs[0].extents[step.dim :])
    return data


def _tensor_json(tensor: Tensor, memory: str) -> dict[str, Json]:
    padding = [0] * max(0, _PADDED - len(tensor.extents))
    return {
        "data_type": _WRITTEN[tensor.dtype],
        "dim": [*tensor.extents, *padding],
        "guid": _FIRST_GUID[memory] + tensor.number,
        "layout": f"{memory}RowMajor",
        "num_dims": len(tensor.extents),
    }


def _block_json(kernel: Step, block: Block, tensors: Mapping[int, Tensor]) -> Json:
    tiles = {t.number: t for s in block.steps for t in s.outs}
    sources, targets = iter(kernel.args), iter(kernel.outs)
    items: list[Json] = []
    for step in block.steps:
        data = _step_json(_op_type("tb", step, block.dimx), step, tiles, "Smem")
        if step.op in ("input", "output"):
            tensor = tensors[next(sources)] if step.op == "input" else next(targets)
            data["dtensor"] = _tensor_json(tensor, "Dmem")
            data[f"{step.op}_map"] = _three_json(step.maps)
        if step.op == "input":
            data["forloop_dim"] = step.dim
        items.append(data)
    return {
        "graph_level": "thread_block_graph",
        "grid_dim": _three_json(block.grid),
        "block_dim": _three_json(block.threads),
        "forloop_range": block.loop_range,
        "reduction_dimx": block.dimx,
        "smem_offset": 0,
        "operators": items,
    }


def _three_json(values: Three) -> Json:
    return dict(zip(AXES, values, strict=True))
