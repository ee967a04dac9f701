"""Dense calls of many query tokens: whether PyTorch's attention serves them, and how it is called.

The numbers are what the measurements in catalog.json give, by `prefill_rules` in
generator/tuning/choice.py; a test compares them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from mirage_kernels.dispatch import DTYPE_NAMES
from mirage_kernels.kernel_files import cached_until_load
from mirage_kernels.registration import own_types  # registers all that the ops need, too
from mirage_kernels.support import supports

if TYPE_CHECKING:
    from mirage_kernels.attention_calls import Call, Wanted

# PyTorch's attention serves calls of so many query tokens of each sequence, and of so many query
# lines (tokens of all sequences times heads), by what tokens see and by length of a head.
MEASURED: dict[tuple[str, int], tuple[int, int]] = {
    ("all", 64): (128, 16384),
    ("all", 128): (128, 16384),
    ("most", 128): (4032, 129024),
    ("part", 64): (256, 65536),
    ("part", 128): (2048, 131072),
    ("square", 64): (64, 16384),
    ("square", 128): (128, 4096),
}
# The same where nothing was measured: with so many the products take longer than the reading.
TOKENS = 128
# The same, by whether calls are causal and by D, where tiles have 16 rows and each of them reads
# all keys: from benchmarks/results/dense.json, as above.
NARROW: dict[tuple[bool, int], tuple[int, int]] = {
    (False, 96): (32, 8192),
    (False, 192): (16, 4096),
    (False, 256): (16, 2048),
    (True, 96): (64, 2048),
    (True, 192): (32, 1024),
    (True, 256): (16, 1024),
}


def is_prefill(call: Call, wanted: Wanted, *, kernels: bool = False) -> bool:
    """Say whether PyTorch's own attention computes the call, and is made for it.

    `kernels`: whether ours serve dense calls of many query tokens, too, causal ones or not.
    """
    if call.block_table is not None or call.q.dim() != 4:  # at once for most calls
        return False
    options = (call.seq_lens, call.cu_seqlens_q, call.sinks, wanted.lse)
    if any(option is not None for option in options) or wanted.return_lse:
        return False
    if call.window_left != -1 or call.logits_soft_cap:
        return False
    tokens, keys = call.q.shape[1], call.k.shape[1]
    causal = call.causal
    if causal and tokens != keys and (tokens > keys or torch.compiler.is_compiling()):
        # A token that sees no key is NaN there, and torch.compile does not trace the bias.
        return False
    return keys > 0 and is_long(call.q, keys, causal=causal, kernels=kernels)


def is_long(q: Tensor, keys: int, *, causal: bool, kernels: bool) -> bool:
    """Say whether q `[B, T, Hq, D]` is long enough for PyTorch's attention to serve the call.

    `kernels`: whether ours serve such calls, where there is one for D and the GPU.
    """
    sequences, tokens, heads, depth = q.shape
    if not (kernels and q.is_cuda) or torch.compiler.is_compiling():
        return tokens >= TOKENS
    if not _has_kernel(causal, depth, q.dtype, q.get_device()):
        return q.numel() > 0  # a tenth of what PyTorch's plain operations take
    rule = MEASURED.get((kind_of(tokens, keys, causal=causal), depth))
    least, lines = rule or NARROW.get((causal, depth), (TOKENS, 0))
    return tokens >= least and sequences * tokens * heads >= lines


def kind_of(tokens: int, keys: int, *, causal: bool) -> str:
    """Return what query tokens see: "all" keys, or those up to their own.

    Causal tokens are as many as the keys ("square"), "most" of them, or a "part", up to half.
    """
    if not causal:
        return "all"
    if tokens == keys:
        return "square"
    return "most" if 2 * tokens > keys else "part"


@cached_until_load
def _has_kernel(causal: bool, depth: int, dtype: torch.dtype, device: int) -> bool:
    is_half = dtype in DTYPE_NAMES  # others the op refuses
    return is_half and supports("gqa", D=depth, T=2, causal=causal, dtype=dtype, device=device)


def prefill(call: Call, out: Tensor | None) -> Tensor:
    """Compute it with PyTorch's attention, which prefers cuDNN's kernels on GPUs 9.0 and later."""
    q, k, v = (tensor.transpose(1, 2) for tensor in (call.q, call.k, call.v))
    square = q.shape[2] == k.shape[2]
    bias = _lower_right(q, k) if call.causal and not square else None
    with own_types(q):
        y = scaled_dot_product_attention(
            q,
            k,
            v,
            attn_mask=bias,
            is_causal=call.causal and square,
            scale=call.scale,
            enable_gqa=q.shape[1] != k.shape[1],
        ).transpose(1, 2)
    return y if out is None else out.copy_(y)


def _lower_right(q: Tensor, k: Tensor) -> Tensor:
    """Return the mask that lets the last query see the last key."""
    # Imported here: it loads torch._dynamo, which takes as long as all of torch.
    from torch.nn.attention.bias import causal_lower_right

    return causal_lower_right(q.shape[2], k.shape[2])
