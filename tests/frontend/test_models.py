"""Models: what configurations say, which kernels follow from them, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mirage_kernels.generator.errors import FileError, MirageError, RecipeError, ShapeError
from mirage_kernels.generator.frontend.decode_steps import HAND_WRITTEN, needs
from mirage_kernels.generator.frontend.models import FAMILIES, load_model, model_of
from mirage_kernels.generator.recipe import catalog
from mirage_kernels.generator.request import sizes_text
from mirage_kernels.recipes.models import KNOWN

NO_RECIPE_YET = {  # PyTorch computes these
    *("mla_rope_append", "batched_linear", "routed_experts"),
}
# As published: meta-llama/Llama-3.1-8B, google/gemma-3-12b-pt, microsoft/Phi-3-mini-4k-instruct.
LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "attention_bias": False,
    "hidden_act": "silu",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
}
GEMMA_3 = {
    "model_type": "gemma3",
    "text_config": {
        "hidden_size": 3840,
        "intermediate_size": 15360,
        "model_type": "gemma3_text",
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "sliding_window": 1024,
    },
    "vision_config": {"hidden_size": 1152, "model_type": "siglip_vision_model"},
}
PHI_3 = {
    "model_type": "phi3",
    "hidden_act": "silu",
    "hidden_size": 3072,
    "intermediate_size": 8192,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "sliding_window": 2047,
    "vocab_size": 32064,
}


def kernels(name: str, tp: int = 1) -> dict[str, list[str]]:
    """Return the static dims of what a model needs, by recipe."""
    found = dict[str, list[str]]()
    for need in needs(load_model(name), tp):
        found.setdefault(need.recipe, []).append(sizes_text(need.dims))
    return found


def test_llama_needs_these_kernels() -> None:
    assert kernels("llama-3.1-8b") == {
        "rms_norm_linear": ["K=4096,N=6144", "K=4096,N=128256"],
        "rope_append": [""],
        "rope_append_fp32": [""],
        "gqa": ["D=128"],
        "sliding_window_attention": ["D=128"],
        "linear": ["K=4096,N=4096", "K=14336,N=4096"],
        "rms_norm_gated_mlp": ["K=4096,N=14336"],
        "rms_norm": ["K=4096"],
        "gated_mlp": ["K=4096,N=14336"],
        "silu_and_mul": ["N=14336"],
    }


def test_gpus_share_heads_columns_and_vocabulary() -> None:
    found = kernels("llama-3.1-70b", 8)
    assert found["rms_norm_linear"] == ["K=8192,N=1280", "K=8192,N=16032"]
    assert found["rms_norm_gated_mlp"] == ["K=8192,N=3584"]
    assert found["linear"] == ["K=1024,N=8192", "K=3584,N=8192"]


def test_weights_of_q_k_and_v_may_be_apart() -> None:
    found = [n for n in needs(load_model("llama-3.1-8b"), 1, packed=False) if "qkv" in n.step]
    assert [sizes_text(need.dims) for need in found] == ["K=4096,N=4096", "K=4096,N=1024"]


def test_heads_of_the_cache_are_repeated_on_more_gpus_than_there_are() -> None:
    two_and_one_of_each = (2 + 1 + 1) * 128
    found = kernels("llama-3.1-8b", 16)["rms_norm_linear"]
    assert found[0] == f"K=4096,N={two_and_one_of_each}"


@pytest.mark.parametrize(
    ("name", "recipe", "dims"),
    [
        ("qwen2.5-7b", "rms_norm_linear_full", ["K=3584,N=4608"]),  # a bias
        ("qwen2.5-7b", "rms_norm_linear", ["K=3584,N=152064"]),  # none in the lm_head
        ("gemma-2-9b", "rms_norm_linear_full", ["K=3584,N=8192", "K=3584,N=256000"]),
        ("gemma-2-9b", "gqa_full", ["D=256"]),  # a cap
        ("gemma-2-9b", "rms_norm_geglu_mlp", ["K=3584,N=14336"]),
        ("gemma-3-12b", "gqa", ["D=256"]),  # layers without a window
        ("gemma-3-12b", "sliding_window_attention", ["D=256"]),
        ("gemma-3-12b", "qk_norm_rope_append", ["D=256"]),
        ("qwen3-32b", "rms_norm_linear", ["K=5120,N=10240", "K=5120,N=151936"]),
        ("qwen3-32b", "qk_norm_rope_append", ["D=128"]),
        ("chameleon-7b", "qk_norm_rope_append", ["D=128"]),
        ("llama-3.2-1b", "gqa", ["D=64"]),
        ("phi-3-mini-4k", "sliding_window_attention", ["D=96"]),
        ("deepseek-v3", "mla_decode", ["C=512,P=64"]),
        ("deepseek-v3", "rms_norm_linear", ["K=7168,N=2112", "K=1536,N=24576", "K=7168,N=129280"]),
        ("deepseek-v2-lite", "rms_norm_linear", ["K=2048,N=3648", "K=2048,N=102400"]),
        ("deepseek-v2-lite", "gated_mlp", ["K=2048,N=2816", "K=2048,N=10944"]),
    ],
)
def test_a_family_needs_its_own_forms(name: str, recipe: str, dims: list[str]) -> None:
    assert kernels(name)[recipe] == dims


@pytest.mark.parametrize("name", ["mistral-7b-v0.1", "phi-3-mini-4k"])
def test_models_whose_layers_all_have_windows_need_no_other_attention(name: str) -> None:
    assert "gqa" not in kernels(name)


def test_a_window_that_is_null_is_none() -> None:
    assert "gqa" in kernels("mistral-7b-v0.3")


@pytest.mark.parametrize("name", KNOWN)
def test_every_need_is_of_a_recipe_at_its_dims_or_known_to_have_none(name: str) -> None:
    recipes = catalog()
    for need in needs(load_model(name), 1):
        recipe = recipes.get(need.recipe)
        if recipe is None:
            assert need.recipe in NO_RECIPE_YET | {*HAND_WRITTEN}
        else:
            assert tuple(need.dims) == recipe.static_dims


def test_every_family_has_a_known_model() -> None:
    assert {known.config["model_type"] for known in KNOWN.values()} == {*FAMILIES}


@pytest.mark.parametrize(
    ("config", "known"),
    [(LLAMA, "llama-3.1-8b"), (GEMMA_3, "gemma-3-12b"), (PHI_3, "phi-3-mini-4k")],
)
def test_a_config_file_says_what_the_known_model_does(
    tmp_path: Path, config: dict[str, object], known: str
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    mine, theirs = (needs(load_model(model), 1) for model in (str(tmp_path), known))
    assert [(n.recipe, n.dims) for n in mine] == [(n.recipe, n.dims) for n in theirs]


def test_a_bias_that_a_config_asks_for_is_one() -> None:
    model = model_of({**LLAMA, "attention_bias": True}, "mine")
    assert "rms_norm_linear_full" in {need.recipe for need in needs(model, 1)}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"model_type": "mamba2"}, "nothing is known of models of type 'mamba2'"),
        ({"hidden_size": None}, "the configuration has no hidden_size"),
        ({"hidden_size": "4096"}, "hidden_size is '4096'"),
        ({"hidden_act": "relu2"}, "no gated MLP with the activation 'relu2'"),
        ({"model_type": "chameleon", "swin_norm": True}, "not their inputs"),
    ],
)
def test_what_a_configuration_lacks_is_named(change: dict[str, object], said: str) -> None:
    with pytest.raises(RecipeError, match=said):
        model_of({**LLAMA, **change}, "mine")


@pytest.mark.parametrize(("tp", "said"), [(3, "32 query heads, which --tp 3"), (32, "")])
def test_gpus_that_cannot_share_a_model_are_refused(tp: int, said: str) -> None:
    if not said:
        assert needs(load_model("llama-3.1-8b"), tp)
        return
    with pytest.raises(ShapeError, match=said):
        needs(load_model("llama-3.1-8b"), tp)


def test_a_name_that_is_none_gets_the_nearest() -> None:
    with pytest.raises(RecipeError, match=r"no known model called 'lama-3\.1-8b'") as raised:
        load_model("lama-3.1-8b")
    assert "llama-3.1-8b" in raised.value.hint


def test_a_file_that_is_no_json_is_named(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(FileError, match=r"config\.json is no JSON"):
        load_model(str(tmp_path / "config.json"))
    assert issubclass(FileError, MirageError)
