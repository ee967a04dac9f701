"""The host's side of a Triton program: one function that allocates results and launches kernels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mirage_kernels.generator.emit.statements import dims_text
from mirage_kernels.generator.emit.writer import Writer
from mirage_kernels.generator.ir import (
    DType,
    Graph,
    Indexed,
    Node,
    TensorType,
    Value,
    extents_in_memory,
    index_tensors,
    parts_of,
)
from mirage_kernels.generator.tiles.triton_text import free, python_lines

DTYPES = {
    DType.FP16: "torch.float16",
    DType.BF16: "torch.bfloat16",
    DType.FP32: "torch.float32",
    DType.INT32: "torch.int32",
    DType.INT8: "torch.int8",
    DType.UINT8: "torch.uint8",
    DType.FP8_E4M3: "torch.float8_e4m3fn",
    DType.FP8_E5M2: "torch.float8_e5m2",
}
WARPS = ((4, 8192), (8, 32768))  # how many warps for so many elements of a tensor
MOST_WARPS = 16  # for more


@dataclass(frozen=True)
class Given:
    """A tensor that the user's function takes, with its dims in memory."""

    name: str
    dims: tuple[str, ...]
    optional: bool = False
    grouped: tuple[tuple[str, int], ...] = ()  # dims along which neighbours have one element

    @property
    def extents(self) -> list[str]:
        """Its extents in memory, as texts."""
        return extents_in_memory(self.dims, self.grouped, "//")


@dataclass(frozen=True)
class Launch:
    """What launches a kernel: its arguments in order, its grid, and what sizes its tensors."""

    symbol: str
    tensors: list[str]
    numbers: list[str]  # inputs without dims, dynamic extents
    constants: list[str]  # static extents, extents of Triton's tensors
    counts: list[str]  # blocks along each axis
    blocks: list[str]  # assignments
    elements: str  # of the largest tensor that registers hold


class Host:
    """The function that a user calls."""

    def __init__(
        self,
        graph: Graph,
        launches: Sequence[Launch],
        writer: Writer,
        indexed: Mapping[str, Indexed],
    ) -> None:
        self.graph, self.launches, self.writer = graph, launches, writer
        self.indexed = indexed  # by the name of an input or a result
        tensors = [n for n in graph.inputs if n.out.type.dims]
        real = (n for n in tensors if n.out.type.dtype.is_real)
        self.first = next(n for n in (*real, *tensors) if not n.optional)
        self.indices = index_tensors([*indexed.values()])
        self.into = [o for o in graph.outputs if o in indexed]
        self.tensors = [Given(n.name, self.memory(n.out), n.optional, n.grouped) for n in tensors]
        self.tensors += [Given(x.by, x.dims) for x in self.indices]
        self.tensors += [Given(o, self.memory(graph.values[o])) for o in self.into]
        dims = {d for v in graph.values.values() for d in v.type.names}
        self.taken = {*graph.values, *dims, *(d for t in self.tensors for d in (t.name, *t.dims))}

    def memory(self, value: Value) -> tuple[str, ...]:
        """Return the dims of a tensor in memory."""
        own = self.indexed.get(value.name)
        return tuple(d.name for d in own.memory(value.type.dims)) if own else value.type.names

    def write(self, name: str) -> None:
        """Write the function."""
        w, g = self.writer, self.graph
        last = max((i for i, n in enumerate(g.inputs) if not n.optional), default=-1)
        given = [f"{n.name}=None" if i > last else n.name for i, n in enumerate(g.inputs)]
        more = [*(x.by for x in self.indices), *self.into]
        given = [n.name for n in g.inputs] + more if more else given
        self.line(f"def {name}({', '.join(given)}):")
        w.depth += 1
        made = [f"{o} {dims_text(self.memory(g.values[o]))}" for o in g.outputs]
        said = f'"""Return {" and ".join(made)}."""'
        if len(said) > w.room:
            w.write('"""Return results.', "", *(f"{one}." for one in made), '"""')
        else:
            w.line(said)
        self.extents()
        for launch in self.launches:
            self.launch(launch)
        w.line(f"return {', '.join(g.outputs)}")
        w.depth -= 1

    def extents(self) -> None:
        """Write what the extents of dims are; raise ValueError where tensors do not agree."""
        w, known = self.writer, set[str]()
        for n in sorted(self.tensors, key=lambda n: n.optional):
            names = n.dims
            new = [d for d in dict.fromkeys(names) if d not in {*known, *dict(n.grouped)}]
            if len(new) == len(names) > 0:
                self.line(f"{', '.join(names)}{',' * (len(names) == 1)} = {n.name}.shape")
            else:
                w.write(*(f"{d} = {n.name}.shape[{names.index(d)}]" for d in new))
            known |= {*new}
        for node in (n for n in self.graph.inputs if n.optional):
            name = node.name
            self.line(f"{name} = {self.zeros(node)} if {name} is None else {name}")
        rows = [f'("{n.name}", {n.name}, {tuple_of(n.extents)})' for n in self.tensors]
        if not rows[1:]:
            return
        name, tensor, shape = (free(x, self.taken) for x in ("name", "tensor", "shape"))
        w.line(f"for {name}, {tensor}, {shape} in (")
        w.write(*(f"{w.unit}{row}," for row in rows))
        with w.block("):", ""), w.block(f"if {tensor}.shape != {shape}:", ""):
            said = f"{{{name}}} is {{tuple({tensor}.shape)}}; {{{shape}}} works"
            w.line(f'raise ValueError(f"{said}")')

    def zeros(self, node: Node) -> str:
        """Return what an input that was left out counts as."""
        type_ = node.out.type
        if not type_.dims:
            return "0.0" if type_.dtype.is_real else "0"
        return f"{self.like('new_zeros', '()', type_)}.expand({shape_of(type_)})"

    def like(self, method: str, shape: str, type_: TensorType) -> str:
        """Return a call that makes a tensor of a type on the inputs' device."""
        same = type_.dtype is self.first.out.type.dtype
        dtype = "" if same else f", dtype={DTYPES[type_.dtype]}"
        return f"{self.first.name}.{method}({shape}{dtype})"

    def launch(self, launch: Launch) -> None:
        """Write the launch of a kernel, behind the tensors that it makes."""
        for line in launch.blocks:
            self.line(line)
        for part in (c for c in launch.constants if c.startswith("PART_")):
            dim = part.removeprefix("PART_")
            self.line(f"{parts_of(dim)} = triton.cdiv({dim}, {part})")
        for out in self.graph.blocks[self.launches.index(launch)].outs:
            if out.name not in self.into:
                self.line(f"{out.name} = {self.like('new_empty', shape_of(out.type), out.type)}")
        counts = " * ".join(c.replace("cdiv", "triton.cdiv") for c in launch.counts)
        names = ("elements", "warps", "grid", "tensors", "numbers")
        elements, warps, grid, tensors, numbers = (free(x, self.taken) for x in names)
        (few, some), (more, many) = WARPS
        choice = f"{few} if {elements} <= {some} else {more} if {elements} <= {many}"
        self.line(f"{elements} = {launch.elements}")
        self.line(f"{warps} = {choice} else {MOST_WARPS}")
        self.line(f"{grid} = ({counts or '1'},)")
        self.line(f"{tensors} = {tuple_of(launch.tensors)}")
        self.line(f"{numbers} = {tuple_of([*launch.numbers, *launch.constants])}")
        strides = f"*(t.stride() for t in {tensors})"
        given = f"*{tensors}, {strides}, *{numbers}, num_warps={warps}"
        self.line(f"{launch.symbol}[{grid}]({given})")

    def line(self, text: str) -> None:
        """Write a line of Python."""
        w = self.writer
        w.lines += [w.unit * w.depth + row for row in python_lines(text, w.room)]


def shape_of(type_: TensorType) -> str:
    """Return a tensor's extents as a tuple."""
    return tuple_of(type_.names)


def tuple_of(texts: Sequence[str]) -> str:
    """Return a tuple of texts."""
    return f"({', '.join(texts)}{',' * (len(texts) == 1)})"
