"""Small programs over named dims, and what the search finds for them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt

from mirage_kernels.generator.frontend.symbolic import spec_of as written
from mirage_kernels.generator.ir import OPS, Builder, Dim, DType, Graph, Level, TensorType
from mirage_kernels.generator.language import Tensor
from mirage_kernels.generator.meaning.arrays import Array
from mirage_kernels.generator.recipe import load_recipe, trace
from mirage_kernels.generator.search.kernels import Search
from mirage_kernels.generator.search.lower import lower
from mirage_kernels.generator.search.problem import Problem
from mirage_kernels.generator.search.sketch import (
    BlockSketch,
    Found,
    Leaf,
    Limits,
    ProgramSketch,
    View,
)
from mirage_kernels.generator.search.stabilise import stabilise
from mirage_kernels.generator.search.superoptimizer import (
    goal_of,
    reason_against,
    shape_class,
    superoptimize,
)
from mirage_kernels.generator.search.verify import Prover
from mirage_kernels.generator.target import target

ON = target("sm_90a")
ONE_KERNEL = Limits(kernels=1)
# Long dims may be cut by loops and splits, the short one (J) is always whole.
DIMS = {
    "M": Dim("M", 64, dynamic=True),
    "N": Dim("N", 4096),
    "K": Dim("K", 4096),
    "L": Dim("L", 8192, dynamic=True),
    "J": Dim("J", 64),
    "T": Dim("T", 64),
    "W": Dim("W", 2**18),  # no block holds a row along it
}


@dataclass(frozen=True)
class Small:
    """A program: the dims of its inputs, one letter each (":int" holds positions), and itself."""

    inputs: Mapping[str, str]
    program: Callable[..., Tensor]

    def spec(self) -> Graph:
        """Return its spec graph."""
        builder = Builder(Level.KERNEL)
        made = []
        for name, text in self.inputs.items():
            dims, _, kind = text.partition(":")
            dtype = DType.INT32 if kind else DType.FP16 if dims else DType.FP32
            type_ = TensorType(tuple(DIMS[d] for d in dims), dtype)
            made.append(Tensor(builder, builder.input(name, type_)))
        return written(self.program(*made))


def spec_of(recipe: str) -> Graph:
    """Return a recipe's spec at its shape class."""
    source = load_recipe(recipe)
    return shape_class(trace(source, source.shapes[0], DType.FP16))


@cache
def found(recipe: str, limits: Limits = ONE_KERNEL, jobs: int = 1) -> Found:
    """Return what the search of a recipe finds; all tests share it."""
    return superoptimize(spec_of(recipe), limits, "sm_90a", jobs=jobs)


def search_of(spec: Graph, limits: Limits) -> Search:
    """Return the search of a spec."""
    return Search(Problem(spec, limits, ON))


def programs_of(spec: Graph, limits: Limits) -> list[ProgramSketch]:
    """Return every program that the search finds, none proved yet."""
    search = search_of(spec, limits)
    return [p for task in search.tasks() for p in search.run(task).programs]


def proved_programs(spec: Graph, limits: Limits) -> list[ProgramSketch]:
    """Return the programs that the search finds and that prove equal to the spec."""
    prover = Prover(spec)
    return [p for p in programs_of(spec, limits) if not reason_against(p, prover)]


def expression(block: BlockSketch) -> str:
    """Return the result of a block graph as one nested expression, however it is numbered.

    Operands of commutative ops are sorted; equal expressions are computed once, so two block graphs
    of one setting are the same program exactly if their expressions are.
    """
    words = [_leaf_text(leaf) for leaf in block.leaves]
    for step in block.steps:
        args = [words[a] for a in step.args]
        if OPS[step.op].commutative:
            args.sort()
        over = f" over {step.over}" if step.over else ""
        words.append(f"{step.op}({', '.join(args)}{over})")
    where = f"grid {' '.join(block.setting.grid)} loop {block.setting.loop}"
    split = f" split {block.setting.split}" if block.setting.split else ""
    return f"{where}{split}: {', '.join(words[value] for value, _ in block.results)}"


def _leaf_text(leaf: Leaf) -> str:
    if isinstance(leaf, str):
        return leaf
    return f"{leaf.tensor}[{','.join(c or '-' for c in leaf.cuts)}|{leaf.loop_cut or '-'}]"


def block_of(program: ProgramSketch) -> BlockSketch:
    """Return the only kernel of a program."""
    (kernel,) = program.kernels
    assert isinstance(kernel, BlockSketch)
    return kernel


def views_of(block: BlockSketch) -> list[View]:
    """Return the inputs of a block graph."""
    return [leaf for leaf in block.leaves if isinstance(leaf, View)]


@cache
def graphs(recipe: str, limits: Limits = ONE_KERNEL) -> list[Graph]:
    """Return the proved muGraphs of a recipe's shape class, made safe, the cheapest first."""
    goal = goal_of(spec_of(recipe), DType.FP16)
    programs = found(recipe, limits).programs
    return [stabilise(lower(p, goal), DType.FP16) for p in programs]


def drawn(spec: Graph, sizes: Mapping[str, int], **given: npt.ArrayLike) -> list[Array]:
    """Return normal numbers for the inputs of a spec and lengths up to L, or what is given."""
    rng, made = np.random.default_rng(0), []
    for node in spec.inputs:
        names, real = node.out.type.names, node.out.type.dtype is not DType.INT32
        shape = [sizes[d] for d in names]
        data = rng.standard_normal(shape) if real else rng.integers(1, sizes["L"] + 1, shape)
        made.append(Array(names, (np.asarray(given.get(node.name, data)),), real))
    return made
