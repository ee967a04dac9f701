"""Weights that are one: which parameters are moved, and that every call reads its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("mirage_kernels._C")
from torch import Tensor, nn  # noqa: E402

import mirage_kernels  # noqa: E402
from mirage_kernels.matching import packing  # noqa: E402
from tests.models.test_optimize import (  # noqa: E402
    K,
    Norm,
    _fresh_graphs,  # noqa: F401
    half,
    replaced,
    tokens,
)


class Pair(nn.Module):
    """Two projections behind a norm."""

    def __init__(self, rows: int = K) -> None:
        super().__init__()
        self.norm = Norm()
        self.q, self.k = nn.Linear(K, rows), nn.Linear(K, rows)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(x)
        return torch.cat([self.q(x), self.k(x)], dim=-1)


class Broken(nn.Module):
    """A layer that torch.compile cuts: one graph runs for all layers of the class."""

    def __init__(self) -> None:
        super().__init__()
        self.pair = Pair(K // 2)

    def forward(self, x: Tensor) -> Tensor:
        y = self.pair(x)
        torch._dynamo.graph_break()
        return x + y


class Stack(nn.Module):
    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


@pytest.fixture(autouse=True)
def _no_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield


def pair() -> nn.Module:
    return half(Pair())


def is_right(module: nn.Module, made: Callable[[Tensor], Tensor] | None = None) -> bool:
    """Say whether a module's results are those of PyTorch with the weights that it has now."""
    x = tokens()
    result = module(x) if made is None else made(x)
    wanted = module.forward(x).float()
    return bool((result.float() - wanted).norm() < 1e-2 * wanted.norm())


def is_one(*parameters: Tensor) -> bool:
    return packing.is_packed(parameters)


@pytest.mark.parametrize("rest", ["eager", "inductor"])
def test_a_second_instance_of_a_class_reads_its_own_weights(rest: str) -> None:
    for module in (pair(), pair()):
        made = torch.compile(module, backend="mirage_kernels", options={"rest": rest})
        assert is_right(module, made)
        assert is_one(module.q.weight, module.k.weight)


def test_layers_that_share_a_graph_read_their_own_weights() -> None:
    module = half(Stack(Broken(), Broken(), Broken()))
    mirage_kernels.optimize(module)
    assert is_right(module)
    assert is_right(module)
    assert all(is_one(layer.pair.q.weight, layer.pair.k.weight) for layer in module.layers)
    assert replaced(module) == {"rms_norm_linear": 1}


def test_weights_that_are_assigned_later_are_read() -> None:
    module = mirage_kernels.optimize(pair())
    module(tokens())
    values = {name: 2 * value for name, value in module.state_dict().items()}
    module.load_state_dict(values, assign=True)
    assert is_right(module)
    assert is_one(module.q.weight, module.k.weight)


def test_data_that_is_assigned_later_is_read() -> None:
    module = mirage_kernels.optimize(pair())
    module(tokens())
    module.k.weight.data = torch.randn_like(module.k.weight)
    assert is_right(module)


def test_weights_that_cannot_be_moved_any_more_run_apart() -> None:
    module = mirage_kernels.optimize(pair())
    module(tokens())
    other = torch.randn(3 * K, K, dtype=torch.bfloat16)
    module.q.weight.data, module.k.weight.data = other[:K], other[2 * K :]
    assert is_right(module)
    assert replaced(module) == {"rms_norm_linear": 1 + 2}
    assert module.q.weight.data_ptr() == other.data_ptr()


def test_no_weight_is_moved_or_copied_by_a_later_call(monkeypatch: pytest.MonkeyPatch) -> None:
    module = mirage_kernels.optimize(pair())
    module(tokens())
    monkeypatch.setattr(packing, "_move", lambda parts: pytest.fail("moved"))
    found = packing.Whole((0, 1))
    whole = found.of([module.q.weight, module.k.weight])
    assert whole is not None
    assert whole.whole.data_ptr() == module.q.weight.data_ptr()
    assert found.of([module.q.weight, module.k.weight]) is whole
    assert is_right(module)


def test_memory_of_weights_is_freed_with_their_parameters() -> None:
    module, found = pair(), packing.Whole((0, 1))
    found.of([module.q.weight, module.k.weight])
    del module
    assert found._found is None


def test_tied_weights_are_not_one() -> None:
    module = pair()
    module.k.weight = module.q.weight
    mirage_kernels.optimize(module)
    module(tokens())
    module.q.weight.mul_(2)
    assert is_right(module)
    assert "one weight serves several of them" in str(mirage_kernels.report(module))


class Crossed(nn.Module):
    """One weight in two groups."""

    def __init__(self) -> None:
        super().__init__()
        self.pair, self.other = Pair(), nn.Linear(K, K)

    def forward(self, x: Tensor) -> Tensor:
        y = self.pair.norm(x.flip(-1))
        return torch.cat([self.pair(x), self.pair.k(y), self.other(y)], dim=-1)


def test_a_weight_in_two_groups_is_moved_once() -> None:
    module = half(Crossed())
    mirage_kernels.optimize(module)
    module(tokens())
    module.pair.k.weight.mul_(2)
    assert is_right(module)
    first, shared, last = module.pair.q.weight, module.pair.k.weight, module.other.weight
    assert is_one(first, shared) != is_one(shared, last)
    assert "put together with others already" in str(mirage_kernels.report(module))


def test_a_layer_that_is_called_twice_has_one_whole() -> None:
    layer = Pair(K // 2)
    module = half(Stack(layer, layer))
    mirage_kernels.optimize(module)
    assert is_right(module)
    assert replaced(module) == {"rms_norm_linear": 2}
    assert is_one(layer.q.weight, layer.k.weight)


class Tied(Pair):
    """The first weight is read by itself, too."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + self.q.weight.sum() + self.q.bias[:1]


@pytest.mark.parametrize("mode", [None, "default"])
def test_what_else_reads_a_part_reads_the_part_alone(mode: str | None) -> None:
    module = mirage_kernels.optimize(half(Tied()), mode=mode)
    assert is_right(module)
    assert replaced(module) == {"rms_norm_linear": 1}


def test_parameters_that_share_memory_are_not_moved() -> None:
    module = pair()
    module.k.weight = nn.Parameter(module.q.weight.data)
    mirage_kernels.optimize(module)
    assert is_right(module)
    assert module.k.weight.data_ptr() == module.q.weight.data_ptr()


def test_memory_that_processes_share_is_not_moved() -> None:
    module = pair().share_memory()
    mirage_kernels.optimize(module)
    assert is_right(module)
    assert module.q.weight.is_shared()
    assert "shares its memory" in str(mirage_kernels.report(module))


def test_weights_stay_where_kernels_can_read_each() -> None:
    module = half(Pair(rows=3))  # three numbers of bias: six bytes
    mirage_kernels.optimize(module)
    assert is_right(module)
    assert not is_one(module.q.bias, module.k.bias)
    assert "multiple of 16 bytes" in str(mirage_kernels.report(module))


def test_inference_mode_moves_parameters_into_ordinary_memory() -> None:
    module = mirage_kernels.optimize(pair())
    with torch.inference_mode():
        module(tokens())
    assert is_one(module.q.weight, module.k.weight)
    assert not module.q.weight.data.is_inference()


def test_cuda_graphs_take_packed_weights_for_static(caplog: pytest.LogCaptureFixture) -> None:
    torch._logging.set_logs(cudagraph_static_inputs=True)
    try:
        with torch._inductor.config.patch(force_disable_caches=True):
            mirage_kernels.optimize(pair(), [tokens()], mode="reduce-overhead")
    finally:
        torch._logging.set_logs()
    said = {r.getMessage() for r in caplog.records if "compile_fx_inner" in r.getMessage()}
    assert said == {"static input idxs compile_fx_inner: [1, 2, 3, 4, 5]"}  # all but the tokens
