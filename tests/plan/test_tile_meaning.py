"""A tile program, run statement by statement, block by block and warp by warp: it is its muGraph.

Whatever one thread leaves in shared memory for others may be read only behind a barrier.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from handmade_lines import mugraph

from mirage_kernels.generator.ir import Graph
from mirage_kernels.generator.meaning.arrays import Array, array_reading
from mirage_kernels.generator.meaning.reals import ELEMENTWISE, FLOAT64
from mirage_kernels.generator.meaning.walk import results
from mirage_kernels.generator.plan.lower import tile_program
from mirage_kernels.generator.plan.program import Do, Statement, TileProgram
from mirage_kernels.generator.plan.threads import with_threads

Fused = Callable[..., Graph]
Tiles = Mapping[str, int]
WARPS = 3
ROWS, TOKENS, DEPTH = 16, 8, 8  # of a block; of a warp's step


@dataclass
class Machine:
    """One block at work: `values` of all threads, `parts` of every warp, arrivals by epoch."""

    program: TileProgram
    inputs: Mapping[str, Array]
    at: Mapping[str, slice]  # this block's tile
    sizes: Mapping[str, int]
    values: dict[str, Array] = field(default_factory=dict)
    parts: dict[str, list[Array]] = field(default_factory=dict)
    written: dict[str, int] = field(default_factory=dict)
    epoch: int = 0

    def run(self) -> Array:
        program = self.program
        for s in program.fetches:
            self.share(s.out, self.cut(s.args[0], self.at))
        self.lined()
        warps = [self.looped(warp) for warp in range(WARPS)]
        for s in program.reductions:
            self.enter(s)
            self.written[f"{s.out} parts"] = self.epoch
            self.parts[s.out] = [sums[s.args[0]] for sums in warps]
        for stage in program.stages:
            self.perform(stage.statements)
        self.perform(program.products)
        self.perform(program.epilogue)
        return self.values["out"]

    def enter(self, s: Statement) -> None:
        self.epoch += s.barrier

    def share(self, name: str, value: Array) -> None:
        self.values[name], self.written[name] = value, self.epoch

    def shared(self, name: str) -> None:
        assert self.written[name] < self.epoch, f"{name} is read without a barrier"

    def cut(self, tensor: str, at: Mapping[str, slice]) -> Array:
        array = self.inputs[tensor]
        index = tuple(at.get(d, slice(None)) for d in array.dims)
        return Array(array.dims, (array.parts[0][index],))

    def lined(self) -> None:
        """Compute what lines do of all of the block's tokens, their depth whole."""
        for s in self.program.lines:
            if s.do is Do.LOAD:
                self.values[s.out] = self.cut(s.args[0], self.at)
            elif s.do is Do.SUM:
                self.values[s.out] = contracted(s, [self.values[a] for a in s.args])
            elif s.do is Do.MAP:
                self.values[s.out] = mapped(s, [self.operand(a) for a in s.args])
            else:
                self.values["out" if s.do is Do.STORE else s.out] = self.values[s.args[0]]

    def looped(self, warp: int) -> dict[str, Array]:
        """Return one warp's sums over its part of the depth."""
        depth = self.program.roles.depth
        sums: dict[str, Array] = {}
        for first in range(warp * DEPTH, self.sizes[depth], WARPS * DEPTH):
            step = dict(self.at) | {depth: slice(first, first + DEPTH)}
            found: dict[str, Array] = {}
            for s in self.program.loop:
                if s.do is Do.LOAD:
                    found[s.out] = self.cut(s.args[0], step)
                elif s.do is Do.READ:
                    found[s.out] = self.values[s.args[0]]
                elif s.do is Do.MAP:
                    found[s.out] = mapped(s, [found[a] for a in s.args])
                else:
                    made = contracted(s, [found[a] for a in s.args])
                    sums[s.out] = made if s.out not in sums else added(sums[s.out], made)
        tile = {d: len(range(*x.indices(self.sizes[d]))) for d, x in self.at.items()}
        extents = {**self.sizes, **tile}
        for s in self.program.accumulators:  # of a warp that has no step
            zeros = np.zeros([extents[d] for d in s.type.names])
            sums.setdefault(s.out, Array(s.type.names, (zeros,)))
        return sums

    def perform(self, statements: Sequence[Statement]) -> None:
        for s in statements:
            self.enter(s)
            if s.do is Do.KEEP:
                self.share(s.out, self.values[s.args[0]])
            elif s.do is Do.CONTRACT:
                for a in s.args:
                    self.shared(a)
                self.written[f"{s.out} parts"] = self.epoch
                self.parts[s.out] = [contracted(s, [self.values[a] for a in s.args])]
            elif s.do is Do.TOTAL:
                self.shared(f"{s.args[0]} parts")
                first, *rest = self.parts[s.args[0]]
                self.values[s.out] = first
                for part in rest:
                    self.values[s.out] = added(self.values[s.out], part)
            elif s.do is Do.STORE:
                self.values["out"] = self.values[s.args[0]]
            else:
                assert s.do is Do.MAP
                self.values[s.out] = mapped(s, [self.operand(a) for a in s.args])

    def operand(self, name: str) -> Array:
        literal = self.program.literals.get(name)
        if literal is not None:
            return Array((), (np.asarray(float(self.sizes.get(literal, 0) or literal)),))
        return self.values[name] if name in self.values else self.inputs[name]


def ordered(array: Array, dims: Sequence[str]) -> np.ndarray:
    """Return an array's numbers with these axes, of extent 1 where it has none."""
    mine = [d for d in dims if d in array.dims]
    turned = np.transpose(array.parts[0], [array.dims.index(d) for d in mine])
    return turned[tuple(slice(None) if d in array.dims else None for d in dims)]


def mapped(s: Statement, args: Sequence[Array]) -> Array:
    dims = s.type.names
    operands = [(ordered(a, dims),) for a in args]
    (made,) = ELEMENTWISE[s.op](*operands)
    return Array(dims, (made,))


def contracted(s: Statement, args: Sequence[Array]) -> Array:
    dims = sorted({d for a in args for d in a.dims})
    letters = dict(zip(dims, "abcdef", strict=False))
    words = ["".join(letters[d] for d in dims) for dims in (*(a.dims for a in args), s.type.names)]
    made = np.einsum(f"{','.join(words[:-1])}->{words[-1]}", *(a.parts[0] for a in args))
    return Array(s.type.names, (made,))


def added(a: Array, b: Array) -> Array:
    return Array(a.dims, (a.parts[0] + ordered(b, a.dims),))


def tiles_of(program: TileProgram, sizes: Mapping[str, int]) -> Iterator[dict[str, slice]]:
    roles = program.roles
    if not roles.rows:
        yield from ({roles.tokens: slice(m, m + 1)} for m in range(sizes[roles.tokens]))
        return
    for row in range(0, sizes[roles.rows], ROWS):
        for token in range(0, sizes[roles.tokens], TOKENS):
            rows = slice(row, min(row + ROWS, sizes[roles.rows]))
            tokens = slice(token, min(token + TOKENS, sizes[roles.tokens]))
            yield {roles.rows: rows, roles.tokens: tokens}


def run(program: TileProgram, inputs: Mapping[str, Array], sizes: Mapping[str, int]) -> np.ndarray:
    out = program.output.type.names
    made = np.full([sizes[d] for d in out], np.nan)
    for at in tiles_of(program, sizes):
        block = Machine(program, inputs, at, sizes).run()
        made[tuple(at.get(d, slice(None)) for d in out)] = ordered(block, out)
    return made


def drawn(graph: Graph, sizes: Mapping[str, int]) -> list[Array]:
    rng = np.random.default_rng(0)
    types = [n.out.type for n in graph.inputs]
    return [Array(t.names, (rng.uniform(0.5, 1.5, [sizes[d] for d in t.names]),)) for t in types]


@pytest.mark.parametrize("tokens", [1, 19])
@pytest.mark.parametrize(
    "name", ["fused", "adapted", "normed_adapted", "ntrans", "layer_norm_linear"]
)
def test_a_tile_program_computes_its_mugraph(
    request: pytest.FixtureRequest, name: str, tokens: int
) -> None:
    handmade = name in ("ntrans", "layer_norm_linear")
    graph = with_threads(mugraph(name) if handmade else request.getfixturevalue(name)())
    sizes = {"K": 72, "N": 40, "R": 8, "M": tokens}
    inputs = drawn(graph, sizes)
    exact = results(graph, inputs, array_reading(FLOAT64, sizes))[0]
    named = dict(zip((n.name for n in graph.inputs), inputs, strict=True))
    program = tile_program("mine", graph)
    made = run(program, named, sizes)
    wanted = ordered(exact, program.output.type.names)
    np.testing.assert_allclose(made, wanted, rtol=1e-9 if handmade else 1e-12)


@pytest.mark.parametrize("part", ["stages", "products", "epilogue"])
def test_a_missing_barrier_is_noticed(adapted: Fused, part: str) -> None:
    graph = adapted()
    program = tile_program("mine", graph)
    if part == "stages":
        (stage,) = program.stages
        first, *rest = stage.statements
        late = (replace(stage, statements=(replace(first, barrier=False), *rest)),)
        program = replace(program, stages=late)
    else:
        first, *rest = getattr(program, part)
        program = replace(program, **{part: (replace(first, barrier=False), *rest)})
    sizes = {"K": 72, "N": 40, "R": 8, "M": 3}
    named = dict(zip((n.name for n in graph.inputs), drawn(graph, sizes), strict=True))
    with pytest.raises(AssertionError, match="is read without a barrier"):
        run(program, named, sizes)
