"""transformers 5: attention of decoding steps by `gqa`, the rest of them by `optimize`'s backend.

    from mirage_kernels.integrations import transformers as mirage

    mirage.apply(model)
    model.generate(**inputs, cache_implementation="static")

`generate` is unchanged. With a static cache it compiles the decoding step (on a GPU), here by the
backend "mirage_kernels": norms, projections and gated MLPs become ops, Inductor compiles the rest,
and a CUDA graph replays the step. Prompts run PyTorch's attention.

A static cache is `[B, Hkv, L, D]` per layer, which `gqa` reads in place. How many keys are in use
is a tensor of the cache, from which the mask function makes `seq_lens`: the host never waits. A
batch that is padded on the left has keys that must not be seen, so it keeps PyTorch's attention
and its mask.

Without a compiled step, `layer_mapping` and `name_layers` (`integrations/kernels.py`) put norms and
gated MLPs into a model by the `kernels` package.

Tested with transformers 5.24: Llama, Mistral, Qwen2, Qwen3, Gemma, Gemma 2 and 3, Phi-3.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TypeVar
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, fx, nn
from transformers import AttentionInterface, AttentionMaskInterface, CompileConfig, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import causal_mask_function, eager_mask, sdpa_mask

from mirage_kernels.assumptions import checked
from mirage_kernels.attention import gqa
from mirage_kernels.element_types import HALVES
from mirage_kernels.errors import option_sentence
from mirage_kernels.integrations import NAME
from mirage_kernels.integrations.kernels import layer_mapping as layer_mapping
from mirage_kernels.integrations.kernels import name_layers as name_layers
from mirage_kernels.model import new_report

_LENGTHS = torch.int32  # the type of a mask that holds lengths; others are bool or fractions
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

    Raises RuntimeError for a model that takes no attention from outside.
    """
    from mirage_kernels.matching.backend import Backend, compile_options
    from mirage_kernels.matching.choose import Options

    if not isinstance(model, PreTrainedModel) or not model.is_backend_compatible():
        works = ("a transformers model with an attention interface",)
        raise RuntimeError(option_sentence("model", type(model).__name__, works))
    options = compile_options(checked("apply", "constant_modules", constant_modules))
    own = Backend(new_report(model), mode, Options(pack=pack))

    # A function: generate copies its configuration, and would copy the report.
    def backend(module: fx.GraphModule, inputs: list[object], **_: object) -> Callable[..., object]:
        return own(module, inputs)

    register()
    model.set_attn_implementation(NAME)
    if model.generation_config is not None:
        model.generation_config.compile_config = CompileConfig(
            backend=backend, mode=None, **options
        )
    return model


def register() -> None:
    """Make `attn_implementation="mirage_kernels"` known to transformers."""
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

    One query token goes to `gqa`; prompts, and calls with a mask of other than lengths, to
    PyTorch's attention, with a soft cap to the model's own.
    """
    if _is_served(module, query, attention_mask, options):
        seq_lens = None if attention_mask is None else attention_mask.reshape(-1)
        lengths = (None, seq_lens)
        out = gqa(
            query[:, :, 0],
            key,
            value,
            *lengths,
            scale=scaling,
            logits_soft_cap=softcap or 0.0,
            kv_layout="HND",
        )
        return out[:, None], None
    given = (module, query, key, value, attention_mask)
    if softcap:
        eager = sys.modules[type(module).__module__].eager_attention_forward
        made: tuple[Tensor, Tensor | None] = eager(
            *given, scaling=scaling, softcap=softcap, **options
        )
        return made
    plain: tuple[Tensor, None] = sdpa_attention_forward(*given, scaling=scaling, **options)
    return plain


def _is_served(
    module: nn.Module, query: Tensor, mask: Tensor | None, options: dict[str, object]
) -> bool:
    if query.shape[2] != 1 or query.dtype not in HALVES:
        return False
    if any(options.get(name) is not None for name in ("s_aux", "position_bias")):
        return False
    needs_grad = torch.is_grad_enabled() and query.requires_grad
    has_dropout = module.training and options.get("dropout")
    return not needs_grad and not has_dropout and (mask is None or mask.dtype == _LENGTHS)


# -- masks -----------------------------------------------------------------------------------------

# By the tensor that counts a cache's tokens: how many columns its last mask had, and whether one of
# them is padding. A prompt forgets all of them.
_padded: WeakKeyDictionary[Tensor, tuple[int, bool]] = WeakKeyDictionary()


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
    if q_length > 1:
        _padded.clear()
    config = options.get("config")
    has_window = local_size is not None and kv_length > local_size
    is_causal = mask_function is causal_mask_function or local_size is not None
    is_plain = is_causal and not has_window and not options.get("use_vmap")
    is_step = q_length == 1 and not allow_is_causal_skip and options.get("dtype") in HALVES
    if is_step and is_plain and not _is_padded(attention_mask, q_offset):
        used = torch.as_tensor(q_offset, device=device) + (1 - kv_offset)
        lengths = used.clamp(max=kv_length).to(_LENGTHS)
        return lengths.reshape(1, 1, 1, 1).expand(batch_size, 1, 1, 1).contiguous()
    has_cap = bool(getattr(config, "attn_logit_softcapping", None))
    make: Callable[..., Tensor | None] = eager_mask if has_cap else sdpa_mask
    return make(
        batch_size=batch_size,
        q_length=q_length,
        kv_length=kv_length,
        q_offset=q_offset,
        kv_offset=kv_offset,
        mask_function=mask_function,
        attention_mask=attention_mask,
        local_size=local_size,
        allow_is_causal_skip=allow_is_causal_skip and not has_cap,
        device=device,
        **options,
    )


def _is_padded(attention_mask: Tensor | None, q_offset: int | Tensor) -> bool:
    """Say whether some token is padding; the host looks once per prompt, and then adds columns."""
    if attention_mask is None:
        return False
    if torch.compiler.is_compiling():
        return True  # nobody may look at values here
    columns = attention_mask.shape[-1]
    known = _padded.get(q_offset) if isinstance(q_offset, Tensor) else None
    if known is not None and columns - known[0] in (0, 1):
        found = known[1]
    else:
        found = not bool(attention_mask.all())
    if isinstance(q_offset, Tensor):
        _padded[q_offset] = (columns, found)
    return found
