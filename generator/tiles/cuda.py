"""One block program as a CUDA kernel over csrc/general: a statement at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from math import prod

from mirage_kernels.generator.emit.writer import Writer
from mirage_kernels.generator.ir import Dim, DType, Phase
from mirage_kernels.generator.tiles.formulas import CTYPES, Formulas, Place
from mirage_kernels.generator.tiles.fragments import (
    write_apply,
    write_contract,
    write_join_rows,
    write_scale,
    write_spill,
)
from mirage_kernels.generator.tiles.loads import vector_of, write_load
from mirage_kernels.generator.tiles.operations import computed_in, constant
from mirage_kernels.generator.tiles.program import BlockProgram, Tile
from mirage_kernels.generator.tiles.reductions import bounds, write_reductions
from mirage_kernels.generator.tiles.rows import index_arguments
from mirage_kernels.generator.tiles.statements import (
    Add,
    Apply,
    Arrive,
    Barrier,
    Clear,
    Combine,
    Contract,
    Fill,
    JoinRows,
    Load,
    Reduce,
    Rows,
    Scale,
    Spill,
    Statement,
    Store,
)
from mirage_kernels.generator.tiles.stores import (
    Pass,
    in_passes,
    taking,
    write_combine,
    write_rows,
    write_stores,
)


class KernelWriter:
    """Writes the kernel of one block program."""

    def __init__(self, program: BlockProgram, symbol: str, storage: DType) -> None:
        self.program, self.symbol, self.storage = program, symbol, storage
        self.writer, self.arrived = Writer(), False
        self.formulas = Formulas(program, self.writer, storage)
        self.staged = {t.name for t in program.tiles.values() if t.stages > 1}
        read = [n for n in program.body.inputs if n.name not in program.iotas]
        self.inputs = [n for n in read if n.out.type.dims]
        self.scalars = [n for n in read if not n.out.type.dims]
        self.indices = {x.by: x for x in program.indexed.values()}
        rows = (d for x in program.indexed.values() for d in x.counts)
        extents = (*program.extents.values(), *rows)
        self.dynamic = list(dict.fromkeys(d.name for d in extents if d.dynamic))

    @property
    def args_type(self) -> str:
        """Name of the struct of the kernel's arguments."""
        return f"{self.symbol}_args"

    def tensors(self) -> Iterator[tuple[str, str, int]]:
        """Yield each tensor among the arguments: its field, the kernel graph's name, its dims."""
        for n in (*self.inputs, *self.program.body.of("output")):
            yield self.formulas.tensor(n.name), self.program.tensors[n.name], len(n.out.type.dims)

    def ended(self) -> list[tuple[str, str]]:
        """Return the tensors whose ends a written kernel knows: field, the kernel graph's name."""
        pairs = ((self.formulas.tensor(n.name), self.program.tensors[n.name]) for n in self.inputs)
        return [(field, name) for field, name in pairs if self._is_ended(field)]

    def _is_ended(self, field: str) -> bool:
        """Say whether the kernel as written reads up to a tensor's end."""
        return any(f"args.{field}_end" in line for line in self.writer.lines)

    def text(self) -> list[str]:
        """Return the lines of the arguments, the kernel and its launch."""
        w = self.writer
        w.line("template <bool kAligned>")
        w.line(f"__global__ void __launch_bounds__({bounds([self.program])})")
        with w.block(f"{self.symbol}(const __grid_constant__ {self.args_type} args) {{"):
            self._body("blockIdx.x")
        w.line()
        self._launch()
        return [*self._arguments(), *w.lines]

    def part_text(self) -> list[str]:
        """Return the lines of the arguments, and of functions for a kernel that runs others too.

        One runs a block by its number, the other counts blocks.
        """
        w = self.writer
        w.line("template <bool kAligned>")
        head = f"{self.symbol}(const {self.args_type}& args, int first)"
        with w.block(f"__device__ __forceinline__ void {head} {{"):
            self._body("first")
        w.line()
        with w.block(f"inline int64_t blocks_{self.symbol}(const {self.args_type}& args) {{"):
            w.line(f"return {self._grid()};")
        return [*self._arguments(), *w.lines]

    def _arguments(self) -> list[str]:
        """Return the lines of the arguments of the kernel as written."""
        w = Writer()
        with w.block(f"struct {self.args_type} {{", "};"):
            for n in (*self.inputs, *self.program.body.of("output")):
                const = "const " if n.op == "input" else ""
                name = self.formulas.tensor(n.name)
                w.line(f"{const}{CTYPES[n.out.type.dtype]}* {name};")
                w.line(f"int64_t {name}_strides[{max(1, len(self.program.memory(n.name)))}];")
                if n.op == "input" and self._is_ended(name):
                    w.line(f"const void* {name}_end;")
            for x in self.indices.values():
                w.write(*index_arguments(x))
            for n in self.scalars:
                w.line(f"{computed_in(n.out.type.dtype)} {n.name};")
            for dim in (*self.dynamic, *(f"{a.name}_tile" for a in self.program.splits)):
                w.line(f"int {dim};")
        w.line()
        return w.lines

    def _body(self, block: str) -> None:
        """Write what the block of a number does."""
        w, p = self.writer, self.program
        w.line("using namespace general;")
        w.line("extern __shared__ __align__(16) char shared[];")
        offset = 0
        for tile in p.tiles.values():
            name = f"{tile.name}_stages" if tile.name in self.staged else tile.name
            w.line(f"auto* {name} = reinterpret_cast<{CTYPES[tile.dtype]}*>(shared + {offset});")
            offset += tile.bytes
        w.line(
            "[[maybe_unused]] auto* scratch = " + f"reinterpret_cast<float*>(shared + {offset});"
        )
        self._indices(block)
        for f in p.fragments.values():
            batch, rows, columns = f.extents
            kinds = f"{CTYPES[self.storage]}, {rows}, {columns}, {f.warps[0]}, {f.warps[1]}"
            w.line(f"Product<{kinds}, {p.threads}> {f.name}_sums[{batch}];")
        w.line("tile::grid_dependency_wait();")
        w.line("tile::launch_dependents();")
        self._phase(Phase.BEFORE)
        if p.statements[Phase.LOOP]:
            self._loop()
        self._phase(Phase.AFTER)
        self._phase(Phase.JOINED)

    def _indices(self, block: str) -> None:
        """Write which block of the grid this is, the reduced axis first: a cluster's blocks."""
        w, p = self.writer, self.program
        w.line(f"[[maybe_unused]] int block = {block};")
        axes = sorted(p.space.grid, key=lambda a: not a.reduced)
        counts = {axis: self.formulas.blocks(axis) for axis in axes}
        for axis in axes[:-1]:
            w.line(f"[[maybe_unused]] const int {axis.name}_index = block % {counts[axis]};")
            w.line(f"block /= {counts[axis]};")
        for last in axes[-1:]:  # a remainder of a number of run time takes thirty instructions
            w.line(f"[[maybe_unused]] const int {last.name}_index = block;")
            # Never true, but no compiler knows: it divides before the block waits.
            if not all(self.formulas.blocks(a).isdigit() for a in axes[:-1]):
                w.line(f"if ({last.name}_index >= {self.formulas.blocks(last)}) return;")
        if p.space.loop:
            kind, steps = "int" if p.ends else "const int", self.formulas.steps(p.space.loop)
            w.line(f"{kind} steps = {steps};")

    def _loop(self) -> None:
        """Write the loop: loads run so many steps ahead as there are stages."""
        w, p = self.writer, self.program
        said = p.statements[Phase.LOOP]
        loads = [s for s in said if isinstance(s, Load)]
        ahead, first = p.stages - 1, ""
        if any(end.begins for end in p.ends):
            first = "first"
            w.line("int first = 0;")
            self._end_loop()
        if loads:
            with w.block("const auto load_step = [&](int step) {", "};"):
                w.line(f"const int stage = step % {p.stages};")
                with w.block("if (step < steps) {"):
                    for load in loads:
                        self._statement(load)
                w.line("cp_async_fence();")
            step = " + ".join((*filter(None, (first,)), "step"))
            w.line(f"for (int step = 0; step < {ahead}; ++step) load_step({step});")
        if not first:  # the first copies are on their way
            self._end_loop()
        with w.block(f"for (int step = {first or 0}; step < steps; ++step) {{"):
            w.line(f"cp_async_wait<{ahead - 1}>();")
            w.line("__syncthreads();")
            if loads:
                w.line(f"load_step(step + {ahead});")
            w.line(f"[[maybe_unused]] const int stage = step % {p.stages};")
            for name in sorted(self.staged):
                w.line(f"const auto* {name} = {self._stage(p.tiles[name])};")
            for together in in_passes(
                self.formulas, [s for s in said[1:] if not isinstance(s, Load)]
            ):
                self._statement(*together)
        w.line("cp_async_wait<0>();")
        w.line("__syncthreads();")

    def _end_loop(self) -> None:
        """Write the bounds of the loop that conditions give: those of all rows of the block."""
        w, p, loop = self.writer, self.program, self.program.space.loop
        assert loop is not None
        untiled = Formulas(p.untiled, w, self.storage)  # tiles are on their way
        for end in p.ends:
            dims = p.end_dims(end)
            with w.block("{"):
                w.line("[[maybe_unused]] const int step = 0;")
                count = prod(d.size for d in dims)
                head = f"const int seen = largest<{count}>([&]([[maybe_unused]] int i) {{"
                with w.block(head, "});"):
                    rows = [d for d in dims if d.name != loop.dim]
                    at = untiled.coordinates(rows, 1) | {loop.dim: "0"}
                    low, high = untiled.write([end.low, end.high], Place(at, dims))
                    w.line(f"return {high}[0] - {low}[0];")
                hop = self.formulas.hop(loop)
                if end.begins:
                    more = loop.tile - 1
                    most = str(int(hop) - more) if hop.isdigit() else f"{hop} - {more}"
                    w.line(f"first = max(first, steps_before({most} - seen, {hop}));")
                else:
                    w.line(f"steps = min(steps, steps_to(seen, {hop}));")

    def _stage(self, tile: Tile) -> str:
        """Return where the tile of the step at hand begins."""
        size = tile.bytes // tile.stages // tile.dtype.bytes
        return f"{tile.name}_stages + stage * {size}"

    def _phase(self, phase: Phase) -> None:
        said = self.program.statements[phase]
        loads = [s for s in said if isinstance(s, Load)]
        for load in loads:
            self._statement(load)
        if loads:
            self.writer.line("cp_async_fence();")
        for together in in_passes(self.formulas, [s for s in said if not isinstance(s, Load)]):
            self._statement(*together)

    def _grid(self) -> str:
        """Return how many blocks there are."""
        return (
            " * ".join(f"int64_t({self.formulas.blocks(a)})" for a in self.program.space.grid)
            or "1"
        )

    def _launch(self) -> None:
        w, p = self.writer, self.program
        head = f"const {self.args_type}& args, bool aligned, cudaStream_t stream"
        with w.block(f"inline cudaError_t launch_{self.symbol}({head}) {{"):
            w.line(f"const int64_t blocks = {self._grid()};")
            w.line("if (blocks == 0) return cudaSuccess;")
            cluster = next((self.formulas.blocks(a) for a in p.space.reduced), "1")
            cluster = cluster if p.statements[Phase.JOINED] else "1"
            shape = f"blocks, {p.threads}, {cluster}, {p.shared_bytes}"
            kernels = f"{self.symbol}<true>, {self.symbol}<false>"
            w.line(f"return general::launch({kernels}, args, aligned, {shape}, stream);")

    # -- statements --------------------------------------------------------------------------------

    def _statement(self, *said: Statement) -> None:
        """Write a statement, or several that are one pass."""
        write: dict[type[Statement], Callable[..., None]] = {
            Load: self._load,
            Fill: self._fill,
            Reduce: lambda *sums: write_reductions(self.formulas, sums),
            Add: self._add,
            Clear: self._clear,
            Scale: lambda s: write_scale(self.formulas, s),
            Contract: lambda s: write_contract(self.formulas, s),
            Spill: lambda s: write_spill(self.formulas, s),
            Apply: lambda s: write_apply(self.formulas, s),
            JoinRows: lambda s: write_join_rows(self.formulas, s),
            Combine: lambda s: write_combine(self.formulas, s),
            Store: lambda *stores: write_stores(self.formulas, stores),
            Rows: lambda s: write_rows(self.formulas, s),
            Barrier: self._barrier,
            Arrive: self._arrive,
        }
        write[type(said[0])](*said)

    def _arrive(self, s: Arrive) -> None:
        self.arrived = True
        self.writer.line("cluster_arrive();")

    def _barrier(self, s: Barrier) -> None:
        if s.cluster:
            self.arrived, waits = False, self.arrived
            return self.writer.line("cluster_wait();" if waits else "cluster_barrier();")
        if s.copies:
            self.writer.line("cp_async_wait<0>();")
        return self.writer.line("__syncthreads();")

    def _each(self, dims: Sequence[Dim], width: int = 1) -> AbstractContextManager[None]:
        """Open a loop of all threads over the vectors of a tile."""
        count = prod(d.size for d in dims) // width
        head = f"each<{self.program.threads}, {count}>([&]([[maybe_unused]] int i) {{"
        return self.writer.block(head, "});")

    @contextmanager
    def _vectors(self, tile: Tile) -> Iterator[Place]:
        """Open a loop of all threads over a tile and yield the place of a vector."""
        width = vector_of(self.program, tile)
        with self._each(tile.dims, width):
            at = self.formulas.coordinates(tile.dims, width)
            yield Place(at, tile.dims, tile.dims[-1].name if tile.dims else "", width)

    def _load(self, s: Load) -> None:
        tile = self.program.tiles[s.value]
        to = f"({self._stage(tile)})" if s.value in self.staged else s.value
        write_load(self.formulas, s, to)

    def _fill(self, s: Fill) -> None:
        w, f, p = self.writer, self.formulas, self.program
        tile, args = p.tiles[s.value], p.node(s.value).args
        own = Pass(tile.dims, vector_of(p, tile), of_one=False, dealt=False)
        with taking(f, own, (), args, {}) as place:
            (made,) = f.write([s.value], place, again=True)
            if s.ends:
                with w.block(f"for (int e = 0; e < {place.width}; ++e) {{"):
                    w.line(f"if (!({f.inside(s.value, s.ends, place)})) {made}[e] = 0.0f;")
            w.line(f"write({s.value} + {f.in_tile(tile, place.at)}, {made});")

    def _clear(self, s: Clear) -> None:
        w, p = self.writer, self.program
        if s.target in p.fragments:
            return w.line(f"for (auto& sums : {s.target}_sums) sums.clear();")
        with w.block(f"each<{p.threads}, {p.tiles[s.target].elements}>([&](int i) {{", "});"):
            w.line(f"{s.target}[i] = {constant(s.value)};")
        return None

    def _add(self, s: Add) -> None:
        w, f, tile = self.writer, self.formulas, self.program.tiles[s.tile]
        with self._vectors(tile) as place:
            (made,) = f.write([s.value], place)
            with w.block(f"for (int e = 0; e < {place.width}; ++e) {{"):
                at = dict(place.at)
                if place.vector:
                    at[place.vector] = f"({at[place.vector]} + e)"
                to, factor = f"{s.tile}[{f.in_tile(tile, at)}]", ""
                if s.factor:
                    factor = f" * {s.factor}[{f.in_tile(self.program.tiles[s.factor], at)}]"
                total = f"{to}{factor} + {made}[e]"
                w.line(f"{to} = {f'Max::join({to}, {made}[e])' if s.op == 'max' else total};")
