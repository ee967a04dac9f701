"""The SGLang plugin against stand-ins with recorded signatures, of 0.5.3 to 0.5.6 and 0.5.23.

`test_sglang_classes.py` has its own classes.
"""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("mirage_kernels._C")
from torch import Tensor  # noqa: E402

from mirage_kernels import gqa  # noqa: E402
from mirage_kernels.integrations import sglang as plugin  # noqa: E402

PAGE, HEADS, KV_HEADS, D = 16, 4, 2, 64


class TritonBackend:
    """As SGLang's `TritonAttnBackend`, as far as the plugin calls it; 0.5.23 has the pool here."""

    def __init__(self, runner: Any) -> None:
        self.req_to_token = runner.req_to_token_pool.req_to_token
        if hasattr(runner, "token_to_kv_pool"):
            self.token_to_kv_pool = runner.token_to_kv_pool

    def forward_decode(
        self, q: Tensor, k: Tensor, v: Tensor, layer: Any, forward_batch: Any, **named: Any
    ) -> Tensor:
        return torch.full_like(q, 7)


class MHATokenToKVPool:
    """As SGLang's pool of tokens, of one layer."""

    def __init__(self, page_size: int) -> None:
        self.page_size, self.dtype = page_size, torch.bfloat16
        self.buffers = torch.randn(2, 6 * PAGE, KV_HEADS, D, dtype=torch.bfloat16)

    def set_kv_buffer(self, layer: Any, loc: Tensor, k: Tensor, v: Tensor) -> None:
        for buffer, new in zip(self.buffers, (k, v), strict=True):
            buffer[loc] = new.view(-1, KV_HEADS, D)

    def get_kv_buffer(self, layer_id: int) -> tuple[Tensor, Tensor]:
        return self.buffers[0], self.buffers[1]


@pytest.fixture
def sglang(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    hooks: dict[str, Any] = {}
    backends: dict[str, Any] = {}
    choices = ["triton"]

    class HookRegistry:
        @classmethod
        def register(cls, target: str, hook: Any, hook_type: str = "after") -> None:
            hooks[target] = (hook, hook_type)

    modules = {
        "sglang.srt.plugins.hook_registry": {
            "HookRegistry": HookRegistry,
            "HookType": SimpleNamespace(AROUND="around"),
        },
        "sglang.srt.layers.attention.attention_registry": {
            "register_attention_backend": lambda name: lambda made: backends.update({name: made}),
        },
        "sglang.srt.layers.attention.triton_backend": {"TritonAttnBackend": TritonBackend},
        "sglang.srt.server_args": {
            "ATTENTION_BACKEND_CHOICES": choices,
            "add_attention_backend_choices": choices.extend,
        },
    }
    for name, members in modules.items():
        parts = name.split(".")
        for end in range(1, len(parts) + 1):
            path = ".".join(parts[:end])
            if path not in sys.modules:
                monkeypatch.setitem(sys.modules, path, ModuleType(path))
        vars(sys.modules[name]).update(members)
    plugin.backend_class.cache_clear()
    plugin.register()
    return SimpleNamespace(hooks=hooks, backends=backends, choices=choices)


LAYER = SimpleNamespace(
    layer_id=0,
    tp_q_head_num=HEADS,
    tp_k_head_num=KV_HEADS,
    tp_v_head_num=KV_HEADS,
    qk_head_dim=D,
    v_head_dim=D,
    scaling=D**-0.5,
    logit_cap=0.0,
    sliding_window_size=None,
)


def batch(page_size: int = PAGE) -> SimpleNamespace:
    """Return a batch of two requests of 19 and 5 tokens, on pages 4, 1 and 2."""
    torch.manual_seed(0)
    table = torch.zeros(3, 2 * PAGE, dtype=torch.int32)
    table[2] = torch.cat([torch.arange(PAGE) + 4 * PAGE, torch.arange(PAGE) + PAGE])
    table[0, :PAGE] = torch.arange(PAGE) + 2 * PAGE
    return SimpleNamespace(
        seq_lens=torch.tensor([19, 5]),
        req_pool_indices=torch.tensor([2, 0]),
        out_cache_loc=torch.tensor([PAGE + 2, 2 * PAGE + 4]),
        token_to_kv_pool=MHATokenToKVPool(page_size),
        req_to_token_pool=SimpleNamespace(req_to_token=table),
    )


def decode(
    sglang: SimpleNamespace, given: Any, layer: Any = LAYER, **named: Any
) -> tuple[Tensor, Tensor]:
    q = torch.randn(2, HEADS * D, dtype=torch.bfloat16)
    k, v = torch.randn(2, 2, KV_HEADS * D, dtype=torch.bfloat16)
    backend = sglang.backends["mirage_kernels"](given)
    return q, backend.forward_decode(q, k, v, layer, given, save_kv_cache=True, **named)


def is_sglangs(made: tuple[Tensor, Tensor]) -> bool:
    return bool((made[1] == 7).all())


def test_decoding_batches_are_attended_over_the_pool_in_place(sglang: SimpleNamespace) -> None:
    given = batch()
    q, made = decode(sglang, given)
    k, v = (b.view(-1, PAGE, KV_HEADS, D) for b in given.token_to_kv_pool.buffers)
    pages = torch.tensor([[4, 1], [2, 0]], dtype=torch.int32)
    wanted = gqa(q.view(2, HEADS, D), k, v, pages, given.seq_lens.int())
    torch.testing.assert_close(made, wanted.view(2, -1))


def test_the_command_line_takes_its_name(sglang: SimpleNamespace) -> None:
    plugin.register()  # SGLang may load plugins again
    assert sglang.choices == ["triton", "mirage_kernels"]


def test_new_tokens_are_in_the_pool_before_they_are_read(sglang: SimpleNamespace) -> None:
    given = batch()
    before = given.token_to_kv_pool.buffers.clone()
    decode(sglang, given)
    changed = (given.token_to_kv_pool.buffers != before).flatten(2).any(-1)
    assert changed.nonzero()[:, 1].tolist() == given.out_cache_loc.tolist() * 2


def test_the_pool_may_be_the_batchs_alone(sglang: SimpleNamespace) -> None:
    given = batch()
    backend = sglang.backends["mirage_kernels"](
        SimpleNamespace(req_to_token_pool=given.req_to_token_pool)
    )
    q, k, v = torch.randn(3, 2, HEADS * D, dtype=torch.bfloat16)
    half = KV_HEADS * D
    made = backend.forward_decode(q, k[:, :half], v[:, :half], LAYER, given)
    assert not bool((made == 7).all())


def test_the_page_table_is_made_once_for_all_layers(sglang: SimpleNamespace) -> None:
    given = batch()
    backend = sglang.backends["mirage_kernels"](given)
    assert plugin.page_table(backend, given, PAGE) is plugin.page_table(backend, given, PAGE)


def test_small_pages_run_sglangs_kernel(sglang: SimpleNamespace) -> None:
    assert is_sglangs(decode(sglang, batch(page_size=1)))


def test_a_pool_of_several_kinds_of_layers_runs_sglangs_kernel(sglang: SimpleNamespace) -> None:
    given = batch()
    given.token_to_kv_pool.__class__ = type("SWAKVPool", (MHATokenToKVPool,), {})
    assert is_sglangs(decode(sglang, given))


def test_a_cache_in_fp8_runs_sglangs_kernel(sglang: SimpleNamespace) -> None:
    given = batch()
    given.token_to_kv_pool.dtype = torch.float8_e4m3fn
    assert is_sglangs(decode(sglang, given))


@pytest.mark.parametrize(
    "asked",
    [
        {"attn_type": SimpleNamespace(value="encoder_only")},
        {"is_cross_attention": True},
        {"k_scale": 2.0},
        {"xai_temperature_len": 8192},
    ],
    ids=lambda asked: next(iter(asked)),
)
def test_layers_that_gqa_does_not_compute_run_sglangs_kernel(
    sglang: SimpleNamespace, asked: dict[str, Any]
) -> None:
    assert is_sglangs(decode(sglang, batch(), SimpleNamespace(**(vars(LAYER) | asked))))


def test_speculative_batches_run_sglangs_kernel(sglang: SimpleNamespace) -> None:
    given = batch()
    given.spec_info = SimpleNamespace(topk=2)
    assert is_sglangs(decode(sglang, given))


def test_changed_scores_run_sglangs_kernel(sglang: SimpleNamespace) -> None:
    assert is_sglangs(decode(sglang, batch(), score_mod=lambda score: score))


def test_the_hook_stands_around_the_norm_and_keeps_its_results(sglang: SimpleNamespace) -> None:
    hook, kind = sglang.hooks["sglang.srt.layers.layernorm.RMSNorm.forward_cuda"]
    assert kind == "around"
    x, residual = torch.randn(2, 3, 64, dtype=torch.bfloat16)
    module = SimpleNamespace(weight=torch.rand(64).bfloat16(), variance_epsilon=1e-6)
    _, total = hook(None, module, x, residual)
    torch.testing.assert_close(total, x + residual)
    plain = torch.nn.functional.rms_norm(x, (64,), module.weight, 1e-6)
    torch.testing.assert_close(hook(None, module, x), plain)


def test_a_norm_of_other_types_is_sglangs(sglang: SimpleNamespace) -> None:
    hook, _ = sglang.hooks["sglang.srt.layers.layernorm.RMSNorm.forward_cuda"]
    module = SimpleNamespace(weight=torch.rand(64), variance_epsilon=1e-6)
    assert hook(lambda *_: "own", module, torch.randn(3, 64)) == "own"


@pytest.mark.parametrize("asked", ["cast_x_before_out_mul", "fp32_residual"])
def test_norms_that_round_otherwise_are_sglangs(sglang: SimpleNamespace, asked: str) -> None:
    hook, _ = sglang.hooks["sglang.srt.layers.layernorm.RMSNorm.forward_cuda"]
    weight = torch.rand(64).bfloat16()
    module = SimpleNamespace(weight=weight, variance_epsilon=1e-6, **{asked: True})
    assert hook(lambda *_: "own", module, torch.randn(3, 64).bfloat16()) == "own"


def test_norms_in_batch_invariant_mode_are_sglangs(
    sglang: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    layernorm = ModuleType("sglang.srt.layers.layernorm")
    layernorm.is_batch_invariant_mode_enabled = lambda: True  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, layernorm.__name__, layernorm)
    hook, _ = sglang.hooks["sglang.srt.layers.layernorm.RMSNorm.forward_cuda"]
    module = SimpleNamespace(weight=torch.rand(64).bfloat16(), variance_epsilon=1e-6)
    assert hook(lambda *_: "own", module, torch.randn(3, 64).bfloat16()) == "own"
