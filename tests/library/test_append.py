"""Norm, rotation and the write to the cache, against loops in float64."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from mirage_kernels import gqa, qk_norm_rope_append

HQ, HKV, D, PAGES, PAGE = 4, 2, 16, 3, 8
SLOTS = [5, -1, 23, 0, 8]
POSITIONS = [0, 7, 3, 3, 9]


def arguments(dtype: torch.dtype = torch.float16, rotated: int = D) -> dict[str, object]:
    draw = torch.Generator().manual_seed(1)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=draw).to(dtype)

    angles = torch.arange(10)[:, None] / 100 ** (torch.arange(rotated // 2) / (rotated / 2))
    return {
        "qkv": normal(5, (HQ + 2 * HKV) * D),
        "q_weight": 1 + normal(D) / 8,
        "k_weight": 1 + normal(D) / 8,
        "cos_sin_cache": torch.cat([angles.cos(), angles.sin()], 1),
        "positions": torch.tensor(POSITIONS),
        "k_cache": torch.zeros(PAGES, PAGE, HKV, D, dtype=dtype),
        "v_cache": torch.zeros(PAGES, PAGE, HKV, D, dtype=dtype),
        "slot_mapping": torch.tensor(SLOTS),
        "num_heads": HQ,
        "num_kv_heads": HKV,
    }


def run(given: dict[str, object], **options: object) -> Tensor:
    return qk_norm_rope_append(**given, **options)  # type: ignore[arg-type]


def exact_line(x: Tensor, weight: Tensor, position: int, options: dict[str, object]) -> Tensor:
    """Norm and rotate one line [D] in float64, element by element."""
    rotated = options.get("rotated", D)
    x = x.double()
    if options.get("norm") == "layer":
        x = x - x.mean()
    y = x / math.sqrt(float(x.square().mean()) + options.get("eps", 1e-6))
    y = y * (weight.double() + options.get("weight_offset", 0.0)) + options.get("bias", 0.0)
    result = y.clone()
    for i in range(rotated // 2):
        angle = position / 100 ** (i / (rotated / 2))
        a, b = (i, rotated // 2 + i) if options.get("rope") != "interleaved" else (2 * i, 2 * i + 1)
        result[a] = y[a] * math.cos(angle) - y[b] * math.sin(angle)
        result[b] = y[b] * math.cos(angle) + y[a] * math.sin(angle)
    return result


OPTIONS = {
    "Qwen3": {},
    "Gemma3": {"weight_offset": 1.0},
    "GPT-J": {"rope": "interleaved"},
    "a part is rotated": {"rotated": 8},
    "an interleaved part": {"rotated": 8, "rope": "interleaved"},
    "Chameleon": {"norm": "layer", "eps": 1e-5},
}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", OPTIONS)
def test_is_close_to_float64(name: str, dtype: torch.dtype) -> None:
    options = dict(OPTIONS[name])
    given = arguments(dtype, options.get("rotated", D))
    bias = {}
    if options.get("norm") == "layer":
        bias = {"q_bias": torch.full((D,), 0.25).to(dtype), "k_bias": torch.zeros(D).to(dtype)}
    q = run(given, **bias, **{k: v for k, v in options.items() if k != "rotated"})
    lines = given["qkv"].view(5, -1, D)
    tolerance = 2e-3 if dtype == torch.float16 else 2e-2
    for t, (slot, position) in enumerate(zip(SLOTS, POSITIONS, strict=True)):
        for h in range(HQ):
            more = options | {"bias": 0.25 if bias else 0.0}
            expected = exact_line(lines[t, h], given["q_weight"], position, more)
            assert torch.allclose(q[t, h].double(), expected, atol=tolerance, rtol=tolerance)
        if slot < 0:
            continue
        place = (slot // PAGE, slot % PAGE)
        for h in range(HKV):
            expected = exact_line(lines[t, HQ + h], given["k_weight"], position, options)
            found = given["k_cache"][place][h].double()
            assert torch.allclose(found, expected, atol=tolerance, rtol=tolerance)
            assert torch.equal(given["v_cache"][place][h], lines[t, HQ + HKV + h])


def test_writes_only_its_slots() -> None:
    given = arguments()
    run(given)
    for cache in (given["k_cache"], given["v_cache"]):
        written = cache.flatten(0, 1).flatten(1).any(1)
        assert written.nonzero().flatten().tolist() == sorted(s for s in SLOTS if s >= 0)


def test_negative_slots_write_nothing() -> None:
    given = arguments()
    given["slot_mapping"] = torch.full((5,), -1)
    given["k_cache"].fill_(3)
    q = run(given)
    assert (given["k_cache"] == 3).all()
    assert torch.equal(q, run(arguments()))


def test_slots_past_the_last_page_write_nothing() -> None:
    given, other = arguments(), arguments()
    given["slot_mapping"] = torch.tensor([PAGES * PAGE, 5, 2**40, -(2**40), 2**32])
    other["slot_mapping"] = torch.tensor([-1, 5, -1, -1, -1])
    assert torch.equal(run(given), run(other))
    for name in ("k_cache", "v_cache"):
        assert torch.equal(given[name], other[name])


@pytest.mark.parametrize("table_rows", [10, 0])
def test_positions_outside_the_table_give_nan_where_rotated(table_rows: int) -> None:
    given = arguments(rotated=8)
    given["cos_sin_cache"] = given["cos_sin_cache"][:table_rows]
    given["positions"] = torch.tensor([10, -1, 2**40, -(2**40), 11])
    q = run(given)
    assert q[..., :8].isnan().all()
    assert not q[..., 8:].isnan().any()


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_indices_may_be_of_either_type(dtype: torch.dtype) -> None:
    given, other = arguments(), arguments()
    other |= {n: other[n].to(dtype) for n in ("positions", "slot_mapping")}
    assert torch.equal(run(given), run(other))
    assert torch.equal(given["k_cache"], other["k_cache"])


def test_caches_may_be_heads_first_or_halves() -> None:
    given, other = arguments(), arguments()
    run(given)
    both = torch.zeros(PAGES, HKV, PAGE, 2 * D).half()
    other["k_cache"], other["v_cache"] = both.chunk(2, dim=-1)
    run(other, kv_layout="HND")
    assert torch.equal(both[..., :D].transpose(1, 2), given["k_cache"])
    assert torch.equal(both[..., D:].transpose(1, 2), given["v_cache"])


def test_the_table_of_angles_may_be_half_precision() -> None:
    given, other = arguments(), arguments()
    other["cos_sin_cache"] = other["cos_sin_cache"].half()
    assert torch.allclose(run(given), run(other), atol=4e-3)


def test_weights_may_differ_by_head() -> None:
    given, other = arguments(), arguments()
    other["q_weight"] = other["q_weight"].expand(HQ, D).contiguous()
    assert torch.equal(run(given), run(other))


def test_no_tokens_are_fine() -> None:
    given = arguments()
    for name in ("qkv", "positions", "slot_mapping"):
        given[name] = given[name][:0]
    assert run(given).shape == (0, HQ, D)


def test_feeds_gqa() -> None:
    """One sequence of five tokens, written and then attended to."""
    given = arguments()
    given["slot_mapping"] = torch.arange(5)
    q = run(given)
    table, lengths = torch.zeros(1, 1).int(), torch.tensor([5]).int()
    y = gqa(q[None], given["k_cache"], given["v_cache"], table, lengths)
    dense = gqa(q[None], given["k_cache"][:1, :5], given["v_cache"][:1, :5], causal=True)
    assert torch.equal(y, dense)


WRONG = {
    (
        "qkv has shape [5, 96], but k_cache of shape [3, 8, 2, 16] needs [tokens, (Hq + 2 Hkv) * "
        "D] = [any, 128]"
    ): {"qkv": torch.ones(5, 96).half()},
    (
        "k_cache has shape [3, 8, 2, 16], but qkv of shape [5, 128] needs [pages, page size, Hkv, "
        "D] = [any, any, 3, any]"
    ): {"num_kv_heads": 3},
    "positions has shape [1], but qkv of shape [5, 128] needs [tokens] = [5]": {
        "positions": torch.tensor([1])
    },
    "slot_mapping has dtype float32; int32 and int64 work": {"slot_mapping": torch.ones(5)},
    (
        "cos_sin_cache has shape [10, 32], but k_cache of shape [3, 8, 2, 16] needs [positions, "
        "rotated] = [any, even, at most 16]"
    ): {"cos_sin_cache": torch.ones(10, 32)},
    "rope is 'yarn'; 'neox' and 'interleaved' work": {"rope": "yarn"},
    "norm is 'l2'; 'rms' and 'layer' work": {"norm": "l2"},
    "num_heads is 0 and num_kv_heads 2; positive numbers work": {"num_heads": 0},
    "kv_layout is 'x'; 'NHD' and 'HND' work": {"kv_layout": "x"},
}


@pytest.mark.parametrize("sentence", WRONG)
def test_wrong_argument_gets_a_sentence(sentence: str) -> None:
    with pytest.raises(RuntimeError) as raised:
        run(arguments() | WRONG[sentence])
    assert str(raised.value) == "mirage_kernels::qk_norm_rope_append: " + sentence
