"""transformers' `generate` with this library's ops: tiny random models, greedy tokens, the CPU."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("mirage_kernels._C")
transformers = pytest.importorskip("transformers", minversion="5.10")

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


@pytest.fixture(autouse=True)
def _fresh_graphs() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def model_of(name: str) -> Any:
    config, more = MODELS[name]
    torch.manual_seed(0)
    made = getattr(transformers, f"{name}ForCausalLM")(
        getattr(transformers, config)(**SIZES, **more)
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


def test_a_mask_of_a_static_step_holds_the_number_of_keys() -> None:
    made = mirage.mask(
        batch_size=2,
        q_length=1,
        kv_length=16,
        q_offset=torch.tensor(6),
        allow_is_causal_skip=False,
        dtype=torch.bfloat16,
        device="cpu",
    )
    assert made is not None
    assert (made.dtype, made.shape) == (torch.int32, (2, 1, 1, 1))
    assert made.flatten().tolist() == [7, 7]


def test_a_sliding_layer_that_is_full_has_as_many_keys_as_its_window() -> None:
    made = mirage.mask(
        batch_size=1,
        q_length=1,
        kv_length=8,
        q_offset=20,
        kv_offset=13,
        local_size=8,
        mask_function=lambda *_: torch.tensor(True),
        allow_is_causal_skip=False,
        dtype=torch.bfloat16,
        device="cpu",
    )
    assert made is not None
    assert made.flatten().tolist() == [8]


def test_a_promise_that_is_neither_true_nor_false_is_refused_in_a_sentence() -> None:
    with pytest.raises(RuntimeError, match="constant_modules"):
        mirage.apply(model_of("Llama"), constant_modules=3)  # type: ignore[arg-type]


def test_what_is_no_model_of_transformers_is_refused_in_a_sentence() -> None:
    with pytest.raises(RuntimeError, match="a transformers model with an attention interface"):
        mirage.apply(torch.nn.Linear(2, 2))  # type: ignore[type-var]
