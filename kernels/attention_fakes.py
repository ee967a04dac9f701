"""The ops of attention without data: shapes of the results, for tracing."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

# Unlike an `if`, it also serves sizes that are not known while tracing.
_torch_check: Callable[[bool, Callable[[], str]], None] = torch._check

_HALVES = (torch.float16, torch.bfloat16)
ATTENTION = ("gqa", "qk_norm_attention", "mla_decode")


def _check(holds: bool, sentence: str) -> None:
    _torch_check(holds, lambda: sentence)


def _check_devices(op: str, name: str, model: Tensor, *others: object) -> None:
    sentence = f"{name} is on {model.device}, another tensor is not; one device works"
    for tensor in others:
        same = not isinstance(tensor, Tensor) or tensor.device == model.device
        _check(same, f"mirage_kernels::{op}: {sentence}")


def _checked(op: str, q: Tensor, k: Tensor, v: Tensor, *others: object) -> None:
    said = f"mirage_kernels::{op}: "
    _check_devices(op, "q", q, k, v, *others)
    if op == "mla_decode":
        rope, cache = k, v
        _check(
            rope.dtype == q.dtype, f"{said}the rope part of q has dtype {rope.dtype}, q {q.dtype}"
        )
        _check(rope.dim() == 3, f"{said}the rope part of q has {rope.dim()} dims, but 3 are needed")
        k = v = cache
    _check(q.dtype in _HALVES, f"{said}q has dtype {q.dtype}; float16 and bfloat16 work")
    _check(q.dim() == 3, f"{said}q has {q.dim()} dims; [tokens, Hq, D] works")
    for name, tensor in {"k_cache": k, "v_cache": v}.items():
        _check(tensor.dtype == q.dtype, f"{said}{name} has dtype {tensor.dtype}, q {q.dtype}")
        _check(tensor.dim() == 4, f"{said}{name} has {tensor.dim()} dims, but 4 are needed")
        _check(tensor.shape[3] == q.shape[2], f"{said}{name} and q differ in D")


def _register(op: str) -> None:
    name = f"mirage_kernels::{op}"

    def plain(q: Tensor, k: Tensor, v: Tensor, *others: object) -> Tensor:
        _checked(op, q, k, v, *others)
        return q.new_empty(q.shape)

    def with_lse(q: Tensor, k: Tensor, v: Tensor, *others: object) -> tuple[Tensor, Tensor]:
        out = plain(q, k, v, *others)
        return out, q.new_empty(q.shape[:-1], dtype=torch.float32)

    def check(q: Tensor, k: Tensor, v: Tensor, *others: object, **_: object) -> None:
        _checked(op, q, k, v, *others)

    def into(q: Tensor, k: Tensor, v: Tensor, *others: object, **outs: Tensor) -> None:
        _checked(op, q, k, v, *others, *outs.values())
        sentence = f"mirage_kernels::{op}: out needs the shape of q"
        _check(outs["out"].dim() == 3, sentence)
        for size, needed in zip(outs["out"].shape, q.shape, strict=True):
            _check(size == needed, sentence)

    torch.library.register_fake(name, plain)
    torch.library.register_fake(f"{name}.lse", with_lse)
    torch.library.register_fake(f"{name}.out", into)
    torch.library.register_fake(f"{name}.lse_out", into)
    torch.library.register_fake(f"mirage_kernels::_{op}_check", check)


def _append(qkv: Tensor, *arguments: object) -> Tensor:
    _check_devices("qk_norm_rope_append", "qkv", qkv, *arguments)
    k_cache, num_heads = arguments[6], arguments[9]
    assert isinstance(k_cache, Tensor)
    assert isinstance(num_heads, int | torch.SymInt)
    return qkv.new_empty(qkv.shape[0], num_heads, k_cache.shape[3])


def register() -> None:
    """Register all of them; once."""
    for op in ATTENTION:
        _register(op)
    torch.library.register_fake("mirage_kernels::qk_norm_rope_append", _append)
