"""The same step in PyTorch: eager, or with all that lies between two attentions compiled."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from decode.models import DTYPE, Layer, Model, State, Weights
from mirage_kernels.generator.bench.measure import graph_microseconds

BACKENDS = (
    SDPBackend.CUDNN_ATTENTION,
    SDPBackend.FLASH_ATTENTION,
    SDPBackend.EFFICIENT_ATTENTION,
    SDPBackend.MATH,
)
Attention = Callable[[Tensor, Tensor, Tensor], Tensor]


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Return the norm over the last dim."""
    return functional.rms_norm(x, weight.shape, weight, eps)


def rotated(x: Tensor, angles: Tensor) -> Tensor:
    """Rotate `[B, heads, 1, D]` by `[B, D]`."""
    cos, sin = angles[:, None, None].chunk(2, -1)
    a, b = x.float().chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1).to(x.dtype)


def before(model: Model, state: State, layer: Layer, x: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Return the queries `[B, heads, 1, D]`; write the newest keys and values."""
    qkv = functional.linear(rms_norm(x, layer.attention_norm, model.eps), layer.qkv)
    lines = qkv.view(x.shape[0], -1, 1, model.head_size)
    heads = [model.heads, model.kv_heads, model.kv_heads]
    queries, keys, values = lines.split(heads, 1)
    if layer.q_norm is not None and layer.k_norm is not None:
        queries = rms_norm(queries, layer.q_norm, model.eps)
        keys = rms_norm(keys, layer.k_norm, model.eps)
    angles = state.angles[state.positions]
    k.index_copy_(2, state.positions[:1], rotated(keys, angles).to(k.dtype))
    v.index_copy_(2, state.positions[:1], values)
    return rotated(queries, angles)


def behind(model: Model, layer: Layer, x: Tensor, attended: Tensor) -> Tensor:
    """Return the layer's result from that of its attention, `[B, heads, 1, D]`."""
    x = x + functional.linear(attended.flatten(1), layer.output)
    normed = rms_norm(x, layer.mlp_norm, model.eps)
    gate, up = functional.linear(normed, layer.gate_up).chunk(2, -1)
    return x + functional.linear(functional.silu(gate) * up, layer.down)


def between(
    model: Model, state: State, layers: tuple[Layer, Layer], x: Tensor, *rest: Tensor
) -> tuple[Tensor, Tensor]:
    """Go from one layer's attention to the next one's queries."""
    attended, k, v = rest
    x = behind(model, layers[0], x, attended)
    return x, before(model, state, layers[1], x, k, v)


def ending(weights: Weights, layer: Layer, x: Tensor, attended: Tensor) -> Tensor:
    """Return the logits."""
    x = behind(weights.model, layer, x, attended)
    return functional.linear(rms_norm(x, weights.final_norm, weights.model.eps), weights.lm_head)


def attend(backend: SDPBackend, is_grouped: bool, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attend to all keys by one of PyTorch's backends."""
    if is_grouped:  # each KV head's queries as rows of one head
        flat = q.view(q.shape[0], k.shape[1], -1, q.shape[3])
        with sdpa_kernel(backend):
            return functional.scaled_dot_product_attention(flat, k, v).reshape(q.shape)
    with sdpa_kernel(backend):
        return functional.scaled_dot_product_attention(q, k, v, enable_gqa=True)


def fastest_attention(state: State) -> tuple[str, Attention]:
    """Return the fastest of PyTorch's attentions on the dense caches, and its name."""
    model = state.model
    shape = (state.sequences, model.heads, 1, model.head_size)
    q = torch.randn(shape, device=state.ids.device, dtype=DTYPE)
    found: list[tuple[float, str, Attention]] = []
    for backend in BACKENDS:
        for is_grouped in (False, True):
            call = partial(attend, backend, is_grouped)
            calls = [partial(call, q, *state.dense(i)) for i in range(model.layers)]
            try:
                micros = graph_microseconds(calls)
            except RuntimeError:  # no kernel of this backend takes the call
                continue
            name = backend.name + (", heads as rows" if is_grouped else "")
            found.append((micros, name, call))
    _, name, call = min(found, key=lambda one: one[0])
    return name, call


@dataclass(frozen=True)
class Torch:
    """A step whose pieces between attentions are compiled, or not."""

    weights: Weights
    state: State
    attention: Attention
    is_compiled: bool
    pieces: dict[str, Callable[..., object]] = field(default_factory=dict)

    def piece(self, function: Callable[..., object]) -> Callable[..., object]:
        """Return a piece as it is run."""
        if not self.is_compiled:
            return function
        name = function.__name__
        if name not in self.pieces:
            self.pieces[name] = torch.compile(function, dynamic=False)
        return self.pieces[name]

    def step(self) -> Tensor:
        """Return the logits of one step."""
        weights, state = self.weights, self.state
        model, layers = weights.model, weights.layers
        x = functional.embedding(state.ids, weights.embedding)
        k, v = state.dense(0)
        q = self.piece(before)(model, state, layers[0], x, k, v)
        for index in range(len(layers) - 1):
            assert isinstance(q, Tensor)
            attended = self.attention(q, k, v)
            k, v = state.dense(index + 1)
            pair = (layers[index], layers[index + 1])
            x, q = self.piece(between)(model, state, pair, x, attended, k, v)  # type: ignore[misc]
        assert isinstance(q, Tensor)
        attended = self.attention(q, k, v)
        logits = self.piece(ending)(weights, layers[-1], x, attended)
        assert isinstance(logits, Tensor)
        return logits


def in_fp32(weights: Weights) -> Weights:
    """Return the weights widened."""

    def wide(layer: Layer) -> Layer:
        return Layer(**{n: None if t is None else t.float() for n, t in vars(layer).items()})

    layers = tuple(map(wide, weights.layers))
    others = (weights.final_norm.float(), weights.lm_head.float())
    return Weights(weights.model, weights.embedding.float(), layers, *others)
