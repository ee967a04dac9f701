"""What attention is compared with: PyTorch's fused kernels, FlashInfer and FlashAttention.

The last two only where they are installed. PyTorch's take dense copies that were made beforehand;
what comes in front of attention (norms, rotation, the write to the cache) are PyTorch's own
programs there.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import warnings
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel, varlen
from torch.nn.functional import scaled_dot_product_attention

from mirage_kernels.generator.bench.workload import TORCH_DTYPES, Inputs, Peer

if TYPE_CHECKING:
    from mirage_kernels.generator.bench.workloads.cache import CacheWorkload

BACKENDS = {
    "cuDNN": SDPBackend.CUDNN_ATTENTION,
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
}
_WORKSPACE_BYTES = 128 * 1024 * 1024

Run = Callable[[Inputs], Tensor]


def peers(workload: CacheWorkload) -> Iterator[Peer]:
    """Yield all that may be able to compute a workload."""
    if workload.window_left >= 0 or workload.logits_soft_cap:
        return
    square = workload.is_causal and workload.tokens == workload.longest
    if workload.tokens > 1 and not square:  # PyTorch's mask is that of the first tokens
        return
    for name, backend in BACKENDS.items():
        yield Peer(f"SDPA {name}", _sdpa(workload, backend, by_rows=False))
        if workload.tokens == 1 and workload.group > 1:
            yield Peer(f"SDPA {name}, grouped", _sdpa(workload, backend, by_rows=True))
    if not workload.is_even:
        yield Peer("PyTorch varlen, grouped", _varlen(workload))
    is_paged_decode = workload.page_size > 0 and workload.tokens == 1 and not workload.appends
    if workload.norms or workload.more or not is_paged_decode:
        return
    libraries = {
        "FlashInfer": ("flashinfer", _flashinfer),
        "FlashAttention-3": ("flash_attn_interface", _flash_attention),
        "FlashAttention-2": ("flash_attn", _flash_attention),  # takes pages of 256 at least
    }
    for name, (module, program) in libraries.items():
        if importlib.util.find_spec(module) is not None:
            yield Peer(name, program(workload, module), paged=True)


def _sdpa(workload: CacheWorkload, backend: SDPBackend, *, by_rows: bool) -> Run:
    """Return scaled_dot_product_attention on one backend.

    By rows the heads of a group are the query tokens of one head, which read its keys once.
    """

    def run(given: Inputs) -> Tensor:
        q, k, v = workload.prepared(given)
        heads = _grouped(q, k.shape[1]) if by_rows else q.transpose(1, 2)
        with sdpa_kernel([backend]), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # each says why it does not take the call
            y = scaled_dot_product_attention(
                *(heads, k, v, given.get("seen")),
                is_causal=workload.is_causal and workload.tokens > 1,
                scale=workload.scale,
                enable_gqa=heads.shape[1] != k.shape[1],
            )
        return y.flatten(1, 2) if by_rows else y.transpose(1, 2)

    return run


def _grouped(q: Tensor, kv_heads: int) -> Tensor:
    """View the one token of each sequence as `[B, Hkv, G, D]`."""
    return q.view(q.shape[0], kv_heads, -1, q.shape[3])


def _varlen(workload: CacheWorkload) -> Run:
    """Return PyTorch's attention over sequences laid end to end, without padding."""
    packed: dict[int, tuple[Tensor, ...]] = {}  # made once per set of inputs

    def run(given: Inputs) -> Tensor:
        if id(given) not in packed:
            kept = given["seen"][:, 0, 0]  # [B, L]
            lines = (given[name].transpose(1, 2)[kept] for name in "kv")
            lengths = torch.tensor((0, *workload.lengths), device=kept.device)
            rows = torch.arange(workload.sequences + 1, device=kept.device) * workload.group
            starts = (rows.to(torch.int32), lengths.cumsum(0).to(torch.int32))
            packed[id(given)] = (*lines, *starts)  # starts of queries and of keys
        grouped = _grouped(given["q"], workload.heads[1]).transpose(1, 2)  # [B, G, Hkv, D]
        q, most = grouped.flatten(0, 1).contiguous(), (workload.group, workload.longest)
        k, v, rows, ends = packed[id(given)]
        y = cast(Tensor, varlen.varlen_attn(q, k, v, rows, ends, *most))
        return y.view(grouped.shape).transpose(1, 2)

    return run


def _flashinfer(workload: CacheWorkload, module: str) -> Run:
    """Return FlashInfer's paged decode, planned at the first call.

    One plan serves all sets: their pages lie in the same order.
    """
    planned: list[Callable[..., Tensor]] = []

    def run(given: Inputs) -> Tensor:
        if not planned:
            planned.append(_planned(workload, given, module))
        return planned[0](given["q"][:, 0], (given["k"], given["v"]))

    return run


def _planned(workload: CacheWorkload, given: Inputs, module: str) -> Callable[..., Tensor]:
    device, page_size = given["q"].device, workload.page_size
    counts = [-(-length // page_size) for length in workload.lengths]
    indptr = torch.tensor((0, *counts), device=device).cumsum(0).to(torch.int32)
    rows = [row[:count] for row, count in zip(given["table"], counts, strict=True)]
    indices = torch.cat(rows).contiguous()
    last = [(length - 1) % page_size + 1 for length in workload.lengths]
    last_page_len = torch.tensor(last, dtype=torch.int32, device=device)
    wrapper = importlib.import_module(module).BatchDecodeWithPagedKVCacheWrapper(
        torch.empty(_WORKSPACE_BYTES, dtype=torch.uint8, device=device),
        "NHD",
        use_cuda_graph=True,
        use_tensor_cores=workload.group >= 4,
        paged_kv_indptr_buffer=indptr.clone(),
        paged_kv_indices_buffer=indices.clone(),
        paged_kv_last_page_len_buffer=last_page_len.clone(),
    )
    dtype = TORCH_DTYPES[workload.dtype]
    sizes = (*workload.heads, workload.depth, page_size)
    options = {"q_data_type": dtype, "kv_data_type": dtype, "sm_scale": workload.scale}
    wrapper.plan(indptr, indices, last_page_len, *sizes, **options)
    run: Callable[..., Tensor] = wrapper.run
    return run


def _flash_attention(workload: CacheWorkload, module: str) -> Run:
    """Return FlashAttention's decode over pages; the name of its table varies."""
    attend: Callable[..., Tensor] = importlib.import_module(module).flash_attn_with_kvcache
    named = inspect.signature(attend).parameters
    table = "page_table" if "page_table" in named else "block_table"

    def run(given: Inputs) -> Tensor:
        places = {"cache_seqlens": given["seq_lens"], table: given["table"]}
        return attend(given["q"], given["k"], given["v"], **places, softmax_scale=workload.scale)

    return run
