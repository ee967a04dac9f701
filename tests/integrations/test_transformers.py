"""transformers' `generate` with this library's ops: tiny random models, greedy tokens, the CPU."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("mirage_kernels._C")
transformers = pytest.importorskip("transformers", minversion="5.10")

from transformers.masking_utils import (  # noqa: E402
    chunked_causal_mask_function,
    sliding_window_causal_mask_function,
)

import mirage_kernels  # noqa: E402
from mirage_kernels.integrations import transformers as mirage  # noqa: E402

STEPS, PROMPT = 64, 9
SIZES = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 100,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
    "eos_token_id": None,
    "bos_token_id": 1,
}
WINDOW = {"sliding_window": 20}
MODELS: dict[str, tuple[str, dict[str, int]]] = {
    "Llama": ("LlamaConfig", {}),
    "Mistral": ("MistralConfig", WINDOW),
    "Qwen3": ("Qwen3Config", {}),
    "Gemma2": ("Gemma2Config", {**WINDOW, "query_pre_attn_scalar": 16}),
    "Gemma3": ("Gemma3TextConfig", WINDOW),
}
EXPERTS = {"num_local_experts": 1, "num_experts_per_tok": 1}
LATENTS = {
    "num_key_value_heads": 4,
    "head_dim": 8,
    "kv_lora_rank": 16,
    "q_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 16,
    "v_head_dim": 16,
    "first_k_dense_replace": 2,
}
# What decodes by other attention than `gqa` with lengths alone.
OTHERS: dict[str, tuple[str, dict[str, Any]]] = {
    "GptOss": ("GptOssConfig", {**WINDOW, **EXPERTS}),
    "DeepseekV3": ("DeepseekV3Config", LATENTS),
    "Llama4": ("Llama4TextConfig", {"attention_chunk_size": 6, "moe_layers": []}),
    "Doge": ("DogeConfig", {}),
}


@pytest.fixture(autouse=True)
def _fresh_graphs() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def model_of(name: str, **more: Any) -> Any:
    config, own = {**MODELS, **OTHERS}[name]
    torch.manual_seed(0)
    made = getattr(transformers, f"{name}ForCausalLM")(
        getattr(transformers, config)(**{**SIZES, **own, **more})
    )
    made = made.to(torch.bfloat16).eval()
    made.set_attn_implementation("eager")
    return made


def generated(model: Any, *, padded: bool = False, cache: str = "static") -> Any:
    torch.manual_seed(1)
    ids = torch.randint(3, 100, (2, PROMPT))
    attention_mask = torch.ones_like(ids)
    if padded:
        attention_mask[0, :4] = 0
    return model.generate(
        ids,
        attention_mask=attention_mask,
        max_new_tokens=STEPS,
        do_sample=False,
        cache_implementation=cache,
        output_logits=True,
        return_dict_in_generate=True,
    )


def assert_alike(made: Any, wanted: Any) -> None:
    """Logits agree up to rounding; tokens too, up to the first whose two best ones are tied."""
    for step, (logits, own) in enumerate(zip(made.logits, wanted.logits, strict=True)):
        torch.testing.assert_close(logits, own, rtol=0, atol=0.02)
        end = PROMPT + step + 1
        if torch.equal(made.sequences[:, :end], wanted.sequences[:, :end]):
            continue
        best = own.topk(2, dim=-1).values
        differs = made.sequences[:, end - 1] != wanted.sequences[:, end - 1]
        assert (best[:, 0] - best[:, 1])[differs].max() <= 0.02
        return


def count_calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    calls = [0]
    own = mirage.gqa

    def counted(*args: Any, **options: Any) -> Any:
        calls[0] += 1
        return own(*args, **options)

    monkeypatch.setattr(mirage, "gqa", counted)
    return calls


@pytest.mark.parametrize("name", MODELS)
def test_decoding_steps_attend_by_gqa_and_give_the_same_tokens(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = model_of(name)
    wanted = generated(model)
    calls = count_calls(monkeypatch)
    assert_alike(generated(mirage.apply(model, mode=None)), wanted)
    assert calls == [2 * (STEPS - 1)]


@pytest.mark.parametrize("name", MODELS)
def test_the_step_that_generate_compiles_has_no_graph_break_and_our_ops(name: str) -> None:
    model = model_of(name)
    wanted = generated(model)
    mirage.apply(model, mode=None)
    config = model.generation_config.compile_config
    config._compile_all_devices = config.fullgraph = True  # on the CPU, too
    assert_alike(generated(model), wanted)
    ops = {row.what.split()[0] for row in mirage_kernels.report(model).replaced}
    assert "rms_norm_linear" in ops
    assert ops & {"gated_mlp", "rms_norm_gated_mlp"}


@pytest.mark.parametrize("constant_modules", [False, True])
def test_a_step_sees_that_a_module_has_changed_unless_that_was_ruled_out(
    constant_modules: bool,
) -> None:
    model = mirage.apply(model_of("Llama"), mode=None, constant_modules=constant_modules)
    model.generation_config.compile_config._compile_all_devices = True
    first = generated(model)
    graphs = len(mirage_kernels.report(model).graphs)
    assert torch.equal(generated(model).sequences, first.sequences)
    assert len(mirage_kernels.report(model).graphs) == graphs
    for layer in model.model.layers:
        layer.self_attn.scaling *= 2
    generated(model)
    assert (len(mirage_kernels.report(model).graphs) == graphs) == constant_modules


def test_parameters_may_be_written_though_modules_do_not_change() -> None:
    model = mirage.apply(model_of("Llama"), mode=None, constant_modules=True)
    model.generation_config.compile_config._compile_all_devices = True
    generated(model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(0.5)
    changed = generated(model)
    model.generation_config.disable_compile = True
    assert_alike(changed, generated(model))


def test_a_growing_cache_is_attended_too(monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_of("Llama")
    wanted = generated(model, cache="dynamic")
    calls = count_calls(monkeypatch)
    assert_alike(generated(mirage.apply(model, mode=None), cache="dynamic"), wanted)
    assert calls == [2 * (STEPS - 1)]


def test_a_batch_padded_on_the_left_keeps_pytorchs_attention(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = model_of("Llama")
    wanted = generated(model, padded=True)
    calls = count_calls(monkeypatch)
    mirage.apply(model, mode=None)
    assert_alike(generated(model, padded=True), wanted)
    assert calls == [0]


def test_padding_is_looked_for_again_with_every_prompt() -> None:
    model = model_of("Llama")
    padded, plain = generated(model, padded=True), generated(model)
    mirage.apply(model, mode=None)
    assert_alike(generated(model), plain)
    assert_alike(generated(model, padded=True), padded)
    assert_alike(generated(model), plain)


def test_single_precision_keeps_pytorchs_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_of("Llama").float()
    wanted = generated(model)
    calls = count_calls(monkeypatch)
    assert_alike(generated(mirage.apply(model, mode=None)), wanted)
    assert calls == [0]


def step_mask(**given: Any) -> Any:
    """Return the mask of one token behind 20 others, where nothing else is given."""
    usual = {"batch_size": 1, "q_length": 1, "kv_length": 21, "q_offset": 20}
    kind = {"allow_is_causal_skip": False, "dtype": torch.bfloat16, "device": "cpu"}
    return mirage.mask(**{**usual, **kind, **given})


def test_a_mask_of_a_static_step_holds_the_number_of_keys() -> None:
    made = step_mask(batch_size=2, kv_length=16, q_offset=torch.tensor(6))
    assert (made.dtype, made.shape) == (torch.int32, (2, 1, 1, 1))
    assert made.flatten().tolist() == [7, 7]


def test_a_sliding_layer_that_is_full_has_as_many_keys_as_its_window() -> None:
    window = {"local_size": 8, "mask_function": sliding_window_causal_mask_function(8)}
    assert step_mask(kv_length=8, kv_offset=13, **window).flatten().tolist() == [8]


def test_keys_in_chunks_are_no_length() -> None:
    chunks = chunked_causal_mask_function(8, torch.zeros(1, dtype=torch.int64))
    made = step_mask(kv_length=8, kv_offset=13, local_size=8, mask_function=chunks)
    assert made.flatten().tolist() == [False] * 3 + [True] * 5


def test_a_model_that_asks_for_a_mask_over_a_growing_cache_gets_one() -> None:
    made = step_mask()
    assert (made.dtype, made.shape) == (torch.bool, (1, 1, 1, 21))


@pytest.mark.parametrize("short", [1, 3])
def test_a_mask_of_fewer_tokens_than_there_are_hides_the_others(short: int) -> None:
    seen = torch.ones(1, short, dtype=torch.bool)
    made = step_mask(kv_length=32, q_offset=torch.tensor(20), attention_mask=seen)
    assert made.sum() == short


@pytest.mark.parametrize("cache", ["static", "dynamic"])
def test_sinks_of_gpt_oss_join_prompts_and_steps(
    cache: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = model_of("GptOss")
    for layer in model.model.layers:
        torch.nn.init.normal_(layer.self_attn.sinks)
    wanted = generated(model, cache=cache), generated(model, cache=cache, padded=True)
    calls = count_calls(monkeypatch)
    mirage.apply(model, mode=None)
    assert_alike(generated(model, cache=cache), wanted[0])
    assert calls[0] >= STEPS - 1
    assert_alike(generated(model, cache=cache, padded=True), wanted[1])


def test_sinks_stay_in_the_step_that_generate_compiles() -> None:
    model = model_of("GptOss")
    wanted = generated(model)
    mirage.apply(model, mode=None)
    config = model.generation_config.compile_config
    config._compile_all_devices = config.fullgraph = True
    assert_alike(generated(model), wanted)
    assert mirage_kernels.report(model).graphs


@pytest.mark.parametrize(
    ("name", "sizes"), [("Llama", {"hidden_size": 80, "head_dim": 20}), ("DeepseekV3", {})]
)
@pytest.mark.parametrize("cache", ["static", "dynamic"])
def test_head_sizes_that_gqa_does_not_take_keep_pytorchs_attention(
    name: str, sizes: dict[str, int], cache: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = model_of(name, **sizes)
    wanted = generated(model, cache=cache)
    calls = count_calls(monkeypatch)
    assert_alike(generated(mirage.apply(model, mode=None), cache=cache), wanted)
    assert calls == [0]


@pytest.mark.parametrize(
    ("name", "why"), [("Llama4", "chunks of 6 keys"), ("Doge", "reads the mask itself")]
)
def test_models_that_attend_otherwise_are_refused_in_a_sentence(name: str, why: str) -> None:
    with pytest.raises(RuntimeError, match=why):
        mirage.apply(model_of(name))


def test_scores_that_are_changed_in_an_unknown_way_are_refused_in_a_sentence() -> None:
    model = model_of("Llama")
    model.model._supports_sdpa = False
    with pytest.raises(RuntimeError, match="changes scores otherwise"):
        mirage.apply(model)


def logits(model: Any, cache: Any, masks: list[Any]) -> Any:
    """Return the logits of calls with these masks, of as many new tokens as each mask adds."""
    ids = torch.arange(3, 3 + 2 * 16).view(2, 16)
    made, start = [], 0
    for seen in masks:
        end = seen.shape[1]
        places = torch.arange(start, end).expand(2, -1)
        given = {"attention_mask": seen, "position_ids": places, "past_key_values": cache}
        made.append(model(ids[:, start:end], **given).logits[:, -1])
        start = end
    return torch.stack(made)


def masks_of(lengths: list[int], hidden: Callable[[int], list[int]]) -> list[Any]:
    """Return masks of these lengths; in the first sequence some tokens are hidden."""
    masks = [torch.ones(2, length, dtype=torch.int64) for length in lengths]
    for seen in masks:
        seen[0, hidden(seen.shape[1])] = 0
    return masks


def test_a_mask_that_changes_between_steps_is_seen() -> None:
    model = model_of("Llama")
    masks = masks_of([5, 6, 7, 8], lambda length: [1, 2] if length > 6 else [])
    caches = [transformers.StaticCache(config=model.config, max_cache_len=16) for _ in range(2)]
    with torch.inference_mode():
        wanted = logits(model, caches[0], masks)
        found = logits(mirage.apply(model, mode=None), caches[1], masks)
    torch.testing.assert_close(found, wanted, rtol=0, atol=0.02)


def test_padding_is_seen_in_a_cache_that_is_used_again_with_prompts_of_one_token() -> None:
    model = model_of("Llama")
    cache = transformers.StaticCache(config=model.config, max_cache_len=16)
    plain = masks_of([1], lambda length: [])
    padded = masks_of([1, 2, 3], lambda length: [0])
    with torch.inference_mode():
        wanted = logits(model, cache, padded)
        mirage.apply(model, mode=None)
        for masks in (plain, padded):
            cache.reset()
            found = logits(model, cache, masks)
    torch.testing.assert_close(found[1:], wanted[1:], rtol=0, atol=0.02)


@pytest.mark.parametrize("constant_modules", [False, True])
def test_a_served_model_is_saved_printed_and_pickled(
    constant_modules: bool, tmp_path: Path
) -> None:
    model = mirage.apply(model_of("Llama"), mode=None, constant_modules=constant_modules)
    model.save_pretrained(tmp_path)
    assert "mirage_kernels" in str(model.generation_config)
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    loaded.generation_config.compile_config._compile_all_devices = True
    assert_alike(generated(loaded), generated(model))


def test_a_model_without_a_head_is_served(monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_of("Llama").model
    cache = transformers.StaticCache(config=model.config, max_cache_len=16)
    calls = count_calls(monkeypatch)
    mirage.apply(model)
    with torch.inference_mode():
        for token in range(3, 6):
            model(torch.tensor([[token]]), past_key_values=cache)
    assert calls == [6]


@pytest.mark.parametrize("name", ["constant_modules", "pack"])
def test_an_option_that_is_neither_true_nor_false_is_refused_in_a_sentence(name: str) -> None:
    with pytest.raises(RuntimeError, match=f"{name} is of type int; True or False works"):
        mirage.apply(model_of("Llama"), **{name: 3})


def test_what_is_no_model_of_transformers_is_refused_in_a_sentence() -> None:
    with pytest.raises(RuntimeError, match="a transformers model with an attention interface"):
        mirage.apply(torch.nn.Linear(2, 2))  # type: ignore[type-var]
