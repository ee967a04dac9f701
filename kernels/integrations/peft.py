"""PEFT: LoRA layers whose base is a linear layer run as one `lora_linear`.

    from mirage_kernels.integrations import peft as mirage

    mirage.apply(model)  # a PeftModel, or any module that holds PEFT's layers

A layer keeps PEFT's own forward wherever that does something else than add one adapter: adapters
that are merged, disabled or several, DoRA and other variants, dropout in training, adapters chosen
per sample, linear layers with hooks, and sizes without a kernel. Adapters that PEFT keeps in fp32
are rounded to the base's type, anew in every call, as they may be trained or replaced.

Written against PEFT 0.18 to 0.21.
"""

from __future__ import annotations

from functools import partial
from typing import Protocol

from peft.tuners.lora import Linear as LoraLinear
from torch import Tensor, nn

from mirage_kernels.argument_checks import asks_for_grad
from mirage_kernels.element_types import HALVES
from mirage_kernels.integrations.plain_linear import is_plain_linear
from mirage_kernels.ops import lora_linear
from mirage_kernels.support import supports


class _Forward(Protocol):
    def __call__(self, x: Tensor, *args: object, **options: object) -> Tensor:
        """Compute a layer."""


def apply(model: nn.Module) -> int:
    """Let a model's LoRA layers call `lora_linear`, in place; return how many there are."""
    layers = [m for m in model.modules() if isinstance(m, LoraLinear) and _is_linear(m)]
    for layer in layers:
        if not hasattr(layer, "_own_forward"):
            # Partial functions can be pickled, and a copy of a layer has one of its own.
            layer._own_forward = vars(layer).get("forward", partial(type(layer).forward, layer))
            layer.forward = partial(_forward, layer)
    return len(layers)


def _is_linear(layer: LoraLinear) -> bool:
    return type(layer.get_base_layer()) is nn.Linear and not getattr(layer, "fan_in_fan_out", False)


def _forward(layer: LoraLinear, x: Tensor, *args: object, **options: object) -> Tensor:
    own: _Forward = layer._own_forward
    base, adapter = layer.get_base_layer(), _adapter(layer)
    if adapter is None or args or any(v is not None for v in options.values()):
        return own(x, *args, **options)
    a, b = layer.lora_A[adapter], layer.lora_B[adapter]
    if not all(is_plain_linear(module) for module in (base, a, b)):
        return own(x)
    if a.bias is not None or b.bias is not None or not _is_served(base, a, x):
        return own(x)
    if _needs_grad(x, base, a, b):
        return own(x)
    dtype = base.weight.dtype
    scale = float(layer.scaling[adapter])
    weights = (base.weight, a.weight.to(dtype), b.weight.to(dtype))
    return lora_linear(x, *weights, scale, bias=base.bias)


def _adapter(layer: LoraLinear) -> str | None:
    """Return the one plain adapter that is added; None where PEFT does something else."""
    if layer.disable_adapters or layer.merged:
        return None
    active = [name for name in layer.active_adapters if name in layer.lora_A]
    if len(active) != 1 or active[0] in getattr(layer, "lora_variant", {}):
        return None
    dropout = layer.lora_dropout[active[0]]
    has_dropout = layer.training and not isinstance(dropout, nn.Identity)
    return None if has_dropout else str(active[0])


def _is_served(base: nn.Linear, a: nn.Linear, x: Tensor) -> bool:
    weight = base.weight
    if x.dtype != weight.dtype or x.dtype not in HALVES or x.device != weight.device:
        return False
    return supports(
        "lora_linear",
        dtype=x.dtype,
        device=x.device,
        K=base.in_features,
        N=base.out_features,
        R=a.out_features,
    )


def _needs_grad(x: Tensor, *modules: nn.Module) -> bool:
    return asks_for_grad(x, *(p for module in modules for p in module.parameters()))
