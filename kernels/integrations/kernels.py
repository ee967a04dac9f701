"""The `kernels` package: layers that its `kernelize` puts in the place of a model's own.

    from kernels import Mode, kernelize, register_kernel_mapping
    from mirage_kernels.integrations.kernels import layer_mapping, name_layers

    register_kernel_mapping(layer_mapping())
    name_layers(model)  # classes that have no layer name yet, such as MLPs and Gemma's norms
    kernelize(model, mode=Mode.INFERENCE, device="cuda")

In transformers, `KernelConfig({"RMSNorm": f"{REPOSITORY}:RMSNorm"}, use_local_kernel=True)` names
the same layers. A layer calls an op where a kernel serves the call, and otherwise what the model's
own class computes: other types, sizes without a kernel, calls that need gradients, linear layers
with adapters or hooks.

Written against kernels 0.17 (`LocalLayerRepository`, `register_kernel_mapping`, `kernelize`,
`replace_kernel_forward_from_hub`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

from mirage_kernels.argument_checks import asks_for_grad
from mirage_kernels.element_types import HALVES
from mirage_kernels.errors import old_package_sentence
from mirage_kernels.integrations.plain_linear import is_changed, is_plain_linear
from mirage_kernels.norm_ops import act_and_mul, rms_norm
from mirage_kernels.ops import gated_mlp
from mirage_kernels.support import supports

REPOSITORY = Path(__file__).parent / "hub"  # what `LocalLayerRepository` reads
_CLOSE = 0.04  # of results in 16 bits, relative and absolute


class _Linear(Protocol):
    weight: Tensor
    bias: Tensor | None

    def __call__(self, x: Tensor) -> Tensor:
        """Compute the product."""


class _Forward(Protocol):
    def __call__(self, layer: nn.Module, x: Tensor) -> Tensor:
        """Compute a layer."""


# -- layers: without state, their forward runs as the model's own layer's --------------------------


class RMSNorm(nn.Module):
    """rms_norm(x) * weight."""

    can_torch_compile = True
    has_backward = False

    def forward(self, x: Tensor) -> Tensor:
        """Norm the last dim."""
        return _norm(self, x, 0.0)


class RMSNormZeroCentered(nn.Module):
    """rms_norm(x) * (1 + weight)."""

    can_torch_compile = True
    has_backward = False

    def forward(self, x: Tensor) -> Tensor:
        """Norm the last dim."""
        return _norm(self, x, 1.0)


class SwiGLUMLP(nn.Module):
    """down_proj(silu(gate_proj(x)) * up_proj(x)), gate and up packed or not."""

    can_torch_compile = True
    has_backward = False

    def forward(self, x: Tensor) -> Tensor:
        """Compute the MLP."""
        return _mlp(self, x, "silu")


class GeGLUMLP(nn.Module):
    """down_proj(gelu_tanh(gate_proj(x)) * up_proj(x)), gate and up packed or not."""

    can_torch_compile = True
    has_backward = False

    def forward(self, x: Tensor) -> Tensor:
        """Compute the MLP."""
        return _mlp(self, x, "gelu_tanh")


class SiluAndMul(nn.Module):
    """silu of the first half of x times the second half."""

    can_torch_compile = True
    has_backward = False

    def forward(self, x: Tensor) -> Tensor:
        """Multiply the halves."""
        return _product(self, x, "silu")


class GeluTanhAndMul(nn.Module):
    """gelu_tanh of the first half of x times the second half."""

    can_torch_compile = True
    has_backward = False

    def forward(self, x: Tensor) -> Tensor:
        """Multiply the halves."""
        return _product(self, x, "gelu_tanh")


LAYERS = (RMSNorm, RMSNormZeroCentered, SwiGLUMLP, GeGLUMLP, SiluAndMul, GeluTanhAndMul)


def _own(layer: nn.Module, x: Tensor) -> Tensor:
    """Compute what the class of the model does: only its instance's forward was replaced."""
    forward: _Forward = type(layer).forward
    return forward(layer, x)


def _norm(layer: nn.Module, x: Tensor, offset: float) -> Tensor:
    weight = _weight(layer)
    sizes = {"K": x.shape[-1]}
    if not _is_served("rms_norm", (x, weight), sizes):
        return _own(layer, x)
    return rms_norm(x, weight, _eps(layer), weight_offset=offset)


def _mlp(layer: nn.Module, x: Tensor, activation: str) -> Tensor:
    if not _is_gated(layer) or _activation(layer) != activation:
        return _own(layer, x)
    weights = tuple(linear.weight for linear in _gate_and_up(layer))
    rows = sum(weight.shape[0] for weight in weights)
    sizes: dict[str, int | str] = {"K": x.shape[-1], "N": rows // 2, "activation": activation}
    if not _is_served("gated_mlp", (x, *weights), sizes):
        return _own(layer, x)
    return _linear(layer, "down_proj")(gated_mlp(x, *weights, activation=activation))


def _product(layer: nn.Module, x: Tensor, activation: str) -> Tensor:
    sizes: dict[str, int | str] = {"N": x.shape[-1] // 2, "activation": activation}
    if not _is_served("act_and_mul", (x,), sizes):
        return _own(layer, x)
    return act_and_mul(x, activation=activation)


def _is_served(op: str, tensors: Sequence[Tensor], asked: Mapping[str, object]) -> bool:
    x = tensors[0]
    if x.dtype not in HALVES or any(t.dtype != x.dtype or t.device != x.device for t in tensors):
        return False
    if asks_for_grad(*tensors):
        return False
    return supports(op, dtype=x.dtype, device=x.device, **asked)


# -- what a model's layers hold --------------------------------------------------------------------


def _weight(layer: nn.Module) -> Tensor:
    weight: Tensor = layer.weight  # type: ignore[assignment]
    return weight


def _eps(layer: nn.Module) -> float:
    """Return a norm's epsilon, under either name that transformers has for it."""
    return float(getattr(layer, "variance_epsilon", None) or layer.eps)  # type: ignore[arg-type]


def _linear(layer: nn.Module, name: str) -> _Linear:
    linear: _Linear = getattr(layer, name)
    return linear


def _is_gated(layer: nn.Module) -> bool:
    """Say whether gate and up are what an op reads: plain linear layers without biases.

    A name is a class's, and this differs by instance; adapters and hooks come and go.
    """
    return all(is_plain_linear(g) and g.bias is None for g in _gate_and_up(layer))


def _gate_and_up(layer: nn.Module) -> list[_Linear]:
    names = ("gate_up_proj",) if hasattr(layer, "gate_up_proj") else ("gate_proj", "up_proj")
    return [_linear(layer, name) for name in names]


# -- the mapping -----------------------------------------------------------------------------------


def layer_mapping(devices: Sequence[str] = ("cuda",)) -> dict[str, dict[str, object]]:
    """Return what `kernels.register_kernel_mapping` and `kernels.use_kernel_mapping` take.

    The layers are for inference, with torch.compile and without; in training a model keeps its own.
    Raises RuntimeError where the `kernels` package is missing or too old.
    """
    package = _package()
    modes = (package.Mode.INFERENCE, package.Mode.INFERENCE | package.Mode.TORCH_COMPILE)
    mapping = dict[str, dict[str, object]]()
    for layer in LAYERS:
        name = layer.__name__
        repository = package.LocalLayerRepository(REPOSITORY, layer_name=name)
        mapping[name] = {device: dict.fromkeys(modes, repository) for device in devices}
    return mapping


def name_layers(model: nn.Module) -> dict[str, str]:
    """Give layer names to classes of a model that have none; return the names by class.

    A class gets the name of the layer that computes what its first instance does, on one small
    input. Names are the class's: they hold for other models of it too. Each call of an MLP looks at
    its layers: where gate or up has a bias, an adapter or a hook, and where the activation is not
    the name's, the MLP keeps its own forward.
    """
    package, named = _package(), dict[str, str]()
    for module in model.modules():
        kind = type(module)
        name = None if hasattr(kind, "kernel_layer_name") else _name_of(module)
        if name is not None:
            condition = _is_norm if name.startswith("RMSNorm") else _is_mlp
            package.replace_kernel_forward_from_hub(kind, name, condition)
            named[kind.__name__] = name
    return named


def _package() -> ModuleType:
    try:
        package = import_module("kernels")
    except ImportError as missing:
        raise RuntimeError(old_package_sentence("kernels", "0.17", str(missing))) from missing
    if not hasattr(package, "LocalLayerRepository"):
        why = f"{package.__file__} is another package"
        raise RuntimeError(old_package_sentence("kernels", "0.17", why))
    return package


def _name_of(module: nn.Module) -> str | None:
    if _is_norm(module):
        return next((name for name, weight in _norms(module) if _computes(module, weight)), None)
    if _is_mlp(module):
        activation = _activation(module)
        known = {"silu": "SwiGLUMLP", "gelu_tanh": "GeGLUMLP"}
        return known[activation] if _computes(module, _plain_mlp(module, activation)) else None
    return None


def _norms(module: nn.Module) -> list[tuple[str, Callable[[Tensor], Tensor]]]:
    weight, eps = _weight(module).float(), _eps(module)

    def norm(offset: float) -> Callable[[Tensor], Tensor]:
        return lambda x: functional.rms_norm(x.float(), weight.shape, weight + offset, eps)

    return [("RMSNorm", norm(0.0)), ("RMSNormZeroCentered", norm(1.0))]


def _plain_mlp(module: nn.Module, activation: str) -> Callable[[Tensor], Tensor]:
    act = functional.silu if activation == "silu" else nn.GELU(approximate="tanh")

    def mlp(x: Tensor) -> Tensor:
        gate, up = torch.cat([linear(x) for linear in _gate_and_up(module)], -1).chunk(2, -1)
        return _linear(module, "down_proj")(act(gate) * up)

    return mlp


def _is_norm(module: nn.Module) -> bool:
    weight = getattr(module, "weight", None)
    is_one_dim = isinstance(weight, Tensor) and weight.dim() == 1 and not weight.is_meta
    has_eps = any(isinstance(getattr(module, n, None), float) for n in ("variance_epsilon", "eps"))
    return is_one_dim and has_eps and [*module.state_dict()] == ["weight"]


def _is_mlp(module: nn.Module) -> bool:
    """Say whether a module holds the linear layers of a gated MLP, gate and up without biases."""
    children = dict(module.named_children())
    names = {*children} - {"act_fn", "activation_fn"}
    if names not in ({"gate_proj", "up_proj", "down_proj"}, {"gate_up_proj", "down_proj"}):
        return False
    plain = [child for name, child in children.items() if name in names]
    if any(type(child) is not nn.Linear or child.weight.is_meta for child in plain):
        return False
    return bool(_activation(module)) and _is_gated(module)


def _activation(module: nn.Module) -> str:
    """Return the library's word for an MLP's activation, by the name of its class; or nothing."""
    act = getattr(module, "act_fn", None) or getattr(module, "activation_fn", None)
    if isinstance(act, nn.Module) and is_changed(act):
        return ""
    if isinstance(act, nn.GELU) and act.approximate == "tanh":
        return "gelu_tanh"
    words = {"SiLU": "silu", "SiLUActivation": "silu", "GELUTanh": "gelu_tanh"}
    return words.get(type(act).__name__, "")


def _computes(module: nn.Module, wanted: Callable[[Tensor], Tensor]) -> bool:
    """Say whether a module's class computes a function, on two small rows."""
    weight = next(module.parameters())
    columns = weight.shape[-1]
    x = torch.linspace(-1.0, 1.0, 2 * columns, device=weight.device).view(2, columns)
    x = x.to(weight.dtype)
    with torch.no_grad():
        own = _own(module, x)
        return own.shape == x.shape and torch.allclose(
            own.float(), wanted(x).float(), _CLOSE, _CLOSE
        )
