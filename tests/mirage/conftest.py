"""Programs in Mirage's interface, and an independent reading of them: arrays by position."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Sequence
from math import prod
from pathlib import Path

import numpy as np
import pytest

import mirage_kernels.generator as mi
from mirage_kernels.generator.cli import main
from mirage_kernels.generator.frontend.mirage.builder import KernelGraph
from mirage_kernels.generator.frontend.positional.lower import Lowered, lower, sizes_of
from mirage_kernels.generator.frontend.positional.program import Frame, Program, Step
from mirage_kernels.generator.meaning.arrays import Array as Values
from mirage_kernels.generator.meaning.arrays import array_reading
from mirage_kernels.generator.meaning.reals import FLOAT64
from mirage_kernels.generator.meaning.walk import results

Array = np.ndarray
Build = Callable[..., KernelGraph]


def rms_norm_linear(rows=4, depth=32, columns=24, grid=3, steps=4) -> KernelGraph:
    """RMSNorm and linear in one hand-written kernel."""
    graph = mi.new_kernel_graph()
    x = graph.new_input(dims=(rows, depth))
    w = graph.new_input(dims=(depth, columns))
    block = mi.new_threadblock_graph(
        grid_dim=(grid, 1, 1), block_dim=(128, 1, 1), forloop_range=steps, reduction_dimx=8
    )
    bx = block.new_input(dtensor=x, input_map=(-1, -1, -1), forloop_dim=1)
    bw = block.new_input(dtensor=w, input_map=(1, -1, -1), forloop_dim=0)
    norm = block.forloop_accum(bx, "rms")
    product = block.forloop_accum(block.matmul(bx, bw))
    block.new_output(stensor=block.div(product, norm), output_map=(1, -1, -1))
    graph.mark_output(graph.customized([x, w], block)[0])
    return graph


def split_attention(heads=2, rows=12, width=4, keys=24, splits=3, steps=2) -> KernelGraph:
    """Attention in two hand-written kernels: partial sums side by side, then their quotient."""
    graph = mi.new_kernel_graph()
    q = graph.new_input(dims=(heads, rows, width))
    k = graph.new_input(dims=(heads, width, keys))
    v = graph.new_input(dims=(heads, keys, width))
    first = mi.new_threadblock_graph((heads, splits, 3), (128, 1, 1), steps, width)
    bq = first.new_input(q, (0, -1, 1), -1)
    bk = first.new_input(k, (0, 2, -1), 2)
    bv = first.new_input(v, (0, 1, -1), 1)
    weights = first.exp(first.matmul(bq, bk))
    first.new_output(first.forloop_accum(first.matmul(weights, bv)), (0, 2, 1))
    first.new_output(first.forloop_accum(weights, "sum"), (0, 2, 1))
    sums, totals = graph.customized([q, k, v], first)
    last = mi.new_threadblock_graph((heads, 4, 1), (128, 1, 1), 1, width)
    bs = last.new_input(sums, (0, 1, -1), -1)
    bt = last.new_input(totals, (0, 1, -1), -1)
    quotient = last.div(last.forloop_accum(bs, "sum_todimx"), last.forloop_accum(bt, "sum"))
    last.new_output(quotient, (0, 1, -1))
    graph.mark_output(graph.customized([sums, totals], last)[0])
    return graph


def gated_mlp(rows=4, depth=16, columns=12, grid=2, steps=4) -> KernelGraph:
    """The gated MLP in one hand-written kernel that loads x once."""
    graph = mi.new_kernel_graph()
    x = graph.new_input(dims=(rows, depth))
    w1 = graph.new_input(dims=(depth, columns))
    w2 = graph.new_input(dims=(depth, columns))
    block = mi.new_threadblock_graph((grid, 1, 1), (128, 1, 1), steps, 8)
    bx = block.new_input(x, (-1, -1, -1), 1)
    b1 = block.new_input(w1, (1, -1, -1), 0)
    b2 = block.new_input(w2, (1, -1, -1), 0)
    gate = block.silu(block.forloop_accum(block.matmul(bx, b1)))
    up = block.forloop_accum(block.matmul(bx, b2))
    block.new_output(block.mul(gate, up), (1, -1, -1))
    graph.mark_output(graph.customized([x, w1, w2], block)[0])
    return graph


def lora(rows=4, depth=16, columns=12, rank=2, grid=3) -> KernelGraph:
    """LoRA in one hand-written kernel: one product of two concats."""
    graph = mi.new_kernel_graph()
    x = graph.new_input(dims=(rows, depth))
    w = graph.new_input(dims=(depth, columns))
    a = graph.new_input(dims=(depth, rank))
    b = graph.new_input(dims=(rank, columns))
    block = mi.new_threadblock_graph((grid, 1, 1), (128, 1, 1), 1, 8)
    bx, bw = block.new_input(x, (-1, -1, -1), -1), block.new_input(w, (1, -1, -1), -1)
    ba, bb = block.new_input(a, (-1, -1, -1), -1), block.new_input(b, (1, -1, -1), -1)
    left = block.concat(bx, block.matmul(bx, ba), 1)
    total = block.forloop_accum(block.matmul(left, block.concat(bw, bb, 0)))
    block.new_output(total, (1, -1, -1))
    graph.mark_output(graph.customized([x, w, a, b], block)[0])
    return graph


def two_kernels(first, second, rows=4, depth=48, columns=6) -> KernelGraph:
    """One kernel cuts a dim into `first` tiles, the next one loops over it `second` times."""
    graph = mi.new_kernel_graph()
    x, w = graph.new_input(dims=(rows, depth)), graph.new_input(dims=(depth, columns))
    block = mi.new_threadblock_graph((first, 1, 1), (128, 1, 1), 1, 4)
    block.new_output(block.exp(block.new_input(x, (1, -1, -1), -1)), (1, -1, -1))
    (y,) = graph.customized([x], block)
    block = mi.new_threadblock_graph((3, 1, 1), (128, 1, 1), second, 4)
    by, bw = block.new_input(y, (-1, -1, -1), 1), block.new_input(w, (1, -1, -1), 0)
    block.new_output(block.forloop_accum(block.matmul(by, bw)), (1, -1, -1))
    graph.mark_output(graph.customized([y, w], block)[0])
    return graph


PROGRAMS: dict[str, Build] = {
    "rms_norm": rms_norm_linear,
    "gqa": split_attention,
    "gated_mlp": gated_mlp,
    "lora": lora,
}


@pytest.fixture(params=PROGRAMS, scope="session")
def named_program(request: pytest.FixtureRequest) -> tuple[str, KernelGraph]:
    """A hand-written kernel graph and the name of the recipe that it computes."""
    return request.param, PROGRAMS[request.param]()


@pytest.fixture(scope="session")
def programs() -> dict[str, Build]:
    return {**PROGRAMS, "two_kernels": two_kernels}


# The oracle: Mirage's definitions by position, nothing of the code under test.


def to_columns(x: Array, axis: int, size: int) -> Array:
    """Sum elements that are `size` apart along an axis."""
    shape = (*x.shape[:axis], x.shape[axis] // size, size, *x.shape[axis + 1 :])
    return x.reshape(shape).sum(axis=axis)


def rms_norm(x: Array, first: int) -> Array:
    axes = tuple(range(first, x.ndim))
    return x / np.sqrt(np.mean(x**2, axis=axes, keepdims=True))


PLAIN: dict[str, Callable[..., Array]] = {  # operators that no loop matters to
    "exp": lambda step, x: np.exp(x),
    "silu": lambda step, x: x / (1 + np.exp(-x)),
    "square": lambda step, x: np.square(x),
    "sqrt": lambda step, x: np.sqrt(np.abs(x)) if (x < 0).any() else np.sqrt(x),
    "relu": lambda step, x: np.maximum(x, 0),
    "tanh": lambda step, x: np.tanh(x),
    "sigmoid": lambda step, x: 1 / (1 + np.exp(-x)),
    "add": lambda step, a, b: a + b,
    "sub": lambda step, a, b: a - b,
    "mul": lambda step, a, b: a * b,
    "div": lambda step, a, b: a / b,
    "matmul": lambda step, a, b: a @ b,
    "reduction": lambda step, x: to_columns(x, step.dim, step.size),
    "rms_norm": lambda step, x: rms_norm(x, step.dim),
    "mul_scalar": lambda step, x: x * step.numbers[0],
    "clamp": lambda step, x: np.clip(x, *step.numbers),
    "concat": lambda step, *tiles: np.concatenate(tiles, axis=step.dim),
}


def accumulated(step: Step, tiles: Sequence[Array], frame: Frame) -> Array:
    """Evaluate an accumulation from its operand's values in all iterations."""
    total = np.sum(tiles, axis=0)
    last = total.ndim - 1
    count = len(tiles) * total.shape[last]
    if step.kind == "rms":
        squares = np.sum(np.square(tiles), axis=0)
        return np.sqrt(to_columns(squares, last, 1) / count)
    if step.kind == "sum_todimx":
        return to_columns(total, last, frame.dimx)
    return to_columns(total, last, 1) / {"mean": count}.get(step.kind, 1) if step.kind else total


def cut(x: Array, axis: int, parts: int, index: int) -> Array:
    return np.split(x, parts, axis=axis)[index]


def run_block(block: Program, inputs: Sequence[Array], point: Sequence[int]) -> list[Array]:
    """Return what one block stores."""
    frame = block.frame
    assert frame is not None
    values: dict[int, list[Array]] = {}  # per iteration; one entry after accumulation
    given = iter(inputs)
    stored = []
    for step in block.steps:
        if step.op == "input":
            tile = next(given)
            for axis, index, count in zip(step.maps, point, frame.grid, strict=True):
                tile = cut(tile, axis, count, index) if axis >= 0 and count > 1 else tile
            steps = range(frame.loop_range)
            looped = [tile if step.dim < 0 else cut(tile, step.dim, len(steps), i) for i in steps]
            values[step.outs[0].guid] = looped
        elif step.op == "output":
            (tile,) = values[step.args[0]]
            stored.append(tile)
        elif step.op == "accum":
            tiles = values[step.args[0]]
            values[step.outs[0].guid] = [accumulated(step, tiles, frame)]
        else:
            operands = zip(*(values[a] for a in step.args), strict=True)
            values[step.outs[0].guid] = [PLAIN[step.op](step, *args) for args in operands]
    return stored


def run_customized(step: Step, inputs: Sequence[Array]) -> list[Array]:
    """Return the tensors that all blocks store together."""
    block = step.block
    assert block is not None
    assert block.frame is not None
    outs = [np.full(t.dims, np.nan) for t in step.outs]
    for point in itertools.product(*map(range, block.frame.grid)):
        tiles = run_block(block, inputs, point)
        for out, tile, output in zip(outs, tiles, block.of("output"), strict=True):
            place = [slice(None)] * out.ndim
            for axis, index, count in zip(output.maps, point, block.frame.grid, strict=True):
                if axis >= 0 and count > 1:
                    n = tile.shape[axis]
                    place[axis] = slice(index * n, (index + 1) * n)
            out[tuple(place)] = tile
    return outs


def run_program(program: Program, inputs: Sequence[Array]) -> list[Array]:
    """Return a program's results in float64."""
    values = {t.guid: x for t, x in zip(program.inputs, inputs, strict=True)}
    for step in program.steps:
        args = [values[a] for a in step.args]
        if step.op == "customized":
            made = run_customized(step, args)
        elif step.op != "input":
            made = [PLAIN[step.op](step, *args)]
        else:
            continue
        values.update(zip((t.guid for t in step.outs), made, strict=True))
    return [values[t.guid] for t in program.outputs]


@pytest.fixture(scope="session")
def oracle() -> Callable[[Program, Sequence[Array]], list[Array]]:
    return run_program


def run_lowered(lowered: Lowered, inputs: Sequence[Array]) -> list[Array]:
    """Return the results of a program's graph in float64, dims put together again."""
    arrays, sizes = [], sizes_of(lowered.graph)
    for x, layout in zip(inputs, lowered.inputs, strict=True):
        names = tuple(name for row in layout for name in row)
        arrays.append(Values(names, (x.reshape([sizes[n] for n in names]),)))
    made = results(lowered.graph, arrays, array_reading(FLOAT64, sizes))
    found = []
    for x, layout in zip(made, lowered.outputs, strict=True):
        shape = [prod(sizes[name] for name in row) for row in layout]
        parts = x.over([name for row in layout for name in row]).parts
        found.append(np.asarray(parts[0], float).reshape(shape))
    return found


@pytest.fixture(scope="session")
def assert_agrees() -> Callable[[Program, int], None]:
    """Compare a program's graph with its definition by position, on random inputs."""

    def compare(program: Program, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        inputs = [rng.uniform(0.5, 1.5, t.dims) for t in program.inputs]
        with np.errstate(all="ignore"):
            wanted = run_program(program, inputs)
        for a, b in zip(wanted, run_lowered(lower(program), inputs), strict=True):
            np.testing.assert_allclose(b, a, rtol=1e-9, err_msg=f"seed {seed}")

    return compare


@pytest.fixture(scope="session")
def checkpoints() -> Path:
    """The folder of published checkpoints that MIRAGE_CHECKPOINTS names."""
    folder = os.environ.get("MIRAGE_CHECKPOINTS", "")
    if not folder or not Path(folder).is_dir():
        pytest.skip("MIRAGE_CHECKPOINTS names no folder with checkpoints")
    return Path(folder)


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Run the command line; return exit code, stdout and stderr."""

    def run(*words: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = main(words)
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return run
