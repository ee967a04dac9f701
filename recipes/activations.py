"""Activations by name, as recipes choose them: in the recipes' language and in PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from mirage_kernels.generator.language import Tensor, gelu, gelu_tanh, relu, silu, square

if TYPE_CHECKING:
    import torch

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": silu,
    "gelu": gelu,  # exact, by the error function
    "gelu_tanh": gelu_tanh,
    "relu": relu,
    "relu2": lambda x: square(relu(x)),  # Primer's
}


def torch_activation(name: str) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return PyTorch's own function for an activation."""
    from torch.nn import functional

    if name == "gelu_tanh":
        return lambda x: functional.gelu(x, approximate="tanh")
    if name == "relu2":
        return lambda x: functional.relu(x).square()
    found: Callable[[torch.Tensor], torch.Tensor] = getattr(functional, name)
    return found
