"""Workloads over a cache of keys and values, in pages or dense: attention of every recipe.

Tensors by name: `q [B, T, Hq, D]`, `k` and `v` `[pages, page size, Hkv, D]`, dense
`[B, Hkv, L, D]`; `table [B, most pages]` of pages only; `seq_lens [B]` but where dense sequences
are as long; `seen [B, 1, 1, L]` of uneven dense ones. Norms have `q_weight`, `k_weight` and perhaps
biases, `[D]` or by head. New tokens have `qkv [B, (Hq + 2 Hkv) * D]`, `cos_sin [L, D]`,
`positions [B]` and `slots [B]`, where their keys and values go.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import cast

import torch
from torch import Tensor
from torch.nn import functional

from mirage_kernels.generator.bench.workload import (
    TORCH_DTYPES,
    Args,
    AttentionArgs,
    BaseWorkload,
    Cache,
    Inputs,
    Lines,
    Peer,
    Program,
    in_float64,
)
from mirage_kernels.generator.bench.workloads import cache_peers
from mirage_kernels.generator.ir.dtypes import DType
from mirage_kernels.generator.recipe import load_recipe

LAYER_NORM, LATENT = "qk_layer_norm_attention", "mla_decode"
# Recipes that the library's ops over a cache serve.
NORMED = ("qk_norm_attention", LAYER_NORM)
RECIPES = ("gqa", "sliding_window_attention", "gqa_full", *NORMED, LATENT)
DECODE, PREFILL = "decode", "prefill"
APPEND = "norm, RoPE, append, decode"
ELEMENT_BYTES, EPS = 2, 1e-6
NO_WINDOW = 1 << 30
MULTIPROCESSORS = 132  # where there is no GPU
# Twice what the library's tests allow: a wrong result is at 1.
LARGEST_ERRORS = {DType.FP16: 2e-3, DType.BF16: 1.6e-2}
_recipe = cache(load_recipe)
Op = Callable[..., Tensor]
Attended = tuple[Tensor, Tensor, Tensor]  # q [B, T, Hq, D], k and v [B, Hkv, L, D]


@dataclass(frozen=True)
class CacheWorkload(BaseWorkload):
    """One call: `lengths` are keys of each sequence, `tokens` the query tokens of each.

    Without pages (`page_size` 0) the keys are dense, `[B, Hkv, L, D]`. Several tokens see the keys
    up to their own if they are causal. Keys have `more` elements beside those that are values, if
    any: latents.
    """

    lengths: tuple[int, ...]
    heads: tuple[int, int] = (32, 8)  # of queries, of keys
    depth: int = 128
    more: int = 0
    page_size: int = 16
    tokens: int = 1
    is_causal: bool = True
    scale: float | None = None
    window_left: int = -1
    logits_soft_cap: float = 0.0
    arguments = AttentionArgs

    @property
    def sequences(self) -> int:
        """B, the number of sequences."""
        return len(self.lengths)

    @property
    def longest(self) -> int:
        """L, the keys of the longest sequence."""
        return max(self.lengths)

    @property
    def group(self) -> int:
        """G, the query heads that share a head of keys."""
        return self.heads[0] // self.heads[1]

    @property
    def rows(self) -> int:
        """Query rows of a head of keys."""
        return self.tokens * self.group

    @property
    def is_even(self) -> bool:
        """Say whether all sequences are as long."""
        return min(self.lengths) == self.longest

    @property
    def appends(self) -> bool:
        """Say whether the new token's keys are normed, rotated and written in front."""
        return self.setting == APPEND

    @property
    def norms(self) -> bool:
        """Say whether queries and keys are normed in the attention kernel."""
        return self.recipe in NORMED

    @property
    def kernel_dims(self) -> Mapping[str, int]:
        """The static extents of the kernel that serves it."""
        return {"C": self.depth, "P": self.more} if self.more else {"D": self.depth}

    @property
    def needs_kernel(self) -> bool:
        """Say whether a kernel of ours is meant to serve it; prefill is PyTorch's."""
        return self.setting != PREFILL

    @property
    def dims(self) -> Mapping[str, int]:
        """Sizes by name."""
        query_heads, kv_heads = self.heads
        sizes = {"B": self.sequences, "Hq": query_heads, "Hkv": kv_heads, "D": self.depth}
        return sizes | {"T": self.tokens, "L": self.longest, "page": self.page_size}

    @property
    def name(self) -> str:
        """`gqa decode 32/8 D=128 B=8 L=4096 page=16 fp16`."""
        heads = "/".join(map(str, self.heads))
        sizes = f"D={self.depth} B={self.sequences} L={self.longest}"
        place = f"page={self.page_size}" if self.page_size else "dense"
        return f"{self.recipe} {self.setting} {heads} {sizes} {place} {self.dtype.value}"

    @property
    def bytes_read(self) -> int:
        """Bytes of the keys and values that are seen; queries and results are few beside them."""
        reach = self.longest if self.window_left < 0 else self.window_left + self.tokens
        keys = sum(min(length, reach) for length in self.lengths)
        line = self.depth + (self.more or self.depth)  # latents are keys and values
        return keys * self.heads[1] * line * ELEMENT_BYTES

    @property
    def operations(self) -> int:
        """Floating-point operations of both products, over the keys that each token sees."""
        hidden = self.tokens * (self.tokens - 1) // 2 if self.is_causal else 0
        pairs = sum(length * self.tokens - hidden for length in self.lengths)
        return 2 * pairs * self.heads[0] * (2 * self.depth + self.more)

    # -- tensors -----------------------------------------------------------------------------------

    def draw(self, seed: int, device: str) -> Inputs:
        """Draw the tensors: normal, norm weights near 1.

        Pages are as many as the sequences need, in random order; the same one for every seed.
        """
        source = torch.Generator(device).manual_seed(seed)

        def draw(*shape: int) -> Tensor:
            dtype = TORCH_DTYPES[self.dtype]
            return torch.randn(shape, generator=source, dtype=dtype, device=device)

        line = self.depth + self.more
        made = {"q": draw(self.sequences, self.tokens, self.heads[0], line)}
        shape: tuple[int, ...] = (self.sequences, self.heads[1], self.longest, line)
        if self.page_size:
            counts = [-(-length // self.page_size) for length in self.lengths]
            order = torch.randperm(sum(counts), generator=torch.Generator().manual_seed(0))
            table = torch.zeros(len(counts), max(counts), dtype=torch.int32)
            for row, own in zip(table, torch.split(order, counts), strict=True):
                row[: len(own)] = own
            made["table"] = table.to(device)
            shape = (sum(counts), self.page_size, self.heads[1], line)
        if self.page_size or not self.is_even:
            made["seq_lens"] = torch.tensor(self.lengths, dtype=torch.int32, device=device)
        if self.norms or self.appends:
            by_head = self.recipe == LAYER_NORM
            for kind, usual in (("weight", 1), ("bias", 0)) if by_head else (("weight", 1),):
                for name, heads in zip("qk", self.heads, strict=True):
                    sizes = (heads, self.depth) if by_head else (self.depth,)
                    made[f"{name}_{kind}"] = usual + 0.1 * draw(*sizes)
        if self.appends:
            made |= self._new_tokens(draw, made["table"])
        k = draw(*shape)
        return made | {"k": k, "v": k[..., : self.depth] if self.more else draw(*shape)}

    def _new_tokens(self, draw: Callable[..., Tensor], table: Tensor) -> Inputs:
        """Draw the last token of each sequence, which is to be written to the cache."""
        device = table.device
        places = torch.tensor(self.lengths, device=device) - 1
        own = torch.arange(self.sequences, device=device)
        pages = table[own, places // self.page_size].long()
        steps = torch.arange(self.longest, device=device, dtype=torch.float32)
        half = self.depth // 2
        pace = 1e6 ** -(torch.arange(half, device=device, dtype=torch.float32) / half)
        angles = steps[:, None] * pace
        return {
            "qkv": draw(self.sequences, (self.heads[0] + 2 * self.heads[1]) * self.depth),
            "cos_sin": torch.cat([angles.cos(), angles.sin()], dim=-1),
            "positions": places,
            "slots": pages * self.page_size + places % self.page_size,
        }

    def new_outs(self, given: Inputs) -> tuple[Tensor, ...]:
        """Return the result's tensor, `[B, T, Hq, D]`, of one token `[B, Hq, D]`."""
        shape = given["q"].shape if self.tokens > 1 else given["q"][:, 0].shape
        return (given["q"].new_empty(*shape[:-1], self.depth),)

    def dense(self, given: Inputs) -> Inputs:
        """Return the same inputs with keys and values copied out of their pages."""
        if "table" not in given:
            return given
        table, left_out = (
            given["table"].long(),
            {"table", "seq_lens"} if self.is_even else {"table"},
        )
        made = {name: tensor for name, tensor in given.items() if name not in left_out}

        def lines(cache: Tensor) -> Tensor:
            whole = cache[table].flatten(1, 2)[:, : self.longest]
            return whole.transpose(1, 2).contiguous()

        made["k"] = lines(given["k"])
        made["v"] = made["k"][..., : self.depth] if self.more else lines(given["v"])
        if self.appends:  # a sequence counts as one page
            own = torch.arange(self.sequences, device=table.device)
            made["slots"] = own * self.longest + given["positions"]
        if not self.is_even:
            keys = torch.arange(self.longest, device=table.device)
            made["seen"] = (keys < given["seq_lens"][:, None])[:, None, None]
        return made

    # -- programs ----------------------------------------------------------------------------------

    def ours(self, given: Inputs, outs: Sequence[Tensor] | None = None, **more: Tensor) -> Tensor:
        """Call the library; `more` are options of the op that are tensors, as `lse`."""
        import mirage_kernels as library

        q = given["q"] if self.tokens > 1 else given["q"][:, 0]
        name, tensors = "gqa", [q, given["k"], given["v"]]
        options: dict[str, object] = {"scale": self.scale, "max_seq_len": self.longest, **more}
        if outs is not None:
            options["out"] = outs[0]
        options["causal"] = self.is_causal and self.tokens > 1
        if self.more:
            cache = given["k"] if "table" in given else given["k"][:, 0]
            name, tensors = "mla_decode", [q, cache]
            options["latent_dim"] = self.depth
        else:
            options |= {"window_left": self.window_left, "logits_soft_cap": self.logits_soft_cap}
            options["kv_layout"] = "NHD" if "table" in given else "HND"
        if self.norms:
            name, options["eps"] = "qk_norm_attention", EPS
            tensors += [given["q_weight"], given["k_weight"]]
            if self.recipe == LAYER_NORM:
                options |= {"norm": "layer", "q_bias": given["q_bias"], "k_bias": given["k_bias"]}
        op: Op = getattr(library, name)
        if self.appends:
            names = ("qkv", "q_weight", "k_weight", "cos_sin", "positions", "k", "v", "slots")
            sizes = {"num_heads": self.heads[0], "num_kv_heads": self.heads[1]}
            append = cast(Op, library.qk_norm_rope_append)
            tensors[0] = append(*(given[n] for n in names), eps=EPS, kv_layout="NHD", **sizes)
        return op(*tensors, given.get("table"), given.get("seq_lens"), **options)

    def prepared(self, given: Inputs) -> Attended:
        """Return q, k and v of dense inputs as attention takes them, by PyTorch's programs.

        They are normed, or the new token is written to the cache.
        """
        q, k, v = (given[name] for name in "qkv")
        if self.appends:
            from mirage_kernels import append_library

            q, caches = torch.empty_like(q), (k.transpose(1, 2), v.transpose(1, 2))
            cast(Op, append_library.qk_norm_rope_append)(
                *(given["qkv"], given["q_weight"], given["k_weight"], None, None),
                *(given["cos_sin"], given["positions"], *caches, given["slots"], *self.heads),
                *(EPS, 0.0, "rms", "neox"),
                q=q[:, 0],
            )
        elif self.recipe == LAYER_NORM:
            q, k = (functional.layer_norm(x, x.shape[-1:], eps=EPS) for x in (q, k))
            q = q * given["q_weight"] + given["q_bias"]
            k = k * given["k_weight"][:, None] + given["k_bias"][:, None]  # [B, Hkv, L, D]
        elif self.norms:
            q = functional.rms_norm(q, q.shape[-1:], given["q_weight"], EPS)
            k = functional.rms_norm(k, k.shape[-1:], given["k_weight"], EPS)
        return q, k, v

    def eager(self) -> Program:
        """Return PyTorch's own unfused program on dense inputs."""

        def run(given: Inputs) -> Tensor:
            alike = given["q"].new_full((self.sequences,), self.longest, dtype=torch.int32)
            lengths = given.get("seq_lens", alike)
            return self._unfused(self.prepared(given), lengths)

        return run

    def exact(self, given: Inputs) -> Tensor:
        """Compute it in float64 from dense inputs, `[B, T, Hq, D]`.

        A sequence at a time, with several tokens also by head.
        """
        q, k, v = self.prepared(in_float64(given) if self.norms or self.appends else given)
        heads = self.heads[1] if self.tokens == 1 else 1
        out = q.new_zeros(*q.shape[:-1], v.shape[-1], dtype=torch.float64)
        for b, length in enumerate(self.lengths):
            lengths = torch.tensor([length], device=q.device)
            for head in range(0, self.heads[1], heads) if length else ():
                rows = slice(head * self.group, (head + heads) * self.group)
                keys = (slice(b, b + 1), slice(head, head + heads), slice(length))
                part = (q[b : b + 1, :, rows].double(), k[keys].double(), v[keys].double())
                out[b : b + 1, :, rows] = self._unfused(part, lengths)
        return out

    def _unfused(self, qkv: Attended, seq_lens: Tensor) -> Tensor:
        """Run the reference of the recipe that has the same mask and cap, `[B, T, Hq, D]`."""
        q, k, v = qkv
        if self.more:
            latent, rope = slice(self.depth), slice(self.depth, None)
            parts = [x[:, 0, ..., own] for x in (q, k) for own in (latent, rope)]
            results = _recipe(self.recipe).reference_results(*parts, seq_lens, self.scale)
            return results[0][:, None]
        recipe = "causal_attention" if self.is_causal and self.tokens > 1 else "gqa"
        if self.logits_soft_cap or self.window_left >= 0:
            recipe = "gqa_full" if self.logits_soft_cap else "sliding_window_attention"
        source = _recipe(recipe)
        grouped = q.view(*q.shape[:2], k.shape[1], -1, q.shape[3])  # [B, T, Hkv, G, D]
        shape = grouped.transpose(1, 2).shape
        has_tokens = "T" in source.inputs["q"].split()
        named = {
            "q": grouped if has_tokens else grouped.transpose(1, 2).flatten(2, 3),  # rows of a head
            "k": k.transpose(1, 2),
            "v": v.transpose(1, 2),
            "seq_lens": seq_lens,
            "scale": self.depth**-0.5 if self.scale is None else self.scale,
            "window": self.longest if self.window_left < 0 else self.window_left + 1,
            "cap": self.logits_soft_cap,
        }
        (result,) = source.reference_results(*(named[name] for name in source.inputs))
        return (result if has_tokens else result.view(shape).transpose(1, 2)).reshape(q.shape)

    def error_allowed(self, given: Inputs, exact: object) -> float:
        """Return twice what the library's tests allow."""
        return LARGEST_ERRORS[self.dtype]

    def peers(self) -> Iterable[Peer]:
        """Return PyTorch's fused attention, FlashInfer's and FlashAttention's."""
        return cache_peers.peers(self)

    def in_place(self) -> Mapping[str, Program]:
        """Return PyTorch's attention as the library runs it, for dense calls of many tokens."""
        from mirage_kernels.attention_calls import Call
        from mirage_kernels.prefill import prefill

        def run(given: Inputs) -> Tensor:
            k, v = (given[name].transpose(1, 2) for name in "kv")
            options = (*(None,) * 6, self.scale, self.is_causal, -1, 0.0)
            return prefill(Call("gqa", given["q"], k, v, *options), None)

        return {} if self.needs_kernel else {"library_us": run}

    # -- arguments of a launch ---------------------------------------------------------------------

    def fill(self, args: Args, given: Inputs, outs: Sequence[Tensor]) -> None:
        """Write what csrc/torch/attention.cpp writes for this call."""
        assert isinstance(args, AttentionArgs)
        q, (out,) = given["q"], outs
        # [pages, page size, Hkv, D]
        paged = "table" in given
        k, v = (given[name] if paged else given[name].transpose(1, 2) for name in "kv")
        args.q = args.more_q = Lines(q.data_ptr(), q.stride(1), q.stride(2))
        if self.more:
            args.more_q = Lines(q[..., self.depth :].data_ptr(), q.stride(1), q.stride(2))
            v = k[..., self.depth :]
        args.k, args.v = (Cache(x.data_ptr(), *x.stride()[:3]) for x in (k, v))
        args.page_size, args.pages = k.shape[1], k.shape[0]
        if paged:
            args.block_table, args.table_row = given["table"].data_ptr(), given["table"].stride(0)
        if "seq_lens" in given:
            args.seq_lens = given["seq_lens"].data_ptr()
        vectors = ("q_weight", "q_bias", "k_weight", "k_bias")
        for i, vector in enumerate(given[name] for name in vectors if name in given):
            args.vectors[i] = vector.data_ptr()
            args.vector_heads[i] = self.depth if vector.dim() == 2 else 0
        args.scalars[0] = self.depth**-0.5 if self.scale is None else self.scale
        args.scalars[1] = EPS if self.norms else self.logits_soft_cap
        args.first_window = max(self.window_left, -1)
        args.integers[0] = self.window_left + 1 if self.window_left >= 0 else NO_WINDOW
        args.out, (args.out_token, args.out_head) = out.data_ptr(), out.stride()[-3:-1]
        args.B, args.Hkv, args.G = self.sequences, self.heads[1], self.group
        args.q_len, args.max_len = self.tokens, self.longest
        gpu = torch.cuda.get_device_properties(q.device) if q.is_cuda else None
        args.multiprocessors = gpu.multi_processor_count if gpu else MULTIPROCESSORS

    def assume(self, args: Args) -> None:
        """Say in a launch's arguments that no kernel before it writes weights or cached tokens."""
        assert isinstance(args, AttentionArgs)
        args.constant_weights, args.constant_history = True, self.page_size > 0
