"""The search finds the fused muGraph and its alternatives, by structure and not by name."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from mirage_kernels.generator.errors import VerifyError
from mirage_kernels.generator.ir import (
    OPS,
    Builder,
    Dim,
    DType,
    Graph,
    Kind,
    Level,
    Node,
    Phase,
    TensorType,
    phases_of,
)
from mirage_kernels.generator.language import Tensor, sqrt, sum
from mirage_kernels.generator.recipe import Recipe, Shape, output_type, trace
from mirage_kernels.generator.search.kernels import Counts, Limits, search
from mirage_kernels.generator.search.lower import Goal, lower
from mirage_kernels.generator.search.verify import prove, small_cases, small_tiles

SHAPE = Shape("a test", {"K": 72, "N": 40})
ONE_KERNEL = Limits(kernels=1, block_ops=9)
TWO_KERNELS = Limits(kernels=2, block_ops=7, first_ops=6)


def quiet(done: int, tasks: int, counts: Counts) -> None:
    pass


def proved(recipe: Recipe, limits: Limits, jobs: int) -> list[Graph]:
    spec = trace(recipe, SHAPE, DType.FP16)
    goal = Goal(spec, output_type(recipe, SHAPE, DType.FP16), DType.FP16, small_tiles(spec))
    graphs = [lower(p, goal) for p in search(spec, limits, jobs=jobs, progress=quiet)[0]]
    return [g for g in graphs if _proves(spec, g)]


def _proves(spec: Graph, graph: Graph) -> bool:
    try:
        prove(spec, graph, small_cases(spec), seed=1)
    except VerifyError:
        return False
    return True


@pytest.fixture(scope="module")
def one_kernel(rms_norm_linear: Recipe) -> list[Graph]:
    return proved(rms_norm_linear, ONE_KERNEL, jobs=1)


@pytest.fixture(scope="module")
def two_kernels(rms_norm_linear: Recipe) -> list[Graph]:
    return proved(rms_norm_linear, TWO_KERNELS, jobs=2)


def body_of(graph: Graph) -> Graph:
    (block,) = graph.blocks
    assert block.body is not None
    return block.body


def made_of(body: Graph, name: str, inputs: Sequence[str]) -> bool:
    """Return whether a value is computed from exactly these tensors."""
    todo, seen = [name], set()
    while todo:
        node = body.producers[todo.pop()]
        seen |= {node.name.removesuffix("_tile")} if node.op == "input" else set()
        todo += node.args
    return seen == set(inputs)


def products(body: Graph, scaled: str) -> list[Node]:
    """Return the loop's contractions of x and weight, one of them times the norm weight."""
    other = "x" if scaled == "weight" else "weight"
    return [
        node
        for node in body.of("contract")
        if phases_of(body)[node.name] is Phase.LOOP
        and any(made_of(body, a, [other]) for a in node.args)
        and any(made_of(body, a, ["norm_weight", scaled]) for a in node.args)
    ]


def divides_after_the_matmul(body: Graph, scaled: str) -> bool:
    """Return whether sum(x * weight * norm_weight) is carried by the loop and divided after it."""
    totals = {
        a.name for p in products(body, scaled) for a in body.of("accum") if a.args == (p.name,)
    }
    return any(
        node.args[0] in totals and made_of(body, node.args[1], ["x", "eps"])
        for node in body.of("div")
    )


def carries_squares(body: Graph) -> bool:
    """Return whether the same loop also carries the sum of x squared and nothing else."""
    phases = phases_of(body)
    carried = [n.args[0] for n in body.of("accum")]
    squares = [c for c in carried if made_of(body, c, ["x"])]
    return len(carried) == 2 and len(squares) == 1 and phases[squares[0]] is Phase.LOOP


def fused(graphs: Sequence[Graph], scaled: str) -> list[Graph]:
    return [
        g
        for g in graphs
        if len(g.blocks) == 1
        and not g.of("contract")
        and divides_after_the_matmul(body_of(g), scaled)
        and carries_squares(body_of(g))
    ]


@pytest.mark.parametrize("scaled", ["weight", "x"])
def test_one_kernel_divides_after_the_matmul_and_squares_in_its_loop(
    one_kernel: list[Graph], scaled: str
) -> None:
    assert fused(one_kernel, scaled)


def test_the_fused_kernel_streams_along_the_contracted_dim(one_kernel: list[Graph]) -> None:
    for graph in fused(one_kernel, "weight"):
        space = body_of(graph).space
        assert space is not None
        assert space.loop is not None
        assert (space.loop.dim, {a.dim for a in space.grid}) == ("K", {"M", "N"})


def test_the_fused_kernel_takes_its_root_after_the_loop(one_kernel: list[Graph]) -> None:
    for graph in fused(one_kernel, "weight"):
        body = body_of(graph)
        assert {phases_of(body)[n.name] for n in body.of("sqrt")} == {Phase.AFTER}


def test_a_kernel_without_a_loop_is_found_too(one_kernel: list[Graph]) -> None:
    spaces = [body_of(g).space for g in one_kernel]
    assert any(space is not None and space.loop is None for space in spaces)


def test_two_custom_kernels_are_found(two_kernels: list[Graph]) -> None:
    assert any(len(g.blocks) == 2 for g in two_kernels)


def test_a_norm_before_the_library_product_is_found(two_kernels: list[Graph]) -> None:
    forms = [g for g in two_kernels if len(g.blocks) == 1 and len(g.of("contract")) == 1]
    assert any(g.of("contract")[0].name == "out" for g in forms)


def test_no_kernel_beyond_the_limit_is_found(two_kernels: list[Graph]) -> None:
    assert max(len(g.of("block", "contract")) for g in two_kernels) == 2


def test_every_found_kernel_stays_within_the_limit_of_ops(one_kernel: list[Graph]) -> None:
    kinds = (Kind.ELEMENTWISE, Kind.REDUCE, Kind.CONTRACT, Kind.CARRY)
    for graph in one_kernel:
        assert len([n for n in body_of(graph).nodes if OPS[n.op].kind in kinds]) <= 9


def test_a_chain_of_kernels_ends_in_the_recipes_result(two_kernels: list[Graph]) -> None:
    for graph in two_kernels:
        assert graph.values[graph.outputs[0]].type.names == ("M", "N")


def normed() -> Graph:
    """x / sqrt(sum(x^2)) * w: small, with many programs of two kernels."""
    builder = Builder(Level.KERNEL)
    m, k = Dim("M", 64, dynamic=True), Dim("K", 32)
    x = Tensor(builder, builder.input("x", TensorType((m, k), DType.FP16)))
    w = Tensor(builder, builder.input("w", TensorType((k,), DType.FP16)))
    return builder.graph([(x / sqrt(sum(x * x, "K")) * w).name])


def test_two_processes_find_what_one_finds_in_the_same_order() -> None:
    limits = Limits(kernels=2, block_ops=6, first_ops=5)
    alone, together = (search(normed(), limits, jobs=j, progress=quiet) for j in (1, 2))
    assert alone == together
    assert len({len(p.kernels) for p in alone[0]}) == 2


def test_progress_reaches_the_number_of_tasks(rms_norm_linear: Recipe) -> None:
    spec = trace(rms_norm_linear, SHAPE, DType.FP16)
    seen: list[tuple[int, int]] = []
    limits = Limits(kernels=1, block_ops=3)
    search(spec, limits, jobs=1, progress=lambda done, tasks, counts: seen.append((done, tasks)))
    assert seen == [(i, len(seen)) for i in range(1, len(seen) + 1)]
