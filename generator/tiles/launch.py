"""The file of a kernel graph: its kernels for each size of call, and what launches them.

Emitted functions know nothing of torch: `SYMBOL` launches all kernels on a stream,
`SYMBOL_workspace` says how much device memory they hand on through, `SYMBOL_signature` what
tensors, dims and scalars a launch takes, as JSON.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from mirage_kernels.generator.emit.writer import Writer
from mirage_kernels.generator.ir import (
    MOST_PARTS,
    Axis,
    Dim,
    DType,
    Graph,
    Indexed,
    Phase,
    Value,
    in_memory,
    index_tensors,
    of_results,
    parts_of,
)
from mirage_kernels.generator.tiles.cuda import KernelWriter
from mirage_kernels.generator.tiles.horizontal import JointWriter
from mirage_kernels.generator.tiles.horizontal import launches as launched_together
from mirage_kernels.generator.tiles.program import BlockProgram
from mirage_kernels.generator.tiles.statements import Rows, Store
from mirage_kernels.generator.tiles.vectors import has_uneven_rows, lies_anywhere

_PARAMETERS = (
    "void* const* tensors",
    "const int64_t* strides",
    "const int64_t* dims",
    "const double* scalars",
    "char* workspace",
    "void* stream",
)


@dataclass(frozen=True)
class Bucket:
    """The block programs that serve calls up to a size of the counted dim, 0: any size."""

    size: int
    programs: tuple[BlockProgram, ...]
    graph: Graph  # the kernels' own: another form of the launcher's, maybe

    @property
    def made(self) -> list[Value]:
        """Tensors that one kernel leaves for another."""
        made = [v for n in self.graph.blocks for v in n.outs]
        return [v for v in made if v.name not in self.graph.outputs]

    @property
    def name(self) -> str:
        """What the names of its kernels end in."""
        return f"up_to_{self.size}" if self.size else "any"


def _split(program: BlockProgram, axis: Axis) -> str:
    """Return what says how long the parts are that blocks take of a dim of any extent."""
    loop = program.space.loop
    assert loop is not None
    most = "general::kMostBlocks" if program.statements[Phase.JOINED] else str(MOST_PARTS)
    return f"{axis.dim}, {axis.tile}, {loop.tile}, {most}"


def quoted(text: str) -> list[str]:
    """Return a text as lines of C++ string literals."""
    parts = (text[i : i + 80] for i in range(0, len(text), 80))
    return ['"' + part.replace("\\", "\\\\").replace('"', '\\"') + '"' for part in parts]


def _in_parts(value: Value, dim: str, lengths: Sequence[int]) -> list[Value]:
    """Return the parts of a value along a dim, which are named after it; none if it has no such."""
    if dim not in value.type.names:
        return []
    made = []
    for i, length in enumerate(lengths):
        own = (Dim(f"{dim}_{i}", length) if d.name == dim else d for d in value.type.dims)
        made.append(Value(f"{value.name}_{i}", replace(value.type, dims=tuple(own))))
    return made


@dataclass(frozen=True)
class Launcher:
    """A kernel graph with the programs of its buckets, the last one's for any size."""

    graph: Graph
    buckets: Sequence[Bucket]
    counted: str  # the dim whose extent chooses a bucket; empty: there is one bucket
    symbol: str
    storage: DType
    about: Mapping[str, str]  # recipe and architecture
    strided: bool = False  # tensors lie apart in memory, all strides are of the call
    indexed: tuple[Indexed, ...] = ()  # tensors that are addressed by an index tensor
    broadcast: tuple[str, ...] = ()  # vectors that calls may give as one element: strides of 0
    parted: tuple[str, tuple[int, ...]] = ("", ())  # a dim that comes in tensors of their own

    @cached_property
    def by_name(self) -> dict[str, Indexed]:
        """Tensors that are indexed, by name."""
        return of_results(self.indexed, self.graph.outputs)

    @cached_property
    def indices(self) -> list[Indexed]:
        """The first that each index tensor addresses."""
        return index_tensors(self.indexed)

    def memory(self, value: Value) -> tuple[Dim, ...]:
        """Return the dims of a tensor in memory."""
        own = self.by_name.get(value.name)
        if own is not None:
            return own.memory(value.type.dims)
        return in_memory(value.type.dims, self.grouped.get(value.name, ()))

    @cached_property
    def grouped(self) -> dict[str, tuple[tuple[str, int], ...]]:
        """Dims along which neighbours have one element, of tensors and of their parts, by name."""
        found, (dim, lengths) = dict[str, tuple[tuple[str, int], ...]](), self.parted
        for node in (n for n in self.graph.inputs if n.grouped):
            found[node.name] = node.grouped
            for i, part in enumerate(_in_parts(node.out, dim, lengths)):
                groups = ((f"{d}_{i}" if d == dim else d, n) for d, n in node.grouped)
                found[part.name] = tuple(groups)
        return found

    @cached_property
    def tensors(self) -> list[Value]:
        """Inputs that are tensors, then results, in the graph's order."""
        outs = [self.graph.values[o] for o in self.graph.outputs]
        return [n.out for n in self.graph.inputs if n.out.type.dims] + outs

    def given(self, values: Sequence[Value]) -> list[Value]:
        """Return the tensors that a call gives for some values: parts of them, maybe."""
        dim, lengths = self.parted
        return [v for value in values for v in _in_parts(value, dim, lengths) or (value,)]

    @cached_property
    def scalars(self) -> list[Value]:
        """Inputs without dims."""
        return [n.out for n in self.graph.inputs if not n.out.type.dims]

    @cached_property
    def dynamic(self) -> list[str]:
        """Dynamic dims of the inputs, in order of appearance."""
        dims = [d for n in self.graph.inputs for d in n.out.type.dims]
        dims += [d for x in self.indexed for d in x.counts]
        return list(dict.fromkeys(d.name for d in dims if d.dynamic))

    def text(self, opening: Sequence[str]) -> str:
        """Return the file, behind the lines of its header."""
        w = Writer()
        w.lines += opening
        w.write(f'#include "general/{self._header}.cuh"', "")
        w.write("namespace mirage::generated {", "namespace {", "")
        for bucket in self.buckets:
            launches = self._launches(bucket)
            for launch in launches:
                w.lines += launch.text()
                w.line()
            self._bucket(w, bucket, launches)
            w.line()
        w.write("}  // namespace", "}  // namespace mirage::generated", "")
        self._entry(w)
        return w.text()

    @property
    def _header(self) -> str:
        """Return what kernels are written in: without tiles they need no CuTe."""
        said = (
            s for b in self.buckets for p in b.programs for x in p.statements.values() for s in x
        )
        return "each" if all(isinstance(s, Store | Rows) for s in said) else "block"

    def _launches(self, bucket: Bucket) -> list[KernelWriter | JointWriter]:
        """Return what writes the kernel of each launch, in order."""
        name, made = self.about["name"], list[KernelWriter | JointWriter]()
        for own in launched_together(bucket.programs):
            parts = [
                KernelWriter(bucket.programs[i], f"{name}_{i}_{bucket.name}", self.storage)
                for i in own
            ]
            joint = f"{name}_{own[0]}_to_{own[-1]}_{bucket.name}"
            made.append(JointWriter(joint, parts) if len(parts) > 1 else parts[0])
        return made

    def signature(self) -> str:
        """Return what a launch takes, as JSON."""
        results = len(self.graph.outputs)
        given, made = (self.given(v) for v in (self.tensors[:-results], self.tensors[-results:]))
        types = {d.name: d for v in (*given, *made) for d in (*v.type.dims, *self.memory(v))}
        optional = {n.name for n in self.graph.inputs if n.optional}
        inputs = self.given([n.out for n in self.graph.inputs])

        def told(value: Value) -> dict[str, object]:
            about = {"name": value.name, "dtype": value.type.dtype.value}
            return {**about, "dims": [d.name for d in self.memory(value)]}

        indices = [
            {"name": x.by, "dtype": x.dtype, "dims": list(x.dims), "optional": False}
            for x in self.indices
        ]
        return json.dumps(
            {
                **self.about,
                "dtype": self.storage.value,
                "static": {d.name: d.size for d in types.values() if not d.dynamic},
                "dynamic": self.dynamic,
                "inputs": [*(v.name for v in inputs), *(x.by for x in self.indices)],
                "tensors": [
                    {**told(v), "optional": v.name in optional}
                    | ({"broadcast": True} if v.name in self.broadcast else {})
                    for v in given
                ]
                + indices,
                "scalars": [{"name": v.name, "dtype": v.type.dtype.value} for v in self.scalars],
                "results": [told(v) for v in made],
            }
        )

    # -- launches ----------------------------------------------------------------------------------

    def _extents(self, bucket: Bucket) -> dict[str, str]:
        """Return the C++ text of extents that are not their dim's own: numbers of parts."""
        dims = {d.name: d for v in self.tensors for d in v.type.dims}
        found = dict[str, str]()
        for program in bucket.programs:
            for axis in program.space.reduced:
                whole = self._extent(dims[axis.dim], {})
                parts = f"(({whole} + {axis.tile - 1}) / {axis.tile})"
                if axis in program.splits:
                    parts = f"general::parts({_split(program, axis)})"
                found[parts_of(axis.dim)] = parts
        return found

    def _extent(self, dim: Dim, parts: Mapping[str, str]) -> str:
        return parts.get(dim.name, dim.name if dim.dynamic else str(dim.size))

    def _dims(self, w: Writer) -> None:
        for i, dim in enumerate(self.dynamic):
            w.line(f"[[maybe_unused]] const int {dim} = static_cast<int>(dims[{i}]);")

    def _space(self, value: Value, parts: Mapping[str, str]) -> str:
        """Return the bytes of a tensor in the workspace."""
        count = " * ".join(f"int64_t({self._extent(d, parts)})" for d in value.type.dims)
        return f"general::rounded({count or 1} * {value.type.dtype.bytes})"

    def _bucket(
        self, w: Writer, bucket: Bucket, launches: Sequence[KernelWriter | JointWriter]
    ) -> None:
        """Write the functions of a bucket: its launches, which are written, and its workspace."""
        parts = self._extents(bucket)
        with w.block(f"int64_t workspace_{bucket.name}(const int64_t* dims) {{"):
            self._dims(w)
            spaces = [self._space(v, parts) for v in bucket.made]
            w.line(f"return {' + '.join(spaces) or '0'};")
        w.line()
        with w.block(f"cudaError_t launch_{bucket.name}({', '.join(_PARAMETERS)}) {{"):
            self._dims(w)
            w.line("general::Tensors given(tensors, strides);")
            results = len(self.graph.outputs)
            for v in self.tensors[:-results]:
                self._declare(w, v, "given.next", parts)
            for x in self.indices:
                extents = ", ".join(f"int64_t({self._extent(d, parts)})" for d in self._numbers(x))
                kind = f"next({4 if x.dtype == 'int32' else 8}, false, false, "
                kind = "next_index(" if x.dtype == "int" else kind
                made = f"given.{kind}{{{extents}}})"
                w.line(f"const auto {x.by}_index_tensor = {made};")
            for v in self.tensors[-results:]:
                self._declare(w, v, "given.next", parts)
            for v in bucket.made:
                self._declare(w, v, "general::in_workspace", parts)
            values = [v for v in (*self.tensors, *bucket.made) if v.name not in self.broadcast]
            values = [v for v in values if not lies_anywhere(v.type)]
            aligned = " && ".join(f"{v.name}_tensor.aligned" for v in values)
            w.line(f"const bool aligned = {aligned};")
            w.line("cudaError_t status = cudaSuccess;")
            for i, launch in enumerate(launches):
                self._call(w, f"args_{i}", launch, parts)
            w.line("return status;")

    def _declare(self, w: Writer, value: Value, made: str, parts: Mapping[str, str]) -> None:
        extents = ", ".join(f"int64_t({self._extent(d, parts)})" for d in self.memory(value))
        first = "workspace, " if "workspace" in made else ""
        packed = str(not self.strided and not any(d.dynamic for d in value.type.dims)).lower()
        uneven = str(has_uneven_rows(value.type)).lower()
        given = f"{first}{value.type.dtype.bytes}, {packed}, {uneven}, {{{extents}}}"
        w.line(f"const auto {value.name}_tensor = {made}({given});")

    def _numbers(self, indexed: Indexed) -> list[Dim]:
        """Return the dims of an index tensor."""
        dims = {d.name: d for v in self.tensors for d in v.type.dims}
        return [dims[d] for d in indexed.dims]

    def _call(
        self, w: Writer, args: str, launch: KernelWriter | JointWriter, parts: Mapping[str, str]
    ) -> None:
        w.line(f"{launch.args_type} {args}{{}};")
        if isinstance(launch, JointWriter):
            for i, own in enumerate(launch.parts):
                self._assign(w, f"{args}.part_{i}", own, parts)
        else:
            self._assign(w, args, launch, parts)
        call = f"launch_{launch.symbol}({args}, aligned, static_cast<cudaStream_t>(stream))"
        w.line(f"if (status == cudaSuccess) status = {call};")

    def _assign(self, w: Writer, args: str, own: KernelWriter, parts: Mapping[str, str]) -> None:
        """Write what gives a kernel its arguments."""
        for field, tensor, _ in own.tensors():
            w.line(f"general::assign({args}.{field}, {args}.{field}_strides, {tensor}_tensor);")
        for field, tensor in own.ended():
            w.line(f"{args}.{field}_end = {tensor}_tensor.end;")
        for x in own.indices:
            field = f"{args}.{x}_index"
            w.line(f"general::assign({field}, {field}_strides, {x}_index_tensor);")
            if own.indices[x].dtype == "int":
                w.line(f"{field}_bytes = {x}_index_tensor.bytes;")
        for n in own.scalars:
            place = [x.name for x in self.scalars].index(own.program.tensors[n.name])
            w.line(f"{args}.{n.name} = static_cast<decltype({args}.{n.name})>(scalars[{place}]);")
        for dim in own.dynamic:
            w.line(f"{args}.{dim} = static_cast<int>({parts.get(dim, dim)});")
        for axis in own.program.splits:
            w.line(f"{args}.{axis.name}_tile = general::split({_split(own.program, axis)});")

    def _entry(self, w: Writer) -> None:
        """Write what callers see."""
        with w.block('extern "C" {', "}"):
            with w.block(f"int {self.symbol}({', '.join(_PARAMETERS)}) {{"):
                names = ", ".join(p.split()[-1].lstrip("*") for p in _PARAMETERS)
                self._choice(w, "launch", names)
            with w.block(f"int64_t {self.symbol}_workspace(const int64_t* dims) {{"):
                self._choice(w, "workspace", "dims")
            w.line(f"extern const char {self.symbol}_signature[];")
            w.line(f"const char {self.symbol}_signature[] =")
            w.lines += [f"      {line}" for line in quoted(self.signature())]
            w.lines[-1] += ";"

    def _choice(self, w: Writer, function: str, arguments: str) -> None:
        for bucket in self.buckets:
            test = (
                f"if (dims[{self.dynamic.index(self.counted)}] <= {bucket.size}) "
                if bucket.size
                else ""
            )
            w.line(f"{test}return mirage::generated::{function}_{bucket.name}({arguments});")
