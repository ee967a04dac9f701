"""Weights into L2 while attention runs on few bytes: a kernel on a stream beside the step's."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

CHUNK_BYTES = 4096
_CHUNKS = tl.constexpr(128)


@triton.jit
def _prefetch(weight, chunks):
    chunk = tl.program_id(0) * _CHUNKS + tl.arange(0, _CHUNKS)
    place = weight.to(tl.int64) + tl.minimum(chunk, chunks - 1).to(tl.int64) * 4096
    tl.inline_asm_elementwise(
        "cp.async.bulk.prefetch.L2.global [$1], 4096; mov.u32 $0, 0;",
        "=r,l",
        [place],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )


class Prefetcher:
    """Prefetches on a stream of its own, which starts and ends with the step."""

    def __init__(self, megabytes: float) -> None:
        self.chunks = int(megabytes * 1e6) // CHUNK_BYTES
        self.stream = torch.cuda.Stream()

    def start(self, weight: Tensor) -> None:
        """Prefetch the beginning of a weight behind what the current stream holds by now."""
        chunks = min(self.chunks, weight.nbytes // CHUNK_BYTES)
        if chunks == 0:
            return
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            _prefetch[(triton.cdiv(chunks, _CHUNKS.value),)](weight, chunks, num_warps=4)

    def end(self) -> None:
        """Let the current stream wait for the last prefetch."""
        torch.cuda.current_stream().wait_stream(self.stream)
