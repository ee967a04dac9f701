"""Layers for the `kernels` package, put into tiny models by its own `kernelize`, on the CPU."""

from __future__ import annotations

import sys
from collections.abc import Callable
from copy import deepcopy
from importlib import import_module
from importlib.metadata import PackageNotFoundError, distribution
from types import ModuleType
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("mirage_kernels._C")

from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

from mirage_kernels.integrations import kernels as mirage  # noqa: E402

K, N = 64, 96


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Import the published package, which has the name of this repository's folder."""
    try:
        found = distribution("kernels")
    except PackageNotFoundError:
        pytest.skip("the package `kernels` is not installed")
    monkeypatch.syspath_prepend(str(found.locate_file("")))
    mine = sys.modules.get("kernels")
    if mine is not None and not hasattr(mine, "kernelize"):
        monkeypatch.delitem(sys.modules, "kernels")
    return import_module("kernels")


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the names of ops in the order of calls."""
    made = list[str]()
    for name in ("rms_norm", "gated_mlp", "act_and_mul"):
        op = getattr(mirage, name)

        def counted(*args: Any, _op: Callable[..., Any] = op, _name: str = name, **named: Any):
            made.append(_name)
            return _op(*args, **named)

        monkeypatch.setattr(mirage, name, counted)
    return made


def norm_class(offset: float) -> type[nn.Module]:
    """Return a class as transformers writes norms; a new one, as names are kept by class."""

    class Norm(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.rand(K) + 0.5 - offset)
            self.eps = 1e-6

        def forward(self, hidden_states: Any) -> Any:
            x = hidden_states.float()
            normed = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)
            return (normed * (self.weight.float() + offset)).type_as(hidden_states)

    return Norm


def mlp_class(act: nn.Module, *, packed: bool = False, bias: bool = False) -> type[nn.Module]:
    class MLP(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            if packed:
                self.gate_up_proj = nn.Linear(K, 2 * N, bias=bias)
            else:
                self.gate_proj = nn.Linear(K, N, bias=bias)
                self.up_proj = nn.Linear(K, N, bias=bias)
            self.down_proj = nn.Linear(N, K, bias=bias)
            self.act_fn = act

        def forward(self, x: Any) -> Any:
            if packed:
                gate, up = self.gate_up_proj(x).chunk(2, dim=-1)
            else:
                gate, up = self.gate_proj(x), self.up_proj(x)
            return self.down_proj(self.act_fn(gate) * up)

    return MLP


SILU, GELU = nn.SiLU(), nn.GELU(approximate="tanh")
CASES = {
    "RMSNorm": (lambda: norm_class(0.0), "rms_norm"),
    "RMSNormZeroCentered": (lambda: norm_class(1.0), "rms_norm"),
    "SwiGLUMLP": (lambda: mlp_class(SILU), "gated_mlp"),
    "SwiGLUMLP, packed": (lambda: mlp_class(SILU, packed=True), "gated_mlp"),
    "GeGLUMLP": (lambda: mlp_class(GELU), "gated_mlp"),
}


def made(kind: type[nn.Module]) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(kind()).to(torch.bfloat16).eval()


def tokens() -> Any:
    return torch.randn(2, 3, K, generator=torch.Generator().manual_seed(1)).to(torch.bfloat16)


def kernelized(kernels: ModuleType, model: nn.Module, mode: Any) -> None:
    with kernels.use_kernel_mapping(mirage.layer_mapping(("cpu",))):
        kernels.kernelize(model, mode=mode, device="cpu", use_fallback=False)


@pytest.mark.parametrize("case", CASES)
def test_kernelize_puts_an_op_in_the_place_of_a_layer(
    kernels: ModuleType, calls: list[str], case: str
) -> None:
    kind, op = CASES[case]
    model = made(kind())
    assert [*mirage.name_layers(model).values()] == [case.split(",")[0]]
    with torch.no_grad():
        wanted = model(tokens())
        kernelized(kernels, model, kernels.Mode.INFERENCE)
        torch.testing.assert_close(model(tokens()), wanted, rtol=0.02, atol=0.02)
    assert calls == [op]


@pytest.mark.parametrize(
    ("name", "act"), [("SiluAndMul", functional.silu), ("GeluTanhAndMul", GELU)]
)
def test_activations_of_packed_halves_are_layers_too(
    kernels: ModuleType, calls: list[str], name: str, act: Callable[[Any], Any]
) -> None:
    class Product(nn.Module):
        def forward(self, x: Any) -> Any:
            gate, up = x.chunk(2, dim=-1)
            return act(gate) * up

    kernels.replace_kernel_forward_from_hub(Product, name)
    model = nn.Sequential(Product()).eval()
    wanted = model(tokens())
    kernelized(kernels, model, kernels.Mode.INFERENCE)
    torch.testing.assert_close(model(tokens()), wanted, rtol=0.02, atol=0.02)
    assert calls == ["act_and_mul"]


def test_layers_stay_one_graph_under_torch_compile(kernels: ModuleType) -> None:
    model = made(mlp_class(SILU))
    mirage.name_layers(model)
    wanted = model(tokens()).detach()
    kernelized(kernels, model, kernels.Mode.INFERENCE | kernels.Mode.TORCH_COMPILE)
    with torch.no_grad():
        found = torch.compile(model, backend="eager", fullgraph=True)(tokens())
    torch.testing.assert_close(found, wanted, rtol=0.02, atol=0.02)


def test_in_training_a_model_keeps_its_layers(kernels: ModuleType, calls: list[str]) -> None:
    model = made(norm_class(0.0))
    mirage.name_layers(model)
    with kernels.use_kernel_mapping(mirage.layer_mapping(("cpu",))):
        kernels.kernelize(model, mode=kernels.Mode.TRAINING, device="cpu")
    model(tokens()).sum().backward()
    assert not calls


@pytest.mark.parametrize("needs", ["gradients", "fp32"])
def test_calls_that_no_op_takes_run_the_models_own_layer(
    kernels: ModuleType, calls: list[str], needs: str
) -> None:
    model, x = made(norm_class(0.0)), tokens()
    mirage.name_layers(model)
    if needs == "fp32":
        model, x = model.float(), x.float()
    wanted = model(x).detach()
    kernelized(kernels, model, kernels.Mode.INFERENCE)
    with torch.set_grad_enabled(needs == "gradients"):
        torch.testing.assert_close(model(x).detach(), wanted)
    assert not calls


def test_classes_that_compute_something_else_get_no_name(kernels: ModuleType) -> None:
    class Scaled(norm_class(0.0)):  # type: ignore[misc]
        def forward(self, x: Any) -> Any:
            return 3 * super().forward(x)

    models = [made(Scaled), made(mlp_class(nn.ReLU())), made(mlp_class(SILU, bias=True))]
    assert [mirage.name_layers(model) for model in models] == [{}, {}, {}]


def test_instances_with_other_linear_layers_keep_their_forward(
    kernels: ModuleType, calls: list[str]
) -> None:
    class Adapted(nn.Linear):
        pass

    model = made(mlp_class(SILU))
    mirage.name_layers(model)
    model[0].up_proj = Adapted(K, N, bias=False).to(torch.bfloat16)  # type: ignore[index]
    kernelized(kernels, model, kernels.Mode.INFERENCE)
    with torch.no_grad():
        model(tokens())
    assert not calls


def own_forward(module: nn.Module) -> None:
    own = module.forward
    module.forward = lambda x: 2 * own(x)


CHANGES: dict[str, Callable[[Any], object]] = {
    "activation": lambda mlp: setattr(mlp, "act_fn", GELU),
    "activation's hook": lambda mlp: mlp.act_fn.register_forward_hook(lambda m, x, y: 2 * y),
    "hook": lambda mlp: mlp.gate_proj.register_forward_hook(lambda m, x, y: 2 * y),
    "pre-hook": lambda mlp: mlp.up_proj.register_forward_pre_hook(lambda m, x: (2 * x[0],)),
    "forward": lambda mlp: own_forward(mlp.up_proj),
    "bias": lambda mlp: setattr(mlp, "gate_proj", nn.Linear(K, N).to(torch.bfloat16)),
    "adapter": lambda mlp: setattr(mlp, "up_proj", nn.Sequential(mlp.up_proj, nn.ReLU())),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_changes_an_mlp_after_kernelize_is_computed(
    kernels: ModuleType, calls: list[str], change: str
) -> None:
    model = made(mlp_class(nn.SiLU()))
    mirage.name_layers(model)
    plain = deepcopy(model)
    kernelized(kernels, model, kernels.Mode.INFERENCE)
    with torch.no_grad():
        CHANGES[change](model[0])  # type: ignore[index]
        CHANGES[change](plain[0])  # type: ignore[index]
        if change == "bias":
            plain.load_state_dict(model.state_dict())
        assert torch.equal(model(tokens()), plain(tokens()))
    assert not calls


def test_a_model_with_another_activation_keeps_it_under_the_name_of_its_class(
    kernels: ModuleType, calls: list[str]
) -> None:
    kind = mlp_class(nn.SiLU())
    mirage.name_layers(made(kind))
    model = made(kind)
    model[0].act_fn = GELU  # type: ignore[index]
    with torch.no_grad():
        wanted = model(tokens())
        mirage.name_layers(model)
        kernelized(kernels, model, kernels.Mode.INFERENCE)
        assert torch.equal(model(tokens()), wanted)
    assert not calls


def test_every_layer_is_in_the_local_repository(kernels: ModuleType) -> None:
    for layer in mirage.LAYERS:
        repository = kernels.LocalLayerRepository(mirage.REPOSITORY, layer_name=layer.__name__)
        assert repository.load() is layer


@pytest.mark.parametrize(
    ("family", "named"),
    [
        ("Llama", {"LlamaMLP": "SwiGLUMLP", "LlamaRMSNorm": "RMSNorm"}),
        ("Gemma2", {"Gemma2MLP": "GeGLUMLP", "Gemma2RMSNorm": "RMSNormZeroCentered"}),
        ("Phi3", {"Phi3MLP": "SwiGLUMLP", "Phi3RMSNorm": "RMSNorm"}),
    ],
)
def test_layers_of_transformers_are_named_and_replaced(
    kernels: ModuleType, calls: list[str], family: str, named: dict[str, str]
) -> None:
    """Newer versions of both packages name the norms themselves."""
    transformers = pytest.importorskip("transformers", minversion="5.10")
    sizes = {"hidden_size": K, "intermediate_size": N, "num_hidden_layers": 1, "vocab_size": 50}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "pad_token_id": 0}
    config = getattr(transformers, f"{family}Config")(**sizes, **heads)
    torch.manual_seed(0)
    model = getattr(transformers, f"{family}ForCausalLM")(config).to(torch.bfloat16).eval()
    kinds = {type(m) for m in model.modules()}
    mirage.name_layers(model)
    found = {k.__name__: k.kernel_layer_name for k in kinds if hasattr(k, "kernel_layer_name")}
    assert {name: found[name] for name in named} == named
    ids = torch.arange(5)[None]
    with torch.no_grad():
        wanted = model(ids).logits
        with kernels.use_kernel_mapping(mirage.layer_mapping(("cpu",))):
            kernels.kernelize(model, mode=kernels.Mode.INFERENCE, device="cpu")
        torch.testing.assert_close(model(ids).logits, wanted, rtol=0.03, atol=0.03)
    norms = 5 if family == "Gemma2" else 3
    assert (calls.count("rms_norm"), calls.count("gated_mlp")) == (norms, 1)


@pytest.mark.gpu
@pytest.mark.parametrize("compiled", [False, True])
def test_on_a_gpu_kernelized_layers_run_the_kernels(
    kernels: ModuleType, monkeypatch: pytest.MonkeyPatch, compiled: bool
) -> None:
    monkeypatch.setitem(globals(), "K", 2048)
    monkeypatch.setitem(globals(), "N", 8192)
    torch.manual_seed(0)
    model = nn.Sequential(norm_class(0.0)(), mlp_class(SILU)()).to(torch.bfloat16).eval().cuda()
    assert [*mirage.name_layers(model).values()] == ["RMSNorm", "SwiGLUMLP"]
    x = torch.randn(2, 3, K, dtype=torch.bfloat16, device="cuda")
    exact = deepcopy(model).double()(x.double()).detach()
    mode = kernels.Mode.INFERENCE | kernels.Mode.TORCH_COMPILE
    mode = mode if compiled else kernels.Mode.INFERENCE
    with kernels.use_kernel_mapping(mirage.layer_mapping()):
        kernels.kernelize(model, mode=mode, device="cuda", use_fallback=False)
    run = torch.compile(model, backend="eager", fullgraph=True) if compiled else model
    with torch.no_grad():
        run(x)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as seen:
            found = run(x)
            torch.cuda.synchronize()
    launched = " ".join(event.name for event in seen.events() if "mirage" in event.name)
    assert "rms_norm" in launched
    assert "gated_mlp" in launched
    assert (found.double() - exact).norm() < 0.01 * exact.norm()


def test_another_package_of_that_name_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    other = ModuleType("kernels")
    other.__file__ = "elsewhere/kernels/__init__.py"
    monkeypatch.setitem(sys.modules, "kernels", other)
    with pytest.raises(RuntimeError, match=r"needs kernels >= 0\.17; here: elsewhere/kernels"):
        mirage.layer_mapping()
