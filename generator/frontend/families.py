"""Families of models: what a `model_type` of transformers says beyond a configuration's numbers.

Defaults are those of the configuration classes of transformers 5: a configuration inside of another
one (`text_config`) leaves out what equals them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from mirage_kernels.recipes.models import Value

Config = Mapping[str, object]


@dataclass(frozen=True)
class Family:
    """What is the same in all models of a `model_type`."""

    title: str
    bias: bool = False  # of the projections of q, k and v
    weight_offset: bool = False  # norm weights are stored less 1
    qk_norm: str = ""  # "rms" or "layer": of each head
    post_norms: bool = False  # behind attention and MLP too
    windows: str = "all"  # the layers with a window: "all", every layer but each n-th: "pattern",
    # those behind the first `max_window_layers`: "last"
    packed: bool = False  # checkpoints hold q, k and v as one weight, gate and up too
    latent: bool = False  # multi-head latent attention, with experts behind the first layers
    defaults: Mapping[str, Value] = field(default_factory=dict)


_LLAMA: Mapping[str, Value] = {
    "vocab_size": 32000,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
}
_GEMMA: Mapping[str, Value] = {
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "hidden_activation": "gelu_pytorch_tanh",
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
}
_QWEN: Mapping[str, Value] = {
    **_LLAMA,
    "vocab_size": 151936,
    "intermediate_size": 22016,
    "num_key_value_heads": 32,
    "sliding_window": 4096,
    "use_sliding_window": False,
    "max_window_layers": 28,
}
_DEEPSEEK: Mapping[str, Value] = {
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
}
FAMILIES: Mapping[str, Family] = {
    "llama": Family("Llama", defaults=_LLAMA),
    "mistral": Family(
        "Mistral",
        defaults={
            **_LLAMA,
            "intermediate_size": 14336,
            "num_key_value_heads": 8,
            "sliding_window": 4096,
        },
    ),
    "qwen2": Family("Qwen2, Qwen2.5", bias=True, windows="last", defaults=_QWEN),
    "qwen3": Family("Qwen3", qk_norm="rms", windows="last", defaults={**_QWEN, "head_dim": 128}),
    "gemma2": Family(
        "Gemma 2",
        weight_offset=True,
        post_norms=True,
        windows="pattern",
        defaults={
            **_GEMMA,
            "vocab_size": 256000,
            "attn_logit_softcapping": 50.0,
            "final_logit_softcapping": 30.0,
        },
    ),
    "gemma3_text": Family(
        "Gemma 3",
        weight_offset=True,
        qk_norm="rms",
        post_norms=True,
        windows="pattern",
        defaults={**_GEMMA, "vocab_size": 262208},
    ),
    "phi3": Family(
        "Phi-3, Phi-4",
        packed=True,
        defaults={
            **_LLAMA,
            "vocab_size": 32064,
            "hidden_size": 3072,
            "intermediate_size": 8192,
            "rms_norm_eps": 1e-5,
        },
    ),
    "chameleon": Family(
        "Chameleon",
        qk_norm="layer",
        defaults={**_LLAMA, "vocab_size": 65536, "rms_norm_eps": 1e-5},
    ),
    "deepseek_v2": Family(
        "DeepSeek-V2",
        latent=True,
        defaults={
            **_LLAMA,
            **_DEEPSEEK,
            "vocab_size": 102400,
            "first_k_dense_replace": 0,
            "n_routed_experts": 64,
            "n_shared_experts": 2,
            "moe_intermediate_size": 1407,
        },
    ),
    "deepseek_v3": Family(
        "DeepSeek-V3",
        latent=True,
        defaults={
            **_DEEPSEEK,
            "vocab_size": 129280,
            "hidden_size": 7168,
            "intermediate_size": 18432,
            "num_attention_heads": 128,
            "num_hidden_layers": 61,
            "first_k_dense_replace": 3,
            "n_routed_experts": 256,
            "n_shared_experts": 1,
            "moe_intermediate_size": 2048,
        },
    ),
}
PATTERNS = {"gemma2": 2, "gemma3_text": 6}  # each n-th layer sees all keys

# What a decode step of other models takes that no recipe computes, by keys of their configurations.
_MISSING: Mapping[str, tuple[str, ...]] = {
    "routed experts": ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts"),
    "state-space or linear-attention layers": (
        *("state_size", "mamba_d_state", "ssm_state_size", "linear_key_head_dim"),
        "linear_attn_config",
    ),
    "an encoder with cross attention": ("is_encoder_decoder", "cross_attention_layers"),
    "per-layer embeddings": ("hidden_size_per_layer_input",),
    "an indexer of sparse attention": ("index_topk",),
    "a LayerNorm in front of each block": (
        *("layer_norm_eps", "layer_norm_epsilon", "layer_norm_elementwise_affine"),
        "norm_epsilon",
    ),
    "multipliers of embeddings, residuals or scores": ("residual_multiplier", "logit_scale"),
}


def missing(config: Config) -> list[str]:
    """Return what a model that no family describes takes, as far as its configuration shows it."""
    return [what for what, keys in _MISSING.items() if any(config.get(key) for key in keys)]
