"""PEFT's LoRA layers with this library's op, on the CPU."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("mirage_kernels._C")
peft = pytest.importorskip("peft")
from torch import Tensor, nn  # noqa: E402

from mirage_kernels.integrations import peft as mirage  # noqa: E402

K, N, R = 64, 96, 8


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(K, N), nn.Linear(N, K, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(torch.relu(self.up(x)))


def adapted(**config: Any) -> Any:
    torch.manual_seed(0)
    given = peft.LoraConfig(
        r=R, lora_alpha=16, target_modules=["up", "down"], init_lora_weights=False, **config
    )
    return peft.get_peft_model(Two().bfloat16(), given).eval()


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    made: list[float] = []
    own = mirage.lora_linear

    def counted(*args: Any, **named: Any) -> Tensor:
        made.append(args[4])
        return own(*args, **named)

    monkeypatch.setattr(mirage, "lora_linear", counted)
    return made


def compared(model: Any) -> None:
    x = torch.randn(5, K, dtype=torch.bfloat16)
    with torch.no_grad():
        wanted = model(x)
        assert mirage.apply(model) == 2
        torch.testing.assert_close(model(x), wanted, rtol=3e-2, atol=3e-2)


def test_a_layer_with_one_adapter_is_one_call(calls: list[float]) -> None:
    compared(adapted())
    assert calls == [2.0, 2.0]


def test_the_scale_is_that_of_rank_stabilised_lora(calls: list[float]) -> None:
    compared(adapted(use_rslora=True))
    assert calls == [pytest.approx(16 / R**0.5)] * 2


def test_dora_keeps_pefts_forward(calls: list[float]) -> None:
    compared(adapted(use_dora=True))
    assert not calls


def test_merged_and_disabled_adapters_keep_pefts_forward(calls: list[float]) -> None:
    model = adapted()
    model.merge_adapter()
    compared(model)
    model.unmerge_adapter()
    with model.disable_adapter():
        compared(model)
    assert not calls


def test_gradients_keep_pefts_forward(calls: list[float]) -> None:
    model = adapted()
    mirage.apply(model)
    model(torch.randn(5, K, dtype=torch.bfloat16)).sum().backward()
    assert not calls


def test_applying_twice_changes_nothing_more(calls: list[float]) -> None:
    model = adapted()
    mirage.apply(model)
    compared(model)
