"""The SGLang plugin in SGLang's own classes, on a CPU: `make sglang` installs and runs them."""

from __future__ import annotations

import argparse
import importlib.machinery
import sys
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("mirage_kernels._C")
pytest.importorskip("sglang")
transformers = pytest.importorskip("transformers")
from torch import Tensor  # noqa: E402

from mirage_kernels import gqa  # noqa: E402
from mirage_kernels.integrations import sglang as plugin  # noqa: E402

PAGE, HEADS, KV_HEADS, D = 16, 4, 2, 64
# What SGLang imports for pictures and sound, in builds that need a GPU.
MEDIA = (
    *("torchvision", "torchvision.io", "torchvision.ops", "torchvision.transforms"),
    *("torchvision.transforms.functional", "torchvision.transforms.v2"),
    *("torchvision.transforms.v2.functional", "torchaudio", "torchaudio.functional"),
    *("torchcodec", "torchcodec.decoders", "torchao", "decord"),
)


@pytest.fixture(scope="module")
def sglang() -> SimpleNamespace:
    """SGLang's classes, with the plugin's hooks in them as its server puts them there."""
    assert transformers.AutoProcessor  # looks for the real torchvision when it is first imported
    for name in MEDIA:
        media = MagicMock(name=name, __path__=[], __version__="0")
        media.__spec__ = importlib.machinery.ModuleSpec(name, None)
        sys.modules[name] = media
    from sglang.srt.layers.attention.attention_registry import ATTENTION_BACKENDS
    from sglang.srt.layers.layernorm import RMSNorm
    from sglang.srt.layers.radix_attention import RadixAttention
    from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool
    from sglang.srt.plugins.hook_registry import HookRegistry

    plugin.register()
    HookRegistry.apply_hooks()
    assert plugin.NAME in ATTENTION_BACKENDS
    return SimpleNamespace(norm=RMSNorm, attention=RadixAttention, pool=MHATokenToKVPool)


def backend(sglang: SimpleNamespace, page_size: int = PAGE) -> Any:
    """A backend without what only SGLang's own kernels need, its pool filled."""
    torch.manual_seed(0)
    made = object.__new__(plugin.backend_class())
    made.token_to_kv_pool = sglang.pool(
        size=5 * PAGE,
        page_size=page_size,
        dtype=torch.bfloat16,
        head_num=KV_HEADS,
        head_dim=D,
        layer_num=1,
        device="cpu",
        enable_memory_saver=False,
    )
    for buffer in made.token_to_kv_pool.get_kv_buffer(0):
        buffer.normal_()
    made.req_to_token = torch.zeros(3, 2 * PAGE, dtype=torch.int32)
    made.req_to_token[2] = torch.cat([torch.arange(PAGE) + 4 * PAGE, torch.arange(PAGE) + PAGE])
    made.req_to_token[0, :PAGE] = torch.arange(PAGE) + 2 * PAGE
    made.use_mla, made.dcp_size, made.enable_deterministic = False, 1, False
    return made


def batch() -> SimpleNamespace:
    """Two requests of 19 and 5 tokens, on pages 4, 1 and 2."""
    return SimpleNamespace(
        seq_lens=torch.tensor([19, 5]),
        req_pool_indices=torch.tensor([2, 0]),
        out_cache_loc=torch.tensor([PAGE + 2, 2 * PAGE + 4]),
        spec_info=None,
    )


def decoded(made: Any, layer: Any) -> tuple[Tensor, Tensor]:
    q = torch.randn(2, HEADS * D, dtype=torch.bfloat16)
    k, v = torch.randn(2, 2, KV_HEADS, D, dtype=torch.bfloat16)
    return q, made.forward_decode(q, k, v, layer, batch(), save_kv_cache=True)


@pytest.mark.parametrize("window", [-1, 7])
def test_a_decoding_batch_is_attended_over_the_pool_in_place(
    sglang: SimpleNamespace, window: int
) -> None:
    made = backend(sglang)
    layer = sglang.attention(HEADS, D, D**-0.5, KV_HEADS, 0, sliding_window_size=window)
    before = [buffer.clone() for buffer in made.token_to_kv_pool.get_kv_buffer(0)]
    q, found = decoded(made, layer)
    k, v = made.token_to_kv_pool.get_kv_buffer(0)
    for old, new in zip(before, (k, v), strict=True):
        changed = (old != new).flatten(1).any(-1).nonzero().flatten()
        assert changed.tolist() == batch().out_cache_loc.tolist()
    pages = torch.tensor([[4, 1], [2, 0]], dtype=torch.int32)
    caches = (x.view(-1, PAGE, KV_HEADS, D) for x in (k, v))
    lengths = torch.tensor([19, 5], dtype=torch.int32)
    wanted = gqa(q.view(2, HEADS, D), *caches, pages, lengths, window_left=window)
    torch.testing.assert_close(found, wanted.view(2, -1))


@pytest.mark.parametrize("asked", [{"is_cross_attention": True}, {"k_scale": torch.ones(())}])
def test_what_gqa_does_not_compute_runs_sglangs_kernel(
    sglang: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, asked: dict[str, Any]
) -> None:
    made = backend(sglang)
    layer = sglang.attention(HEADS, D, D**-0.5, KV_HEADS, 0)
    vars(layer).update(asked)
    base = type(made).__mro__[1]
    monkeypatch.setattr(base, "forward_decode", lambda self, q, *_, **named: torch.full_like(q, 7))
    assert bool((decoded(made, layer)[1] == 7).all())


def test_the_command_line_takes_the_name(sglang: SimpleNamespace) -> None:
    from sglang.srt.server_args import ServerArgs

    parser = argparse.ArgumentParser()
    ServerArgs.add_cli_args(parser)
    command = ["--model-path", "x", "--attention-backend", "mirage_kernels", "--page-size", "16"]
    assert parser.parse_args(command).attention_backend == "mirage_kernels"


def test_norms_go_through_the_hook(sglang: SimpleNamespace) -> None:
    norm = sglang.norm(64).bfloat16()
    x, residual = torch.randn(2, 3, 64, dtype=torch.bfloat16)
    with torch.no_grad():
        norm.weight.uniform_(0.5, 2)
        found, total = norm.forward_cuda(x, residual.clone())
        wanted, other = norm.forward_native(x.clone(), residual.clone())
    torch.testing.assert_close(found, wanted)
    torch.testing.assert_close(total, other)
