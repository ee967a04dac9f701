"""Models: what configurations say, which kernels follow from them, and what is refused."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path

import pytest

from mirage_kernels.generator.errors import FileError, MirageError, RecipeError, ShapeError
from mirage_kernels.generator.frontend.decode_steps import HAND_WRITTEN, needs
from mirage_kernels.generator.frontend.families import FAMILIES
from mirage_kernels.generator.frontend.models import load_model, model_of
from mirage_kernels.generator.recipe import catalog
from mirage_kernels.generator.request import sizes_text
from mirage_kernels.recipes.models import KNOWN
from tests.frontend.published_configs import (
    CHAMELEON,
    DEEPSEEK_V2,
    DEEPSEEK_V3,
    GEMMA_3,
    LLAMA,
    PHI_3,
    QWEN_2,
)

NO_RECIPE_YET = {  # PyTorch computes these
    *("mla_rope_append", "batched_linear", "moe_router", "routed_experts"),
}


TEXT: dict[str, object] = dict(GEMMA_3["text_config"])  # type: ignore[call-overload]


def kernels(name: str, tp: int = 1) -> dict[str, list[str]]:
    """Return the static dims of what a model needs, by recipe."""
    found = dict[str, list[str]]()
    for need in needs(load_model(name), tp):
        found.setdefault(need.recipe, []).append(sizes_text(need.dims))
    return found


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


def test_a_config_file_is_read_as_its_dictionary_is(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(GEMMA_3))
    assert load_model(str(tmp_path)) == model_of(GEMMA_3, tmp_path.name)


def needed(config: Mapping[str, object], *, packed: bool = True) -> list[str]:
    """Return the kernels of a configuration, with their dims."""
    found = needs(model_of(config, "mine"), 1, packed=packed)
    return [f"{need.recipe} {sizes_text(need.dims)}" for need in found]


def test_weights_that_a_checkpoint_packs_are_packed_in_any_case() -> None:
    assert needed(PHI_3, packed=False) == needed(PHI_3)


def test_norms_behind_the_blocks_alone_leave_projections_without_one() -> None:
    found = needed({**CHAMELEON, "swin_norm": True})
    assert found[0] == "linear K=4096,N=12288"
    assert "rms_norm_add K=4096" in found
    assert "gated_mlp K=4096,N=11008" in found
    assert not [kernel for kernel in found if kernel.startswith("rms_norm_gated_mlp")]


def test_a_gated_mlp_with_biases_is_a_projection_and_an_activation() -> None:
    found = needed({**LLAMA, "mlp_bias": True})
    assert "rms_norm_linear_full K=4096,N=28672" in found
    assert "silu_and_mul N=14336" in found
    assert "rms_norm_gated_mlp K=4096,N=14336" not in found


def test_compressed_queries_and_keys_may_be_apart() -> None:
    assert needed(DEEPSEEK_V3, packed=False)[:2] == [
        *("rms_norm_linear K=7168,N=1536", "rms_norm_linear K=7168,N=576"),
    ]


def test_models_without_dense_layers_need_no_plain_mlp() -> None:
    found = needed({**DEEPSEEK_V2, "first_k_dense_replace": 0})
    assert not [kernel for kernel in found if "N=10944" in kernel or "K=10944" in kernel]
    assert "gated_mlp K=2048,N=2816" in found


def test_models_whose_layers_are_all_dense_need_no_experts() -> None:
    found = needed({**DEEPSEEK_V2, "first_k_dense_replace": 27})
    assert not [kernel for kernel in found if "expert" in kernel or "router" in kernel]


@pytest.mark.parametrize(
    ("change", "sees"),
    [
        ({"use_sliding_window": True, "max_window_layers": 14}, (131072, True)),
        ({"use_sliding_window": True, "max_window_layers": 0}, (131072, False)),
        ({"use_sliding_window": True, "max_window_layers": 28}, (0, True)),
        ({"use_sliding_window": True, "layer_types": ["sliding_attention"]}, (131072, False)),
        ({}, (0, True)),
    ],
)
def test_windows_are_those_of_the_layers(change: dict[str, object], sees: tuple[int, bool]) -> None:
    windows = model_of({**QWEN_2, **change}, "mine").windows
    assert (windows.size, windows.has_full) == sees


def test_each_sixth_layer_of_gemma_3_sees_all_keys() -> None:
    five = {"model_type": "gemma3", "text_config": {**TEXT, "num_hidden_layers": 5}}
    assert not model_of(five, "mine").windows.has_full
    assert model_of(GEMMA_3, "mine").windows.has_full


def test_heads_of_a_nested_configuration_have_defaults() -> None:
    less = {key: value for key, value in TEXT.items() if not key.startswith("num_")}
    model = model_of({"model_type": "gemma3", "text_config": less}, "mine")
    assert (model.heads, model.kv_heads) == (8, 4)


def test_a_nested_llama_has_the_sizes_of_its_class() -> None:
    llava = {"model_type": "llava", "text_config": {"model_type": "llama", "vocab_size": 32064}}
    model = model_of(llava, "mine")
    assert (model.hidden, model.intermediate, model.heads, model.vocab) == (4096, 11008, 32, 32064)


@pytest.mark.parametrize("kind", FAMILIES)
def test_defaults_are_those_of_transformers(kind: str) -> None:
    transformers = pytest.importorskip("transformers")
    made = transformers.CONFIG_MAPPING[kind](use_sliding_window=True)
    ours = FAMILIES[kind].defaults
    theirs = {key: getattr(made, key) for key in ours}
    assert {**theirs, "use_sliding_window": False} == {**ours, "use_sliding_window": False}
    named = ("hidden_size", "intermediate_size", "num_attention_heads", "vocab_size")
    assert not {*named} - {*ours}


@pytest.mark.parametrize(
    ("change", "is_there"),
    [({}, True), ({"head_dim": 80}, False), ({"partial_rotary_factor": 0.3}, False)],
)
def test_appending_has_kernels_for_some_heads_alone(
    change: dict[str, object], is_there: bool
) -> None:
    (need,) = [n for n in needs(model_of({**LLAMA, **change}, "mine"), 1) if "RoPE" in n.step]
    assert need.is_hand_written == is_there


@pytest.mark.parametrize(("head_dim", "is_there"), [(128, True), (104, True), (100, False)])
def test_attention_has_kernels_for_heads_of_eights_alone(head_dim: int, is_there: bool) -> None:
    model = model_of({**LLAMA, "head_dim": head_dim}, "mine")
    (need,) = [n for n in needs(model, 1) if n.recipe == "gqa"]
    assert (need.found(catalog()) is not None) == is_there


def test_what_kernels_leave_to_others_is_noted() -> None:
    assert load_model("gemma-2-9b").notes == (
        "PyTorch caps the logits softly, at 30, behind the lm_head",
    )
    assert "quantised (fp8)" in load_model("deepseek-v3").notes[0]


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
        ({"num_attention_heads": 30}, "hidden_size 4096 is no multiple of 30 heads"),
        ({"partial_rotary_factor": 1.5}, r"partial_rotary_factor is 1\.5"),
        ({"rms_norm_eps": "1e-5"}, "rms_norm_eps is '1e-5'"),
        ({"rms_norm_eps": 10**400}, "rms_norm_eps is 1000"),
        ({"rms_norm_eps": math.nan}, "rms_norm_eps is nan"),
        ({"rms_norm_eps": math.inf}, "rms_norm_eps is inf"),
        ({"hidden_size": 10**30}, "hidden_size is 1000"),
        ({"num_attention_heads": 2**20}, "num_attention_heads is 1048576"),
        ({"layer_types": ["full_attention", "mamba"]}, "no recipe computes layers of type 'mamba'"),
        ({"layer_types": "full_attention"}, "layer_types is 'full_attention'"),
    ],
)
def test_what_a_configuration_lacks_is_named(change: dict[str, object], said: str) -> None:
    with pytest.raises(RecipeError, match=said):
        model_of({**LLAMA, **change}, "mine")


def test_layers_of_a_pattern_are_not_counted_one_by_one() -> None:
    windows = model_of({**TEXT, "num_hidden_layers": 2**31 - 1}, "mine").windows
    assert windows.has_full
    with pytest.raises(RecipeError, match="num_hidden_layers is 1000000000000"):
        model_of({**TEXT, "num_hidden_layers": 10**12}, "mine")


@pytest.mark.parametrize(
    ("config", "lacks"),
    [
        ({"model_type": "mixtral", "num_local_experts": 8}, "routed experts"),
        ({"model_type": "gpt_neox", "layer_norm_eps": 1e-5}, "a LayerNorm in front of each block"),
        ({"model_type": "mamba2", "state_size": 128}, "state-space or linear-attention layers"),
        (
            {"model_type": "deepseek_v32", "n_routed_experts": 256, "index_topk": 2048},
            "routed experts, an indexer of sparse attention",
        ),
    ],
)
def test_other_architectures_are_told_what_no_recipe_computes(
    config: dict[str, object], lacks: str
) -> None:
    with pytest.raises(RecipeError, match=f"no recipe computes what it takes: {lacks}$"):
        model_of(config, "mine")


@pytest.mark.parametrize(
    ("config", "tp", "said", "works"),
    [
        (LLAMA, 3, "32 query heads, which --tp 3 does not divide", "1, 2, 4, 8, 16 or 32"),
        (QWEN_2, 8, "28 query heads, which --tp 8 does not divide", "1, 2 or 4"),
        (QWEN_2, 7, "18944 columns of the MLP, which --tp 7 does not divide", "1, 2 or 4"),
        (
            {
                **LLAMA,
                "num_key_value_heads": 2,
                "num_attention_heads": 30,
                "head_dim": 128,
                "intermediate_size": 15000,
            },
            3,
            "2 heads of keys and values, which --tp 3 neither",
            "1, 2, 6, 10 or 30",
        ),
        (
            {**DEEPSEEK_V2, "moe_intermediate_size": 1412},
            8,
            "1412 columns of each routed expert, which --tp 8 does not divide",
            "1, 2 or 4",
        ),
    ],
)
def test_gpus_that_cannot_share_a_model_are_told_how_many_can(
    config: dict[str, object], tp: int, said: str, works: str
) -> None:
    with pytest.raises(ShapeError, match=said) as raised:
        needs(model_of(config, "mine"), tp)
    assert raised.value.hint == f"--tp {works} works"


def test_query_heads_that_no_heads_of_keys_divide_are_refused() -> None:
    with pytest.raises(ShapeError, match="32 query heads for 6 of keys and values"):
        needs(model_of({**LLAMA, "num_key_value_heads": 6}, "mine"), 1)


def test_a_name_that_is_none_gets_the_nearest() -> None:
    with pytest.raises(RecipeError, match=r"no known model called 'lama-3\.1-8b'") as raised:
        load_model("lama-3.1-8b")
    assert "llama-3.1-8b" in raised.value.hint


def test_a_file_that_is_no_json_is_named(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(FileError, match=r"config\.json is no JSON"):
        load_model(str(tmp_path / "config.json"))
    (tmp_path / "config.json").write_text("[" * 200_000)
    with pytest.raises(FileError, match=r"config\.json is no JSON: maximum recursion depth"):
        load_model(str(tmp_path / "config.json"))
    assert issubclass(FileError, MirageError)
