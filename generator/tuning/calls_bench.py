"""The buffers of calls over a cache at which candidates are measured, and the measuring."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import ClassVar

import torch
from torch import Tensor

from mirage_kernels.generator.bench.measure import (
    METHOD,
    Method,
    graph_microseconds,
    relative_error,
    rotation_count,
)
from mirage_kernels.generator.bench.workloads import tensors as calls
from mirage_kernels.generator.bench.workloads.calls import CallWorkload
from mirage_kernels.generator.bench.workloads.peers import BACKENDS, peers
from mirage_kernels.generator.bench.workloads.tensors import EPS, Tensors
from mirage_kernels.generator.ir.dtypes import DType
from mirage_kernels.generator.ir.text import Json
from mirage_kernels.generator.tuning.calls import Named, dense_calls, is_causal, named_calls
from mirage_kernels.generator.tuning.library import AttentionArgs, Cache, Library, Lines
from mirage_kernels.generator.tuning.manifest import Compiled
from mirage_kernels.generator.tuning.sources import FEW_TILES

# Twice what the library's tests allow: a wrong result is at 1.
LARGEST_ERRORS = {DType.FP16: 2e-3, DType.BF16: 1.6e-2}
SDPA_AGREES = 2e-2  # two right results of the same dense call
NO_WINDOW = 1 << 30
SETTLED = replace(METHOD, settle_ms=20)
LONG_OPERATIONS, LONG = 1e11, replace(METHOD, launches=6, replays=5, warmup_replays=1)


def filled(args: AttentionArgs, call: CallWorkload, given: Tensors, out: Tensor) -> None:
    """Write what csrc/torch/attention.cpp writes for this call."""
    q, depth = given.q, call.depth
    args.q = Lines(q.data_ptr(), q.stride(1), q.stride(2))
    args.more_q = args.q
    k, v = (_by_token(cache, given) for cache in (given.k, given.v))
    args.k, args.v = _cache(k), _cache(v)
    if call.more:
        more = q[..., depth:]
        args.more_q = Lines(more.data_ptr(), q.stride(1), q.stride(2))
        args.v = _cache(k[..., depth:])
    args.page_size, args.pages = k.shape[1], k.shape[0]
    if given.table is not None:
        args.block_table, args.table_row = given.table.data_ptr(), given.table.stride(0)
    if given.seq_lens is not None:
        args.seq_lens = given.seq_lens.data_ptr()
    for i, vector in enumerate(_vectors(given)):
        args.vectors[i] = vector.data_ptr()
        args.vector_heads[i] = depth if vector.dim() == 2 else 0
    args.scalars[0] = depth**-0.5 if call.scale is None else call.scale
    args.scalars[1] = EPS if call.norms else call.logits_soft_cap
    args.integers[0], args.first_window = NO_WINDOW, -1
    if call.window_left >= 0:
        args.integers[0], args.first_window = call.window_left + 1, call.window_left
    args.out, args.out_token, args.out_head = out.data_ptr(), out.stride(1), out.stride(2)
    args.B, args.Hkv, args.G = call.sequences, call.heads[1], call.group
    args.q_len, args.max_len = call.tokens, call.longest
    args.multiprocessors = _multiprocessors(q)


def _vectors(given: Tensors) -> list[Tensor]:
    """Return norm weights in recipe order; with LayerNorm each is followed by its bias."""
    if given.norms is None:
        return []
    if given.biases is None:
        return list(given.norms)
    return [given.norms[0], given.biases[0], given.norms[1], given.biases[1]]


def _by_token(cache: Tensor, given: Tensors) -> Tensor:
    """View a cache as `[pages, page size, Hkv, D]`; dense ones are `[B, Hkv, L, D]`."""
    return cache if given.table is not None else cache.transpose(1, 2)


def _cache(tensor: Tensor) -> Cache:
    return Cache(tensor.data_ptr(), tensor.stride(0), tensor.stride(1), tensor.stride(2))


def _multiprocessors(tensor: Tensor) -> int:
    if not tensor.is_cuda:
        return 132
    return int(torch.cuda.get_device_properties(tensor.device).multi_processor_count)


@dataclass
class CallBuffers:
    """The tensors of one workload, shared by all candidates."""

    call: CallWorkload
    device: str = "cuda"

    @cached_property
    def sets(self) -> list[Tensors]:
        """Input sets that together exceed the cache often enough."""
        count = self.count(self.call.bytes_read)
        return [calls.drawn(self.call, seed, self.device) for seed in range(count)]

    @cached_property
    def exact(self) -> Tensor:
        """The first set's result in float64."""
        return calls.exact(self.call, calls.dense(self.call, self.sets[0]))

    def count(self, size: int) -> int:
        """Return how many input sets there are."""
        return rotation_count(size)

    def time(self, timed: Sequence[Callable[[], object]], method: Method) -> float:
        """Return the time of a call, rotating over them."""
        return graph_microseconds(timed, method=method)

    def new_out(self, given: Tensors) -> Tensor:
        """Return a result full of NaN: elements that nobody writes show."""
        return given.q.new_full((*given.q.shape[:-1], self.call.depth), torch.nan)

    def candidate(self, library: Library[AttentionArgs], *, assumed: bool) -> dict[str, Json]:
        """Compare a candidate's result with float64; where it is right, measure its time."""
        outs, args, timed = self.launches(library)
        few = library.asked(FEW_TILES, args[0])
        timed[0]()
        error = relative_error(outs[0], self.exact)
        if not error <= LARGEST_ERRORS[self.call.dtype]:
            return {"failed": f"its error is {error:.2e} at {self.call.name}"}
        for one in args:
            one.constant_weights = assumed
            one.constant_history = assumed and self.call.page_size > 0
        return {"us": self.time(timed, SETTLED), "error": error, "few_tiles": bool(few)}

    def launches(
        self, library: Library[AttentionArgs]
    ) -> tuple[list[Tensor], list[AttentionArgs], list[Callable[[], None]]]:
        """Return results, arguments and launches, one of each for every set."""
        outs = [self.new_out(given) for given in self.sets]
        args = [library.args() for _ in self.sets]
        for one, given, out in zip(args, self.sets, outs, strict=True):
            filled(one, self.call, given, out)
        return outs, args, [library.call(a, out) for a, out in zip(args, outs, strict=True)]

    def dense(self, library: Library[AttentionArgs], *, causal: bool) -> dict[str, Json]:
        """Measure a dense call beside PyTorch's attention, which must give the same result."""
        outs, _, timed = self.launches(library)
        theirs = [partial(self.sdpa, given, causal=causal) for given in self.sets]
        timed[0]()
        error = relative_error(outs[0], theirs[0]())
        if not error <= SDPA_AGREES:
            return {"failed": f"it differs by {error:.2e} from PyTorch's at {self.call.name}"}
        found: dict[str, Json] = {}
        if causal and self.call.tokens == self.call.longest:
            found = dict(self._backends())
        sdpa_us = self.time(theirs, self._method())
        return {"us": self.time(timed, self._method()), "sdpa_us": sdpa_us, "peers": found}

    def _method(self) -> Method:
        return LONG if self.call.operations > LONG_OPERATIONS else SETTLED

    def _backends(self) -> dict[str, float]:
        """Return the times of PyTorch's kernels one by one, of those that take the call."""
        found = {}
        for peer in peers(self.call):
            if peer.name not in {f"SDPA {name}" for name in BACKENDS}:
                continue
            runs = [partial(peer.run, given) for given in self.sets]
            try:
                found[peer.name] = self.time(runs, self._method())
            except (RuntimeError, ValueError):
                continue
        return found

    def sdpa(self, given: Tensors, *, causal: bool) -> Tensor:
        """Run what the library runs for dense calls of many query tokens."""
        from mirage_kernels.attention import Call
        from mirage_kernels.prefill import prefill

        k, v = (x.transpose(1, 2) for x in (given.k, given.v))
        none = (None,) * 6
        return prefill(Call(given.q, k, v, *none, self.call.scale, causal, -1, 0.0), None)


@dataclass
class CallsBench:
    """A kernel's calls; the tensors of one are kept at a time."""

    kernel: Compiled
    device: str = "cuda"
    arguments: ClassVar[type[AttentionArgs]] = AttentionArgs
    kept: tuple[str, CallBuffers] | None = None

    def bytes_read(self, call: str) -> int:
        """Return the bytes of the keys and values that are seen."""
        return self._named(call).call.bytes_read

    def peers(self, call: str) -> dict[str, Json]:
        """Measure nothing: candidates are compared with each other, dense calls with PyTorch."""
        return {}

    def candidate(
        self, call: str, library: Library[AttentionArgs], *, assumed: bool
    ) -> dict[str, Json]:
        """Compare a candidate's result with float64; where it is right, measure its time."""
        return self._buffers(self._named(call)).candidate(library, assumed=assumed)

    def dense(self, call: str, library: Library[AttentionArgs]) -> dict[str, Json]:
        """Measure a dense call beside PyTorch's attention."""
        named = next(n for n in dense_calls(self.kernel.key) if n.name == call)
        return self._buffers(named).dense(library, causal=is_causal(self.kernel.key))

    def _named(self, call: str) -> Named:
        return next(n for n in named_calls(self.kernel.key) if n.name == call)

    def _buffers(self, named: Named) -> CallBuffers:
        """Return a call's tensors, giving back those of the call before."""
        if self.kept is None or self.kept[0] != named.name:
            self.kept = None
            torch.cuda.empty_cache()
            self.kept = named.name, CallBuffers(named.call, self.device)
        return self.kept[1]
