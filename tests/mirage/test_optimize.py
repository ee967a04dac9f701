"""superoptimize: what it finds runs like the recorded graph, fits the constraints, is written."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import mirage_kernels.generator as mi
from mirage_kernels.generator.errors import MirageError, PlanError, SearchError, VerifyError
from mirage_kernels.generator.frontend.mirage.builder import KernelGraph
from mirage_kernels.generator.frontend.mirage.checkpoints import checkpoint_text
from mirage_kernels.generator.frontend.mirage.optimize import read_options
from mirage_kernels.generator.frontend.mirage.running import find_compiled, matches
from mirage_kernels.generator.frontend.mirage.sources import streamed
from mirage_kernels.generator.ir import Graph
from mirage_kernels.generator.recipe import catalog
from mirage_kernels.generator.search.gate import Gate

torch = pytest.importorskip("torch")

M, K, N = 8, 512, 384


def rms_norm_linear() -> KernelGraph:
    graph = mi.new_kernel_graph()
    x = graph.new_input(dims=(M, K), dtype=mi.float16)
    w = graph.new_input(dims=(K, N), dtype=mi.float16)
    graph.mark_output(graph.matmul(graph.rms_norm(x, normalized_shape=(K,)), w))
    return graph


def attention() -> KernelGraph:
    graph = mi.new_kernel_graph()
    q = graph.new_input(dims=(2, 16, 32), dtype=mi.float16)
    k = graph.new_input(dims=(2, 32, 512), dtype=mi.float16)
    v = graph.new_input(dims=(2, 512, 32), dtype=mi.float16)
    e = graph.exp(graph.matmul(q, k))
    graph.mark_output(graph.matmul(graph.div(e, graph.reduction(e, 2)), v))
    return graph


def inputs(graph: KernelGraph, scale: float = 0.3) -> list:
    generator = torch.Generator().manual_seed(2)
    return [(torch.randn(t.dims, generator=generator) * scale).half() for t in graph.program.inputs]


@pytest.fixture(scope="module")
def recorded() -> KernelGraph:
    return rms_norm_linear()


@pytest.fixture(scope="module")
def found(recorded: KernelGraph):
    return recorded.superoptimize(config="mlp")


def test_the_best_muGraph_runs_like_the_recorded_graph(recorded, found) -> None:  # noqa: N802
    tensors = inputs(recorded)
    (wanted,) = recorded(inputs=tensors)
    (output,) = found(inputs=tensors)
    assert torch.allclose(output.float(), wanted.float(), rtol=1e-2, atol=1e-2)


def test_muGraphs_come_fastest_first(found) -> None:  # noqa: N802
    times = [one.microseconds for one in found]
    assert len(found) > 1
    assert times == sorted(times)
    assert found[0].microseconds == found.microseconds


def test_a_preset_of_one_kernel_finds_proved_muGraphs_of_one(found) -> None:  # noqa: N802
    assert {len(one.found.graph.blocks) for one in found} == {1}
    assert found[0].prove().log2_failure < -40


def test_attention_is_found_and_safe() -> None:
    graph = attention()
    optimized = graph.superoptimize(config="attention")
    q, k, v = inputs(graph, scale=1.5)
    (output,) = optimized(inputs=[q, k, v])
    wanted = (q.float() @ k.float()).softmax(-1) @ v.float()
    assert torch.norm(output.float() - wanted) < 0.02 * torch.norm(wanted)


@pytest.fixture(scope="module")
def softmax():
    graph = mi.new_kernel_graph()
    graph.mark_output(graph.softmax(graph.new_input(dims=(64, 4096), dtype=mi.float16), 1))
    return graph.superoptimize()


@pytest.mark.parametrize(("mean", "deviation"), [(0, 30), (500, 1)])
def test_every_softmax_that_is_returned_is_right_for_scores_of_any_size(
    softmax, mean: float, deviation: float
) -> None:
    generator = torch.Generator().manual_seed(2)
    x = (mean + deviation * torch.randn((64, 4096), generator=generator)).half()
    wanted = x.double().softmax(-1)
    for one in softmax:
        (output,) = one(inputs=[x])
        assert torch.norm(output.double() - wanted) < 1e-3 * torch.norm(wanted)


def test_softmax_is_one_kernel_with_a_peak(softmax) -> None:
    (block,) = softmax.found.graph.blocks
    assert len(softmax) > 1
    assert [n.op for n in block.body.nodes if n.op == "peak"] == ["peak"]


@pytest.mark.parametrize("refused", [1, 1000])
def test_what_the_numeric_gate_refuses_is_not_returned(recorded, monkeypatch, refused: int) -> None:
    best, left = recorded.superoptimize(config="mlp"), [VerifyError("error inf")] * refused

    def measure(gate: Gate, candidate: Graph) -> None:
        if left:
            raise left.pop()

    monkeypatch.setattr(Gate, "measure", measure)
    if refused == 1:
        found = recorded.superoptimize(config="mlp")
        assert found.found.graph == best[1].found.graph
    else:
        with pytest.raises(
            SearchError, match=r"none of \d+ muGraphs is accurate in fp16: error inf"
        ):
            recorded.superoptimize(config="mlp")


def test_the_function_takes_grids_and_loops(recorded) -> None:
    graphs = mi.superoptimize(recorded, griddims=[(24, 1, 1)], franges=[4], config="mlp")
    for one in graphs:
        (block,) = one.found.graph.blocks
        space = block.body.space
        assert space.loop.tile == K // 4
        assert {a.dim: a.tile for a in space.grid}["N"] == N // 24


def test_maps_are_constraints(recorded) -> None:
    graphs = recorded.superoptimize(
        config="mlp", imaps=[(-1, 0, -1), (-1, 1, -1)], omaps=[(0, 1, -1)], fmaps=[0, 1]
    )
    for one in graphs:
        (block,) = one.found.graph.blocks
        assert all(n.loop_cut == "K" for n in block.body.inputs)
        assert not block.body.space.reduced


def test_constraints_that_nothing_meets_say_so(recorded) -> None:
    with pytest.raises(SearchError, match=r"none of the \d+ muGraphs found .* griddims=\[\(7, 1"):
        recorded.superoptimize(config="mlp", griddims=[(7, 1, 1)])


BAD_OPTIONS = [
    ({"grid": [(1, 1, 1)]}, "no option 'grid'"),
    ({"config": "conv"}, "config is 'conv'"),
    ({"backend": "nki"}, "backend is 'nki'"),
    ({"griddims": (64, 1, 1)}, "griddims is"),
    ({"griddims": [(64, 1)]}, "griddims is"),
    ({"franges": 4}, "franges is"),
    ({"franges": ["4"]}, "franges is"),
    ({"jobs": 0}, "jobs is 0"),
]


@pytest.mark.parametrize(("options", "sentence"), BAD_OPTIONS, ids=[b[1] for b in BAD_OPTIONS])
def test_a_wrong_option_gets_a_sentence(options: dict, sentence: str) -> None:
    with pytest.raises(MirageError, match=sentence):
        mi.superoptimize(rms_norm_linear(), **options)


def test_options_of_mirages_profiling_are_taken() -> None:
    options = read_options({"warmup_iters": 2, "profile_iters": 6, "save_codes": True})
    assert options == read_options({})


def test_a_graph_with_hand_written_kernels_is_not_searched(programs) -> None:
    with pytest.raises(MirageError, match="hand-written block graphs"):
        programs["rms_norm"]().superoptimize()


def test_a_graph_with_two_results_is_not_searched() -> None:
    graph = mi.new_kernel_graph()
    x = graph.new_input(dims=(4, 8))
    graph.mark_output(graph.exp(x))
    graph.mark_output(graph.square(x))
    with pytest.raises(MirageError, match="2 results"):
        graph.superoptimize()


RUNNER = """
import importlib.util, pathlib, sys
import torch
for program in pathlib.Path(sys.argv[1]).glob("*.py"):
    spec = importlib.util.spec_from_file_location(program.stem, program)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    data = program.with_suffix(".pt")
    torch.save(module.execute_mugraph(*torch.load(data)), data)
"""


def test_triton_programs_run(recorded, found, programs, tmp_path: Path) -> None:
    pytest.importorskip("triton")
    graphs = {name: build() for name, build in programs.items() if name != "two_kernels"}
    graphs["two_kernels"] = programs["two_kernels"](2, 3)
    graphs["found"] = recorded
    for name, graph in graphs.items():
        written = found if name == "found" else graph
        written.cygraph.generate_triton_program(str(tmp_path / f"{name}.py"))
        torch.save(inputs(graph), tmp_path / f"{name}.pt")
    ran = subprocess.run(
        [sys.executable, "-c", RUNNER, str(tmp_path)],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stderr
    for name, graph in graphs.items():
        made, wanted = torch.load(tmp_path / f"{name}.pt"), graph(inputs=inputs(graph))
        for ours, theirs in zip(made, wanted, strict=True):
            assert ours.shape == theirs.shape, name
            assert torch.allclose(ours.float(), theirs.float(), rtol=1e-2, atol=1e-2), name


def test_hand_written_kernels_are_emitted_too() -> None:
    graph = mi.new_kernel_graph()
    x = graph.new_input(dims=(16, 256), dtype=mi.float16)
    w = graph.new_input(dims=(256, 512), strides=(1, 256), dtype=mi.float16)
    block = mi.new_threadblock_graph((8, 1, 1), (128, 1, 1), 4, 64)
    bx = block.new_input(x, (-1, -1, -1), 1)
    bw = block.new_input(w, (1, -1, -1), 0)
    product = block.forloop_accum(block.matmul(bx, bw))
    block.new_output(block.div(product, block.forloop_accum(bx, "rms")), (1, -1, -1))
    graph.mark_output(graph.customized([x, w], block)[0])
    code = mi.generate_triton_program(graph.cygraph, target_cc=90)["code"]
    assert "def execute_mugraph(in_1, in_2):" in code


@pytest.mark.parametrize(("name", "kernels"), [("gqa", 2), ("lora", 1)])
def test_what_no_fast_schedule_takes_has_general_kernels(programs, name: str, kernels: int) -> None:
    code = mi.generate_cuda_program(programs[name]().cygraph)["code"]
    assert "// Schedule  general." in code
    assert code.count("__global__") == kernels


def test_what_streams_weights_has_a_fast_kernel(programs) -> None:
    code = mi.generate_cuda_program(programs["gated_mlp"]().cygraph)["code"]
    assert "general." not in code


def test_a_product_by_a_library_is_a_kernel_of_its_own() -> None:
    graph = mi.new_kernel_graph()
    x, w = graph.new_input(dims=(16, 64)), graph.new_input(dims=(64, 32))
    graph.mark_output(graph.matmul(x, w))
    code = mi.generate_cuda_program(graph.cygraph)["code"]
    assert "// muGraph   1 kernel." in code


def test_operators_outside_of_blocks_are_superoptimized_first() -> None:
    graph = mi.new_kernel_graph()
    graph.mark_output(graph.exp(graph.new_input(dims=(16, 64))))
    with pytest.raises(PlanError, match=r"no kernel can be planned: .*exp") as raised:
        mi.generate_cuda_program(graph.cygraph)
    assert "superoptimize()" in raised.value.hint
    assert "__global__" in mi.generate_cuda_program(graph.superoptimize())["code"]


def test_a_library_product_between_kernels_is_bound_in_the_planners_order_of_dims() -> None:
    graph = mi.new_kernel_graph()
    x, q, k = (graph.new_input(dims=d) for d in ((2, 16, 32), (2, 32, 64), (2, 64, 48)))
    scores = graph.matmul(graph.matmul(x, q), k)
    block = mi.new_threadblock_graph((2, 4, 1), (128, 1, 1), 1, 64)
    tile = block.new_input(scores, (0, 1, -1), -1)
    block.new_output(block.div(tile, block.forloop_accum(tile, "sum")), (0, 1, -1))
    graph.mark_output(graph.customized([scores], block)[0])
    made = streamed(graph.lowered().graph)  # raises GraphError where orders differ
    assert [made.values[a].type.names[0] for a in made.blocks[0].args] == ["M"]


def test_the_catalogs_recipe_that_computes_a_graph_is_recognised() -> None:
    graph = rms_norm_linear()
    found = [
        (recipe.name, dict(bound.held)) for recipe, bound in matches(graph.lowered(), catalog())
    ]
    assert ("rms_norm_linear", {"norm_weight": 1.0, "eps": 0.0}) in found


def test_a_compiled_op_takes_the_graphs_tensors() -> None:
    graph = rms_norm_linear()
    run = find_compiled(graph.lowered(), graph.program)  # on CPU tensors: the op's reference
    tensors = inputs(graph)
    assert torch.allclose(
        run(tensors)[0].float(), graph(inputs=tensors)[0].float(), rtol=1e-2, atol=1e-2
    )


def test_a_graph_that_no_compiled_op_computes_says_so() -> None:
    graph = mi.new_kernel_graph()
    graph.mark_output(graph.tanh(graph.new_input(dims=(4, 8), dtype=mi.float16)))
    with pytest.raises(MirageError, match="no compiled kernel of this build"):
        find_compiled(graph.lowered(), graph.program)


def test_muGraphs_of_a_checkpoint_take_the_place_of_a_search(  # noqa: N802
    programs, tmp_path: Path
) -> None:
    recorded = mi.new_kernel_graph()
    x, w = recorded.new_input(dims=(4, 32)), recorded.new_input(dims=(32, 24))
    recorded.mark_output(recorded.matmul(recorded.rms_norm(x), w))
    path = tmp_path / "graphs.json"
    text = checkpoint_text([programs[name]().program for name in ("gated_mlp", "rms_norm")])
    path.write_text(text)
    graphs = recorded.superoptimize(previous_checkpoint=str(path))
    assert len(graphs) == 1
    assert graphs[0].prove().log2_failure < -40
    tensors = inputs(recorded)
    (found,), (wanted,) = graphs(inputs=tensors), recorded(inputs=tensors)
    assert torch.allclose(found.float(), wanted.float(), rtol=1e-2, atol=1e-2)
    with pytest.raises(SearchError, match=r"griddims=\[\(5"):
        recorded.superoptimize(previous_checkpoint=str(path), griddims=[(5, 1, 1)])


def test_a_checkpoint_without_an_equal_graph_says_so(programs, recorded, tmp_path: Path) -> None:
    path = tmp_path / "graphs.json"
    path.write_text(checkpoint_text([programs["rms_norm"]().program]))
    with pytest.raises(SearchError, match=r"none of the 1 graphs in .* is equal"):
        recorded.superoptimize(previous_checkpoint=str(path))
