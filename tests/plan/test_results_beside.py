"""A result beside the output: stored in the loop, dealt out to blocks, for few tokens."""

from __future__ import annotations

from dataclasses import replace

import pytest
from handmade_lines import mugraph, record

from mirage_kernels.generator.errors import PlanError
from mirage_kernels.generator.ir import Graph, Node
from mirage_kernels.generator.plan.lower import tile_program
from mirage_kernels.generator.plan.program import Do, Layout, TileProgram
from mirage_kernels.generator.schedules.choose import BUCKETS_WITH_RESULTS, variants
from mirage_kernels.generator.schedules.cluster_split_k import split
from mirage_kernels.generator.target import target

NAME = "rms_norm_linear_residual"


@pytest.fixture(scope="module")
def program() -> TileProgram:
    return tile_program(NAME, mugraph(NAME))


def refusal(graph: Graph) -> str:
    with pytest.raises(PlanError) as caught:
        tile_program("mine", graph)
    return caught.value.sentence


def changed(**stored: object) -> Graph:
    """Return the muGraph with another node that stores the result beside the output."""
    graph = mugraph(NAME)
    (block,) = graph.blocks
    assert block.body is not None

    def node(n: Node) -> Node:
        return replace(n, **stored) if n.name == "total_stored" else n  # type: ignore[arg-type]

    body = replace(block.body, nodes=tuple(map(node, block.body.nodes)))
    inner = replace(block, body=body)
    return replace(graph, nodes=tuple(inner if n is block else n for n in graph.nodes))


def test_the_loop_stores_it_beside_what_it_computes_of_it(program: TileProgram) -> None:
    assert [(o.name, o.index) for o in program.results] == [("out", 0), ("total", 1)]
    (stored,) = (s for s in program.loop if s.do is Do.STORE)
    assert (stored.args, stored.layout) == (("total_tile", "total"), Layout.TOKENS)
    (made,) = (s for s in program.loop if s.out == "total_tile")
    assert (made.op, made.args, made.dtype.value) == ("add", ("x_tile", "residual_tile"), "fp16")
    assert not any(s.barrier for s in program.loop)
    assert [s.layout for s in program.loads].count(Layout.TOKENS) == 2


def test_sliced_k_alone_serves_few_tokens(program: TileProgram) -> None:
    found = variants(program, target("sm_90a"))
    assert [v.knobs.tokens for v in found] == [*BUCKETS_WITH_RESULTS]
    assert [v.bucket for v in found] == [*BUCKETS_WITH_RESULTS[:-1], 0]
    assert {v.schedule for v in found} == {"sliced_k"}
    assert split(program) is None
    assert record(NAME).max_tokens == BUCKETS_WITH_RESULTS[-1]


def test_what_is_only_loaded_is_not_stored() -> None:
    said = refusal(changed(args=("x_tile",)))
    assert said == "mine: the loop computes no lines of tokens for total"
