"""What torch.compile, torch.export and opcheck ask of an op."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch._dynamo.testing import CompileCounter
from torch._subclasses.fake_tensor import FakeTensorMode

from mirage_kernels import rms_norm_linear

K, N = 64, 96
OPS = torch.ops.mirage_kernels.rms_norm_linear


@pytest.fixture(autouse=True)
def _fresh_compiler() -> None:
    torch.compiler.reset()


def inputs(tokens: int) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    return torch.randn(tokens, K).half(), torch.randn(K).half(), torch.randn(N, K).half()


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiles_without_a_graph_break(backend: str) -> None:
    args = inputs(5)
    compiled = torch.compile(lambda *a: rms_norm_linear(*a) + 1, fullgraph=True, backend=backend)
    assert torch.equal(compiled(*args), rms_norm_linear(*args) + 1)


def test_compiles_once_for_every_number_of_tokens() -> None:
    counter = CompileCounter()
    compiled = torch.compile(rms_norm_linear, fullgraph=True, backend=counter, dynamic=True)
    for tokens in (3, 5, 8):
        args = inputs(tokens)
        assert torch.equal(compiled(*args), rms_norm_linear(*args))
    assert counter.frame_count == 1


def test_out_compiles_as_a_mutation() -> None:
    def write(x: Tensor, norm_weight: Tensor, weight: Tensor) -> Tensor:
        out = x.new_empty(x.shape[0], N)
        rms_norm_linear(x, norm_weight, weight, out=out)
        return out + 1

    args = inputs(5)
    compiled = torch.compile(write, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(*args), write(*args))


def test_exports() -> None:
    class Projection(torch.nn.Module):
        def forward(self, x: Tensor, norm_weight: Tensor, weight: Tensor) -> Tensor:
            return rms_norm_linear(x, norm_weight, weight)

    program = torch.export.export(Projection(), inputs(5))
    targets = [node.target for node in program.graph.nodes]
    assert OPS.default in targets


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("with_out", [False, True])
def test_passes_opcheck(device: str, with_out: bool) -> None:
    features, outs = (K, N) if device == "cpu" else (4096, 6144)
    shapes = ((5, features), (features,), (outs, features))
    args = [torch.randn(shape, device=device).half() for shape in shapes]
    if with_out:
        out = torch.empty(5, outs, device=device).half()
        torch.library.opcheck(OPS.out, (*args, 1e-6), {"out": out})
    else:
        torch.library.opcheck(OPS.default, (*args, 1e-6))


def test_shapes_are_known_without_data() -> None:
    with FakeTensorMode():
        x, norm_weight, weight = (torch.empty(s).half() for s in ((2, 3, K), (K,), (N, K)))
        y = rms_norm_linear(x, norm_weight, weight)
    assert (y.shape, y.dtype) == ((2, 3, N), torch.float16)


def test_wrong_shape_is_refused_while_tracing() -> None:
    with FakeTensorMode():
        x, norm_weight, weight = (torch.empty(s).half() for s in ((2, K), (K,), (N, K + 1)))
        with pytest.raises(RuntimeError, match="weight has shape"):
            rms_norm_linear(x, norm_weight, weight)
