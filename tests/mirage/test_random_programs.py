"""Random block graphs: whatever is accepted computes what Mirage's definitions say, by position."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence

import numpy as np

import mirage_kernels.generator as mi
from mirage_kernels.generator.errors import MirageError
from mirage_kernels.generator.frontend.mirage.builder import BlockGraph, KernelGraph
from mirage_kernels.generator.frontend.positional.program import Tensor

SEEDS, ATTEMPTS = 90, 60  # most attempts are refused: their maps do not fit
UNARY = ("exp", "silu", "square", "rms_norm", "sqrt")
BINARY = ("add", "mul", "div", "matmul")
KINDS = (None, None, "sum", "rms", "mean", "sum_todimx")


def chosen(rng: np.random.Generator, items: Sequence) -> object:
    return items[int(rng.integers(len(items)))]


def random_block(
    graph: KernelGraph, tensors: list[Tensor], rng: np.random.Generator
) -> list[Tensor]:
    """Add a random block graph on some tensors; raises where its pieces do not fit."""
    grid = tuple(int(n) for n in rng.choice([1, 1, 2, 2, 3], 3))
    steps = int(rng.choice([1, 2, 4]))
    block = mi.new_threadblock_graph(grid, (128, 1, 1), steps, int(rng.choice([2, 4])))
    used, tiles = [], []
    for tensor in tensors:
        dims = list(rng.permutation([-1, -1, *range(tensor.num_dims)])[:3])
        maps = tuple(int(d) for d in dims)
        cut = int(rng.integers(-1, tensor.num_dims)) if steps > 1 else -1
        tiles.append(block.new_input(tensor, maps, cut))
        used.append(tensor)
    random_steps(block, tiles, rng)
    done = [block.forloop_accum(tiles[-1], chosen(rng, KINDS))]
    done.append(block.forloop_accum(tiles[-2], chosen(rng, KINDS)))
    last = random_steps(block, done, rng, times=1)[-1]
    for stored in {last.guid: last, done[0].guid: done[0]}.values():
        places = list(rng.permutation([-1, *range(stored.num_dims), -1])[:3])
        block.new_output(stored, tuple(int(d) for d in places))
    return graph.customized(used, block)


def random_steps(
    block: BlockGraph, tiles: list[Tensor], rng: np.random.Generator, times: int = 3
) -> list[Tensor]:
    for _ in range(times):
        op = str(chosen(rng, (*UNARY, *BINARY)))
        args = [chosen(rng, tiles[-3:]) for _ in range(1 if op in UNARY else 2)]
        try:
            tiles.append(getattr(block, op)(*args))
        except MirageError:
            tiles.append(block.square(args[0]))
    return tiles


def random_program(seed: int, attempt: int) -> KernelGraph:
    rng = np.random.default_rng((seed, attempt))
    graph = mi.new_kernel_graph()
    m, k, n = (int(x) for x in rng.choice([4, 6, 12, 24], 3))
    shapes = [[(m, k), (k, n)], [(m, k), (m, k)], [(2, m, k), (2, k, n)]][seed % 3]
    tensors = [graph.new_input(dims=d) for d in shapes]
    made = random_block(graph, tensors, rng)
    if seed % 2:
        made = random_block(graph, made[:2], rng)
    for tensor in made:
        graph.mark_output(tensor)
    return graph


def accepted(seed: int) -> KernelGraph | None:
    """Return the first random program of a seed that is accepted."""
    for attempt in range(ATTEMPTS):
        with contextlib.suppress(MirageError):
            graph = random_program(seed, attempt)
            graph.lowered()
            return graph
    return None


def test_accepted_programs_compute_what_they_compute_by_position(assert_agrees: Callable) -> None:
    graphs = {seed: accepted(seed) for seed in range(SEEDS)}
    found = {seed: graph for seed, graph in graphs.items() if graph is not None}
    assert len(found) >= SEEDS // 2
    for seed, graph in found.items():
        assert_agrees(graph.program, seed)
