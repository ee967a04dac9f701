"""A decode step by our ops: each where this build has its kernel, and otherwise PyTorch's."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

import mirage_kernels as ours
from decode.models import DTYPE, Layer, Model, State, Weights
from decode.prefetch import Prefetcher
from mirage_kernels import supports

Call = Callable[[], object]


def wanted_ops(model: Model, without: Sequence[str]) -> dict[str, bool]:
    """Say which parts of a step this build has kernels for; those in `without` stay PyTorch's."""
    gated = {"K": model.hidden, "N": model.intermediate}
    asked: Mapping[str, tuple[str, Mapping[str, int]]] = {
        "qkv": ("rms_norm_linear", {"K": model.hidden, "N": model.qkv_width}),
        "append": ("qk_norm_rope_append", {"D": model.head_size}),
        "attention": ("gqa", {"D": model.head_size}),
        "output": ("linear", {"K": model.q_width, "N": model.hidden}),
        "gated_mlp": ("rms_norm_gated_mlp", gated),
        "down": ("linear", {"K": model.intermediate, "N": model.hidden}),
        "lm_head": ("rms_norm_linear", {"K": model.hidden, "N": model.vocabulary}),
    }
    unknown = set(without) - set(asked)
    if unknown:
        raise SystemExit(f"no part of a step is called {min(unknown)}; {', '.join(asked)} are")
    return {
        part: part not in without and supports(op, dtype=DTYPE, device="cuda", **dims)
        for part, (op, dims) in asked.items()
    }


@dataclass(frozen=True)
class Ours:
    """The parts of a step. Every part takes what it reads and returns what it makes."""

    weights: Weights
    state: State
    has: Mapping[str, bool]
    prefetch_mb: float = 0.0

    @property
    def model(self) -> Model:
        """The model, for its sizes."""
        return self.weights.model

    def normed_linear(self, part: str, x: Tensor, norm: Tensor, weight: Tensor) -> Tensor:
        """Project the norm of x."""
        if self.has[part]:
            return ours.rms_norm_linear(x, norm, weight, self.model.eps)
        return functional.linear(ours.rms_norm(x, norm, self.model.eps), weight)

    def append(self, layer: Layer, index: int, qkv: Tensor) -> Tensor:
        """Rotate, write the cache, return the queries."""
        model, state = self.model, self.state
        k, v = state.pages(index)
        given = (state.angles, state.positions, k, v, state.slots)
        heads = {"num_heads": model.heads, "num_kv_heads": model.kv_heads}
        if layer.q_norm is None or layer.k_norm is None:
            return ours.rope_append(qkv, *given, **heads)
        norms = (layer.q_norm, layer.k_norm)
        return ours.qk_norm_rope_append(qkv, *norms, *given, **heads, eps=model.eps)

    def attention(self, index: int, q: Tensor) -> Tensor:
        """Attend to the pages."""
        k, v = self.state.pages(index)
        lengths = {"block_table": self.state.block_table, "seq_lens": self.state.seq_lens}
        made = ours.gqa(q, k, v, **lengths, max_seq_len=self.state.length)
        assert isinstance(made, Tensor)
        return made.flatten(1)

    def added(self, part: str, x: Tensor, weight: Tensor, residual: Tensor) -> Tensor:
        """Add a projection of x to the residual, in place."""
        if self.has[part]:
            return ours.linear(x, weight, residual=residual, out=residual)
        return residual.addmm_(x, weight.t())

    def gated_mlp(self, layer: Layer, x: Tensor) -> Tensor:
        """Return the gated half of the MLP of the norm of x."""
        if self.has["gated_mlp"]:
            return ours.rms_norm_gated_mlp(x, layer.mlp_norm, layer.gate_up, eps=self.model.eps)
        normed = ours.rms_norm(x, layer.mlp_norm, self.model.eps)
        return ours.act_and_mul(functional.linear(normed, layer.gate_up))

    def step(self) -> Tensor:
        """Return the logits of one step."""
        weights = self.weights
        prefetcher = Prefetcher(self.prefetch_mb) if self.prefetch_mb else None
        x = functional.embedding(self.state.ids, weights.embedding)
        for index, layer in enumerate(weights.layers):
            qkv = self.normed_linear("qkv", x, layer.attention_norm, layer.qkv)
            q = self.append(layer, index, qkv)
            if prefetcher is not None:
                prefetcher.start(layer.output)
            attended = self.attention(index, q)
            x = self.added("output", attended, layer.output, x)
            x = self.added("down", self.gated_mlp(layer, x), layer.down, x)
        if prefetcher is not None:
            prefetcher.end()
        return self.normed_linear("lm_head", x, weights.final_norm, weights.lm_head)

    def parts(self) -> Iterator[tuple[str, int, list[Call]]]:
        """Yield each part: its name, the bytes that a call reads, and its calls on all layers."""
        model, layers = self.model, self.weights.layers
        tokens = self.state.sequences

        def drawn(width: int) -> Tensor:
            return torch.randn(tokens, width, device=self.state.ids.device, dtype=DTYPE)

        x, qkv, heads = drawn(model.hidden), drawn(model.qkv_width), drawn(model.q_width)
        gated, q = drawn(model.intermediate), heads.view(tokens, model.heads, -1)
        each = list(enumerate(layers))
        qkv_calls: list[Call] = [
            partial(self.normed_linear, "qkv", x, la.attention_norm, la.qkv) for la in layers
        ]
        yield "qkv", layers[0].qkv.nbytes, qkv_calls
        yield "append", 2 * qkv.nbytes, [partial(self.append, la, i, qkv) for i, la in each]
        cache_bytes = self.state.bytes_read // len(layers)
        yield "attention", cache_bytes, [partial(self.attention, i, q) for i, _ in each]
        for part, given, matrices in (
            ("output", heads, [la.output for la in layers]),
            ("down", gated, [la.down for la in layers]),
        ):
            calls: list[Call] = [
                partial(self.added, part, given, m, torch.zeros_like(x)) for m in matrices
            ]
            yield part, matrices[0].nbytes, calls
        yield (
            "gated_mlp",
            layers[0].gate_up.nbytes,
            [partial(self.gated_mlp, la, x) for la in layers],
        )
        head = (self.weights.final_norm, self.weights.lm_head)
        yield "lm_head", head[1].nbytes, [partial(self.normed_linear, "lm_head", x, *head)]
