"""Kernels of what superoptimize finds: records and programs that take tensors as recorded."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import mirage_kernels.generator as mi
from mirage_kernels.generator.errors import MirageError
from mirage_kernels.generator.frontend.mirage.builder import KernelGraph
from mirage_kernels.generator.frontend.mirage.checkpoints import checkpoint_text
from mirage_kernels.generator.frontend.mirage.kernels import kernel_of
from mirage_kernels.generator.frontend.mirage.optimize import MuGraph
from mirage_kernels.generator.frontend.positional.lower import sizes_of
from mirage_kernels.generator.frontend.positional.spelling import spelled
from mirage_kernels.generator.ir import Graph, Node, count
from mirage_kernels.generator.meaning.arrays import Array, array_reading
from mirage_kernels.generator.meaning.reals import STORAGE
from mirage_kernels.generator.meaning.walk import results
from mirage_kernels.generator.records.record import KernelRecord
from mirage_kernels.program_steps import SteppedProgram

torch = pytest.importorskip("torch")


def linear(strides: tuple[int, ...] = ()) -> KernelGraph:
    graph = mi.new_kernel_graph()
    x, w = graph.new_input((8, 512)), graph.new_input((512, 384), strides)
    graph.mark_output(graph.matmul(graph.rms_norm(x), w))
    return graph


def attention(heads=2, rows=12, width=4, keys=24) -> KernelGraph:
    graph = mi.new_kernel_graph()
    q = graph.new_input((heads, rows, width))
    k, v = graph.new_input((heads, width, keys)), graph.new_input((heads, keys, width))
    weights = graph.exp(graph.matmul(q, k))
    graph.mark_output(graph.matmul(graph.div(weights, graph.reduction(weights, 2)), v))
    return graph


def interpreted(record: KernelRecord):
    """Return what stands for a launch: the record's muGraph, block by block."""
    names, graph = [n.name for n in record.graph.inputs], record.graph

    def run(key: str, tensors, into, _assume):
        assert key == f"{record.arch}/{record.recipe}_{record.stem}"
        assert not any(place is not None for place in into)
        types = [graph.values[n].type.names for n in names]
        found = {
            d: n
            for t, dims in zip(tensors, types, strict=True)
            for d, n in zip(dims, t.shape, strict=True)
        }
        arrays = [Array(d, (t.float().numpy(),)) for t, d in zip(tensors, types, strict=True)]
        made = results(graph, arrays, array_reading(STORAGE, {**sizes_of(graph), **found}))
        dims = [graph.values[o].type.names for o in graph.outputs]
        return [torch.tensor(a.over(d).parts[0]) for a, d in zip(made, dims, strict=True)]

    return run


def agrees(graph: KernelGraph, found: MuGraph, name: str) -> dict:
    """Compare a kernel's program with the recorded graph on CPU tensors; return its document."""
    kernel = kernel_of(found, name)
    program = SteppedProgram([kernel.document], interpreted(kernel.result.record))
    generator = torch.Generator().manual_seed(1)
    tensors = [
        torch.as_strided(torch.randn(t.dims, generator=generator).half() / 4, t.dims, t.layout)
        for t in graph.program.inputs
    ]
    (wanted,) = graph(inputs=tensors)
    made = program(*tensors)
    assert made.dtype == torch.float16
    assert torch.allclose(made.float(), wanted.float(), rtol=2e-2, atol=2e-3)
    return kernel.document


@pytest.mark.parametrize("strides", [(), (1, 512)], ids=["row-major", "as torch stores it"])
def test_a_program_takes_tensors_as_they_were_recorded(strides: tuple[int, ...]) -> None:
    graph = linear(strides)
    document = agrees(graph, graph.superoptimize(config="mlp"), "linear")
    _, weight = document["ways"][0]["steps"][0]["inputs"]
    assert weight.get("order") == ([1, 0] if strides else None)


def test_a_fast_schedule_serves_any_number_of_rows() -> None:
    weights_last = linear((1, 512)).superoptimize(config="mlp")
    record = kernel_of(weights_last, "linear").result.record
    assert {v.schedule for v in record.variants} != {"general"}
    assert record.stem == "K512_N384_fp16"


def test_files_are_written_into_a_folder(tmp_path: Path) -> None:
    found = linear().superoptimize(config="mlp")
    written = found.generate_kernels(tmp_path, "linear", inputs=["x", "w"])
    assert {p.suffix for p in written} >= {".cu", ".json", ".py", ".cpp"}
    (document,) = (json.loads(p.read_text()) for p in written if p.name.endswith(".program.json"))
    assert [(i["name"], i["shape"]) for i in document["inputs"]] == [
        ("x", [8, 512]),
        ("w", [512, 384]),
    ]
    (symbol,) = (step["kernel"] for step in document["ways"][0]["steps"])
    assert symbol == "linear_M8_K512_N384_fp16"
    record = json.loads((tmp_path / "sm_90a/linear/M8_K512_N384_fp16.json").read_text())
    assert record["proof"]["log2_failure"] < -40


@pytest.mark.parametrize(
    "names", [("my kernel", ["x", "w"]), ("mine", ["x"]), ("mine", ["x", "x"])]
)
def test_names_must_be_names(names: tuple[str, list[str]], tmp_path: Path) -> None:
    with pytest.raises(MirageError, match="no name of a program and its 2 inputs"):
        linear().superoptimize(config="mlp").generate_kernels(tmp_path, *names)
    assert not any(tmp_path.iterdir())


def test_a_muGraph_of_a_checkpoint_that_splits_dims_has_a_kernel(  # noqa: N802
    programs, tmp_path: Path
) -> None:
    path, graph = tmp_path / "attention.json", attention()
    path.write_text(checkpoint_text([programs["gqa"]().program]))
    found = graph.superoptimize(previous_checkpoint=str(path))
    assert found.found.inputs[1] != found.spec.inputs[1]  # keys, in splits and in steps
    document = agrees(graph, found, "attention")
    shapes = [i["shape"] for i in document["ways"][0]["steps"][0]["inputs"]]
    assert shapes[1] == [2, 4, 3, 8]  # heads, width, splits, keys of one
    planned = kernel_of(found, "attention").result.record.graph
    inner = {name for block in planned.blocks if block.body for name in block.body.values}
    assert not inner.intersection(planned.outputs)  # one file has names for both


def test_a_graph_over_the_dims_of_another_one_computes_the_same(programs, assert_agrees) -> None:
    spec, like = attention().lowered(), programs["gqa"]().lowered()
    made = spelled(spec, like)
    assert made.shapes == spec.shapes
    assert {d for v in made.graph.values.values() for d in v.type.names} == {*sizes_of(like.graph)}


def repeated(graph: Graph, sizes: dict[str, int]) -> list[int]:
    """Return how often blocks make the products along the first one's depth: queries by keys."""

    def times(block: Node, product: Node) -> int:
        assert block.body is not None
        assert block.body.space is not None
        dims = {d for a in product.args for d in block.body.values[a].type.names}
        apart = [a for a in block.body.space.grid if a.dim not in dims]
        return [count(a, sizes[a.dim]) for a in apart]

    return [
        n
        for block in graph.blocks
        for product in block.body.of("contract")
        if product.over == "K"
        for n in times(block, product)
    ]


@pytest.mark.parametrize("width", [64, 128])
def test_attention_multiplies_queries_by_keys_once(width: int) -> None:
    graph = mi.new_kernel_graph()
    q, k = graph.new_input((2, 256, 64)), graph.new_input((2, 64, 4096))
    v = graph.new_input((2, 4096, width))
    weights = graph.exp(graph.matmul(q, k))
    graph.mark_output(graph.matmul(graph.div(weights, graph.reduction(weights, 2)), v))
    found = graph.superoptimize(config="attention")
    planned = kernel_of(found, "attention").result.record.graph
    for chosen in (found.found.graph, planned):
        assert set(repeated(chosen, sizes_of(found.spec.graph))) <= {1}


def test_layer_norm_and_linear_is_one_kernel_with_a_loop() -> None:
    graph = mi.new_kernel_graph()
    x, w = graph.new_input((16, 4096)), graph.new_input((4096, 6144))
    centred = graph.sub(x, graph.mul_scalar(graph.reduction(x, 1), 1 / 4096))
    variance = graph.mul_scalar(graph.reduction(graph.square(centred), 1), 1 / 4096)
    graph.mark_output(graph.matmul(graph.div(centred, graph.sqrt(variance)), w))
    found = graph.superoptimize(config="mlp")
    (block,) = found.found.graph.blocks
    assert block.body.space.loop.dim == "K"
    assert found.counts.pruned.get("budget", 0) == 0  # sqrt is taken of rows' numbers alone
