"""PEFT's LoRA layers with this library's op, on the CPU."""

from __future__ import annotations

import copy
import io
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


HOOKED = {
    "base": lambda layer: layer.base_layer,
    "A": lambda layer: layer.lora_A["default"],
    "B": lambda layer: layer.lora_B["default"],
}


@pytest.mark.parametrize("part", HOOKED)
@pytest.mark.parametrize("kind", ["hook", "pre-hook", "forward"])
def test_hooks_of_a_linear_layer_are_called(part: str, kind: str, calls: list[float]) -> None:
    model = adapted()
    for layer in (model.base_model.model.up, model.base_model.model.down):
        linear = HOOKED[part](layer)
        if kind == "hook":
            linear.register_forward_hook(lambda module, given, made: 2 * made)
        elif kind == "pre-hook":
            linear.register_forward_pre_hook(lambda module, given: (2 * given[0],))
        else:
            linear.forward = lambda x, module=linear: 2 * nn.functional.linear(x, module.weight)
    compared(model)
    assert not calls


def test_a_hook_that_comes_and_goes_is_followed(calls: list[float]) -> None:
    model, x = adapted(), torch.randn(5, K, dtype=torch.bfloat16)
    mirage.apply(model)
    handle = model.base_model.model.down.base_layer.register_forward_hook(lambda *_: None)
    with torch.no_grad():
        model(x)
        assert len(calls) == 1
        handle.remove()
        model(x)
    assert len(calls) == 3


def test_a_served_model_is_pickled(calls: list[float]) -> None:
    model, x = adapted(), torch.randn(5, K, dtype=torch.bfloat16)
    mirage.apply(model)
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    with torch.no_grad():
        assert torch.equal(loaded(x), model(x))
    loaded.merge_adapter()  # this keeps PEFT's forward
    with torch.no_grad():
        torch.testing.assert_close(loaded(x), model(x), rtol=3e-2, atol=3e-2)
    assert len(calls) == 6


@pytest.mark.parametrize("merged", [False, True])
def test_a_copy_of_a_served_model_runs_its_own_layers(merged: bool) -> None:
    model, x = adapted(), torch.randn(5, K, dtype=torch.bfloat16)
    mirage.apply(model)
    copied = copy.deepcopy(model)
    with torch.no_grad():
        if merged:
            model.merge_adapter()
            copied.merge_adapter()
        before = model(x)
        for parameter in copied.parameters():
            parameter.zero_()
        assert torch.equal(model(x), before)
        assert not copied(x).any()


def test_served_layers_stay_one_graph_under_torch_compile() -> None:
    model, x = adapted(), torch.randn(5, K, dtype=torch.bfloat16)
    mirage.apply(model)
    with torch.no_grad():
        made = torch.compile(model, backend="eager", fullgraph=True)(x)
        assert torch.equal(made, model(x))
