"""The models whose decode steps are measured, their weights, and what a step reads."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

PAGE_SIZE = 16
DTYPE = torch.bfloat16
DEVICE = "cuda"


@dataclass(frozen=True)
class Model:
    """A decoder of Llama's kind; `has_qk_norm` adds Qwen3's norms of queries and keys."""

    name: str
    hidden: int
    heads: int
    kv_heads: int
    head_size: int
    intermediate: int
    layers: int
    vocabulary: int
    has_qk_norm: bool = False
    theta: float = 500000.0
    eps: float = 1e-5

    @property
    def q_width(self) -> int:
        """Elements of a token's queries."""
        return self.heads * self.head_size

    @property
    def qkv_width(self) -> int:
        """Elements of a token's queries, keys and values."""
        return self.q_width + 2 * self.kv_heads * self.head_size

    def cut(self, layers: int) -> Model:
        """Return the model with fewer layers."""
        return replace(self, layers=layers)


MODELS = {
    model.name: model
    for model in (
        Model("Llama-3.1-8B", 4096, 32, 8, 128, 14336, 32, 128256),
        Model("Qwen3-8B", 4096, 32, 8, 128, 12288, 36, 151936, True, 1e6, 1e-6),
        Model("Llama-3.2-1B", 2048, 32, 8, 64, 8192, 16, 128256),
    )
}


@dataclass(frozen=True)
class Layer:
    """The weights of a layer, matrices `[N, K]`."""

    attention_norm: Tensor
    qkv: Tensor
    q_norm: Tensor | None
    k_norm: Tensor | None
    output: Tensor
    mlp_norm: Tensor
    gate_up: Tensor  # the gate first
    down: Tensor

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """All that are there."""
        return tuple(t for t in vars(self).values() if t is not None)


@dataclass(frozen=True)
class Weights:
    """A model's weights. Reading the embedding of a token is no more than a row."""

    model: Model
    embedding: Tensor
    layers: tuple[Layer, ...]
    final_norm: Tensor
    lm_head: Tensor

    @property
    def bytes_read(self) -> int:
        """Bytes of the weights that every step reads."""
        matrices = [t for layer in self.layers for t in layer.tensors]
        return sum(t.nbytes for t in [*matrices, self.final_norm, self.lm_head])

    def cut(self, layers: int) -> Weights:
        """Return those of the model with fewer layers."""
        return replace(self, model=self.model.cut(layers), layers=self.layers[:layers])


def _matrix(rows: int, depth: int) -> Tensor:
    return torch.randn(rows, depth, device=DEVICE, dtype=DTYPE).mul_(depth**-0.5)


def _norm(size: int) -> Tensor:
    return torch.randn(size, device=DEVICE, dtype=DTYPE).mul_(0.1).add_(1)


def drawn_weights(model: Model) -> Weights:
    """Draw distinct random weights for every layer."""

    def layer() -> Layer:
        head_norms = [_norm(model.head_size) if model.has_qk_norm else None for _ in range(2)]
        return Layer(
            _norm(model.hidden),
            _matrix(model.qkv_width, model.hidden),
            *head_norms,
            _matrix(model.hidden, model.q_width),
            _norm(model.hidden),
            _matrix(2 * model.intermediate, model.hidden),
            _matrix(model.hidden, model.intermediate),
        )

    layers = tuple(layer() for _ in range(model.layers))
    vocabulary = _matrix(model.vocabulary, model.hidden)
    embedding = torch.randn(4096, model.hidden, device=DEVICE, dtype=DTYPE)  # ids are drawn below
    return Weights(model, embedding, layers, _norm(model.hidden), vocabulary)


@dataclass(frozen=True)
class State:
    """Sequences in the middle of decoding: `length` keys each, the newest to be written.

    The caches of our steps are pages in random order; PyTorch's are the same memory as dense
    `[B, Hkv, L, D]`.
    """

    model: Model
    sequences: int
    length: int
    ids: Tensor
    positions: Tensor
    slots: Tensor
    block_table: Tensor
    seq_lens: Tensor
    angles: Tensor  # [positions, D], fp32: cosines, then sines
    caches: tuple[Tensor, ...] = field(repr=False)  # k and v of each layer, [pages, 16, Hkv, D]

    @property
    def bytes_read(self) -> int:
        """Bytes of keys and values that a step reads."""
        line = self.model.kv_heads * self.model.head_size * DTYPE.itemsize
        return 2 * self.model.layers * self.sequences * self.length * line

    def pages(self, layer: int) -> tuple[Tensor, Tensor]:
        """Return a layer's keys and values as pages."""
        return self.caches[2 * layer], self.caches[2 * layer + 1]

    def dense(self, layer: int) -> tuple[Tensor, Tensor]:
        """Return a layer's keys and values as `[B, Hkv, L, D]`."""
        shape = (self.sequences, self.model.kv_heads, -1, self.model.head_size)
        k, v = self.pages(layer)
        return k.view(shape), v.view(shape)


def drawn_state(model: Model, sequences: int, length: int) -> State:
    """Draw caches, page numbers and tokens. `length` is a multiple of the page size."""
    if length % PAGE_SIZE:
        raise SystemExit(f"length is {length}; a multiple of {PAGE_SIZE} works")
    per_sequence = length // PAGE_SIZE
    pages = sequences * per_sequence
    table = torch.randperm(pages, device=DEVICE).view(sequences, per_sequence).int()
    shape = (pages, PAGE_SIZE, model.kv_heads, model.head_size)
    caches = tuple(torch.randn(shape, device=DEVICE, dtype=DTYPE) for _ in range(2 * model.layers))
    half = torch.arange(0, model.head_size, 2, device=DEVICE) / model.head_size
    phases = torch.arange(length, device=DEVICE)[:, None] * model.theta**-half
    return State(
        model,
        sequences,
        length,
        torch.randint(4096, (sequences,), device=DEVICE),
        torch.full((sequences,), length - 1, device=DEVICE),
        table[:, -1].long() * PAGE_SIZE + PAGE_SIZE - 1,
        table,
        torch.full((sequences,), length, device=DEVICE, dtype=torch.int32),
        torch.cat([phases.cos(), phases.sin()], 1),
        caches,
    )


def gathered(state: State) -> State:
    """Return the state with pages in order, so that dense caches hold the same keys."""
    order = state.block_table.flatten().long()
    heads = (state.sequences, -1, state.model.kv_heads, state.model.head_size)
    dense = [cache[order].view(heads).transpose(1, 2).contiguous() for cache in state.caches]
    return replace(state, caches=tuple(c.view(state.caches[0].shape) for c in dense))
