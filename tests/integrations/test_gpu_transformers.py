"""transformers' `generate` on a GPU: the compiled decoding step, its CUDA graph, equal tokens."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("mirage_kernels._C")
transformers = pytest.importorskip("transformers", minversion="5.10")

import mirage_kernels  # noqa: E402
from mirage_kernels.integrations import transformers as mirage  # noqa: E402

pytestmark = pytest.mark.gpu
STEPS, PROMPT = 64, 20


def generated(model: Any, ids: Any) -> Any:
    return model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=STEPS,
        do_sample=False,
        cache_implementation="static",
        output_logits=True,
        return_dict_in_generate=True,
    )


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("mode", [None, "reduce-overhead"])
def test_generation_is_eager_modes_up_to_rounding(mode: str | None, batch: int) -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        hidden_size=512,
        intermediate_size=1024,
        num_hidden_layers=2,
        num_attention_heads=8,
        num_key_value_heads=2,
        head_dim=64,
        vocab_size=1000,
        pad_token_id=0,
        eos_token_id=None,
    )
    model = transformers.LlamaForCausalLM(config).to("cuda", torch.bfloat16).eval()
    ids = torch.randint(3, 1000, (batch, PROMPT), device="cuda")
    model.generation_config.disable_compile = True
    wanted = generated(model, ids)
    model.generation_config.disable_compile = False
    mirage.apply(model, mode=mode)
    model.generation_config.compile_config.fullgraph = True
    for _ in range(2):  # the second one replays what the first one compiled
        made = generated(model, ids)
        for step, (logits, own) in enumerate(zip(made.logits, wanted.logits, strict=True)):
            torch.testing.assert_close(logits, own, rtol=0, atol=0.05)
            end = PROMPT + step + 1
            if not torch.equal(made.sequences[:, :end], wanted.sequences[:, :end]):
                best = own.topk(2, dim=-1).values
                differs = made.sequences[:, end - 1] != wanted.sequences[:, end - 1]
                assert (best[:, 0] - best[:, 1])[differs].max() <= 0.05
                break
    assert mirage_kernels.report(model).graphs
