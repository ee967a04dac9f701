"""Rows that the blocks of a cluster hold together: found, proved, run; what is wrong is refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache

import pytest
from differs import differs, refused
from mutation import places
from small import Small

from mirage_kernels.generator.errors import GraphError, MirageError, VerifyError
from mirage_kernels.generator.ir import DType, Graph, Node, Phase, check, held_dims, retile
from mirage_kernels.generator.language import Tensor, exp, layer_norm, log, rms_norm, sum
from mirage_kernels.generator.schedules.general import best_knobs, reasons
from mirage_kernels.generator.schedules.general.reduction_kernels import with_reduction_kernels
from mirage_kernels.generator.search.cases import small_cases
from mirage_kernels.generator.search.lower import lower
from mirage_kernels.generator.search.sketch import DimRoles, Limits, Setting, TensorInfo, settings
from mirage_kernels.generator.search.stabilise import stabilise
from mirage_kernels.generator.search.superoptimizer import goal_of, superoptimize
from mirage_kernels.generator.search.verify import Prover
from mirage_kernels.generator.target import target
from mirage_kernels.generator.tiles.check import compare, require_same, shortened
from mirage_kernels.generator.tiles.cuda import KernelWriter
from mirage_kernels.generator.tiles.lower import block_programs
from mirage_kernels.generator.tiles.memory import TileError
from mirage_kernels.generator.tiles.program import BlockProgram
from mirage_kernels.generator.tiles.statements import Arrive, Barrier, Combine, Fill, Statement

ON = target("sm_90a")
TILES = {"M": 2, "W_parts": 64, "K_parts": 64}


def normed(x: Tensor, w: Tensor, eps: Tensor) -> Tensor:
    return layer_norm(x, eps, over="W") * w


def softened(x: Tensor) -> Tensor:
    powers = exp(x)
    return powers / sum(powers, "W")


def of_groups(x: Tensor) -> Tensor:
    return x / sum(sum(x * x, "K"), "J")


SMALLS = {
    "layer norm": Small({"x": "MW", "w": "W", "eps": ""}, normed),
    "rms norm": Small(
        {"x": "MW", "w": "W", "eps": ""}, lambda x, w, eps: rms_norm(x, w, eps, over="W")
    ),
    "softmax": Small({"x": "MW"}, softened),
    "log softmax": Small({"x": "MW"}, lambda x: x - log(sum(exp(x), "W"))),
    "groups of short dims": Small({"x": "MJK"}, of_groups),
}


@cache
def found(name: str) -> Graph:
    """The cheapest muGraph whose blocks hold rows, with small tiles."""
    spec = SMALLS[name].spec()
    programs = superoptimize(spec, Limits(), "sm_90a").programs
    graphs = (stabilise(lower(p, goal_of(spec, DType.FP16)), DType.FP16) for p in programs)
    return retile(next(g for g in graphs if len(g.blocks) == 1 and held(g)), TILES)


def held(graph: Graph) -> frozenset[str]:
    return frozenset[str]().union(*(held_dims(n.body) for n in graph.blocks if n.body is not None))


def program(name: str) -> tuple[Graph, BlockProgram, dict[str, int]]:
    short, sizes = shortened(found(name))
    (made,) = block_programs(short, 64, 2)
    return short, made, sizes


@pytest.mark.parametrize("name", SMALLS)
def test_what_blocks_hold_no_kernel_of_its_own_joins(name: str) -> None:
    assert with_reduction_kernels(found(name), DType.FP16) is None


@pytest.mark.parametrize("name", SMALLS)
def test_one_kernel_that_reads_rows_once_is_found_and_proves(name: str) -> None:
    spec, graph = SMALLS[name].spec(), found(name)
    Prover(spec).prove(graph, small_cases(spec), seed=1)
    (kernel,) = graph.blocks
    assert kernel.args.count("x") == 1


@pytest.mark.parametrize("name", SMALLS)
def test_its_tile_program_is_right(name: str) -> None:
    graph, made, sizes = program(name)
    compare(graph, [made], sizes)


def test_a_row_that_a_block_holds_is_not_shared() -> None:
    x, long = TensorInfo("x", ("M", "K"), 0), frozenset({"M", "K"})
    roles = DimRoles(("K",), ("M", "K"), long)
    assert not any(s.holding for s in settings((x,), roles))
    shared = replace(roles, shared=frozenset({"K"}))
    assert list(settings((x,), shared))[-1] == Setting(("M", "K"), None, "K", holding=True)


# -- what is wrong ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["layer norm", "softmax"])
def test_every_wrong_mutant_is_refused(name: str) -> None:
    """Dropped combines, combines of other values, parts stored at other places among them."""
    spec, graph = SMALLS[name].spec(), found(name)
    assert refused(spec, graph) > 50


def changed(graph: Graph, change: Callable[[Node], Node]) -> Graph:
    """A muGraph whose block graph has other nodes."""
    place = next(p for p in places(graph) if p.graph.space is not None)
    return place.root(replace(place.graph, nodes=tuple(map(change, place.graph.nodes))))


def without_combine(node: Node) -> Node:
    """A block's own sum in place of the cluster's."""
    return replace(node, op="neg", over="") if node.op == "combine" else node


def at_first_part(node: Node) -> Node:
    """Every block's part at the first one's place."""
    return replace(node, cuts=(*node.cuts[:-1], None)) if node.op == "output" else node


def of_rows(node: Node) -> Node:
    """A part at the place of a row's number."""
    return replace(node, cuts=node.cuts[::-1]) if node.op == "output" else node


@pytest.mark.parametrize("change", [without_combine, at_first_part, of_rows])
def test_a_dropped_combine_and_a_part_at_a_wrong_place_are_refused(
    change: Callable[[Node], Node],
) -> None:
    spec, graph = SMALLS["layer norm"].spec(), found("layer norm")
    assert differs(spec, changed(graph, change))
    with pytest.raises((GraphError, VerifyError)):
        Prover(spec).prove(check(changed(graph, change)), small_cases(spec), seed=1)


def test_a_block_s_own_sum_does_not_meet_what_all_blocks_have_summed() -> None:
    """The sum before the combine, with the combine: they have the same dims."""
    graph = found("layer norm")
    body = graph.blocks[0].body
    assert body is not None
    combine = body.of("combine")[0]
    own = Node("sub", (combine.name, combine.args[0]), (replace(combine.out, name="mixed"),))
    place = next(p for p in places(graph) if p.graph.space is not None)
    at = body.nodes.index(combine) + 1
    nodes = (*body.nodes[:at], own, *body.nodes[at:])
    with pytest.raises(GraphError, match="mixes one block's sums with combined ones"):
        check(place.root(replace(body, nodes=nodes)))


# -- the cluster's barriers ------------------------------------------------------------------------


def with_joined(made: BlockProgram, said: list[Statement]) -> BlockProgram:
    return replace(made, statements={**made.statements, Phase.JOINED: tuple(said)})


def without_each(made: BlockProgram, kind: Callable[[Statement], bool]) -> Iterator[BlockProgram]:
    """Every program that lacks one statement of a kind behind the first combine's barrier."""
    said = made.statements[Phase.JOINED]
    for i, s in enumerate(said):
        if kind(s):
            yield with_joined(made, [*said[:i], *said[i + 1 :]])


def test_every_barrier_of_blocks_and_of_the_cluster_is_needed() -> None:
    graph, made, sizes = program("layer norm")
    barriers = [*without_each(made, lambda s: isinstance(s, Barrier))]
    said = [s for s in made.statements[Phase.JOINED] if isinstance(s, Barrier)]
    assert [s.cluster for s in said].count(True) == 3
    assert len(barriers) == len(said) > 4
    for mutant in barriers:
        with pytest.raises(TileError):
            compare(graph, [mutant], sizes)


def test_a_block_that_says_it_has_read_may_not_read_others_again() -> None:
    graph, made, sizes = program("layer norm")
    said = [s for s in made.statements[Phase.JOINED] if not isinstance(s, Arrive)]
    first = next(i for i, s in enumerate(said) if isinstance(s, Combine))
    with pytest.raises(TileError, match="behind the last that a block reads"):
        compare(graph, [with_joined(made, [*said[:first], Arrive(), *said[first:]])], sizes)


def test_a_cluster_waits_for_the_last_reader_where_it_ends() -> None:
    _, made, _ = program("layer norm")
    text = "\n".join(KernelWriter(made, "it", DType.FP16).text())
    assert text.count("cluster_barrier();") == 2
    assert text.index("cluster_arrive();") > text.rindex("general::combine")
    assert text.index("cluster_wait();") > text.rindex("write_within")
    assert "cluster_rank" not in text  # all blocks store


def test_a_part_of_whole_vectors_ends_with_one() -> None:
    """One test for each vector where rows end between them, one for each element elsewhere."""
    for columns, test in ((100_000, "return;"), (100_004, "continue;")):
        short = retile(with_columns(found("layer norm"), columns), {"M": 1, "W_parts": 12544})
        (made,) = block_programs(short, 256, 2)
        text = "\n".join(KernelWriter(made, "it", DType.FP16).text())
        assert text.count(f"< {columns})) {test}") == 2


def test_mean_and_root_of_a_row_are_computed_once() -> None:
    (made,) = block_programs(retile(found("layer norm"), {"M": 1, "W_parts": 1024}), 256, 2)
    filled = [s.value for s in made.statements[Phase.JOINED] if isinstance(s, Fill)]
    assert [made.node(name).op for name in filled] == ["div", "sqrt"]


# -- plans -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("columns", [2**18, 100_000, 100_003])
def test_rows_of_any_length_have_knobs_whose_program_is_right(columns: int) -> None:
    graph = with_columns(found("layer norm"), columns)
    knobs = best_knobs(graph, {"M": 16, "W": columns}, ON)
    assert -(-columns // dict(knobs.cuts)["W_parts"]) in range(4, 9)
    require_same(retile(graph, dict(knobs.cuts)), knobs.threads, knobs.stages)


def with_columns(graph: Graph, columns: int) -> Graph:
    """The muGraph over rows of another length."""

    def cut(node: Node) -> Node:
        outs = []
        for v in node.outs:
            dims = (replace(d, size=columns if d.name == "W" else d.size) for d in v.type.dims)
            outs.append(replace(v, type=replace(v.type, dims=tuple(dims))))
        return replace(node, outs=tuple(outs))

    return retile(replace(graph, nodes=tuple(map(cut, graph.nodes))), {"W_parts": columns})


def test_rows_that_no_cluster_holds_have_no_knobs() -> None:
    with pytest.raises(MirageError, match="no block has room"):
        best_knobs(with_columns(found("rms norm"), 2**20), {"M": 16, "W": 2**20}, ON)


def test_an_architecture_without_clusters_combines_nothing() -> None:
    assert [*reasons(found("rms norm"), ON)] == []
    assert "sm_80 has no clusters" in next(reasons(found("rms norm"), target("sm_80")))
