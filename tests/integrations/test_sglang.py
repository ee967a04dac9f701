"""The SGLang plugin against stand-ins with recorded signatures: SGLang itself needs a GPU."""

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
    """As SGLang's `TritonAttnBackend`, as far as the plugin calls it."""

    def __init__(self, runner: Any) -> None:
        self.runner = runner

    def forward_decode(
        self, q: Tensor, k: Tensor, v: Tensor, layer: Any, forward_batch: Any, save_kv_cache: bool
    ) -> Tensor:
        return torch.full_like(q, 7)


class Pool:
    """As SGLang's pool of tokens, of one layer."""

    def __init__(self, page_size: int) -> None:
        self.page_size = page_size
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
    return SimpleNamespace(hooks=hooks, backends=backends)


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
    lengths = torch.tensor([19, 5])
    return SimpleNamespace(
        seq_lens=lengths,
        req_pool_indices=torch.tensor([2, 0]),
        out_cache_loc=torch.tensor([PAGE + 2, 2 * PAGE + 4]),
        token_to_kv_pool=Pool(page_size),
        req_to_token_pool=SimpleNamespace(req_to_token=table),
    )


def decode(sglang: SimpleNamespace, given: Any) -> tuple[Tensor, Tensor]:
    q = torch.randn(2, HEADS * D, dtype=torch.bfloat16)
    k, v = torch.randn(2, 2, KV_HEADS * D, dtype=torch.bfloat16)
    backend = sglang.backends["mirage_kernels"](None)
    return q, backend.forward_decode(q, k, v, LAYER, given, save_kv_cache=True)


def test_decoding_batches_are_attended_over_the_pool_in_place(sglang: SimpleNamespace) -> None:
    given = batch()
    q, made = decode(sglang, given)
    k, v = (b.view(-1, PAGE, KV_HEADS, D) for b in given.token_to_kv_pool.buffers)
    pages = torch.tensor([[4, 1], [2, 0]], dtype=torch.int32)
    wanted = gqa(q.view(2, HEADS, D), k, v, pages, given.seq_lens.int())
    torch.testing.assert_close(made, wanted.view(2, -1))


def test_new_tokens_are_in_the_pool_before_they_are_read(sglang: SimpleNamespace) -> None:
    given = batch()
    before = given.token_to_kv_pool.buffers.clone()
    decode(sglang, given)
    changed = (given.token_to_kv_pool.buffers != before).flatten(2).any(-1)
    assert changed.nonzero()[:, 1].tolist() == given.out_cache_loc.tolist() * 2


def test_the_page_table_is_made_once_for_all_layers(sglang: SimpleNamespace) -> None:
    given = batch()
    assert plugin.page_table(given, PAGE) is plugin.page_table(given, PAGE)


def test_small_pages_run_sglangs_kernel(sglang: SimpleNamespace) -> None:
    _, made = decode(sglang, batch(page_size=1))
    assert bool((made == 7).all())


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
