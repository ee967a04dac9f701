"""Horizontal fusion: kernels of a graph that take nothing of each other, run by one launch.

The launch has the blocks of all, those of one kernel behind those of another. A block finds whose
it is by its number, and runs that kernel's statements.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mirage_kernels.generator.emit.writer import Writer
from mirage_kernels.generator.ir import Phase
from mirage_kernels.generator.tiles.cuda import KernelWriter
from mirage_kernels.generator.tiles.program import BlockProgram
from mirage_kernels.generator.tiles.reductions import bounds

LOOPED = (Phase.LOOP, Phase.AFTER, Phase.JOINED)


def launches(programs: Sequence[BlockProgram]) -> list[tuple[int, ...]]:
    """Return the kernels of each launch, in order, by their places among all.

    Kernels beside each other are one launch where none takes what another of them makes, and each
    runs once through its statements: loops and products want registers and shared memory that the
    blocks of the others would hold for nothing.
    """
    found: list[tuple[int, ...]] = []
    for i, program in enumerate(programs):
        together = [programs[j] for j in found[-1]] if found else []
        if together and all(_is_independent(program, other) for other in together):
            found[-1] = (*found[-1], i)
        else:
            found.append((i,))
    return found


def _is_independent(program: BlockProgram, before: BlockProgram) -> bool:
    plain = not any(p.statements[phase] for p in (program, before) for phase in LOOPED)
    plain = plain and not (program.fragments or before.fragments)
    made = {before.tensors[n.name] for n in before.body.of("output")}
    taken = {program.tensors[n.name] for n in program.body.inputs}
    return plain and program.threads == before.threads and not made & taken


@dataclass(frozen=True)
class JointWriter:
    """Writes the kernel of a launch that runs several; their writers have written none of theirs.

    Its arguments are those of all, and where in the grid the blocks of each end.
    """

    symbol: str
    parts: Sequence[KernelWriter]

    @property
    def args_type(self) -> str:
        """Name of the struct of the kernel's arguments."""
        return f"{self.symbol}_args"

    def text(self) -> list[str]:
        """Return the lines of all parts, the kernel that runs them and its launch."""
        w = Writer()
        for part in self.parts:
            w.lines += [*part.part_text(), ""]
        with w.block(f"struct {self.args_type} {{", "};"):
            for i, part in enumerate(self.parts):
                w.line(f"{part.args_type} part_{i};")
            w.line(f"int ends[{len(self.parts)}];")
        w.line()
        w.line("template <bool kAligned>")
        programs = [part.program for part in self.parts]
        w.line(f"__global__ void __launch_bounds__({bounds(programs)})")
        with w.block(f"{self.symbol}(const __grid_constant__ {self.args_type} args) {{"):
            w.line("const int block = blockIdx.x;")
            for i, part in enumerate(self.parts):
                first = f"block - args.ends[{i - 1}]" if i else "block"
                call = f"{part.symbol}<kAligned>(args.part_{i}, {first})"
                last = i + 1 == len(self.parts)
                w.line(f"{call};" if last else f"if (block < args.ends[{i}]) return {call};")
        w.line()
        self._launch(w)
        return w.lines

    def _launch(self, w: Writer) -> None:
        head = f"{self.args_type} args, bool aligned, cudaStream_t stream"
        with w.block(f"inline cudaError_t launch_{self.symbol}({head}) {{"):
            w.line("int64_t blocks = 0;")
            for i, part in enumerate(self.parts):
                w.line(f"blocks += blocks_{part.symbol}(args.part_{i});")
                w.line(f"args.ends[{i}] = static_cast<int>(blocks);")
            w.line("if (blocks == 0) return cudaSuccess;")
            programs = [part.program for part in self.parts]
            shared = max(p.shared_bytes for p in programs)
            kernels = f"{self.symbol}<true>, {self.symbol}<false>"
            shape = f"blocks, {programs[0].threads}, 1, {shared}"
            w.line(f"return general::launch({kernels}, args, aligned, {shape}, stream);")
