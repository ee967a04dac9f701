"""Workloads over a cache of keys and values, in pages or dense: attention of every recipe."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import cast

import torch
from torch import Tensor

from mirage_kernels.generator.bench.launch_args import Args, AttentionArgs, Cache, Lines
from mirage_kernels.generator.bench.measure import TORCH_DTYPES, Results
from mirage_kernels.generator.bench.workload import Peer, Program, Workload
from mirage_kernels.generator.bench.workloads import cache_peers, cache_reference
from mirage_kernels.generator.bench.workloads.cache_inputs import EPS, Append, CacheInputs
from mirage_kernels.generator.ir.dtypes import DType

LAYER_NORM, LATENT = "qk_layer_norm_attention", "mla_decode"
# Recipes that the library's ops over a cache serve.
RECIPES = (
    *("gqa", "sliding_window_attention", "gqa_full"),
    *("qk_norm_attention", LAYER_NORM, LATENT),
)
DECODE, PREFILL = "decode", "prefill"
APPEND = "norm, RoPE, append, decode"
ELEMENT_BYTES = 2
NO_WINDOW = 1 << 30
# Twice what the library's tests allow: a wrong result is at 1.
LARGEST_ERRORS = {DType.FP16: 2e-3, DType.BF16: 1.6e-2}
Call = Callable[..., Tensor]


@dataclass(frozen=True)
class CacheWorkload(Workload[CacheInputs]):
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
        return self.recipe in ("qk_norm_attention", LAYER_NORM)

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

    def draw(self, seed: int, device: str) -> CacheInputs:
        """Draw the tensors: normal, norm weights near 1.

        Pages are as many as the sequences need, in random order; the same one for every seed.
        """
        source = torch.Generator(device).manual_seed(seed)

        def draw(*shape: int) -> Tensor:
            dtype = TORCH_DTYPES[self.dtype]
            return torch.randn(shape, generator=source, dtype=dtype, device=device)

        query_heads, kv_heads = self.heads
        table = seq_lens = norms = append = biases = None
        shape = (self.sequences, kv_heads, self.longest, self.depth + self.more)
        if self.page_size:
            pages, rows = self._pages()
            table = rows.to(device)
            shape = (pages, self.page_size, kv_heads, shape[-1])
        if table is not None or not self.is_even:
            seq_lens = torch.tensor(self.lengths, dtype=torch.int32, device=device)
        q = draw(self.sequences, self.tokens, query_heads, shape[-1])
        if self.norms or self.appends:
            by_head = self.recipe == LAYER_NORM
            of_q, of_k = ((n, self.depth) if by_head else (self.depth,) for n in self.heads)
            norms = (1 + 0.1 * draw(*of_q), 1 + 0.1 * draw(*of_k))
            biases = (0.1 * draw(*of_q), 0.1 * draw(*of_k)) if by_head else None
        if self.appends:
            assert table is not None
            append = self._append(draw, table)
        k = draw(*shape)
        v = k[..., : self.depth] if self.more else draw(*shape)
        return CacheInputs(q, k, v, table, seq_lens, norms, append, biases)

    def _pages(self) -> tuple[int, Tensor]:
        """Return how many pages there are and which belong to each sequence, `[B, most pages]`."""
        counts = [-(-length // self.page_size) for length in self.lengths]
        order = torch.randperm(sum(counts), generator=torch.Generator().manual_seed(0))
        table = torch.zeros(len(counts), max(counts), dtype=torch.int32)
        for row, own in zip(table, torch.split(order, counts), strict=True):
            row[: len(own)] = own
        return sum(counts), table

    def _append(self, draw: Callable[..., Tensor], table: Tensor) -> Append:
        query_heads, kv_heads = self.heads
        device = table.device
        places = torch.tensor(self.lengths, device=device) - 1  # the last token is the new one
        own = torch.arange(self.sequences, device=device)
        pages = table[own, places // self.page_size].long()
        steps = torch.arange(self.longest, device=device, dtype=torch.float32)
        half = self.depth // 2
        pace = 1e6 ** -(torch.arange(half, device=device, dtype=torch.float32) / half)
        angles = steps[:, None] * pace
        return Append(
            draw(self.sequences, (query_heads + 2 * kv_heads) * self.depth),
            torch.cat([angles.cos(), angles.sin()], dim=-1),
            places,
            pages * self.page_size + places % self.page_size,
        )

    def new_outs(self, given: CacheInputs) -> tuple[Tensor, ...]:
        """Return the result's tensor, `[B, T, Hq, D]`, of one token `[B, Hq, D]`."""
        shape = given.q.shape if self.tokens > 1 else given.q[:, 0].shape
        return (given.q.new_empty(*shape[:-1], self.depth),)

    def ours(
        self, given: CacheInputs, outs: Sequence[Tensor] | None = None, **more: Tensor
    ) -> Results:
        """Call the library; `more` are options of the op that are tensors, as `lse`."""
        from mirage_kernels import gqa, mla_decode, qk_norm_attention

        if outs is not None:
            more["out"] = outs[0]
        q = given.q if self.tokens > 1 else given.q[:, 0]
        places = (given.table, given.seq_lens)
        if self.more:
            assert self.scale is not None
            cache = given.k if given.table is not None else given.k[:, 0]
            sizes = {"latent_dim": self.depth, "max_seq_len": self.longest}
            return cast(Call, mla_decode)(q, cache, *places, scale=self.scale, **sizes, **more)
        options: dict[str, object] = {
            "scale": self.scale,
            "causal": self.is_causal and self.tokens > 1,
            "window_left": self.window_left,
            "logits_soft_cap": self.logits_soft_cap,
            "kv_layout": "HND" if given.table is None else "NHD",
            "max_seq_len": self.longest,
        }
        if self.norms:
            assert given.norms is not None
            if given.biases is not None:
                options |= {"norm": "layer", "q_bias": given.biases[0], "k_bias": given.biases[1]}
            call = cast(Call, qk_norm_attention)
            return call(q, given.k, given.v, *given.norms, *places, eps=EPS, **options, **more)
        q = self._appended(given) if self.appends else q
        return cast(Call, gqa)(q, given.k, given.v, *places, **options, **more)

    def _appended(self, given: CacheInputs) -> Tensor:
        """Write the new token to the cache and return its queries."""
        from mirage_kernels import qk_norm_rope_append

        assert given.norms is not None
        assert given.append is not None
        new, sizes = given.append, {"num_heads": self.heads[0], "num_kv_heads": self.heads[1]}
        caches = (given.k, given.v, new.slots)
        vectors = (*given.norms, new.cos_sin, new.positions)
        call = cast(Call, qk_norm_rope_append)
        return call(new.qkv, *vectors, *caches, eps=EPS, kv_layout="NHD", **sizes)

    def dense(self, given: CacheInputs) -> CacheInputs:
        """Return the same inputs with keys and values copied out of their pages."""
        if given.table is None:
            return given
        table, append, seen = given.table.long(), given.append, None

        def lines(cache: Tensor) -> Tensor:
            whole = cache[table].flatten(1, 2)[:, : self.longest]
            return whole.transpose(1, 2).contiguous()

        if append is not None:  # a sequence counts as one page
            own = torch.arange(self.sequences, device=table.device)
            append = replace(append, slots=own * self.longest + append.positions)
        if not self.is_even:
            assert given.seq_lens is not None
            keys = torch.arange(self.longest, device=table.device)
            seen = (keys < given.seq_lens[:, None])[:, None, None]
        k, seq_lens = lines(given.k), None if self.is_even else given.seq_lens
        v = k[..., : self.depth] if self.more else lines(given.v)
        return replace(given, k=k, v=v, table=None, seq_lens=seq_lens, append=append, seen=seen)

    def eager(self) -> Program[CacheInputs]:
        """Return PyTorch's own unfused program on dense inputs."""
        return lambda given: cache_reference.eager(self, given)

    def exact(self, given: CacheInputs) -> Results:
        """Compute it in float64 from dense inputs, `[B, T, Hq, D]`."""
        return cache_reference.exact(self, given)

    def error_allowed(self, given: CacheInputs, exact: Results) -> float:
        """Return twice what the library's tests allow."""
        return LARGEST_ERRORS[self.dtype]

    def peers(self) -> Iterable[Peer[CacheInputs]]:
        """Return PyTorch's fused attention, FlashInfer's and FlashAttention's."""
        return cache_peers.peers(self)

    def in_place(self) -> Mapping[str, Program[CacheInputs]]:
        """Return PyTorch's attention as the library runs it, for dense calls of many tokens."""
        return {} if self.needs_kernel else {"library_us": self._prefill}

    def _prefill(self, given: CacheInputs) -> Tensor:
        from mirage_kernels.attention import Call as Wanted
        from mirage_kernels.prefill import prefill

        k, v = (x.transpose(1, 2) for x in (given.k, given.v))
        none = (None,) * 6
        options = (self.scale, self.is_causal, -1, 0.0)
        return prefill(Wanted(given.q, k, v, *none, *options), None)

    def fill(self, args: Args, given: CacheInputs, outs: Sequence[Tensor]) -> None:
        """Write what csrc/torch/attention.cpp writes for this call."""
        assert isinstance(args, AttentionArgs)
        q, (out,) = given.q, outs
        paged = (x if given.table is not None else x.transpose(1, 2) for x in (given.k, given.v))
        k, v = paged  # [pages, page size, Hkv, D]
        args.q = args.more_q = Lines(q.data_ptr(), q.stride(1), q.stride(2))
        if self.more:
            args.more_q = Lines(q[..., self.depth :].data_ptr(), q.stride(1), q.stride(2))
            v = k[..., self.depth :]
        args.k, args.v = (Cache(x.data_ptr(), *x.stride()[:3]) for x in (k, v))
        args.page_size, args.pages = k.shape[1], k.shape[0]
        if given.table is not None:
            args.block_table, args.table_row = given.table.data_ptr(), given.table.stride(0)
        if given.seq_lens is not None:
            args.seq_lens = given.seq_lens.data_ptr()
        for i, vector in enumerate(given.vectors):
            args.vectors[i] = vector.data_ptr()
            args.vector_heads[i] = self.depth if vector.dim() == 2 else 0
        args.scalars[0] = self.depth**-0.5 if self.scale is None else self.scale
        args.scalars[1] = EPS if self.norms else self.logits_soft_cap
        windowed = self.window_left >= 0
        args.integers[0] = self.window_left + 1 if windowed else NO_WINDOW
        args.first_window = self.window_left if windowed else -1
        args.out, (args.out_token, args.out_head) = out.data_ptr(), out.stride()[-3:-1]
        args.B, args.Hkv, args.G = self.sequences, self.heads[1], self.group
        args.q_len, args.max_len = self.tokens, self.longest
        args.multiprocessors = _multiprocessors(q)

    def assume(self, args: Args) -> None:
        """Say that weights are constant, and the cached tokens where there is a cache."""
        super().assume(args)
        assert isinstance(args, AttentionArgs)
        args.constant_history = self.page_size > 0


def _multiprocessors(tensor: Tensor) -> int:
    if not tensor.is_cuda:
        return 132
    return int(torch.cuda.get_device_properties(tensor.device).multi_processor_count)
