"""The part of the process that measures which knows attention.

    {"attention": NAME, "at": WORKLOAD}                  -> {"floor_us": ...}
    {"attention": NAME, "at": WORKLOAD, "library": FILE} -> {"us": ..., "promised_us": ...,
                                                             "few_tiles": ..., "error": ...}
    {"attention": NAME, "dense": CALL, "library": FILE}  -> {"us": ..., "sdpa_us": ..., "peers": {}}

Times are those of calls that promise nothing, and that promise all there is to promise.
"""

from __future__ import annotations

import ctypes
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path

import torch
from torch import Tensor

from mirage_kernels.generator.bench import attention_calls as calls
from mirage_kernels.generator.bench.attention_calls import EPS, Tensors
from mirage_kernels.generator.bench.attention_peers import BACKENDS, peers
from mirage_kernels.generator.bench.attention_workloads import AttentionWorkload
from mirage_kernels.generator.bench.measure import (
    METHOD,
    Method,
    graph_microseconds,
    relative_error,
    rotation_count,
)
from mirage_kernels.generator.ir.dtypes import DType
from mirage_kernels.generator.ir.text import Json
from mirage_kernels.generator.tuning.attention_workloads import Named, dense_calls, workloads_of
from mirage_kernels.generator.tuning.entries import (
    FEW_TILES,
    LAUNCH,
    WORKSPACE,
    RefusedError,
    opened,
)
from mirage_kernels.generator.tuning.fields import text
from mirage_kernels.generator.tuning.keys import Key

# Twice what the library's tests allow: a wrong result is at 1.
LARGEST_ERRORS = {DType.FP16: 2e-3, DType.BF16: 1.6e-2}
SDPA_AGREES = 2e-2  # two right results of the same dense call
ALIGNMENT = 64  # of the launch's arguments, which hold maps of tensors
NO_WINDOW = 1 << 30
SETTLED = replace(METHOD, settle_ms=20)
LONG_OPERATIONS, LONG = 1e11, replace(METHOD, launches=6, replays=5, warmup_replays=1)


class Lines(ctypes.Structure):
    """`mirage::Lines` of csrc/launch.h."""

    _fields_ = (("at", ctypes.c_void_p), ("token", ctypes.c_int64), ("head", ctypes.c_int64))


class Cache(ctypes.Structure):
    """`mirage::Cache` of csrc/launch.h."""

    _fields_ = (
        ("at", ctypes.c_void_p),
        ("page", ctypes.c_int64),
        ("token", ctypes.c_int64),
        ("head", ctypes.c_int64),
    )


class AttentionArgs(ctypes.Structure):
    """`mirage::AttentionArgs` of csrc/launch.h, but for what the launch fills in."""

    _fields_ = (
        ("q", Lines),
        ("more_q", Lines),
        ("k", Cache),
        ("v", Cache),
        ("block_table", ctypes.c_void_p),
        ("table_row", ctypes.c_int64),
        ("page_size", ctypes.c_int32),
        ("pages", ctypes.c_uint32),
        ("seq_lens", ctypes.c_void_p),
        ("first_tokens", ctypes.c_void_p),
        ("vectors", ctypes.c_void_p * 4),
        ("vector_heads", ctypes.c_int64 * 4),
        ("scalars", ctypes.c_float * 8),
        ("integers", ctypes.c_int32 * 2),
        ("sinks", ctypes.c_void_p),
        ("out", ctypes.c_void_p),
        ("out_token", ctypes.c_int64),
        ("out_head", ctypes.c_int64),
        ("lse", ctypes.c_void_p),
        ("B", ctypes.c_int32),
        ("Hkv", ctypes.c_int32),
        ("G", ctypes.c_int32),
        ("q_len", ctypes.c_int32),
        ("max_len", ctypes.c_int32),
        ("first_window", ctypes.c_int32),
        ("multiprocessors", ctypes.c_int32),
        ("workspace", ctypes.c_void_p),
        ("nonce", ctypes.c_uint64),
        ("constant_weights", ctypes.c_bool),
        ("constant_history", ctypes.c_bool),
    )


@dataclass(frozen=True)
class AttentionLibrary:
    """One candidate's library."""

    loaded: ctypes.CDLL
    args_bytes: int

    @staticmethod
    def load(path: Path) -> AttentionLibrary:
        """Load a library; see `opened`."""
        loaded, own = opened(path, AttentionArgs)
        getattr(loaded, FEW_TILES).argtypes = (ctypes.POINTER(AttentionArgs),)
        return AttentionLibrary(loaded, own)

    def asked(self, name: str, args: AttentionArgs, *more: object) -> int:
        """Call one of its functions."""
        return int(getattr(self.loaded, name)(ctypes.byref(args), *more))

    def args(self) -> AttentionArgs:
        """Return arguments at a place that is aligned as the kernel's are, all zeros."""
        space = bytearray(self.args_bytes + ALIGNMENT)
        start = ctypes.addressof(ctypes.c_char.from_buffer(space))
        return AttentionArgs.from_buffer(space, -start % ALIGNMENT)

    def call(self, args: AttentionArgs, out: Tensor) -> Callable[[], None]:
        """Return a launch on fixed buffers, with a workspace of its own."""
        space = out.new_empty(self.asked(WORKSPACE, args), dtype=torch.uint8)

        def launch() -> None:
            args.workspace, args.nonce = space.data_ptr(), secrets.randbits(64)
            stream = torch.cuda.current_stream().cuda_stream if out.is_cuda else None
            status = self.asked(LAUNCH, args, stream)
            if status:
                raise RefusedError(f"the launch failed with CUDA error {status}")

        return launch


def filled(args: AttentionArgs, call: AttentionWorkload, given: Tensors, out: Tensor) -> None:
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
class AttentionBench:
    """The tensors of one workload, shared by all candidates."""

    call: AttentionWorkload
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

    def candidate(self, library: AttentionLibrary) -> dict[str, Json]:
        """Compare a candidate's result with float64; where it is right, measure its times."""
        outs, args, timed = self.launches(library)
        few = library.asked(FEW_TILES, args[0])
        timed[0]()
        error = relative_error(outs[0], self.exact)
        if not error <= LARGEST_ERRORS[self.call.dtype]:
            return {"failed": f"its error is {error:.2e} at {self.call.name}"}
        us = self.time(timed, SETTLED)
        for one in args:
            one.constant_weights = True
            one.constant_history = self.call.page_size > 0
        promised_us = self.time(timed, SETTLED)
        answer: dict[str, Json] = {"us": us, "promised_us": promised_us, "error": error}
        return answer | {"few_tiles": bool(few)}

    def launches(
        self, library: AttentionLibrary
    ) -> tuple[list[Tensor], list[AttentionArgs], list[Callable[[], None]]]:
        """Return results, arguments and launches, one of each for every set."""
        outs = [self.new_out(given) for given in self.sets]
        args = [library.args() for _ in self.sets]
        for one, given, out in zip(args, self.sets, outs, strict=True):
            filled(one, self.call, given, out)
        return outs, args, [library.call(a, out) for a, out in zip(args, outs, strict=True)]

    def dense(self, library: AttentionLibrary, *, causal: bool) -> dict[str, Json]:
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
class AttentionWorker:
    """Answers questions about attention; the tensors of one workload are kept at a time."""

    folder: Path
    kernels: Sequence[Key]
    floor_of: Callable[[int], float]
    benches: dict[tuple[str, str], AttentionBench] = field(default_factory=dict)

    def answer(self, question: dict[str, Json]) -> dict[str, Json]:
        """Answer one question."""
        name = text(question, "attention")
        key = next(k for k in self.kernels if k.name == name)
        if "dense" in question:
            call = self.named(text(question, "dense"), dense_calls(key))
            library = AttentionLibrary.load(self.folder / text(question, "library"))
            return self.bench(name, call).dense(library, causal=key.recipe != "gqa")
        call = self.named(text(question, "at"), workloads_of(key))
        if "library" not in question:
            return {"floor_us": self.floor_of(call.call.bytes_read)}
        library = AttentionLibrary.load(self.folder / text(question, "library"))
        return self.bench(name, call).candidate(library)

    def named(self, name: str, among: Sequence[Named]) -> Named:
        """Return the workload of a name."""
        return next(n for n in among if n.name == name)

    def bench(self, kernel: str, named: Named) -> AttentionBench:
        """Return a workload's tensors, giving back those of the workload before."""
        at = (kernel, named.name)
        if at not in self.benches:
            self.benches.clear()
            torch.cuda.empty_cache()
            self.benches[at] = AttentionBench(named.call)
        return self.benches[at]
