"""Attention kernels that read no more keys than lengths, windows and causal masks let be seen."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from compilers import programs
from torch import Tensor

import mirage_kernels

pytestmark = pytest.mark.usefixtures("nothing_loaded")
KEYS, WINDOW = 8000, 200
TEXT = """
import torch
from torch.nn.functional import scaled_dot_product_attention

def windowed(q, k, v, lengths):
    at = torch.arange(k.shape[2], device=q.device)
    seen = (at < lengths[:, None]) & (at >= lengths[:, None] - 200)
    return scaled_dot_product_attention(q, k, v, seen[:, None, None], enable_gqa=True)

def causal(q, k, v, positions):
    seen = torch.arange(k.shape[1], device=q.device) <= positions[:, None]
    return scaled_dot_product_attention(q, k, v, seen)

def documents(q, k, v, ids, lengths):
    at = torch.arange(q.shape[2], device=q.device)
    seen = (at <= at[:, None]) & (ids[:, None] == ids[:, :, None]) & (at < lengths[:, None, None])
    return scaled_dot_product_attention(q, k, v, seen[:, None])

def given(*shape):
    return torch.empty(shape, dtype=torch.bfloat16, device="meta")

NAME
"""
WINDOWED = """
example_inputs = [given(3, 8, 1, 64), given(3, 2, 8000, 64), given(3, 2, 8000, 64)]
example_inputs += [torch.empty(3, dtype=torch.int32, device="meta")]
dynamic = [{0: "M"}, {0: "M"}, {0: "M"}, {0: "M"}]
"""
CAUSAL = """
example_inputs = [given(64, 40, 64), given(64, 8000, 64), given(64, 8000, 64)]
example_inputs += [torch.empty(40, dtype=torch.int64, device="meta")]
dynamic = [{1: "T"}, None, None, {0: "T"}]
"""
DOCUMENTS = """
example_inputs = [given(3, 2, 40, 64)] * 3
example_inputs += [torch.empty(3, 40, dtype=torch.int32, device="meta")]
example_inputs += [torch.empty(3, dtype=torch.int32, device="meta")]
dynamic = [{0: "B", 2: "T"}] * 3 + [{0: "B", 1: "T"}, {0: "B"}]
"""


@pytest.fixture(scope="module")
def attention(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs, compiled."""
    given = {"windowed": WINDOWED, "causal": CAUSAL, "documents": DOCUMENTS}
    texts = [(name, TEXT.replace("NAME", lines)) for name, lines in given.items()]
    return programs(tmp_path_factory.mktemp("attention"), texts)


def exact(q: Tensor, k: Tensor, v: Tensor, seen: Tensor) -> Tensor:
    """Attention in float64, 0 where nothing is seen."""
    scores = (q.double() @ k.double().mT / q.shape[-1] ** 0.5).masked_fill(~seen, -torch.inf)
    shared = scores.softmax(-1).where(seen, 0.0)
    return shared @ v.double().where(v.isfinite(), 0.0)


def drawn(seed: int, *shapes: tuple[int, ...]) -> list[Tensor]:
    """Return random tensors of such shapes."""
    draw = torch.Generator("cuda").manual_seed(seed)
    return [torch.randn(s, generator=draw, device="cuda").bfloat16() for s in shapes]


@pytest.mark.gpu
@pytest.mark.parametrize("rows", [1, 5, 40])
def test_what_no_length_or_window_lets_be_seen_is_not_read(attention: Path, rows: int) -> None:
    mirage_kernels.load(attention)
    q, k, v = drawn(rows, (rows, 8, 1, 64), *[(rows, 2, KEYS, 64)] * 2)
    lengths = torch.arange(rows, device="cuda", dtype=torch.int32) * 397 % KEYS + 1
    at = torch.arange(KEYS, device="cuda")
    seen = (at < lengths[:, None]) & (at >= lengths[:, None] - WINDOW)
    seen = seen[:, None, None]
    far = (at >= lengths[:, None] + 512) | (at < lengths[:, None] - WINDOW - 512)
    far = far[:, None, :, None]
    v, hidden = torch.where(far, torch.nan, v), torch.where(far, torch.nan, k)
    made = mirage_kernels.program("windowed")(q, hidden, v, lengths)
    k, v = (x.repeat_interleave(4, dim=1) for x in (k, v))
    torch.testing.assert_close(made.double(), exact(q, k, v, seen), rtol=2e-2, atol=2e-2)


@pytest.mark.gpu
@pytest.mark.parametrize("tokens", [1, 17, 64])
def test_tokens_see_those_before_them(attention: Path, tokens: int) -> None:
    mirage_kernels.load(attention)
    q, k, v = drawn(tokens, (64, tokens, 64), *[(64, KEYS, 64)] * 2)
    positions = torch.arange(tokens, device="cuda").flip(0) * 111
    at = torch.arange(KEYS, device="cuda")
    far = (at >= 111 * tokens + 512)[:, None]
    v, hidden = torch.where(far, torch.nan, v), torch.where(far, torch.nan, k)
    made = mirage_kernels.program("causal")(q, hidden, v, positions)
    wanted = exact(q, k, v, at <= positions[:, None])
    torch.testing.assert_close(made.double(), wanted, rtol=2e-2, atol=2e-2)


@pytest.mark.gpu
@pytest.mark.parametrize("tokens", [1, 33, 64])
def test_tokens_see_their_document_up_to_where_padding_begins(attention: Path, tokens: int) -> None:
    mirage_kernels.load(attention)
    q, k, v = drawn(tokens, *[(3, 2, tokens, 64)] * 3)
    at = torch.arange(tokens, device="cuda", dtype=torch.int32)
    ids = torch.stack([at // 7, at // 20, 0 * at])
    lengths = torch.tensor([tokens, tokens, (tokens + 1) // 2], device="cuda", dtype=torch.int32)
    seen = (at <= at[:, None]) & (ids[:, None] == ids[:, :, None]) & (at < lengths[:, None, None])
    made = mirage_kernels.program("documents")(q, k, v, ids, lengths)
    wanted = exact(q, k, v, seen[:, None])
    torch.testing.assert_close(made.double(), wanted, rtol=2e-2, atol=2e-2)
