"""Norm, rotation and the write to the cache, on the CPU and on a GPU, against float64."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from append_cases import (
    CLOSE,
    KNOWN_POSITIONS,
    Call,
    Case,
    check,
    check_results,
    made,
    some_case,
    turned,
)
from torch import Tensor

from mirage_kernels import checking, gqa, rope_append

DEPTHS = [64, 96, 128, 192, 256]
DTYPES = [torch.float16, torch.bfloat16]
GPU = pytest.param("cuda", marks=pytest.mark.gpu)
on_both = pytest.mark.parametrize("device", ["cpu", GPU])


def kernels_of(call: Call) -> list[str]:
    """Run a call and return the names of the kernels it launched."""
    call.run()
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as seen:
        call.run()
        torch.cuda.synchronize()
    return [e.name for e in seen.events() if e.device_type.name == "CUDA"]


@pytest.mark.parametrize("rope", ["neox", "interleaved"])
@pytest.mark.parametrize("norm", ["rms", "layer"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("device", "depth"),
    [("cpu", 16), ("cpu", 96), *(pytest.param("cuda", d, marks=pytest.mark.gpu) for d in DEPTHS)],
)
def test_is_close_to_float64_and_writes_only_its_slots(
    device: str, depth: int, dtype: torch.dtype, norm: str, rope: str
) -> None:
    for seed in range(6 if device == "cuda" else 2):
        case = replace(some_case(depth, seed), device=device)
        check(replace(case, dtype=dtype, norm=norm, rope=rope))


@on_both
@pytest.mark.parametrize("rotated", [0, 8, 24, 40, 64, 120, 128])
@pytest.mark.parametrize("rope", ["neox", "interleaved"])
def test_any_even_part_may_be_rotated(device: str, rope: str, rotated: int) -> None:
    """On a GPU, those of parts of 16-byte vectors run PyTorch's program."""
    check(Case(device=device, rope=rope, rotated=rotated))


@pytest.mark.gpu
@pytest.mark.parametrize("depth", [32, 80])
def test_other_head_sizes_are_computed_too(depth: int) -> None:
    check(Case(device="cuda", depth=depth, rotated=depth))


@pytest.mark.gpu
@pytest.mark.parametrize("rope", ["neox", "interleaved"])
@pytest.mark.parametrize("depth", DEPTHS)
def test_a_call_is_one_kernel(depth: int, rope: str) -> None:
    (name,) = kernels_of(made(Case(device="cuda", depth=depth, rotated=depth, rope=rope)))
    assert "append" in name


@on_both
@pytest.mark.parametrize("float_angles", [True, False])
def test_large_values_neither_overflow_nor_vanish(device: str, float_angles: bool) -> None:
    call = made(Case(device=device, float_angles=float_angles))
    call.qkv.mul_(1000)
    check_results(call, call.run())


@pytest.fixture
def unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    """The CPU looks at no values, as the GPU does where checking mode is off."""
    monkeypatch.setitem(checking.CHECKS, "qk_norm_rope_append", lambda op, given: None)


@on_both
@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("depth", [128, 80])
def test_slots_outside_the_cache_are_not_written(device: str, depth: int) -> None:
    call = made(Case(device=device, depth=depth, rotated=depth, tokens=6))
    slots = call.slot_lines(call.caches[0]).shape[0]
    call.slots.copy_(torch.tensor([slots, 2**40, -1, -(2**40), slots - 1, 2**32]))
    check_results(call, call.run())


@on_both
def test_no_slot_inside_writes_nothing(device: str) -> None:
    call = made(Case(device=device))
    call.slots.fill_(-1)
    check_results(call, call.run())


@on_both
@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("table_rows", [KNOWN_POSITIONS, 0])
def test_positions_outside_the_table_give_nan_where_rotated(device: str, table_rows: int) -> None:
    call = made(Case(device=device, rotated=64, tokens=4))
    call.angles = call.angles[:table_rows]
    call.positions.copy_(torch.tensor([KNOWN_POSITIONS, 2**40, -1, -(2**40)]))
    q = call.run()
    assert q[..., :64].isnan().all()
    assert not q[..., 64:].isnan().any()


@on_both
def test_indices_and_rows_of_qkv_may_be_strided(device: str) -> None:
    call = made(Case(device=device))
    call.slots = torch.stack([call.slots, call.slots * 0], 1)[:, 0]
    call.positions = torch.stack([call.positions, call.positions * 0], 1)[:, 0]
    check_results(call, call.run())
    apart = torch.empty(call.case.tokens, call.qkv.shape[1] + 1, dtype=call.qkv.dtype)
    call.qkv = apart.to(device)[:, 1:].copy_(call.qkv)
    check_results(call, call.run())


@pytest.mark.gpu
def test_many_tokens_work() -> None:
    """More than a second dim of a grid could count."""
    check(Case(device="cuda", depth=64, rotated=64, tokens=70_000, heads=(1, 1)))


@pytest.mark.gpu
def test_a_replayed_graph_sees_new_values(captured) -> None:
    call = made(Case(device="cuda", tokens=20))
    made_in_it: list[Tensor] = []
    graph = captured(lambda: made_in_it.append(call.run()))
    other = made(Case(device="cuda", tokens=20, seed=1))
    for name in ("qkv", "slots", "positions"):
        getattr(call, name).copy_(getattr(other, name))
    for cache, before in zip(call.caches, call.before, strict=True):
        cache.copy_(before)
    graph.replay()
    check_results(call, made_in_it[-1])


SMALL = Case(depth=16, rotated=16, heads=(4, 2), tokens=5, page_size=8)


def test_no_tokens_are_fine() -> None:
    assert made(replace(SMALL, tokens=0)).run().shape == (0, 4, 16)


def test_feeds_gqa() -> None:
    """One sequence of five tokens, written and then attended to."""
    call = made(SMALL)
    call.slots = torch.arange(5)
    q, (k, v) = call.run(), call.caches
    y = gqa(q[None], k, v, torch.zeros(1, 1).int(), torch.tensor([5]).int())
    assert torch.equal(y, gqa(q[None], k[:1, :5], v[:1, :5], causal=True))


@on_both
@pytest.mark.parametrize("depth", DEPTHS)
@pytest.mark.parametrize("rope", ["neox", "interleaved"])
def test_rope_append_is_the_op_without_norms(depth: int, rope: str, device: str) -> None:
    case = Case(depth=depth, rotated=depth - depth % 32, rope=rope, device=device)
    call = made(case)
    lines = call.qkv.view(case.tokens, -1, depth)
    queries, keys, values = lines.split([case.heads[0], case.heads[1], case.heads[1]], 1)
    caches = call.caches
    slots = call.slots
    heads = {"num_heads": case.heads[0], "num_kv_heads": case.heads[1]}
    q = rope_append(call.qkv, call.angles, call.positions, *caches, slots, **heads, rope=rope)
    kept = slots >= 0
    k_lines, v_lines = (call.slot_lines(cache)[slots[kept]] for cache in caches)
    close = {"rtol": CLOSE[case.dtype], "atol": CLOSE[case.dtype]}
    assert torch.allclose(q.double(), turned(call, queries), **close)
    assert torch.allclose(k_lines.double(), turned(call, keys)[kept], **close)
    assert torch.equal(v_lines, values[kept])


def test_a_norm_without_weights_is_refused() -> None:
    with pytest.raises(RuntimeError, match="q_weight is None; a tensor works, or norm 'none'"):
        made(Case()).run(q_weight=None)


def test_weights_without_a_norm_are_refused() -> None:
    with pytest.raises(RuntimeError, match="norm 'none' takes no q_weight; 'rms' does"):
        made(Case()).run(norm="none")
