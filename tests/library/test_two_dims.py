"""Functions whose batch and sequence are dynamic, on a GPU, beside float64."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from cut_functions import TYPES, compiled, program_of, require_right
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

K, N, DIM = 1024, 2048, 64
SIZES = ((1, 1), (0, 4), (3, 5), (4, 16), (1, 64), (2, 65), (7, 33))


def conv1d(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return torch.addmm(b, x.view(-1, x.size(-1)), w).view(x.shape[0], x.shape[1], w.shape[1])


def activated(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    y = conv1d(x, w, b)
    return 0.5 * y * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (y + 0.044715 * y**3)))


def gated(x: Tensor, n: Tensor, g: Tensor, u: Tensor) -> Tensor:
    y = F.rms_norm(x, x.shape[-1:], n, 1e-5)
    return F.silu(F.linear(y, g)) * F.linear(y, u)


def added(x: Tensor, n: Tensor, v: Tensor) -> Tensor:
    return x + F.linear(F.layer_norm(x, x.shape[-1:], n), v)


def attention(x: Tensor, y: Tensor, z: Tensor) -> Tensor:
    q, k, v = (t.unflatten(-1, (-1, DIM)).transpose(1, 2) for t in (x, y, z))
    made = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    return made.transpose(1, 2).flatten(2)


WEIGHTS = {"w": (K, N), "b": (N,), "n": (K,), "g": (N, K), "u": (N, K), "v": (K, K)}


def tensors_of(run: Callable[..., Any], batch: int, tokens: int) -> dict[str, tuple[int, ...]]:
    names = [n for n in run.__annotations__ if n != "return"]
    return {n: WEIGHTS.get(n, (batch, tokens, K)) for n in names}


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("run", [activated, gated, added, attention])
def test_results_are_right(run: Callable[..., Any], dtype: str, tmp_path: Path) -> None:
    shapes = tensors_of(run, 2, 3)
    rows = tuple(n for n in shapes if n not in WEIGHTS)
    program = program_of(run, f"{run.__name__}_two_{dtype}", dtype, shapes, rows, ("B", "T"))
    kernels = compiled(program, tmp_path)
    for batch, tokens in SIZES:
        generator = torch.Generator().manual_seed(batch)
        given = {
            n: (torch.randn(s, generator=generator) / (16 if n in WEIGHTS else 1)).to(TYPES[dtype])
            for n, s in tensors_of(run, batch, tokens).items()
        }
        require_right(kernels, run, {n: x.cuda() for n, x in given.items()}, dtype)
