"""The vLLM plugin in vLLM's own classes, on a CPU: `make vllm` installs and runs them."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("mirage_kernels._C")
triton = pytest.importorskip("vllm.v1.attention.backends.triton_attn")
from torch import Tensor  # noqa: E402
from vllm import ir  # noqa: E402
from vllm.v1.attention.backends.registry import AttentionBackendEnum  # noqa: E402

from mirage_kernels import gqa  # noqa: E402
from mirage_kernels.integrations import vllm as plugin  # noqa: E402

BLOCK, HEADS, KV_HEADS, D = 16, 4, 2, 64
LENGTHS = (19, 5)


@pytest.fixture
def backend() -> Any:
    """The class that `--attention-backend CUSTOM` finds."""
    plugin.register()
    return AttentionBackendEnum.CUSTOM.get_class()


def layer(backend: Any, **more: Any) -> Any:
    """An implementation as a layer of vLLM makes it."""
    return backend.get_impl_cls()(
        HEADS, D, D**-0.5, KV_HEADS, None, more.pop("sliding_window", None), "auto", **more
    )


def batch(**more: Any) -> Any:
    """The metadata of two sequences that decode a token each."""
    buffers = dict.fromkeys(("softmax_segm_output", "softmax_segm_max", "softmax_segm_expsum"))
    return triton.TritonAttentionMetadata(
        num_actual_tokens=2,
        max_query_len=1,
        query_start_loc=torch.tensor([0, 1, 2], dtype=torch.int32),
        max_seq_len=max(LENGTHS),
        seq_lens=torch.tensor(LENGTHS, dtype=torch.int32),
        block_table=torch.tensor([[2, 0], [1, 3]], dtype=torch.int32),
        slot_mapping=torch.tensor([2, 20]),
        seq_threshold_3D=0,
        num_par_softmax_segments=1,
        **{**buffers, "causal": True, **more},
    )


def attended(made: Any, metadata: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Attend with a layer; return the queries, the cache and what came out."""
    torch.manual_seed(0)
    query = torch.randn(3, HEADS, D, dtype=torch.bfloat16)  # the last one is padding
    cache = torch.randn(4, KV_HEADS, BLOCK, 2 * D, dtype=torch.bfloat16)
    output = torch.zeros_like(query)
    assert made.forward(None, query, None, None, cache, metadata, output) is output
    return query, cache, output


@pytest.mark.parametrize("window", [None, 8])
def test_a_decoding_batch_is_attended_over_the_cache_in_place(
    backend: Any, window: int | None
) -> None:
    metadata = batch()
    query, cache, output = attended(layer(backend, sliding_window=window), metadata)
    k, v = (half.transpose(1, 2).contiguous() for half in cache.split(D, dim=-1))
    pages, lengths = metadata.block_table, metadata.seq_lens
    wanted = gqa(query[:2], k, v, pages, lengths, window_left=-1 if window is None else window - 1)
    torch.testing.assert_close(output[:2], wanted)
    assert not output[2].any()


@pytest.mark.parametrize(
    ("of_layer", "of_batch"),
    [
        ({"attn_type": triton.AttentionType.ENCODER_ONLY}, {}),
        ({"attn_type": triton.AttentionType.ENCODER_DECODER}, {}),
        ({"chunk_lookback": 1, "sliding_window": 8}, {}),
        ({}, {"causal": False}),
        ({}, {"mm_prefix_range_tensor": torch.zeros(2, 1, 2, dtype=torch.int32)}),
        ({}, {"rswa_window": 4}),
    ],
)
def test_what_gqa_does_not_compute_runs_vllms_kernel(
    backend: Any, monkeypatch: pytest.MonkeyPatch, of_layer: Any, of_batch: Any
) -> None:
    own = triton.TritonAttentionImpl
    monkeypatch.setattr(own, "forward", lambda self, *given: given[6].fill_(7))
    _, _, output = attended(layer(backend, **of_layer), batch(**of_batch))
    assert bool((output == 7).all())


def test_it_does_not_claim_results_that_no_other_sequence_changes(backend: Any) -> None:
    assert not backend.supports_batch_invariance()


def test_norms_compute_what_vllms_own_do(backend: Any) -> None:
    x, residual = torch.randn(2, 3, 64, dtype=torch.bfloat16)
    weight = torch.rand(64, dtype=torch.bfloat16)
    for op, given in (
        (ir.ops.rms_norm, (x, weight, 1e-6)),
        (ir.ops.fused_add_rms_norm, (x, residual, weight, 1e-6)),
    ):
        found, native = (op.impls[name].impl_fn(*given) for name in ("mirage_kernels", "native"))
        torch.testing.assert_close(found, native)
