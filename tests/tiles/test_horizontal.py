"""Kernels of one launch: which they are, what is refused, and how they are written."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
import torch
from tiled_forms import muGraph
from tiled_forms import programs as programs_of

from mirage_kernels.generator.errors import PlanError
from mirage_kernels.generator.frontend.from_torch import from_torch
from mirage_kernels.generator.ir import DType, Graph
from mirage_kernels.generator.pipeline import generate
from mirage_kernels.generator.records.record import KernelRecord
from mirage_kernels.generator.request import Request
from mirage_kernels.generator.schedules.general import GeneralKnobs, predict, sizes_for
from mirage_kernels.generator.schedules.general.plan import sources
from mirage_kernels.generator.target import target
from mirage_kernels.generator.tiles import interpret
from mirage_kernels.generator.tiles.check import compare, require_same, shortened
from mirage_kernels.generator.tiles.horizontal import launches
from mirage_kernels.generator.tiles.lower import block_programs
from mirage_kernels.generator.tiles.passes import is_one_pass
from mirage_kernels.generator.tiles.program import BlockProgram

Made = tuple[torch.Tensor, ...]


def three(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, t: torch.Tensor) -> Made:
    return torch.tanh(q * t), torch.exp(q * t), v * 1, torch.relu(k) * t


@pytest.fixture(scope="module")
def record() -> KernelRecord:
    shapes = {"q": (5, 64), "k": (5, 4, 64), "v": (5, 128), "t": (64,)}
    given = {n: torch.empty(s, dtype=torch.bfloat16, device="meta") for n, s in shapes.items()}
    recipe = from_torch(three, given, dynamic={n: {0: "M"} for n in "qkv"})
    recipe = replace(recipe, independent=(2, 1, 1), strided=True)
    request = Request(recipe, recipe.shapes[0], DType.BF16, "sm_90a")
    return generate(request, jobs=1, progress=lambda event: None).record


def tiled(record: KernelRecord) -> tuple[Graph, list[BlockProgram], dict[str, int]]:
    short, sizes = shortened(record.graph)
    return short, [*block_programs(short, 32, 1)], sizes


def chained(record: KernelRecord) -> tuple[Graph, list[BlockProgram], dict[str, int]]:
    """The same kernels, but the last takes what the one before it makes."""
    graph, _, sizes = tiled(record)
    *before, copy, last = graph.blocks
    args = tuple("result_4" if a == "k" else a for a in last.args)
    first = replace(last, outs=(replace(last.outs[0], name="result_4"),))
    nodes = [*(n for n in graph.nodes if n.op != "block"), *before, copy, first]
    nodes.append(replace(last, args=args))
    made = replace(graph, nodes=tuple(nodes))
    return made, [*block_programs(made, 32, 1)], sizes


def test_kernels_that_take_nothing_of_each_other_are_one_launch(record: KernelRecord) -> None:
    assert launches(tiled(record)[1]) == [(0, 1, 2)]


def test_a_kernel_that_takes_what_another_makes_is_the_next_launch(record: KernelRecord) -> None:
    graph, programs, sizes = chained(record)
    assert launches(programs) == [(0, 1, 2), (3,)]
    compare(graph, programs, sizes)


def test_kernels_of_loops_and_products_have_launches_of_their_own(record: KernelRecord) -> None:
    _, (looped,), _ = programs_of("gated_mlp")
    plain = tiled(record)[1][0]
    assert launches([plain, replace(looped, threads=plain.threads)]) == [(0,), (1,)]


def test_kernels_of_other_blocks_have_launches_of_their_own(record: KernelRecord) -> None:
    first, second, _ = tiled(record)[1]
    assert launches([first, replace(second, threads=64)]) == [(0,), (1,)]


def test_the_kernels_of_a_launch_compute_what_their_mugraph_does(record: KernelRecord) -> None:
    graph, programs, sizes = tiled(record)
    compare(graph, programs, sizes)
    require_same(record.graph, 64, 1)


def test_a_launch_of_kernels_that_depend_is_refused(
    record: KernelRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph, programs, sizes = chained(record)
    monkeypatch.setattr(interpret, "launches", lambda given: [tuple(range(len(given)))])
    with pytest.raises(PlanError):
        compare(graph, programs, sizes)


def test_a_kernel_on_the_tensors_of_another_is_refused(record: KernelRecord) -> None:
    graph, (first, second, third), sizes = tiled(record)
    outs = {n.name: first.tensors[n.name] for n in first.body.of("output")}
    names = [*outs]
    turned = {**first.tensors, **dict(zip(names, reversed(outs.values()), strict=True))}
    with pytest.raises(PlanError):
        compare(graph, [replace(first, tensors=turned), second, third], sizes)


def test_one_kernel_function_runs_all(record: KernelRecord) -> None:
    (text,) = (t for name, t in sources([record]).items() if name.endswith(".cu"))
    buckets = len(record.variants)
    assert text.count("__global__") == text.count("return general::launch(") == buckets
    assert text.count("__device__ __forceinline__ void") == 3 * buckets
    assert text.count("grid_dependency_wait") == 3 * buckets


def test_a_block_knows_by_its_number_whose_it_is(record: KernelRecord) -> None:
    (text,) = (t for name, t in sources([record]).items() if name.endswith(".cu"))
    body = text[text.index("const int block = blockIdx.x;") :].partition("}")[0]
    assert re.findall(r"block < args.ends\[(\d)\]", body) == ["0", "1"]
    assert re.findall(r"block - args.ends\[(\d)\]", body) == ["0", "1"]
    ends = text[text.index("int64_t blocks = 0;") :].partition("blocks == 0")[0]
    assert re.findall(r"args.ends\[(\d)\] = static_cast<int>\(blocks\)", ends) == ["0", "1", "2"]


def test_results_that_are_one_pass_take_what_they_read_once(record: KernelRecord) -> None:
    program = tiled(record)[1][0]
    assert len(program.body.of("output")) == 2
    assert not program.tiles
    (text,) = (t for name, t in sources([record]).items() if name.endswith(".cu"))
    kernel = text[text.index("__forceinline__") :].partition("inline int64_t")[0]
    assert kernel.count("each_taken<") == 1
    assert kernel.count("write_within<") == 2
    assert "__syncthreads" not in kernel


def test_results_of_other_orders_are_passes_of_their_own(record: KernelRecord) -> None:
    body = record.graph.blocks[0].body
    assert body is not None
    assert is_one_pass(body)
    *others, last = body.nodes
    type_ = replace(last.out.type, dims=last.out.type.dims[::-1])
    turned = replace(last, outs=(replace(last.outs[0], type=type_),))
    assert not is_one_pass(replace(body, nodes=(*others, turned)))


def test_sums_and_loops_are_no_single_pass() -> None:
    for form in ("gated_mlp", "rms_norm_linear"):
        (kernel,) = muGraph(form).blocks
        assert kernel.body is not None
        assert not is_one_pass(kernel.body)


def test_a_launch_more_takes_the_time_of_one(record: KernelRecord) -> None:
    on, sizes = target("sm_90a"), sizes_for(record.graph, "M", 16)
    knobs = record.variants[-1].knobs
    assert isinstance(knobs, GeneralKnobs)
    together = predict(record.graph, knobs, sizes, on)
    alone = 0.0
    for node in record.graph.blocks:
        nodes = (*(n for n in record.graph.nodes if n.op != "block"), node)
        own = tuple(v.name for v in node.outs)
        alone += predict(replace(record.graph, nodes=nodes, outputs=own), knobs, sizes, on)
    assert alone - 3 * on.launch_us < together < alone


def test_blocks_with_little_to_do_take_longer_beside_others(record: KernelRecord) -> None:
    on, sizes = target("sm_90a"), sizes_for(record.graph, "M", 0)
    knobs = record.variants[-1].knobs
    assert isinstance(knobs, GeneralKnobs)
    cuts = [tuple((k, m if k == "M" else n) for k, n in knobs.cuts) for m in (1, 8)]
    few, many = (predict(record.graph, replace(knobs, cuts=c), sizes, on) for c in cuts)
    assert few > many
