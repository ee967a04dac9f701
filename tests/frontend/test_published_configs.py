"""Published configurations: the exact kernels and arguments that follow from one of each family."""

from __future__ import annotations

import pytest

from mirage_kernels.generator.frontend.decode_steps import call_arguments, needs
from mirage_kernels.generator.frontend.families import FAMILIES
from mirage_kernels.generator.frontend.models import load_model, model_of
from mirage_kernels.generator.request import sizes_text
from tests.frontend.published_configs import PUBLISHED

GQA = "gqa D=128; sliding_window_attention D=128"
KERNELS = {
    "llama-3.1-8b": f"""
        rms_norm_linear K=4096,N=6144; rope_append D=128; {GQA}; linear K=4096,N=4096
        rms_norm_gated_mlp K=4096,N=14336; linear K=14336,N=4096; rms_norm_linear K=4096,N=128256
        rms_norm K=4096; gated_mlp K=4096,N=14336; silu_and_mul N=14336""",
    "mistral-7b-v0.1": """
        rms_norm_linear K=4096,N=6144; rope_append D=128; sliding_window_attention D=128
        linear K=4096,N=4096; rms_norm_gated_mlp K=4096,N=14336; linear K=14336,N=4096
        rms_norm_linear K=4096,N=32000
        rms_norm K=4096; gated_mlp K=4096,N=14336; silu_and_mul N=14336""",
    "qwen2.5-7b": f"""
        rms_norm_linear_full K=3584,N=4608; rope_append D=128; {GQA}; linear K=3584,N=3584
        rms_norm_gated_mlp K=3584,N=18944; linear K=18944,N=3584; rms_norm_linear K=3584,N=152064
        rms_norm K=3584; gated_mlp K=3584,N=18944; silu_and_mul N=18944""",
    "qwen3-8b": f"""
        rms_norm_linear K=4096,N=6144; qk_norm_rope_append D=128; {GQA}; linear K=4096,N=4096
        rms_norm_gated_mlp K=4096,N=12288; linear K=12288,N=4096; rms_norm_linear K=4096,N=151936
        rms_norm K=4096; gated_mlp K=4096,N=12288; silu_and_mul N=12288""",
    "gemma-2-27b": """
        rms_norm_linear_full K=4608,N=8192; rope_append D=128; gqa_full D=128; linear K=4096,N=4608
        rms_norm_add K=4608; rms_norm_geglu_mlp K=4608,N=36864; linear K=36864,N=4608
        rms_norm_linear_full K=4608,N=256000
        rms_norm K=4608; geglu_mlp K=4608,N=36864; gelu_tanh_and_mul N=36864""",
    "gemma-3-12b": """
        rms_norm_linear_full K=3840,N=8192; qk_norm_rope_append D=256
        gqa D=256; sliding_window_attention D=256; linear K=4096,N=3840
        rms_norm_add K=3840; rms_norm_geglu_mlp K=3840,N=15360; linear K=15360,N=3840
        rms_norm_linear_full K=3840,N=262208
        rms_norm K=3840; geglu_mlp K=3840,N=15360; gelu_tanh_and_mul N=15360""",
    "phi-3-mini-4k": """
        rms_norm_linear K=3072,N=9216; rope_append D=96; sliding_window_attention D=96
        linear K=3072,N=3072; rms_norm_gated_mlp K=3072,N=8192; linear K=8192,N=3072
        rms_norm_linear K=3072,N=32064
        rms_norm K=3072; gated_mlp K=3072,N=8192; silu_and_mul N=8192""",
    "phi-4-mini": """
        rms_norm_linear K=3072,N=5120; rope_append D=128,R=96; sliding_window_attention D=128
        linear K=3072,N=3072; rms_norm_gated_mlp K=3072,N=8192; linear K=8192,N=3072
        rms_norm_linear K=3072,N=200064
        rms_norm K=3072; gated_mlp K=3072,N=8192; silu_and_mul N=8192""",
    "chameleon-7b": f"""
        rms_norm_linear K=4096,N=12288; qk_norm_rope_append D=128; {GQA}; linear K=4096,N=4096
        rms_norm_gated_mlp K=4096,N=11008; linear K=11008,N=4096; rms_norm_linear K=4096,N=65536
        rms_norm K=4096; gated_mlp K=4096,N=11008; silu_and_mul N=11008""",
    "deepseek-v2-lite": """
        rms_norm_linear K=2048,N=3648; rms_norm K=512; mla_rope_append C=512,P=64
        batched_linear K=128,N=512; batched_linear K=512,N=128; mla_decode C=512,P=64
        linear K=2048,N=2048; rms_norm_gated_mlp K=2048,N=10944
        rms_norm K=2048; moe_router K=2048,E=64; routed_experts E=64,K=2048,N=1408
        gated_mlp K=2048,N=2816; linear K=2816,N=2048; linear K=10944,N=2048
        rms_norm_linear K=2048,N=102400
        gated_mlp K=2048,N=10944; silu_and_mul N=10944; silu_and_mul N=2816""",
    "deepseek-v3": """
        rms_norm_linear K=7168,N=2112; rms_norm_linear K=1536,N=24576; rms_norm K=512
        mla_rope_append C=512,P=64
        batched_linear K=128,N=512; batched_linear K=512,N=128; mla_decode C=512,P=64
        linear K=16384,N=7168; rms_norm_gated_mlp K=7168,N=18432
        rms_norm K=7168; moe_router K=7168,E=256; routed_experts E=256,K=7168,N=2048
        gated_mlp K=7168,N=2048; linear K=2048,N=7168; linear K=18432,N=7168
        rms_norm_linear K=7168,N=129280; rms_norm K=1536
        gated_mlp K=7168,N=18432; silu_and_mul N=18432; silu_and_mul N=2048""",
}
ARGUMENTS: dict[str, dict[str, float | str]] = {
    "llama-3.1-8b": {"eps": 1e-5, "scale": 128**-0.5},
    "mistral-7b-v0.1": {"eps": 1e-5, "scale": 128**-0.5, "window_left": 4095},
    "qwen2.5-7b": {"eps": 1e-6, "scale": 128**-0.5},
    "qwen3-8b": {"eps": 1e-6, "scale": 128**-0.5, "norm": "rms"},
    "gemma-2-27b": {
        **{"eps": 1e-6, "scale": 144**-0.5, "weight_offset": 1.0},
        **{"window_left": 4095, "logits_soft_cap": 50.0},
    },
    "gemma-3-12b": {
        **{"eps": 1e-6, "scale": 256**-0.5, "weight_offset": 1.0},
        **{"window_left": 1023, "norm": "rms"},
    },
    "phi-3-mini-4k": {"eps": 1e-5, "scale": 96**-0.5, "window_left": 2046},
    "phi-4-mini": {"eps": 1e-5, "scale": 128**-0.5, "window_left": 262143},
    "chameleon-7b": {"eps": 1e-5, "scale": 128**-0.5, "norm": "layer"},
    "deepseek-v2-lite": {"eps": 1e-6, "scale": 0.114721},  # 192^-0.5 (1 + 0.0707 ln 40)^2
    "deepseek-v3": {"eps": 1e-6, "scale": 0.135234},  # 192^-0.5 (1 + 0.1 ln 40)^2
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_configuration_needs_exactly_these_kernels(name: str) -> None:
    found = needs(model_of(PUBLISHED[name], name), 1)
    wanted = KERNELS[name].replace("\n", ";").split(";")
    assert [f"{need.recipe} {sizes_text(need.dims)}" for need in found] == [
        kernel.strip() for kernel in wanted if kernel.strip()
    ]


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_configuration_says_what_calls_are_told(name: str) -> None:
    found = call_arguments(model_of(PUBLISHED[name], name))
    assert found == {
        key: value if isinstance(value, str) else pytest.approx(value, rel=1e-5)
        for key, value in ARGUMENTS[name].items()
    }


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_known_model_is_what_was_published(name: str) -> None:
    assert load_model(name) == model_of(PUBLISHED[name], name)


def test_every_family_has_a_published_configuration() -> None:
    assert {load_model(name).family.title for name in PUBLISHED} == {
        family.title for family in FAMILIES.values()
    }


@pytest.mark.parametrize("kind", FAMILIES)
def test_defaults_are_those_of_transformers(kind: str) -> None:
    """What a class computes from others, such as layer types, is none of them."""
    auto = pytest.importorskip("transformers.models.auto.configuration_auto")
    theirs = auto.CONFIG_MAPPING[kind]
    defaults = FAMILIES[kind].defaults or {}
    assert {key: getattr(theirs, key) for key in defaults} == defaults
