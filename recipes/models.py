"""Published configurations of well-known models, as far as they decide which kernels a model needs.

Each value stands in the `config.json` of the Hugging Face repository that `source` names, or is
the default of the configuration class there. Nothing is downloaded.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

Number = int | float | bool | str | None
Value = Number | Mapping[str, Number]


@dataclass(frozen=True)
class Known:
    """One model: where its configuration was published, and what it says."""

    source: str
    config: Mapping[str, Value]


def _known(
    source: str,
    family: str,
    sizes: tuple[int, int, int, int, int],
    shared: Mapping[str, Value] | None = None,
    **more: Value,
) -> Known:
    """`sizes`: hidden, intermediate, query heads, key-value heads, vocabulary."""
    names = ("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads")
    config = dict(zip((*names, "vocab_size"), sizes, strict=True))
    return Known(source, {"model_type": family, **config, **(shared or {}), **more})


_EPS: Mapping[str, Value] = {"rms_norm_eps": 1e-5}
_GEMMA: Mapping[str, Value] = {"hidden_activation": "gelu_pytorch_tanh"}
_LATENT: Mapping[str, Value] = {
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
}
_V2_ROPE: Mapping[str, Number] = {
    "type": "yarn",
    "factor": 40,
    "mscale": 0.707,
    "mscale_all_dim": 0.707,
}
_V3_ROPE: Mapping[str, Number] = {
    "type": "yarn",
    "factor": 40,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
}
KNOWN: Mapping[str, Known] = {
    "llama-3.1-8b": _known(
        "meta-llama/Llama-3.1-8B", "llama", (4096, 14336, 32, 8, 128256), _EPS, hidden_act="silu"
    ),
    "llama-3.1-70b": _known(
        "meta-llama/Llama-3.1-70B", "llama", (8192, 28672, 64, 8, 128256), _EPS, hidden_act="silu"
    ),
    "llama-3.2-1b": _known(
        "meta-llama/Llama-3.2-1B", "llama", (2048, 8192, 32, 8, 128256), _EPS, head_dim=64
    ),
    "llama-3.2-3b": _known(
        "meta-llama/Llama-3.2-3B", "llama", (3072, 8192, 24, 8, 128256), _EPS, head_dim=128
    ),
    "mistral-7b-v0.1": _known(
        "mistralai/Mistral-7B-v0.1",
        "mistral",
        (4096, 14336, 32, 8, 32000),
        _EPS,
        sliding_window=4096,
    ),
    "mistral-7b-v0.3": _known(
        "mistralai/Mistral-7B-v0.3",
        "mistral",
        (4096, 14336, 32, 8, 32768),
        _EPS,
        sliding_window=None,
    ),
    "qwen2.5-7b": _known(
        "Qwen/Qwen2.5-7B",
        "qwen2",
        (3584, 18944, 28, 4, 152064),
        sliding_window=131072,
        use_sliding_window=False,
    ),
    "qwen3-8b": _known("Qwen/Qwen3-8B", "qwen3", (4096, 12288, 32, 8, 151936), head_dim=128),
    "qwen3-32b": _known("Qwen/Qwen3-32B", "qwen3", (5120, 25600, 64, 8, 151936), head_dim=128),
    "gemma-2-9b": _known(
        "google/gemma-2-9b",
        "gemma2",
        (3584, 14336, 16, 8, 256000),
        _GEMMA,
        head_dim=256,
        query_pre_attn_scalar=256,
        attn_logit_softcapping=50.0,
        final_logit_softcapping=30.0,
        sliding_window=4096,
        num_hidden_layers=42,
    ),
    "gemma-2-27b": _known(
        "google/gemma-2-27b",
        "gemma2",
        (4608, 36864, 32, 16, 256000),
        _GEMMA,
        head_dim=128,
        query_pre_attn_scalar=144,
        attn_logit_softcapping=50.0,
        final_logit_softcapping=30.0,
        sliding_window=4096,
        num_hidden_layers=46,
    ),
    "gemma-3-12b": _known(
        "google/gemma-3-12b-pt (text_config)",
        "gemma3_text",
        (3840, 15360, 16, 8, 262208),
        _GEMMA,
        head_dim=256,
        sliding_window=1024,
        num_hidden_layers=48,
    ),
    "gemma-3-27b": _known(
        "google/gemma-3-27b-pt (text_config)",
        "gemma3_text",
        (5376, 21504, 32, 16, 262208),
        _GEMMA,
        head_dim=128,
        query_pre_attn_scalar=168,
        sliding_window=1024,
        num_hidden_layers=62,
    ),
    "phi-3-mini-4k": _known(
        "microsoft/Phi-3-mini-4k-instruct",
        "phi3",
        (3072, 8192, 32, 32, 32064),
        _EPS,
        sliding_window=2047,
    ),
    "phi-4-mini": _known(
        "microsoft/Phi-4-mini-instruct",
        "phi3",
        (3072, 8192, 24, 8, 200064),
        _EPS,
        partial_rotary_factor=0.75,
        sliding_window=262144,
    ),
    "chameleon-7b": _known(
        "facebook/chameleon-7b",
        "chameleon",
        (4096, 11008, 32, 32, 65536),
        _EPS,
        swin_norm=False,
    ),
    "deepseek-v2-lite": _known(
        "deepseek-ai/DeepSeek-V2-Lite",
        "deepseek_v2",
        (2048, 10944, 16, 16, 102400),
        _LATENT,
        q_lora_rank=None,
        num_hidden_layers=27,
        first_k_dense_replace=1,
        n_routed_experts=64,
        n_shared_experts=2,
        moe_intermediate_size=1408,
        rope_scaling=_V2_ROPE,
    ),
    "deepseek-v3": _known(
        "deepseek-ai/DeepSeek-V3",
        "deepseek_v3",
        (7168, 18432, 128, 128, 129280),
        _LATENT,
        q_lora_rank=1536,
        num_hidden_layers=61,
        first_k_dense_replace=3,
        n_routed_experts=256,
        n_shared_experts=1,
        moe_intermediate_size=2048,
        rope_scaling=_V3_ROPE,
        quantization_config={"quant_method": "fp8"},
    ),
}
