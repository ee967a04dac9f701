"""Checkpoints of Mirage: JSON files with lists of muGraphs, as positional programs.

A file is a list of graphs (older files: an object that holds it as `generated_graphs`), a graph a
list of operators in topological order. Tensors carry a guid by which operators refer to them. What
breaks the schema is an error of the file; an operator that is none of ours is a reason why one
graph is not parsed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from mirage_kernels.generator.errors import FileError, GraphError
from mirage_kernels.generator.frontend.mirage.program import (
    NOWHERE,
    Block,
    Extents,
    Program,
    Step,
    Tensor,
    Three,
    row_major,
    unused,
)
from mirage_kernels.generator.frontend.mirage.reader import Item, read_json
from mirage_kernels.generator.frontend.mirage.shapes import (
    BINARY,
    MOST_DIMS,
    UNARY,
    WITH_NUMBERS,
    check_block,
    check_extents,
    result_extents,
    stored_extents,
    tile_extents,
)
from mirage_kernels.generator.ir import DType

# Numbers of element types over the versions of the format; 940 and 941 have changed places.
DTYPES = {920: DType.BF16, 921: DType.FP16, 940: DType.FP16, 941: DType.FP16, 950: DType.FP32}

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
        names = [*UNARY, *BINARY, *WITH_NUMBERS, "matmul", "rms_norm"]
        found |= {f"{level}_{name}_op": Step(name) for name in names}
        for dim in range(MOST_DIMS):
            found[f"{level}_reduction_{dim}_op"] = Step("reduction", dim=dim)
    for dim in range(MOST_DIMS):
        found[f"tb_reduction_{dim}_to_dimx_op"] = Step("reduction", dim=dim, size=0)
        found[f"tb_reduction_{dim}_max_op"] = Step("reduction_max", dim=dim)
        found[f"tb_concat_{dim}_op"] = Step("concat", dim=dim)
    for name, (op, kind) in _ACCUMULATIONS.items():
        for prefix in ("tb_accum", "tb_forloop_accum"):
            found[f"{prefix}_{name}_op"] = Step(op, kind=kind)
    return found


OP_TYPES = _op_types()


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
    reading = _Graph()
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
    steps = tuple(reading.steps)
    if not steps:
        raise FileError(f"{graph.place}: the graph has no operators")
    return Program(steps, tuple(outputs) or unused(steps))


@dataclass
class _Graph:
    """The tensors read so far, by guid; inside `block` those of a block graph."""

    known: dict[int, Tensor] = field(default_factory=dict)
    steps: list[Step] = field(default_factory=list)
    block: Block | None = None
    bound: list[Tensor] = field(default_factory=list)  # what a block's inputs are tiles of

    def operator(self, item: Item, level: str) -> None:
        """Read an ordinary operator and check its result against its declared dims."""
        op_type = item["op_type"].text()
        meaning = OP_TYPES.get(op_type)
        if meaning is None or not op_type.startswith(level):
            raise GraphError(f"there is no operator {op_type[:40]!r} here", "see docs/mirage.md")
        args = self.operands(item)
        step = replace(meaning, args=tuple(a.number for a in args))
        if step.op in WITH_NUMBERS:
            step = replace(step, numbers=_numbers(item, op_type))
        if step.op == "reduction":
            step = replace(step, size=self.reduced_size(item, step))
        if step.op == "rms_norm" and args:
            step = replace(step, dim=len(args[0].extents) - _normed_dims(item))
        extents = result_extents(step, [a.extents for a in args], self.block)
        self.add(step, self.results(item, extents, args[0].dtype))

    def reduced_size(self, item: Item, step: Step) -> int:
        """Return how many elements a reduction leaves: as its result declares."""
        if step.size == 0:
            assert self.block is not None
            return self.block.dimx
        for result in item["output_tensors"].items("tensor"):
            extents = _extents(result)
            if step.dim < len(extents):
                return extents[step.dim]
        return 1

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
        if _extents(item) != self.known[guid].extents:
            raise FileError(
                f"{item.place}: tensor {guid} is declared {list(_extents(item))}, "
                f"it was made {list(self.known[guid].extents)}"
            )
        return self.known[guid]

    def results(self, item: Item, extents: Sequence[Extents], dtype: DType) -> tuple[Tensor, ...]:
        """Return the tensors that an operator makes, of the extents that it computes."""
        items = list(item["output_tensors"].items("tensor"))
        if len(items) != len(extents):
            raise FileError(f"{item.place}: has {len(items)} output tensors, not {len(extents)}")
        return tuple(self.result(i, e, dtype) for i, e in zip(items, extents, strict=True))

    def result(self, item: Item, extents: Extents, dtype: DType) -> Tensor:
        guid = item["guid"].whole()
        if guid in self.known:
            raise FileError(f"{item.place}: tensor {guid} is made twice")
        if _extents(item) != extents:
            raise FileError(
                f"{item.place}: is declared {list(_extents(item))}, computed are {list(extents)}"
            )
        self.known[guid] = Tensor(len(self.known), extents, dtype)
        return self.known[guid]

    def add(self, step: Step, outs: tuple[Tensor, ...]) -> None:
        self.steps.append(replace(step, outs=outs))

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
        if strides == row_major(extents):
            strides = ()
        tensor = self.result(outputs[0], extents, _dtype(outputs[0]))
        self.known[outputs[0]["guid"].whole()] = tensor = replace(tensor, strides=strides)
        self.add(Step("input"), (tensor,))

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
        check_block(frame)
        inner = _Graph(block=frame, bound=list(args))
        stored = [s for i in graph["operators"].items("operator") for s in inner.block_step(i)]
        if inner.bound:
            raise FileError(f"{item.place}: its block graph takes fewer tensors than the operator")
        block = replace(frame, steps=tuple(inner.steps))
        step = Step("customized", tuple(a.number for a in args), block=block)
        if not args or not stored:
            raise FileError(f"{item.place}: its block graph has no inputs or no outputs")
        self.add(step, self.results(item, stored, args[0].dtype))

    def block_step(self, item: Item) -> list[Extents]:
        """Read an operator of a block graph; return the extents of what it stores, if it does."""
        op_type = item["op_type"].text()
        assert self.block is not None
        if op_type == "tb_input_op":
            self.block_input(item, self.block)
        elif op_type == "tb_output_op":
            (tile,) = self.operands(item, 1)
            step = Step("output", (tile.number,), maps=_three(item["output_map"]))
            cut = item.get("forloop_dim")
            if cut is not None and cut.whole() != NOWHERE:
                raise GraphError(f"{op_type} stores every iteration: there is no operator for that")
            self.add(step, ())
            return [stored_extents(step, tile.extents, self.block)]
        else:
            self.operator(item, "tb")
        return []

    def block_input(self, item: Item, block: Block) -> None:
        if not self.bound:
            raise FileError(f"{item.place}: the block graph takes more tensors than its operator")
        whole = self.bound.pop(0)
        step = Step("input", dim=item["forloop_dim"].whole(), maps=_three(item["input_map"]))
        tile = tile_extents(step, whole.extents, block)
        self.add(step, self.results(item, [tile], whole.dtype))


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
