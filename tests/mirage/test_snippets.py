"""Programs in the manner of Mirage's README, tutorials and demos: only the import is ours."""

# ruff: noqa: N803, N806  (tensors have the names that they have there)

from __future__ import annotations

from pathlib import Path

import pytest

import mirage_kernels.generator as mi
from mirage_kernels.generator.errors import MirageError

torch = pytest.importorskip("torch")


def halves(*shapes: tuple[int, ...], scale: float = 0.5) -> list:
    generator = torch.Generator().manual_seed(1)
    return [(torch.randn(shape, generator=generator) * scale).to(torch.float16) for shape in shapes]


def close(found, wanted) -> bool:
    return torch.allclose(found.float(), wanted, rtol=2e-2, atol=2e-2)


def rms(x):
    return x / x.square().mean(-1, keepdim=True).sqrt()


FORMULAS = {
    "rms_norm": lambda x, w: rms(x) @ w,
    "gqa": lambda q, k, v: (q @ k).softmax(-1) @ v,
    "gated_mlp": lambda x, a, b: torch.nn.functional.silu(x @ a) * (x @ b),
    "lora": lambda x, w, a, b: x @ w + x @ a @ b,
}


def test_hand_written_kernels_run_on_torch_tensors(named_program) -> None:
    name, graph = named_program
    tensors = halves(*(t.dims for t in graph.program.inputs), scale=0.3)
    (output,) = graph(inputs=tensors)
    assert close(output, FORMULAS[name](*(x.float() for x in tensors)))


def test_a_result_lies_in_memory_as_its_strides_say() -> None:
    graph = mi.new_kernel_graph()
    made = graph.exp(graph.new_input(dims=(4, 8), dtype=mi.float16))
    graph.mark_output(made, (1, 4))
    (x,) = halves((4, 8))
    (output,) = graph(inputs=[x])
    assert output.stride() == (1, 4)
    assert close(output, x.float().exp())


def online_attention(graph, Q, K, V, splits: int = 2):
    """Running maxima, rescaled accumulation, and a second kernel that combines the splits."""
    heads, _, width = Q.dims
    t = mi.new_threadblock_graph(
        grid_dim=(heads, splits, 2), block_dim=(128, 1, 1), forloop_range=4, reduction_dimx=width
    )
    bQ = t.new_input(dtensor=Q, input_map=(0, -1, 1), forloop_dim=-1)
    bK = t.new_input(dtensor=K, input_map=(0, 2, -1), forloop_dim=2)
    bV = t.new_input(dtensor=V, input_map=(0, 1, -1), forloop_dim=1)
    bA = t.matmul(bQ, bK)
    bMax, bDiff = t.reduction_max(bA, dim=2)
    bE = t.exp(t.sub(bA, bMax))
    bFactor = t.exp(bDiff)
    bS = t.matmul(bE, bV)
    t.new_output(stensor=t.forloop_accum_rescale(bS, bFactor), output_map=(0, 2, 1))
    t.new_output(stensor=t.forloop_accum_rescale(bE, bFactor, "sum"), output_map=(0, 2, 1))
    t.new_output(stensor=t.forloop_accum_max(bMax), output_map=(0, 2, 1))
    made = graph.customized([Q, K, V], t)
    u = mi.new_threadblock_graph(
        grid_dim=(heads, 1, 4), block_dim=(128, 1, 1), forloop_range=splits, reduction_dimx=width
    )
    bN, bD, bM = (u.new_input(dtensor=o, input_map=(0, -1, 1), forloop_dim=2) for o in made)
    bMax, bDiff = u.reduction_max(bM, dim=2)
    bFactor = u.exp(bDiff)
    bShift = u.exp(u.sub(bM, bMax))
    bN = u.forloop_accum_rescale(u.mul(bN, bShift), bFactor)
    bD = u.forloop_accum_rescale(u.mul(bD, bShift), bFactor, "sum")
    u.new_output(stensor=u.div(bN, bD), output_map=(0, -1, 1))
    return graph.customized(made, u)


def test_attention_with_a_running_maximum_does_not_overflow() -> None:
    graph = mi.new_kernel_graph()
    Q = graph.new_input(dims=(2, 16, 32), dtype=mi.float16)
    K = graph.new_input(dims=(2, 32, 64), dtype=mi.float16)
    V = graph.new_input(dims=(2, 64, 32), dtype=mi.float16)
    graph.mark_output(online_attention(graph, Q, K, V)[0])
    q, k, v = halves((2, 16, 32), (2, 32, 64), (2, 64, 32), scale=1.5)
    (output,) = graph(inputs=[q, k, v])
    scores = q.float() @ k.float()
    assert not torch.isfinite(scores.exp().half()).all()  # what the plain form would store
    wanted = scores.softmax(-1) @ v.float()
    assert torch.norm(output.float() - wanted) < 0.02 * torch.norm(wanted)


def lora(graph, X, W, A, B):
    graph.add(graph.matmul(X, W), graph.matmul(graph.matmul(X, A), B))


def qk_norm_attention(graph, Q, K, V):
    E = graph.exp(graph.matmul(graph.rms_norm(Q), graph.rms_norm(K)))
    S = graph.reduction(E, 2)
    graph.mark_output(graph.matmul(graph.div(E, S), V))


def weighted_rms_norm(graph, X, G, W):
    graph.mark_output(graph.matmul(graph.rms_norm(X, G), W))


SNIPPETS = {  # where a tutorial marks no output, what nothing takes is the result
    "lora": (
        lora,
        [(16, 64), (64, 96), (64, 16), (16, 96)],
        lambda x, w, a, b: x @ w + x @ a @ b,
    ),
    "qk_norm": (
        qk_norm_attention,
        [(2, 8, 16), (2, 16, 32), (2, 32, 16)],
        lambda q, k, v: (rms(q) @ rms(k)).softmax(-1) @ v,
    ),
    "softmax": (
        lambda graph, X: graph.mark_output(graph.softmax(X, dim=1)),
        [(4, 32)],
        lambda x: x.softmax(-1),
    ),
    "weighted_rms_norm": (
        weighted_rms_norm,
        [(16, 64), (1, 64), (64, 32)],
        lambda x, g, w: (rms(x) * g) @ w,
    ),
}


@pytest.mark.parametrize("name", SNIPPETS)
def test_snippets_of_the_tutorials_compute_their_formula(name: str) -> None:
    build, shapes, formula = SNIPPETS[name]
    graph = mi.new_graph()
    build(graph, *(graph.new_input(dims=shape, dtype=mi.float16) for shape in shapes))
    tensors = halves(*shapes, scale=0.2)
    (output,) = graph(inputs=tensors)
    assert close(output, formula(*(x.float() for x in tensors)))


def test_a_transposed_weight_and_an_extra_leading_dim_are_taken() -> None:
    graph = mi.new_kernel_graph()
    X = graph.new_input(dims=(1, 64), dtype=mi.bfloat16)
    W = graph.new_input(dims=(64, 32), strides=(1, 64), dtype=mi.bfloat16)
    graph.mark_output(graph.matmul(X, W))
    x = torch.randn(1, 1, 64, dtype=torch.bfloat16)
    w = torch.as_strided(torch.randn(64, 32, dtype=torch.bfloat16), (64, 32), (1, 64))
    (output,) = graph(inputs=[x, w])
    assert output.dtype == torch.bfloat16
    assert output.shape == (1, 32)
    assert torch.allclose(output.float(), x[0].float() @ w.float(), rtol=2e-2, atol=0.1)


def test_several_results_are_chosen_when_calling() -> None:
    graph = mi.new_kernel_graph()
    first = graph.new_input(dims=(12, 25), dtype=mi.float16)
    second = graph.new_input(dims=(12, 25), dtype=mi.float16)
    middle = graph.add(first, second)
    total = graph.add(first, middle)
    power = graph.exp(middle)
    a, b = halves((12, 25), (12, 25))
    outputs = graph(inputs=[a, b], outputs=[total, power])
    assert close(outputs[0], 2 * a.float() + b.float())
    assert close(outputs[1], (a.float() + b.float()).exp())


def test_a_graph_tells_its_inputs_extents_and_strides() -> None:
    graph = mi.new_kernel_graph()
    X = graph.new_input(dims=(4, 8), dtype=mi.float16)
    graph.mark_output(graph.exp(X))
    (tensor,) = graph.cygraph.get_input_dtensors()
    assert graph.cygraph.get_input_dtensor_shape_and_stride(tensor) == ((4, 8), (8, 1))
    assert (tensor.num_dims, tensor.dim(1), tensor.dtype) == (2, 8, mi.float16)
    assert (graph.get_num_inputs(), graph.get_num_outputs()) == (1, 1)
    assert mi.convert_dtype_to_torch_type(tensor.dtype) is torch.float16


def test_a_graph_is_drawn_and_written(programs, tmp_path: Path) -> None:
    programs["gqa"]().visualize(str(tmp_path / "attention"))
    dot = (tmp_path / "attention.dot").read_text()
    assert dot.startswith("digraph")
    assert dot.count("subgraph") == 2
    assert "imap" in (tmp_path / "attention.txt").read_text()


def test_a_graph_is_read_back_from_the_file_it_was_written_to(programs, tmp_path: Path) -> None:
    graph, again = programs["gqa"](), mi.new_kernel_graph()
    graph.to_json(str(tmp_path / "graph.json"))
    again.from_json(str(tmp_path / "graph.json"))
    tensors = halves(*(t.dims for t in graph.program.inputs), scale=0.3)
    assert torch.equal(again(inputs=tensors)[0], graph(inputs=tensors)[0])


BAD_CALLS = [
    ([], "takes 1 tensors, 0 are given"),
    ([torch.zeros(4, 9, dtype=torch.float16)], r"has the shape \[4, 9\], not \[4, 8\]"),
    ([torch.zeros(4, 8)], "torch.float32, not torch.float16"),
    ([3], "int, not a torch tensor"),
]


@pytest.mark.parametrize(("inputs", "sentence"), BAD_CALLS, ids=[b[1] for b in BAD_CALLS])
def test_tensors_that_do_not_fit_get_a_sentence(inputs: list, sentence: str) -> None:
    graph = mi.new_kernel_graph()
    graph.mark_output(graph.exp(graph.new_input(dims=(4, 8), dtype=mi.float16)))
    with pytest.raises(MirageError, match=sentence):
        graph(inputs=inputs)


@pytest.mark.parametrize("name", ["PersistentKernel", "MPK", "generate_nki_program"])
def test_what_is_not_made_here_is_named(name: str) -> None:
    with pytest.raises(MirageError, match=f"has no {name}: .* are not made here"):
        getattr(mi, name)


def test_other_names_are_ordinary_missing_attributes() -> None:
    assert not hasattr(mi, "frobnicate")
    assert {"new_kernel_graph", "superoptimize", "float16"} <= set(dir(mi))
