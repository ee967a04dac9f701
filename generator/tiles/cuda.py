"""General tile programs as CUDA over csrc/general: one kernel per block graph, one launch for all."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from mirage_kernels.generator.emit.names import vocabulary
from mirage_kernels.generator.emit.writer import Writer
from mirage_kernels.generator.ir import OPS, Axis, Dim, DType, Graph, Kind, Phase, parts_of
from mirage_kernels.generator.tiles.lower import axis_of_parts
from mirage_kernels.generator.tiles.program import (
    VECTOR_BYTES,
    Add,
    Barrier,
    BlockProgram,
    Clear,
    Combine,
    Contract,
    Fill,
    Fragment,
    Load,
    Reduce,
    Scale,
    Spill,
    Statement,
    Store,
    Tile,
)

CTYPES = {
    DType.FP16: "__half",
    DType.BF16: "__nv_bfloat16",
    DType.FP32: "float",
    DType.INT32: "int",
    DType.BOOL: "bool",
}
_TERNARY = {
    "less": "{0} < {1} ? 1.0f : 0.0f",
    "both": "{0} != 0.0f && {1} != 0.0f ? 1.0f : 0.0f",
    "where": "{0} != 0.0f ? {1} : {2}",
    "last": "{0}",
}


def constant(value: float) -> str:
    """Return a number as a float of C++."""
    if value in (float("inf"), -float("inf")):
        return "INFINITY" if value > 0 else "-INFINITY"
    return f"{value!r}f" if isinstance(value, float) else f"{float(value)!r}f"


@dataclass(frozen=True)
class Place:
    """Where a formula is computed: the local coordinate of every dim, and the dim of its vector."""

    at: Mapping[str, str]
    vector: str = ""
    width: int = 1

    def of(self, dim: str) -> str:
        """The local coordinate along a dim."""
        return self.at[dim]


class KernelWriter:
    """Writes the kernel of one block program."""

    def __init__(self, program: BlockProgram, symbol: str, storage: DType) -> None:
        self.program, self.symbol, self.storage = program, symbol, storage
        self.writer = Writer()
        self.staged = {t.name for t in program.tiles.values() if t.stages > 1}
        inputs = [n for n in program.body.inputs if self.is_read(n.name)]
        self.inputs = [n for n in inputs if program.type(n.name).dims]
        self.scalars = [n for n in inputs if not program.type(n.name).dims]
        self.dynamic = [d.name for d in program.extents.values() if d.dynamic]

    def is_read(self, name: str) -> bool:
        """Say whether an input of the body is an argument: it is read, not computed."""
        return self.program.type(name).dtype is not DType.BOOL and name not in self.positions

    @property
    def positions(self) -> set[str]:
        """Inputs of the body that number a dim."""
        return {n.name for n in self.program.body.inputs if n.name in self.program.iotas}

    # -- the kernel ------------------------------------------------------------------------------

    def text(self) -> list[str]:
        """Return the lines of the arguments, the kernel and its launch."""
        w, p = self.writer, self.program
        with w.block(f"struct {self.args_type} {{", "};"):
            for n in (*self.inputs, *p.body.of("output")):
                const = "const " if n.op == "input" else ""
                w.line(f"{const}{CTYPES[n.out.type.dtype]}* {self.tensor(n.name)};")
                w.line(f"int64_t {self.tensor(n.name)}_strides[{len(n.out.type.dims)}];")
            for n in self.scalars:
                w.line(f"{'int' if n.out.type.dtype is DType.INT32 else 'float'} {n.name};")
            for dim in self.dynamic:
                w.line(f"int {dim};")
        w.line()
        w.line("template <bool kAligned>")
        w.line(f"__global__ void __launch_bounds__({p.threads})")
        with w.block(f"{self.symbol}(const __grid_constant__ {self.args_type} args) {{"):
            self.body()
        w.line()
        self.launch()
        return w.lines

    @property
    def args_type(self) -> str:
        return f"{self.symbol}_args"

    def tensor(self, name: str) -> str:
        """Name of a tensor among the arguments."""
        return f"{name}_in" if self.program.node(name).op == "input" else name

    def body(self) -> None:
        w, p = self.writer, self.program
        w.line("using namespace general;")
        w.line("extern __shared__ __align__(16) char shared[];")
        offset = 0
        for tile in p.tiles.values():
            suffix = "_stages" if tile.name in self.staged else ""
            ctype = CTYPES[tile.dtype]
            w.line(f"auto* {tile.name}{suffix} = reinterpret_cast<{ctype}*>(shared + {offset});")
            offset += tile.bytes
        w.line(f"auto* scratch = reinterpret_cast<float*>(shared + {offset});")
        w.line("(void)scratch;")
        self.axes()
        for f in p.fragments.values():
            batch, rows, columns = f.extents
            kinds = f"{CTYPES[self.storage]}, {rows}, {columns}, {f.warps[0]}, {f.warps[1]}"
            w.line(f"Product<{kinds}> {f.name}_sums[{batch}];")
        w.line("tile::grid_dependency_wait();")
        w.line("tile::launch_dependents();")
        self.phase(Phase.BEFORE)
        if p.statements[Phase.LOOP]:
            self.loop()
        self.phase(Phase.AFTER)
        self.phase(Phase.JOINED)

    def axes(self) -> None:
        """Write which block of the grid this is, the reduced axis first: its blocks are a cluster."""
        w, p = self.writer, self.program
        w.line("int block = blockIdx.x;")
        for axis in self.grid():
            w.line(f"const int {axis.name}_index = block % {self.blocks(axis, 'args.')};")
            w.line(f"block /= {self.blocks(axis, 'args.')};")
        loop = p.space.loop
        if loop:
            w.line(f"const int steps = {self.steps(loop)};")

    def grid(self) -> list[Axis]:
        return sorted(self.program.space.grid, key=lambda a: not a.reduced)

    def extent(self, dim: str, args: str = "args.") -> str:
        """Return the extent of a dim of whole tensors."""
        d = self.program.extents[dim]
        return f"{args}{dim}" if d.dynamic else str(d.size)

    def blocks(self, axis: Axis, args: str) -> str:
        d = self.program.extents[axis.dim]
        if not d.dynamic:
            return str(-(-d.size // axis.tile))
        return f"(({args}{axis.dim} + {axis.tile - 1}) / {axis.tile})"

    def steps(self, loop: Axis) -> str:
        limit = self.extent(loop.dim)
        for axis in self.program.space.reduced:
            if axis.dim == loop.dim:
                limit = f"min({axis.tile}, {limit} - {axis.name}_index * {axis.tile})"
        if limit.isdigit():
            return str(-(-int(limit) // loop.tile))
        return f"max(0, {limit} + {loop.tile - 1}) / {loop.tile}"

    def loop(self) -> None:
        """Write the loop: loads run so many steps ahead as there are stages."""
        w, p = self.writer, self.program
        said = p.statements[Phase.LOOP]
        loads = [s for s in said if isinstance(s, Load)]
        ahead = p.stages - 1
        if loads:
            with w.block("const auto load_step = [&](int step) {", "};"):
                with w.block("if (step < steps) {"):
                    for s in loads:
                        self.statement(s)
                w.line("cp_async_fence();")
            w.line(f"for (int step = 0; step < {ahead}; ++step) load_step(step);")
        with w.block("for (int step = 0; step < steps; ++step) {"):
            w.line(f"cp_async_wait<{ahead - 1}>();")
            w.line("__syncthreads();")
            if loads:
                w.line(f"load_step(step + {ahead});")
            for name in sorted(self.staged):
                tile = p.tiles[name]
                stage = f"step % {p.stages} * {tile.bytes // tile.stages // tile.dtype.bytes}"
                w.line(f"const auto* {name} = {name}_stages + {stage};")
            for s in said[1:]:
                if not isinstance(s, Load):
                    self.statement(s)
        w.line("cp_async_wait<0>();")
        w.line("__syncthreads();")

    def phase(self, phase: Phase) -> None:
        said = self.program.statements[phase]
        loads = [s for s in said if isinstance(s, Load)]
        for s in loads:
            self.statement(s)
        if loads:
            self.writer.line("cp_async_fence();")
        for s in said:
            if not isinstance(s, Load):
                self.statement(s)

    def launch(self) -> None:
        w, p = self.writer, self.program
        with w.block(f"inline cudaError_t launch_{self.symbol}(const {self.args_type}& args, bool aligned, cudaStream_t stream) {{"):
            grid = " * ".join(f"int64_t({self.blocks(a, 'args.')})" for a in p.space.grid) or "1"
            w.line(f"const int64_t blocks = {grid};")
            w.line("if (blocks == 0) return cudaSuccess;")
            cluster = next((self.blocks(a, "args.") for a in p.space.reduced), "1")
            scratch = 4 * 8 * p.threads // 32
            w.line(f"return general::launch({self.symbol}<true>, {self.symbol}<false>, args, aligned, "
                   f"blocks, {p.threads}, {cluster if p.statements[Phase.JOINED] else 1}, {p.shared_bytes + scratch}, stream);")

    # -- statements ------------------------------------------------------------------------------

    def statement(self, s: Statement) -> None:
        {
            Load: self.load,
            Fill: self.fill,
            Reduce: self.reduce,
            Add: self.add,
            Clear: self.clear,
            Scale: self.scale,
            Contract: self.contract,
            Spill: self.spill,
            Combine: self.combine,
            Store: self.store,
            Barrier: self.barrier,
        }[type(s)](s)

    def barrier(self, s: Barrier) -> None:
        if s.cluster:
            return self.writer.line("cluster_barrier();")
        if s.copies:
            self.writer.line("cp_async_wait<0>();")
        return self.writer.line("__syncthreads();")

    def each(self, dims: Sequence[Dim], width: int, closing: str = "});"):  # type: ignore[no-untyped-def]
        """Open a loop over vectors of a tile, and return its place."""
        counts = [d.size for d in dims]
        if counts:
            counts[-1] //= width
        return self.writer.block(f"each<{self.program.threads}, {prod(counts)}>([&](int i) {{", closing)

    def coordinates(self, dims: Sequence[Dim], width: int, index: str = "i") -> dict[str, str]:
        """Write the coordinates of a vector, the last dim the fastest, and return their names."""
        found, step = dict[str, str](), 1
        for place, d in enumerate(reversed(dims)):
            size = d.size // width if place == 0 else d.size
            text = index if step == 1 else f"{index} / {step}"
            last = place == len(dims) - 1
            text = text if last else f"{text} % {size}"
            if size == 1:
                text = "0"
            if place == 0 and width > 1:
                text = f"({text}) * {width}"
            name = f"{d.name}_at"
            self.writer.line(f"[[maybe_unused]] const int {name} = {text};")
            found[d.name] = name
            step *= size
        return found

    def offset(self, value: str, dim: str) -> list[str]:
        """Return what is added to a local coordinate to make it one of the whole tensor."""
        p, found = self.program, []
        for name in p.offsets[value].get(dim, ()):
            axis = next(a for a in p.space.axes if a.name == name)
            index = "step" if name == "loop" else f"{name}_index"
            tile = axis.tile if axis.dim == dim else p.type(value).dim(dim).size
            found.append(f"{index} * {tile}")
        return found

    def globally(self, value: str, dim: str, local: str) -> str:
        return " + ".join((*self.offset(value, dim), local))

    def limit(self, value: str, dim: str) -> str:
        """Return where a value ends along a dim: with the tensor, or with the block's part of it."""
        extent = self.extent(dim)
        axes = self.program.offsets[value].get(dim, ())
        for axis in self.program.space.reduced:
            if axis.name in axes and "loop" in axes:
                extent = f"min({extent}, ({axis.name}_index + 1) * {axis.tile})"
        return extent

    def width(self, tile: Tile) -> int:
        """Return how many elements of a tile's last dim are a vector."""
        if not tile.dims:
            return 1
        most = VECTOR_BYTES // tile.dtype.bytes
        return next(w for w in (8, 4, 2, 1) if w <= most and tile.dims[-1].size % w == 0)

    def load(self, s: Load) -> None:
        w, p = self.writer, self.program
        tile, type_ = p.tiles[s.value], p.type(s.value)
        width = self.width(tile)
        name = f"{s.value}_stages" if s.value in self.staged else s.value
        if s.value in self.staged:
            size = tile.bytes // tile.stages // tile.dtype.bytes
            name = f"({name} + step % {p.stages} * {size})"
        with self.each(tile.dims, width):
            at = self.coordinates(tile.dims, width)
            to = f"{name} + {self.tile_offset(tile, at)}"
            self.source(s.value, at)
            arguments = f"{to}, from, stride, left"
            whole = VECTOR_BYTES == width * tile.dtype.bytes
            w.line(f"{'load_vector' if whole else 'load_elements'}<{width}, kAligned>({arguments});")
        del type_

    def source(self, value: str, at: Mapping[str, str], output: bool = False) -> None:
        """Write `from`, `stride` and `left` of a vector of a tensor in device memory."""
        w, type_ = self.writer, self.program.type(value)
        tensor, inside = self.tensor(value), []
        terms, last = [f"args.{tensor}"], type_.dims[-1].name
        w.line(f"const int64_t stride = kAligned ? 1 : args.{tensor}_strides[{len(type_.dims) - 1}];")
        for i, d in enumerate(type_.dims):
            step = "stride" if d.name == last else f"args.{tensor}_strides[{i}]"
            terms += [f"int64_t({t}) * {step}" for t in (*self.offset(value, d.name), at[d.name])]
            if d.name != last:
                place = self.globally(value, d.name, at[d.name])
                inside.append(f"{place} < {self.limit(value, d.name)}")
        w.line(f"{'auto* to' if output else 'const auto* from'} = {' + '.join(terms)};")
        left = f"{self.limit(value, last)} - ({self.globally(value, last, at[last])})"
        w.line(f"const int left = {' && '.join(inside)} ? {left} : 0;" if inside else f"const int left = {left};")

    def tile_offset(self, tile: Tile, at: Mapping[str, str]) -> str:
        terms = []
        for d in tile.dims:
            if d.size > 1:
                stride = tile.strides[d.name]
                terms.append(at[d.name] if stride == 1 else f"{at[d.name]} * {stride}")
        return " + ".join(terms) or "0"

    def fill(self, s: Fill) -> None:
        w, tile = self.writer, self.program.tiles[s.value]
        width = self.width(tile)
        with self.each(tile.dims, width):
            at = self.coordinates(tile.dims, width)
            place = Place(at, tile.dims[-1].name if tile.dims else "", width)
            made = self.formula(s.value, place, again=True)
            if s.ends:
                self.cut(s.value, s.ends, place, made)
            w.line(f"write({s.value} + {self.tile_offset(tile, at)}, {made});")

    def cut(self, value: str, ends: Sequence[str], place: Place, made: str) -> None:
        """Write zeros past the extents of dims."""
        with self.writer.block(f"for (int e = 0; e < {place.width}; ++e) {{"):
            tests = []
            for dim in ends:
                more = " + e" if dim == place.vector else ""
                tests.append(f"{self.globally(value, dim, place.of(dim))}{more} < {self.limit(value, dim)}")
            self.writer.line(f"if (!({' && '.join(tests)})) {made}[e] = 0.0f;")

    def formula(self, value: str, place: Place, *, again: bool = False) -> str:
        """Write what computes a value at a place, and return the name of the array that has it.

        What does not vary along the vector is computed once. `again` computes a value although it
        has a tile: to fill that.
        """
        w, p = self.writer, self.program
        order = self.order(value, again)
        names: dict[str, tuple[str, bool]] = {}  # text, and whether it is an array
        loop: list[tuple[str, str]] = []
        for name in order:
            node = p.node(name)
            is_leaf = p.is_leaf(name) and not (again and name == value)
            varies = place.vector in p.type(name).names
            if is_leaf:
                names[name] = self.leaf(name, place), varies
                continue
            args = [f"{t}[e]" if array else t for t, array in (names[a] for a in node.args)]
            text = self.operation(node.op, args)
            if p.type(name).dtype is self.storage and name != value:
                text = f"wide({CTYPES[self.storage]}({text}))"
            if varies or name == value:
                loop.append((f"{name}_v", text))
                names[name] = f"{name}_v", True
            else:
                w.line(f"const float {name}_v = {text};")
                names[name] = f"{name}_v", False
        made = f"{value}_made"
        w.line(f"float {made}[{place.width}];")
        with w.block(f"for (int e = 0; e < {place.width}; ++e) {{"):
            inner = {array for array, _ in loop}
            for array, text in loop:
                for other in inner:
                    text = text.replace(f"{other}[e]", other)
                w.line(f"const float {array} = {text};")
            text, array_ = names[value]
            text = text if value in {n for n in order if not (p.is_leaf(n) and not again)} and loop and loop[-1][0] == text else (f"{text}[e]" if array_ else text)
            w.line(f"{made}[e] = {text};")
        return made

    def order(self, value: str, again: bool) -> list[str]:
        """Return the values that a formula is made of, operands first."""
        p, found = self.program, dict[str, None]()

        def visit(name: str) -> None:
            if name in found:
                return
            if not p.is_leaf(name) or (again and name == value):
                for arg in p.node(name).args:
                    visit(arg)
            found[name] = None

        visit(value)
        return list(found)

    def operation(self, op: str, args: Sequence[str]) -> str:
        if op in _TERNARY:
            return _TERNARY[op].format(*args)
        assert OPS[op].kind is Kind.ELEMENTWISE, op
        return f"tile::{vocabulary(op)}({', '.join(args)})"

    def leaf(self, name: str, place: Place) -> str:
        """Write what reads a value at hand, and return its name: an array along the vector."""
        w, p = self.writer, self.program
        node, type_ = p.node(name), p.type(name)
        if node.op == "const":
            return constant(node.value)
        if node.op == "size":
            return f"float({self.extent(node.over)})"
        if name in p.iotas or node.op == "iota":
            dim = type_.names[0] if type_.names else node.over
            at = self.globally(name, dim, place.of(dim))
            if place.vector != dim:
                return f"float({at})"
            w.line(f"float {name}_v[{place.width}];")
            w.line(f"for (int e = 0; e < {place.width}; ++e) {name}_v[e] = float({at} + e);")
            return f"{name}_v"
        if not type_.dims:
            return f"args.{name}" if name not in p.tiles else f"{name}[0]"
        varies = place.vector in type_.names
        if name in p.tiles:
            tile = p.tiles[name]
            at = f"{name} + {self.tile_offset(tile, place.at)}"
            if not varies:
                return f"wide(*({at}))"
            w.line(f"float {name}_v[{place.width}];")
            stride = tile.strides[place.vector]
            if stride == 1:
                w.line(f"read({at}, {name}_v);")
            else:
                w.line(f"for (int e = 0; e < {place.width}; ++e) {name}_v[e] = wide(({at})[e * {stride}]);")
            return f"{name}_v"
        count = place.width if varies and type_.names[-1] == place.vector else 1
        if varies and count == 1:
            raise NotImplementedError(f"{name} is read across")
        w.line(f"float {name}_v[{count}];")
        with w.block("{"):
            self.source(name, place.at)
            w.line(f"read_within<{count}, kAligned>(from, stride, left, {name}_v);")
        return f"{name}_v" if varies else f"{name}_v[0]"

    def clear(self, s: Clear) -> None:
        w, p = self.writer, self.program
        if s.target in p.fragments:
            w.line(f"for (auto& sums : {s.target}_sums) sums.clear();")
            return
        if s.target in p.tiles:
            count = p.tiles[s.target].elements
            w.line(f"each<{p.threads}, {count}>([&](int i) {{ {s.target}[i] = {constant(s.value)}; }});")

    def reduce(self, s: Reduce) -> None:
        """Write a reduction: lanes along the dim where operands are contiguous along it."""
        w, p = self.writer, self.program
        tile = p.tiles[s.tile]
        values = [s.value, *([s.other] if s.other else [])]
        leaves = [x for v in values for x in p.leaves(v)]
        over = next(d for v in values for d in self.dims_of(v) if d.name == s.over)
        last = [p.tiles[x].dims[-1].name if x in p.tiles else p.type(x).names[-1] for x in leaves if p.type(x).dims]
        transposed = s.over not in last
        outs = list(tile.dims)
        vector = s.over
        if transposed:
            wanted = next((n for n in last if n in tile.names), "")
            vector = wanted
            outs.sort(key=lambda d: d.name == wanted)
        width = 1
        if vector:
            size = over.size if not transposed else next(d.size for d in outs if d.name == vector)
            width = next(x for x in (8, 4, 2, 1) if size % x == 0)
        out_width, step_width = (width, 1) if transposed else (1, width)
        count = prod(d.size for d in outs) // out_width
        steps = over.size // step_width
        sums = out_width
        flag = "true" if transposed else "false"
        op = "Max" if s.op == "max" else "Sum"
        with w.block(f"reduce<{op}, {p.threads}, {count}, {steps}, {sums}, {flag}>(scratch, [&](int i, int j, float (&joined)[{sums}]) {{", "},"):
            at = self.coordinates(outs, out_width)
            w.line(f"const int {s.over}_at = j{f' * {step_width}' if step_width > 1 else ''};")
            place = Place(at | {s.over: f"{s.over}_at"}, vector, width)
            made = [self.formula(v, place) for v in dict.fromkeys(values)]
            with w.block(f"for (int e = 0; e < {width}; ++e) {{"):
                term = " * ".join(f"{m}[e]" for m in (made if len(made) == len(values) else made * 2))
                end = self.ended(s, values[0], place)
                if end:
                    w.line(f"if (!({end})) continue;")
                target = f"joined[{'e' if transposed else '0'}]"
                w.line(f"{target} = {op}::join({target}, {term});")
        with w.block(f"[&](int i, const float (&joined)[{sums}]) {{", "});"):
            at = self.coordinates(outs, out_width)
            with w.block(f"for (int e = 0; e < {sums}; ++e) {{"):
                where = at | ({vector: f"{at[vector]} + e"} if transposed and vector else {})
                where = {d: f"({t})" if "+" in t else t for d, t in where.items()}
                w.line(f"float& to = {s.tile}[{self.tile_offset(tile, where)}];")
                self.finish(s, where)

    def finish(self, s: Reduce, at: Mapping[str, str]) -> None:
        w, p = self.writer, self.program
        if not s.carried:
            return w.line("to = joined[e];")
        if s.op == "max":
            w.line("const float before = to;")
            w.line("to = fmaxf(before, joined[e]);")
            if s.rescale:
                place = self.tile_offset(p.tiles[s.rescale], at)
                w.line(f"{s.rescale}[{place}] = to == -INFINITY ? 1.0f : expf(before - to);")
            return None
        if s.factor:
            place = self.tile_offset(p.tiles[s.factor], at)
            return w.line(f"to = to * {s.factor}[{place}] + joined[e];")
        return w.line("to += joined[e];")

    def dims_of(self, value: str) -> tuple[Dim, ...]:
        """Return the dims of a value, rounded up as tiles are that have them."""
        p = self.program
        sizes = {d.name: d for x in p.leaves(value) if x in p.tiles for d in p.tiles[x].dims}
        return tuple(sizes.get(d.name, d) for d in p.type(value).dims)

    def ended(self, s: Reduce, value: str, place: Place) -> str:
        """Return the test that an element lies within the tensors along the reduced dim."""
        p = self.program
        own, whole = p.type(value).dim(s.over), p.extents[s.over]
        size = next(d.size for d in self.dims_of(value) if d.name == s.over)
        if not whole.dynamic and whole.size % own.size == 0 and size == own.size and "min" not in self.limit(value, s.over):
            return ""
        more = " + e" if place.vector == s.over else ""
        return f"{self.globally(value, s.over, place.of(s.over))}{more} < {self.limit(value, s.over)}"

    def add(self, s: Add) -> None:
        w, tile = self.writer, self.program.tiles[s.tile]
        width = self.width(tile)
        with self.each(tile.dims, width):
            at = self.coordinates(tile.dims, width)
            place = Place(at, tile.dims[-1].name if tile.dims else "", width)
            made = self.formula(s.value, place)
            with w.block(f"for (int e = 0; e < {width}; ++e) {{"):
                where = dict(at)
                if tile.dims:
                    where[tile.dims[-1].name] = f"({at[tile.dims[-1].name]} + e)"
                to = f"{s.tile}[{self.tile_offset(tile, where)}]"
                factor = ""
                if s.factor:
                    factor = f" * {s.factor}[{self.tile_offset(self.program.tiles[s.factor], where)}]"
                w.line(f"{to} = {to}{factor} + {made}[e];")

    def fragment_place(self, f: Fragment) -> dict[str, str]:
        """Write the coordinates of a fragment's element, and return their names."""
        found = {}
        for dims, index in zip(f.groups, ("batch", "row", "column"), strict=True):
            found |= self.coordinates(dims, 1, index)
        return found

    def over_fragment(self, f: Fragment, write: Callable[[dict[str, str]], None]) -> None:
        w, batch = self.writer, f.extents[0]
        with w.block(f"for (int batch = 0; batch < {batch}; ++batch) {{"):
            with w.block(f"{f.name}_sums[batch].every([&](float& sum, int row, int column) {{", "});"):
                write(self.fragment_place(f))

    def scale(self, s: Scale) -> None:
        f, tile = self.program.fragments[s.fragment], self.program.tiles[s.factor]
        self.over_fragment(
            f, lambda at: self.writer.line(f"sum *= {s.factor}[{self.tile_offset(tile, at)}];")
        )

    def spill(self, s: Spill) -> None:
        f, tile = self.program.fragments[s.fragment], self.program.tiles[s.tile]
        self.over_fragment(
            f,
            lambda at: self.writer.line(
                f"{s.tile}[{self.tile_offset(tile, at)}] = {CTYPES[tile.dtype]}(sum);"
            ),
        )

    def contract(self, s: Contract) -> None:
        w, p = self.writer, self.program
        f = p.fragments[s.fragment]
        a, b = p.tiles[s.a], p.tiles[s.b]
        depth = next(d.size for d in a.dims if d.name == s.over)
        turned = [t.dims[-1].name != s.over for t in (a, b)]
        flags = ", ".join("true" if t else "false" for t in turned)
        with w.block(f"for (int batch = 0; batch < {f.extents[0]}; ++batch) {{"):
            at = self.coordinates(f.batch, 1, "batch")
            layouts = []
            for tile, dims in ((a, f.rows), (b, f.columns)):
                layouts.append(self.layout(tile, dims, s.over, depth))
            starts = [self.tile_offset(t, {**dict.fromkeys(t.names, "0"), **at}) for t in (a, b)]
            starts = [" + ".join(x for x in text.split(" + ") if not x.startswith("0")) or "0" for text in starts]
            w.line(f"{f.name}_sums[batch].template add<{depth}, {flags}>("
                   f"{s.a} + {starts[0]}, {layouts[0]}{{}}, {s.b} + {starts[1]}, {layouts[1]}{{}});")

    def layout(self, tile: Tile, lines: Sequence[Dim], over: str, depth: int) -> str:
        """Return the CuTe layout of an operand: its lines flattened, and the contracted dim."""
        ordered = lines[::-1]
        shape = ", ".join(f"Int<{d.size}>" for d in ordered)
        strides = ", ".join(f"Int<{tile.strides[d.name]}>" for d in ordered)
        return (f"Layout<Shape<Shape<{shape}>, Int<{depth}>>, "
                f"Stride<Stride<{strides}>, Int<{tile.strides[over]}>>>")

    def combine(self, s: Combine) -> None:
        w, p = self.writer, self.program
        to, tile = p.tiles[s.tile], p.tiles[s.value]
        peak = ""
        if s.peak:
            peak = next(x for x in p.leaves(s.peak))
        with self.each(to.dims, 1):
            at = self.coordinates(to.dims, 1)
            w.line(f"const float* mine = {s.value} + {self.tile_offset(tile, at)};")
            if peak:
                w.line(f"const float* own_peak = {peak} + {self.tile_offset(p.tiles[peak], at)};")
                w.line(f"{s.tile}[{self.tile_offset(to, at)}] = combine_rescaled(mine, own_peak);")
            else:
                w.line(f"{s.tile}[{self.tile_offset(to, at)}] = combine(mine);")

    def store(self, s: Store) -> None:
        w, p = self.writer, self.program
        type_ = p.type(s.output)
        sizes = {d.name: d.size for d in self.dims_of(s.value)}
        dims, where = [], dict[str, str]()
        for d in type_.dims:
            axis = axis_of_parts(p, d.name)
            if axis is not None and d.name not in sizes:
                where[d.name] = f"{axis}_index"
            else:
                dims.append(Dim(d.name, sizes[d.name]))
        size = dims[-1].size if dims and type_.names[-1] == dims[-1].name else 1
        most = VECTOR_BYTES // type_.dtype.bytes
        width = next(x for x in (8, 4, 2, 1) if x <= most and size % x == 0)
        joined = s in p.statements[Phase.JOINED]
        if joined:
            w.line("if (cluster_rank() == 0)")
        with self.each(dims, width):
            at = self.coordinates(dims, width) | where
            made = self.formula(s.value, Place(at, dims[-1].name if dims else "", width))
            self.source(s.output, at, output=True)
            w.line(f"write_within<{width}, kAligned>(to, stride, left, {made});")


def emit(graph: Graph, programs: Sequence[BlockProgram], symbol: str, storage: DType) -> str:
    """Return a file with the kernels of a kernel graph and the function that launches them all.

    The function takes tensors in the graph's order, inputs first, and their strides one after the
    other; run-time extents of the dynamic dims and scalars in order of appearance.
    """
    writer = Writer()
    writer.write('#include "general/block.cuh"', "", "namespace mirage {", "namespace {", "")
    symbols = [f"{symbol}_{i}" for i in range(len(programs))]
    for program, own in zip(programs, symbols, strict=True):
        writer.lines += KernelWriter(program, own, storage).text()
        writer.line()
    writer.write("}  // namespace", "}  // namespace mirage", "")
    _entry(writer, graph, programs, symbol, storage)
    return writer.text()


def dynamic_dims(graph: Graph) -> list[str]:
    """Return the dynamic dims of a kernel graph's inputs, in order of appearance."""
    dims = [d for n in graph.inputs for d in n.out.type.dims if d.dynamic]
    return list(dict.fromkeys(d.name for d in dims))


def _entry(
    writer: Writer, graph: Graph, programs: Sequence[BlockProgram], symbol: str, storage: DType
) -> None:
    w = writer
    tensors = [n.name for n in graph.inputs if n.out.type.dims] + list(graph.outputs)
    scalars = [n for n in graph.inputs if not n.out.type.dims]
    parts = {
        parts_of(a.dim): f"(({a.dim} + {a.tile - 1}) / {a.tile})"
        for p in programs for a in p.space.reduced
    }
    made = [v.name for n in graph.blocks for v in n.outs if v.name not in graph.outputs]
    types = {name: value.type for name, value in graph.values.items()}

    def extent(d: Dim) -> str:
        return parts.get(d.name, d.name if d.dynamic else str(d.size))

    with w.block(f'extern "C" int {symbol}(void* const* tensors, const int64_t* strides, '
                 "const int64_t* dims, const double* scalars, char* workspace, void* stream) {"):
        w.line("using namespace mirage;")
        for i, dim in enumerate(dynamic_dims(graph)):
            w.line(f"const int {dim} = static_cast<int>(dims[{i}]);")
        w.line("bool aligned = true;")
        place = 0
        for i, name in enumerate(tensors):
            dims = types[name].dims
            w.line(f"void* const {name}_at = tensors[{i}];")
            w.line(f"const int64_t* {name}_strides = strides + {place};")
            w.line(f"aligned &= general::is_aligned({name}_at, {name}_strides, {len(dims)}, "
                   f"{types[name].dtype.bytes}, {extent(dims[-1])});")
            place += len(dims)
        for name in made:
            dims = types[name].dims
            w.line(f"void* const {name}_at = workspace;")
            step, steps = "1", list[str]()
            for d in reversed(dims):
                steps.insert(0, step)
                step = f"int64_t({extent(d)}) * {step}"
            w.line(f"const int64_t {name}_strides[] = {{{', '.join(steps)}}};")
            w.line(f"workspace += (int64_t({step}) * {types[name].dtype.bytes} + 255) / 256 * 256;")
            w.line(f"aligned &= general::is_aligned({name}_at, {name}_strides, {len(dims)}, "
                   f"{types[name].dtype.bytes}, {extent(dims[-1])});")
        w.line("cudaError_t status = cudaSuccess;")
        for i, p in enumerate(programs):
            own = KernelWriter(p, f"{symbol}_{i}", storage)
            w.line(f"{own.args_type} args_{i}{{}};")
            for n in (*own.inputs, *p.body.of("output")):
                source = p.tensors[n.name]
                field = own.tensor(n.name)
                w.line(f"args_{i}.{field} = static_cast<decltype(args_{i}.{field})>({source}_at);")
                w.line(f"for (int d = 0; d < {len(n.out.type.dims)}; ++d) args_{i}.{field}_strides[d] = {source}_strides[d];")
            for n in own.scalars:
                index = [x.name for x in scalars].index(p.tensors[n.name])
                w.line(f"args_{i}.{n.name} = static_cast<decltype(args_{i}.{n.name})>(scalars[{index}]);")
            for dim in own.dynamic:
                w.line(f"args_{i}.{dim} = {parts.get(dim, dim)};")
            w.line(f"if (status == cudaSuccess) status = launch_{symbol}_{i}(args_{i}, aligned, static_cast<cudaStream_t>(stream));")
        w.line("return status;")
