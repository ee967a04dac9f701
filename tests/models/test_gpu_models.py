"""Optimized modules on a GPU: kernels take over, results stay, CUDA graphs replay them."""

from __future__ import annotations

from copy import deepcopy

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("mirage_kernels._C")
from torch import Tensor, nn  # noqa: E402
from torch.nn import functional  # noqa: E402

import mirage_kernels  # noqa: E402

pytestmark = pytest.mark.gpu
K, N, QUERIES, KEYS = 4096, 14336, 4096, 1024


class Layer(nn.Module):
    """A Llama layer's norms and projections, without its attention."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.post_norm = nn.RMSNorm(K, eps=1e-5), nn.RMSNorm(K, eps=1e-5)
        self.q, self.k, self.v = (nn.Linear(K, rows, bias=False) for rows in (QUERIES, KEYS, KEYS))
        self.o, self.down = nn.Linear(QUERIES, K, bias=False), nn.Linear(N, K, bias=False)
        self.gate, self.up = (nn.Linear(K, N, bias=False) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        normed = self.norm(x)
        repeated = torch.cat([self.k(normed), self.v(normed)], dim=-1).repeat(1, 2)
        x = x + self.o(self.q(normed) * repeated)
        normed = self.post_norm(x)
        return x + self.down(functional.silu(self.gate(normed)) * self.up(normed))


@pytest.fixture
def layer() -> Layer:
    for op, rows in (("rms_norm_linear", QUERIES + 2 * KEYS), ("gated_mlp", N)):
        if not mirage_kernels.supports(op, K=K, N=rows, dtype=torch.bfloat16, device="cuda"):
            pytest.skip(f"this build has no {op} {K} -> {rows} in bf16")
    torch.manual_seed(0)
    torch._dynamo.reset()
    with torch.device("cuda"):
        return Layer().bfloat16().eval()


@pytest.mark.parametrize("count", [1, 8, 100])
def test_a_layers_kernels_give_eager_modes_results(layer: Layer, count: int) -> None:
    x = torch.randn(count, K, dtype=torch.bfloat16, device="cuda")
    with torch.inference_mode():
        wanted = layer(x)
        mirage_kernels.optimize(layer, fullgraph=True)
        made = layer(x)
    ops = {row.what.split()[0] for row in mirage_kernels.report(layer).replaced}
    assert "rms_norm_linear" in ops
    assert ops & {"gated_mlp", "rms_norm_gated_mlp"}
    error = (made.float() - wanted.float()).norm() / wanted.float().norm()
    assert error < 1e-2


def test_an_optimized_layer_is_captured_and_replayed_with_other_inputs(layer: Layer) -> None:
    x, other = torch.randn(2, 4, K, dtype=torch.bfloat16, device="cuda")
    with torch.no_grad():
        mirage_kernels.optimize(layer, [x], fullgraph=True)
        wanted = layer(other)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            made = layer(x)
        x.copy_(other)
        graph.replay()
    torch.testing.assert_close(made, wanted, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_inductor_compiles_what_is_left(layer: Layer, mode: str) -> None:
    x = torch.randn(4, K, dtype=torch.bfloat16, device="cuda")
    with torch.no_grad():
        wanted = layer(x)
        mirage_kernels.optimize(layer, mode=mode, fullgraph=True)
        for _ in range(4):
            made = layer(x).clone()
    error = (made.float() - wanted.float()).norm() / wanted.float().norm()
    assert error < 1e-2


def test_cuda_graphs_of_one_class_replay_the_weights_of_each_model(layer: Layer) -> None:
    x, both = torch.randn(4, K, dtype=torch.bfloat16, device="cuda"), [layer, deepcopy(layer)]
    with torch.no_grad():
        for weight in both[1].parameters():
            weight.mul_(0.5)
        wanted = [one(x) for one in both]
        for one in both:
            mirage_kernels.optimize(one, mode="reduce-overhead", fullgraph=True)
        for _ in range(4):
            for one, right in zip(both, wanted, strict=True):
                error = (one(x).float() - right.float()).norm() / right.float().norm()
                assert error < 1e-2
