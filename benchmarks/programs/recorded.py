"""Programs of Mirage's interface, recorded with `mi`, at its workloads' sizes and batch sizes.

Each is a PyTorch function beside the graph that is recorded of the same program. Weights are as
there, `[K, N]`. A checkpoint's program is the one that its graphs are proved equal to.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

import mirage_kernels.generator as mi
from mirage_kernels.generator import KernelGraph
from mirage_kernels.generator.frontend.mirage.optimize import MuGraph
from mirage_kernels.generator.frontend.positional.program import Tensor as Input
from programs import PROGRAMS, Program, Size

BATCHES = (1, 8, 16)
K, N = 4096, 6144
D, KEYS = 64, 4096  # of a head; in the cache

Record = Callable[..., Input]  # of a graph and its inputs


@dataclass(frozen=True)
class Recorded(Program):
    """A program that is recorded: how, the preset of its search, or a file of its muGraphs."""

    record: Record
    config: str | None = None
    checkpoint: str = ""

    def superoptimized(self, rows: int, checkpoints: Path | None) -> MuGraph:
        """Return its best muGraph, with the others."""
        graph = self.graph(rows)
        if checkpoints is not None and self.checkpoint:
            return graph.superoptimize(previous_checkpoint=checkpoints / self.checkpoint)
        return graph.superoptimize(config=self.config)

    def graph(self, rows: int) -> KernelGraph:
        """Return the recorded graph at a number of rows."""
        graph = mi.new_kernel_graph()
        inputs = [graph.new_input(dims=sizes) for sizes in self.sizes(rows).values()]
        graph.mark_output(self.record(graph, *inputs))
        return graph


def recorded(
    name: str,
    record: Record,
    *,
    rows: tuple[int, ...] = BATCHES,
    config: str | None = None,
    checkpoint: tuple[str, int] | None = None,
    **shapes: tuple[Size, ...],
) -> Callable[[Callable[..., Tensor]], Callable[..., Tensor]]:
    """Register a function beside what records it; `checkpoint` is a file of Mirage and its rows."""

    def register(run: Callable[..., Tensor]) -> Callable[..., Tensor]:
        one = Recorded(f"mirage/{name}", run, shapes, rows, {}, record, config)
        PROGRAMS[one.name] = one
        if checkpoint is not None:
            file, count = checkpoint
            again = replace(one, name=f"{one.name}_checkpoint", rows=(count,), checkpoint=file)
            PROGRAMS[again.name] = again
        return run

    return register


def record_rms_norm_linear(graph: KernelGraph, x: Input, w: Input) -> Input:
    return graph.matmul(graph.rms_norm(x, normalized_shape=(K,)), w)


@recorded(
    "rms_norm_linear",
    record_rms_norm_linear,
    config="mlp",
    checkpoint=("rmsnorm_bs1.json", 1),
    x=("2M", K),
    w=(K, N),
)
def rms_norm_linear(x: Tensor, w: Tensor) -> Tensor:
    return F.rms_norm(x, (K,), eps=0.0) @ w


def record_layer_norm_linear(graph: KernelGraph, x: Input, w: Input) -> Input:
    centred = graph.sub(x, graph.mul_scalar(graph.reduction(x, 1), 1 / K))
    variance = graph.mul_scalar(graph.reduction(graph.square(centred), 1), 1 / K)
    return graph.matmul(graph.div(centred, graph.sqrt(variance)), w)


@recorded("layer_norm_linear", record_layer_norm_linear, config="mlp", x=("2M", K), w=(K, N))
def layer_norm_linear(x: Tensor, w: Tensor) -> Tensor:
    return F.layer_norm(x, (K,), eps=0.0) @ w


def record_gated_mlp(graph: KernelGraph, x: Input, gate: Input, up: Input) -> Input:
    return graph.mul(graph.silu(graph.matmul(x, gate)), graph.matmul(x, up))


@recorded(
    "gated_mlp",
    record_gated_mlp,
    rows=(8,),
    config="mlp",
    checkpoint=("gated_mlp.json", 8),
    x=("M", K),
    gate=(K, K),
    up=(K, K),
)
def gated_mlp(x: Tensor, gate: Tensor, up: Tensor) -> Tensor:
    return F.silu(x @ gate) * (x @ up)


def record_lora(graph: KernelGraph, x: Input, w: Input, a: Input, b: Input) -> Input:
    return graph.add(graph.matmul(x, w), graph.matmul(graph.matmul(x, a), b))


@recorded(
    "lora",
    record_lora,
    rows=(16,),
    config="lora",
    checkpoint=("lora.json", 16),
    x=("M", 256),
    w=(256, K),
    a=(256, 16),
    b=(16, K),
)
def lora(x: Tensor, w: Tensor, a: Tensor, b: Tensor) -> Tensor:
    return x @ w + x @ a @ b


def record_ntrans(graph: KernelGraph, h: Input, x: Input, rate: Input) -> Input:
    step = graph.mul(rate, graph.add(graph.rms_norm(x), h))
    return graph.rms_norm(graph.add(h, step))


@recorded("ntrans", record_ntrans, h=("8M", K), x=("8M", K), rate=("8M", K))
def ntrans(h: Tensor, x: Tensor, rate: Tensor) -> Tensor:
    return F.rms_norm(h + rate * (F.rms_norm(x, (K,), eps=0.0) + h), (K,), eps=0.0)


def record_softmax(graph: KernelGraph, x: Input) -> Input:
    return graph.softmax(x, 1)


@recorded("softmax", record_softmax, rows=(64,), x=("M", K))
def softmax(x: Tensor) -> Tensor:
    return torch.softmax(x, dim=-1)


def record_attention(graph: KernelGraph, q: Input, k: Input, v: Input) -> Input:
    weights = graph.exp(graph.matmul(q, k))
    return graph.matmul(graph.div(weights, graph.reduction(weights, 2)), v)


@recorded(
    "gqa",
    record_attention,
    config="attention",
    checkpoint=("gqa_bs1.json", 1),
    q=("2M", 256, D),
    k=("2M", D, KEYS),
    v=("2M", KEYS, D),
)
@recorded(
    "mha",
    record_attention,
    config="attention",
    q=("32M", 16, D),
    k=("32M", D, KEYS),
    v=("32M", KEYS, D),
)
@recorded(
    "mqa",
    record_attention,
    config="attention",
    q=("M", 1024, D),
    k=("M", D, KEYS),
    v=("M", KEYS, D),
)
def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    tensors = (q[:, None], k.transpose(1, 2)[:, None], v[:, None])
    return F.scaled_dot_product_attention(*tensors, scale=1.0)[:, 0]


def record_qk_norm_attention(graph: KernelGraph, q: Input, k: Input, v: Input) -> Input:
    return record_attention(graph, graph.rms_norm(q), k, graph.rms_norm(v))


@recorded(
    "qk_norm_gqa",
    record_qk_norm_attention,
    config="attention",
    q=("2M", 256, D),
    k=("2M", D, KEYS),
    v=("2M", KEYS, D),
)
def qk_norm_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return attention(F.rms_norm(q, (D,), eps=0.0), k, F.rms_norm(v, (D,), eps=0.0))
