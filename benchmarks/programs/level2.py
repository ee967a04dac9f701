"""KernelBench level 2: a linear layer and what follows it, at the original rows and at decode's.

Parameters of batch norms in evaluation are inputs, dropout is the identity.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from programs import Size, program

DECODE = (1, 16, 64)
OUT = {
    "all with Conv, 55": "convolutions; max pooling over neighbours",
    "98": "pooling over neighbours, then a maximum along a dim",
}


def layer(k: int = 8192, n: int = 8192, **more: tuple[Size, ...]) -> dict[str, tuple[Size, ...]]:
    """Return the shapes of a linear layer's input, weight and bias, and of further inputs."""
    return {"x": ("M", k), "w": (n, k), "b": (n,), **more}


def linear_program(number: int, rows: int, shapes: dict[str, tuple[Size, ...]]):  # type: ignore[no-untyped-def]
    """Register a program at the rows of the original and at those of decoding."""
    return program(f"level2/{number}", rows=(*DECODE, rows), **shapes)


@linear_program(9, 1024, layer())
def subtract_multiply_relu(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return torch.relu((F.linear(x, w, b) - 2.0) * 1.5)


@linear_program(12, 1024, layer())
def multiply_leaky_relu(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.leaky_relu(F.linear(x, w, b) * 2.0, 0.1)


@linear_program(14, 1024, {"x": ("M", 8192), "w": (8192, 8192)})
def divide_sum_scale(x: Tensor, w: Tensor) -> Tensor:
    return torch.sum(x @ w.T / 2, dim=1, keepdim=True) * 1.5


@linear_program(18, 1024, layer())
def sum_max_mean_logsumexp(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    y = torch.sum(F.linear(x, w, b), dim=1, keepdim=True)
    y = torch.mean(torch.max(y, dim=1, keepdim=True)[0], dim=1, keepdim=True)
    return torch.logsumexp(torch.logsumexp(y, dim=1, keepdim=True), dim=1, keepdim=True)


@linear_program(22, 1024, layer())
def scale_double_clamp_logsumexp_mish(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    y = F.linear(x, w, b) * 2.0
    y = torch.logsumexp(torch.clamp(y + y, -10.0, 10.0), dim=1, keepdim=True)
    return y * F.mish(y)


@linear_program(28, 1024, layer(y=("M", 8192)))
def instance_norm_add_multiply(x: Tensor, w: Tensor, b: Tensor, y: Tensor) -> Tensor:
    z = F.linear(x, w, b)
    z = F.instance_norm(z.unsqueeze(1).unsqueeze(1)).squeeze(1).squeeze(1)
    return (z + y) * y


@linear_program(29, 1024, layer())
def mish_mish(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.mish(F.mish(F.linear(x, w, b)))


@linear_program(30, 1024, layer(gw=(8192,), gb=(8192,)))
def group_norm_hard_tanh(x: Tensor, w: Tensor, b: Tensor, gw: Tensor, gb: Tensor) -> Tensor:
    return F.hardtanh(F.group_norm(F.linear(x, w, b), 16, gw, gb), -2.0, 2.0)


BATCH_NORM: dict[str, tuple[Size, ...]] = dict.fromkeys(("mean", "var", "nw", "nb"), (8192,))
SMALL_NORM: dict[str, tuple[Size, ...]] = dict.fromkeys(("mean", "var", "nw", "nb"), (4096,))


@linear_program(33, 1024, layer(s=(8192,), **BATCH_NORM))
def scale_batch_norm(
    x: Tensor, w: Tensor, b: Tensor, s: Tensor, mean: Tensor, var: Tensor, nw: Tensor, nb: Tensor
) -> Tensor:
    return F.batch_norm(F.linear(x, w, b) * s, mean, var.square(), nw, nb)


@linear_program(37, 8192, layer(1024, 4096, s=(4096,), gw=(4096,), gb=(4096,)))
def swish_add_group_norm(
    x: Tensor, w: Tensor, b: Tensor, s: Tensor, gw: Tensor, gb: Tensor
) -> Tensor:
    y = F.linear(x, w, b)
    return F.group_norm(torch.sigmoid(y) * y + s, 64, gw, gb)


@linear_program(39, 8192, layer(4096, 4096, s=(4096,), **SMALL_NORM))
def scale_batch_norm_small(
    x: Tensor, w: Tensor, b: Tensor, s: Tensor, mean: Tensor, var: Tensor, nw: Tensor, nb: Tensor
) -> Tensor:
    return F.batch_norm(F.linear(x, w, b) * s, mean, var.square(), nw, nb)


@linear_program(40, 8192, layer(4096, 4096))
def scale_residual(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    y = F.linear(x, w, b)
    return y * 0.5 + y


@linear_program(41, 8192, layer(4096, 4096, **SMALL_NORM))
def batch_norm_gelu_relu(
    x: Tensor, w: Tensor, b: Tensor, mean: Tensor, var: Tensor, nw: Tensor, nb: Tensor
) -> Tensor:
    return torch.relu(F.gelu(F.batch_norm(F.linear(x, w, b), mean, var.square(), nw, nb)))


@linear_program(45, 8192, layer(2048, 4096, w2=(1024, 4096), b2=(1024,)))
def two_layers_logsumexp(x: Tensor, w: Tensor, b: Tensor, w2: Tensor, b2: Tensor) -> Tensor:
    return torch.logsumexp(F.linear(torch.sigmoid(F.linear(x, w, b)), w2, b2), dim=1)


@linear_program(51, 2048, layer(s=(8192,)))
def subtract_mean_logsumexp_gelu_residual(x: Tensor, w: Tensor, b: Tensor, s: Tensor) -> Tensor:
    y = torch.mean(F.linear(x, w, b) - s, dim=1, keepdim=True)
    return F.gelu(torch.logsumexp(y, dim=1, keepdim=True)) + x


@linear_program(53, 2048, layer())
def scale_hard_tanh_gelu(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.gelu(F.hardtanh(F.linear(x, w, b) * 0.5, -2.0, 2.0))


@linear_program(56, 128, layer(32768, 32768))
def sigmoid_sum(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return torch.sum(torch.sigmoid(F.linear(x, w, b)), dim=1, keepdim=True)


@linear_program(59, 128, layer(32768, 32768))
def swish_scale(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    y = F.linear(x, w, b)
    return y * torch.sigmoid(y) * 2.0


@linear_program(62, 1024, layer(gw=(8192,), gb=(8192,)))
def group_norm_leaky_relu_double(x: Tensor, w: Tensor, b: Tensor, gw: Tensor, gb: Tensor) -> Tensor:
    y = F.leaky_relu(F.group_norm(F.linear(x, w, b), 512, gw, gb), 0.01)
    return y + y


@linear_program(63, 1024, layer())
def relu_divide(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return torch.relu(F.linear(x, w, b)) / 2.0


@linear_program(64, 1024, layer())
def logsumexp_leaky_relu_gelu(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    y = torch.logsumexp(F.linear(x, w, b), dim=1, keepdim=True)
    return F.gelu(F.gelu(F.leaky_relu(F.leaky_relu(y, 0.01), 0.01)))


@linear_program(66, 128, layer(16384, 16384))
def softmax_of_layer(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return torch.softmax(F.linear(x, w, b), dim=1)


@linear_program(68, 128, layer(16384, 16384))
def min_subtract(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return torch.clamp(F.linear(x, w, b), max=2.0) - 2.0


@linear_program(70, 1024, layer())
def sigmoid_scale_residual(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    y = F.linear(x, w, b)
    return torch.sigmoid(y) * 2.0 + y


@linear_program(75, 1024, layer(gw=(8192,), gb=(8192,), s=(8192, 1)))
def group_norm_min_add(
    x: Tensor, w: Tensor, b: Tensor, gw: Tensor, gb: Tensor, s: Tensor
) -> Tensor:
    y = torch.min(F.group_norm(F.linear(x, w, b), 512, gw, gb), dim=1)[0]
    return y + s


@linear_program(76, 1024, layer())
def add_relu(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return torch.relu(x @ w.T + b)


@linear_program(80, 1024, layer())
def max_subtract_gelu(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    y = torch.max(F.linear(x, w, b), dim=1, keepdim=True)[0]
    return F.gelu(y - y.mean(dim=1, keepdim=True))


@linear_program(81, 1024, layer())
def swish_divide_clamp_tanh(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    y = F.linear(x, w, b)
    y = torch.clamp(y * torch.sigmoid(y) / 2.0, -1.0, 1.0)
    return torch.clamp(torch.tanh(y), -1.0, 1.0)


@linear_program(84, 1024, layer(s=(1,), **BATCH_NORM))
def batch_norm_scale_softmax(
    x: Tensor, w: Tensor, b: Tensor, s: Tensor, mean: Tensor, var: Tensor, nw: Tensor, nb: Tensor
) -> Tensor:
    y = F.batch_norm(F.linear(x, w, b), mean, var.square(), nw, nb)
    return torch.softmax(s * y, dim=1)


@linear_program(86, 1024, layer())
def divide_gelu(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.gelu(F.linear(x, w, b) / 10.0)


@linear_program(88, 1024, layer(gw=(8192,), gb=(8192,), s=(8192,)))
def group_norm_swish_multiply_swish(
    x: Tensor, w: Tensor, b: Tensor, gw: Tensor, gb: Tensor, s: Tensor
) -> Tensor:
    y = F.silu(F.group_norm(F.linear(x, w, b), 256, gw, gb)) * s
    return F.silu(y)


@linear_program(94, 1024, layer(s=(8192,), gw=(8192,), gb=(8192,)))
def add_hard_tanh_mish_group_norm(
    x: Tensor, w: Tensor, b: Tensor, s: Tensor, gw: Tensor, gb: Tensor
) -> Tensor:
    return F.group_norm(F.mish(F.hardtanh(F.linear(x, w, b) + s)), 256, gw, gb)


@linear_program(95, 1024, layer(s=(8192,)))
def add_swish_tanh_gelu_hard_tanh(x: Tensor, w: Tensor, b: Tensor, s: Tensor) -> Tensor:
    return F.hardtanh(F.gelu(torch.tanh(F.silu(F.linear(x, w, b) + s))), -1.0, 1.0)


@linear_program(97, 1024, layer(s=(1,), **BATCH_NORM))
def batch_norm_add_swish(
    x: Tensor, w: Tensor, b: Tensor, s: Tensor, mean: Tensor, var: Tensor, nw: Tensor, nb: Tensor
) -> Tensor:
    return F.silu((F.batch_norm(F.linear(x, w, b), mean, var.square(), nw, nb) + s) / 1.0)


@linear_program(99, 1024, layer())
def gelu_softmax(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return torch.softmax(F.gelu(F.linear(x, w, b)), dim=1)
