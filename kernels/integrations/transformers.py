"""transformers 5: attention of decoding steps by `gqa`, the rest of them by `optimize`'s backend.

    from mirage_kernels.integrations import transformers as mirage

    mirage.apply(model)
    model.generate(**inputs, cache_implementation="static")

`generate` is unchanged. With a static cache it compiles the decoding step (on a GPU), here by the
backend "mirage_kernels": norms, projections and gated MLPs become ops, Inductor compiles the rest,
and a CUDA graph replays the step. Prompts run PyTorch's attention.

A static cache is `[B, Hkv, L, D]` per layer, which `gqa` reads in place. How many keys are in use
is a tensor of the cache, from which the mask function makes `seq_lens` on the device. A batch with
padding has keys that must not be seen, so it keeps PyTorch's attention and its mask: the host looks
at a mask `[B, tokens]` before every step, where it waits for the last step's tokens anyway.

Without a compiled step, `layer_mapping` and `name_layers` (`integrations/kernels.py`) put norms and
gated MLPs into a model by the `kernels` package.

Tested with transformers 5.24: Llama, Mistral, Qwen2, Qwen3, Gemma, Gemma 2 and 3, Phi-3, gpt-oss.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from types import FunctionType
from typing import TYPE_CHECKING, TypeGuard, TypeVar
from uuid import uuid4
from weakref import WeakValueDictionary

import torch
from torch import Tensor, fx, nn
from torch._dynamo import register_backend
from transformers import AttentionInterface, AttentionMaskInterface, CompileConfig, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import (
    causal_mask_function,
    sdpa_mask,
    sliding_window_causal_mask_function,
)

from mirage_kernels.argument_checks import asks_for_grad
from mirage_kernels.assumptions import checked
from mirage_kernels.attention import gqa
from mirage_kernels.element_types import HALVES
from mirage_kernels.errors import option_sentence, other_attention_sentence
from mirage_kernels.integrations import NAME
from mirage_kernels.integrations.kernels import layer_mapping as layer_mapping
from mirage_kernels.integrations.kernels import name_layers as name_layers
from mirage_kernels.model import new_report

if TYPE_CHECKING:
    from mirage_kernels.matching.report import Report

_LENGTHS = torch.int32  # the type of a mask that holds lengths; others are bool or fractions
_HEAD_SIZE_STEP = 8  # `gqa` refuses other sizes of heads
_STEP_BACKEND = f"{NAME}_step"
_Model = TypeVar("_Model", bound=PreTrainedModel)


def apply(
    model: _Model,
    *,
    mode: str | None = "reduce-overhead",
    pack: bool = True,
    constant_modules: bool = False,
) -> _Model:
    """Serve a model's decoding steps by this library's ops, in place, and return it.

    `mode` is Inductor's for what is left of a step; None compiles nothing. `pack` and
    `constant_modules` as in `mirage_kernels.optimize`. `print(mirage_kernels.report(model))` says,
    after the first generated tokens, what was replaced.

    Raises RuntimeError for a model that takes no attention from outside, and for one whose layers
    attend otherwise than to all keys, or the last ones, with a soft cap or sinks: in chunks (Llama
    4), or by a mask that they read themselves (Doge, DeepSeek V3.2).
    """
    if not isinstance(model, PreTrainedModel) or not model.is_backend_compatible():
        works = ("a transformers model with an attention interface",)
        raise RuntimeError(option_sentence("model", type(model).__name__, works))
    if what := _other_attention(model):
        raise RuntimeError(other_attention_sentence(type(model).__name__, what))
    report = new_report(model)
    compiling = _compile_config(report, mode, pack=pack, constant_modules=constant_modules)
    register()
    model.set_attn_implementation(NAME)
    if getattr(model, "generation_config", None) is not None:
        model.generation_config.compile_config = compiling
    return model


def _other_attention(model: PreTrainedModel) -> str:
    """Say what a model's layers do that neither lengths nor `gqa` know; empty where nothing.

    transformers offers flash attention, which gets no mask of every key either, where layers do
    not read their mask, and PyTorch's where a score is nothing but scaled and masked.
    """
    found = model.get_decoder()
    decoder = found if isinstance(found, PreTrainedModel) else model
    config = decoder.config
    if getattr(config, "attention_chunk_size", None):
        return f"attends in chunks of {config.attention_chunk_size} keys"
    if not decoder._supports_flash_attn:
        return "reads the mask itself (transformers has no flash attention for it)"
    has_cap = bool(getattr(config, "attn_logit_softcapping", None))
    has_sinks = any(name.rpartition(".")[2] == "sinks" for name, _ in decoder.named_parameters())
    if not decoder._supports_sdpa and not has_cap and not has_sinks:
        return "changes scores otherwise than by a soft cap or sinks"
    return ""


# -- what compiles a step: named, as a generation configuration is copied, printed and pickled -----

_reports: WeakValueDictionary[str, Report] = WeakValueDictionary()  # by a name in the configuration


class _GuardFilter(str):
    """A function of torch.compiler by its name, which a configuration can print."""

    __slots__ = ()

    def __call__(self, guards: Sequence[object]) -> Sequence[bool]:
        chosen: Sequence[bool] = getattr(torch.compiler, self)(guards)
        return chosen


def _compile_config(
    report: Report, mode: str | None, *, pack: bool, constant_modules: bool
) -> CompileConfig:
    from mirage_kernels.matching.backend import Backend
    from mirage_kernels.matching.choose import Options

    Backend(report, mode, Options(pack=checked("apply", "pack", pack)))  # refuses other modes
    name = uuid4().hex
    _reports[name] = report
    options: dict[str, object] = {"mode": mode, "pack": pack, "report": name}
    if checked("apply", "constant_modules", constant_modules):
        options["guard_filter_fn"] = _GuardFilter("skip_guard_on_all_nn_modules_unsafe")
    return CompileConfig(backend=_STEP_BACKEND, mode=None, options=options)


def _compile_step(
    module: fx.GraphModule, inputs: Sequence[object], *, options: Mapping[str, object]
) -> Callable[..., object]:
    """Compile a graph of a decoding step, and note it in its model's report.

    A model that came from another process has no report, until `apply` makes one.
    """
    from mirage_kernels.matching.backend import Backend
    from mirage_kernels.matching.choose import Options
    from mirage_kernels.matching.report import Report

    mode = options["mode"]
    report = _reports.get(str(options["report"]), Report())
    own = Backend(report, None if mode is None else str(mode), Options(pack=bool(options["pack"])))
    return own(module, inputs)


register_backend(_compile_step, name=_STEP_BACKEND)  # type: ignore[arg-type]


# -- attention -------------------------------------------------------------------------------------


def register() -> None:
    """Make `attn_implementation="mirage_kernels"` known to transformers.

    That alone refuses no model: `apply` does, for those that it says.
    """
    AttentionInterface.register(NAME, attention)
    AttentionMaskInterface.register(NAME, mask)


def attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    softcap: float | None = None,
    **options: object,
) -> tuple[Tensor, Tensor | None]:
    """Attend as transformers asks for it: query `[B, Hq, S, D]`, keys and values `[B, Hkv, L, D]`.

    One query token goes to `gqa`; prompts, and what `gqa` does not take, to PyTorch's attention,
    with a soft cap or sinks to the model's own.
    """
    sinks = options.get("s_aux")
    if _is_served(module, (query, key, value), attention_mask, options):
        seq_lens = None if attention_mask is None else attention_mask.reshape(-1)
        lengths = (None, seq_lens)
        out = gqa(
            query[:, :, 0],
            key,
            value,
            *lengths,
            scale=scaling,
            logits_soft_cap=softcap or 0.0,
            sinks=sinks if isinstance(sinks, Tensor) else None,
            kv_layout="HND",
        )
        return out[:, None], None
    if _is_lengths(attention_mask):
        attention_mask = _seen_keys(attention_mask, key)
    if softcap or sinks is not None:
        causal = options.get("is_causal")
        is_causal = bool(getattr(module, "is_causal", True) if causal is None else causal)
        added = _added_mask(attention_mask, query, key, is_causal)
        return _own_attention(module)(
            module, query, key, value, added, scaling=scaling, softcap=softcap, **options
        )
    given = (module, query, key, value, attention_mask)
    plain: tuple[Tensor, None] = sdpa_attention_forward(*given, scaling=scaling, **options)
    return plain


def _is_served(
    module: nn.Module,
    tensors: tuple[Tensor, Tensor, Tensor],
    mask: Tensor | None,
    options: Mapping[str, object],
) -> bool:
    query, _, value = tensors
    heads, sinks = query.shape[-1], options.get("s_aux")
    if query.shape[2] != 1 or query.dtype not in HALVES or options.get("position_bias") is not None:
        return False
    if heads % _HEAD_SIZE_STEP or value.shape[-1] != heads:
        return False
    if sinks is not None and not (isinstance(sinks, Tensor) and sinks.dtype == query.dtype):
        return False
    has_dropout = module.training and options.get("dropout")
    needs_grad = asks_for_grad(*tensors, sinks)
    return not has_dropout and not needs_grad and (mask is None or _is_lengths(mask))


def _is_lengths(mask: Tensor | None) -> TypeGuard[Tensor]:
    """Say whether a mask is `[B, 1, 1, 1]` lengths, as `mask` makes them."""
    return mask is not None and mask.dtype == _LENGTHS and mask.shape[1:] == (1, 1, 1)


def _seen_keys(lengths: Tensor, key: Tensor) -> Tensor:
    """Return the mask `[B, 1, 1, L]` that lengths stand for."""
    return torch.arange(key.shape[2], device=lengths.device) < lengths


def _added_mask(mask: Tensor | None, query: Tensor, key: Tensor, is_causal: bool) -> Tensor | None:
    """Return a mask as a model's own attention adds it to scores: 0 and the least number.

    No mask stands for a causal one: the n-th query sees the first n keys.
    """
    queries, keys = query.shape[2], key.shape[2]
    if mask is None and is_causal and queries > 1:
        mask = torch.ones(queries, keys, dtype=torch.bool, device=query.device).tril()[None, None]
    if mask is None or mask.dtype != torch.bool:
        return mask
    zero = torch.zeros((), dtype=query.dtype, device=mask.device)
    return torch.where(mask, zero, torch.finfo(query.dtype).min)


def _own_attention(module: nn.Module) -> Callable[..., tuple[Tensor, Tensor | None]]:
    """Return the attention in the file of a layer's class, or of a class that it extends."""
    homes = (sys.modules.get(kind.__module__) for kind in type(module).__mro__)
    found = (getattr(home, "eager_attention_forward", None) for home in homes)
    own: Callable[..., tuple[Tensor, Tensor | None]] | None = next(filter(None, found), None)
    if own is None:
        what = "has a soft cap or sinks, but no eager_attention_forward"
        raise RuntimeError(other_attention_sentence(type(module).__name__, what))
    return own


# -- masks -----------------------------------------------------------------------------------------


def mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int | Tensor = 0,
    kv_offset: int = 0,
    mask_function: Callable[..., Tensor] = causal_mask_function,
    attention_mask: Tensor | None = None,
    local_size: int | None = None,
    allow_is_causal_skip: bool = True,
    device: torch.device | str = "cpu",
    **options: object,
) -> Tensor | None:
    """Return the lengths `[B, 1, 1, 1]` of a decoding step over a static cache, else a mask.

    transformers hands on what has four dims as it is. The keys of a sliding layer are the last
    ones already.
    """
    is_step = q_length == 1 and not allow_is_causal_skip and options.get("dtype") in HALVES
    is_plain = _sees_all(mask_function, kv_length, local_size) and not options.get("use_vmap")
    is_static = (
        isinstance(q_offset, Tensor)  # a cache's own count
        or kv_offset + kv_length > q_offset + 1  # keys that are not written yet
        or kv_length == local_size  # a sliding layer that is full
    )
    if is_step and is_plain and is_static and not _is_padded(attention_mask, q_offset):
        used = torch.as_tensor(q_offset, device=device) + (1 - kv_offset)
        lengths = used.clamp(max=kv_length).to(_LENGTHS)
        return lengths.reshape(1, 1, 1, 1).expand(batch_size, 1, 1, 1).contiguous()
    made: Tensor | None = sdpa_mask(
        batch_size=batch_size,
        q_length=q_length,
        kv_length=kv_length,
        q_offset=q_offset,
        kv_offset=kv_offset,
        mask_function=mask_function,
        attention_mask=attention_mask,
        local_size=local_size,
        allow_is_causal_skip=allow_is_causal_skip,
        device=device,
        **options,
    )
    return made


def _sees_all(function: Callable[..., Tensor], kv_length: int, local_size: int | None) -> bool:
    """Say whether the last token sees all keys: it is causal, or its window is wide enough."""
    if function is causal_mask_function:
        return True
    if torch.compiler.is_compiling():
        return False  # a graph cannot look into functions
    fits = local_size is not None and kv_length <= local_size
    return fits and _codes(function) == _SLIDING


def _codes(function: object) -> list[object]:
    """Return the code of a mask function and of those that it is the intersection of."""
    cells = (cell.cell_contents for cell in getattr(function, "__closure__", None) or ())
    parts = [part for cell in cells if isinstance(cell, tuple) for part in cell]
    return [f.__code__ if isinstance(f, FunctionType) else f for f in (function, *parts)]


_SLIDING = _codes(sliding_window_causal_mask_function(1))


def _is_padded(attention_mask: Tensor | None, q_offset: int | Tensor) -> bool:
    """Say whether some token so far must not be seen; the host looks, as masks may change."""
    if attention_mask is None:
        return False
    if torch.compiler.is_compiling() or _is_capturing(attention_mask):
        return True  # nobody may look at values here
    covers = attention_mask.shape[-1] > q_offset
    return not bool(attention_mask.all() & covers)


def _is_capturing(tensor: Tensor) -> bool:
    return tensor.is_cuda and torch.cuda.is_current_stream_capturing()
