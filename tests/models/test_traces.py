"""What `optimize` sees of a graph: writes, numbers that change, single tokens."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("mirage_kernels._C")
from torch import Tensor, nn  # noqa: E402
from torch.nn import functional  # noqa: E402

import mirage_kernels  # noqa: E402
from mirage_kernels.matching import backend  # noqa: E402
from tests.models.test_optimize import (  # noqa: E402
    Activation,
    Gated,
    K,
    Norm,
    Residual,
    Wrapped,
    _fresh_graphs,  # noqa: F401
    half,
    optimized,
    replaced,
    tokens,
)


class WrittenInput(nn.Module):
    """The input is written between a norm and its product, as a whole or through a view."""

    def __init__(self, rows: int) -> None:
        super().__init__()
        self.norm, self.linear, self.rows = Norm(), nn.Linear(K, K, bias=False), rows

    def forward(self, x: Tensor) -> Tensor:
        normed = self.norm(x)
        x[: self.rows] = 7
        return self.linear(normed)


@pytest.mark.parametrize("rows", [1, 3])
def test_an_input_that_is_written_through_a_view_is_read_before(rows: int) -> None:
    module, x = half(WrittenInput(rows)), tokens(3)
    with torch.no_grad():
        wanted = module(x.clone())
        made = mirage_kernels.optimize(module, fullgraph=True)(x)
    torch.testing.assert_close(made, wanted, rtol=2e-2, atol=2e-2)
    assert "rms_norm_linear" not in replaced(module)
    assert torch.equal(x[:rows], torch.full_like(x[:rows], 7))


class Scaled(nn.Module):
    """A number of the module's is a factor of the result."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.linear, self.scale = nn.RMSNorm(K, eps=1e-5), nn.Linear(K, K), 2.0

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(self.norm(x)) * self.scale


def test_a_number_of_a_module_may_change() -> None:
    module, x = half(Scaled()), tokens(3)
    mirage_kernels.optimize(module, fullgraph=True)
    with torch.no_grad():
        for module.scale in (2.0, 3.0, 4.0):
            torch.testing.assert_close(module(x), module.forward(x), rtol=2e-2, atol=5e-2)
    graphs = mirage_kernels.report(module).graphs
    assert replaced(module) == {"rms_norm_linear": len(graphs)}


def test_a_number_of_a_module_may_be_dynamic() -> None:
    module, x = half(Scaled()), tokens(3)
    mirage_kernels.optimize(module, fullgraph=True, dynamic=True)
    with torch.no_grad():
        torch.testing.assert_close(module(x), module.forward(x), rtol=2e-2, atol=5e-2)
    assert replaced(module) == {"rms_norm_linear": 1}


def test_a_graph_that_does_not_run_without_data_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise NotImplementedError("no kernel\nfor meta")

    monkeypatch.setattr(backend, "traced", fail)
    module = half(Gated(functional.silu))
    assert optimized(module, tokens()) == {}
    said = "without data: NotImplementedError: no kernel for meta"
    assert said in str(mirage_kernels.report(module))


@pytest.mark.parametrize(
    ("module", "count", "ops"),
    [
        (Gated(functional.silu), 1, {"gated_mlp": 1}),
        (Gated(functional.silu, Norm()), 1, {"rms_norm_gated_mlp": 1}),
        (Activation(), 2, {"act_and_mul": 1}),
        (Residual(), 2, {"rms_norm_linear residual": 1}),
        (Wrapped(nn.LayerNorm(K)), 1, {"layer_norm": 1}),
        (Scaled(), 1, {"rms_norm_linear": 1}),
    ],
)
def test_one_token_needs_no_leading_dims(
    module: nn.Module, count: int, ops: dict[str, int]
) -> None:
    assert optimized(module, *(torch.randn(K).bfloat16() for _ in range(count))) == ops


class OneNumber(nn.Module):
    def forward(self, gate: Tensor, up: Tensor) -> Tensor:
        return functional.silu(gate) * up


def test_a_tensor_without_dims_stays() -> None:
    number = torch.tensor(1.5, dtype=torch.bfloat16)
    assert optimized(OneNumber(), number, number) == {}
