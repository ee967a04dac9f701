"""The decode step that is measured computes a decoder, on a tiny one, on the CPU."""

from __future__ import annotations

import sys

import pytest
import torch

from tests.scripts import BENCHMARKS, script

pytest.importorskip("triton")
pytestmark = pytest.mark.skipif(not BENCHMARKS.is_dir(), reason="not a checkout")
PARTS = ("qkv", "append", "attention", "output", "gated_mlp", "down", "lm_head")


@pytest.mark.parametrize("has_qk_norm", [False, True])
def test_its_logits_are_those_of_fp32(has_qk_norm: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(BENCHMARKS), *sys.path])
    step = script("decode_step")
    from decode import models

    monkeypatch.setattr(models, "DEVICE", "cpu")
    torch.manual_seed(0)
    tiny = models.Model("tiny", 128, 4, 2, 64, 256, 2, 512, has_qk_norm)
    errors = step.logits_errors(models.drawn_weights(tiny), 3, dict.fromkeys(PARTS, True))
    assert errors["ours"] < 0.02
    assert errors["ours"] < 1.5 * errors["eager"]


def test_a_kernel_takes_from_the_end_of_the_one_before_to_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "path", [str(BENCHMARKS), *sys.path])
    from decode import traces

    step = ["embedding", *["void mirage::generated::linear<K<1>>(Args)", "append"] * 3, "lm_head"]
    ends = [(10.0 * i - 2 * (i % 2), 10.0 * i + 5, n) for i, n in enumerate(step * traces.REPLAYS)]
    monkeypatch.setattr(traces, "_traced", lambda step: ends)
    linear, append = traces.kernels_of_a_layer(lambda: None, layers=3)
    assert linear == {"kernel": "linear", "us": 10.0, "starts_us": 3.0}
    assert append == {"kernel": "append", "us": 10.0, "starts_us": 5.0}
    with pytest.raises(ValueError, match="6 kernels are not those of 4 layers"):
        traces.kernels_of_a_layer(lambda: None, layers=4)
