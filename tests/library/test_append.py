"""Norm, rotation and the write to the cache, on the CPU and on a GPU, against float64."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace

import pytest
import torch
from torch import Tensor

from mirage_kernels import checking, gqa, qk_norm_rope_append

DEPTHS = [64, 96, 128, 192, 256]
DTYPES = [torch.float16, torch.bfloat16]
CLOSE = {torch.float16: 2**-10, torch.bfloat16: 2**-7}  # a rounding, and a bit
KNOWN_POSITIONS = 50
GPU = pytest.param("cuda", marks=pytest.mark.gpu)
on_both = pytest.mark.parametrize("device", ["cpu", GPU])


@dataclass(frozen=True)
class Case:
    """One call, and how its tensors lie."""

    depth: int = 128
    dtype: torch.dtype = torch.float16
    norm: str = "rms"
    rope: str = "neox"
    rotated: int = 128
    heads: tuple[int, int] = (8, 2)  # of q, and of k and v
    tokens: int = 9
    page_size: int = 16
    layout: str = "NHD"
    halves: bool = False  # the caches are halves of one tensor
    strided: bool = False  # qkv has columns to skip
    by_head: bool = False  # weights [heads, D]
    float_angles: bool = True
    indices: torch.dtype = torch.int64
    weight_offset: float = 0.0
    seed: int = 0
    device: str = "cpu"


@dataclass
class Call:
    """Its tensors: caches are full of bits that no line has."""

    case: Case
    qkv: Tensor
    weights: dict[str, Tensor]
    angles: Tensor
    positions: Tensor
    slots: Tensor
    caches: list[Tensor]  # as the layout has them
    before: list[Tensor] = field(init=False)

    def __post_init__(self) -> None:
        self.before = [cache.clone() for cache in self.caches]

    def run(self, **changes: object) -> Tensor:
        case = self.case
        given: dict[str, object] = {
            **{"qkv": self.qkv, **self.weights, "cos_sin_cache": self.angles},
            **{"positions": self.positions, "slot_mapping": self.slots},
            **{"k_cache": self.caches[0], "v_cache": self.caches[1]},
            **{"num_heads": case.heads[0], "num_kv_heads": case.heads[1], "eps": 1e-5},
            **{"weight_offset": case.weight_offset, "norm": case.norm, "rope": case.rope},
            "kv_layout": case.layout,
        }
        return qk_norm_rope_append(**given | changes)  # type: ignore[arg-type]

    def slot_lines(self, cache: Tensor) -> Tensor:
        """View a cache as lines by slot, `[slots, Hkv, D]`, copied."""
        pages = cache if self.case.layout == "NHD" else cache.transpose(1, 2)
        return pages.flatten(0, 1)


def made(case: Case) -> Call:
    """Draw the tensors of a call: a third of its tokens is not written."""
    draw = torch.Generator(case.device).manual_seed(case.seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=draw, device=case.device).to(case.dtype)

    hq, hkv = case.heads
    width = (hq + 2 * hkv) * case.depth
    qkv = normal(case.tokens, width + 64 * case.strided)[:, :width]
    names = ["weight", "bias"] if case.norm == "layer" else ["weight"]
    weights = {
        f"{kind}_{name}": normal(*([heads] * case.by_head), case.depth) / 4 + (name == "weight")
        for kind, heads in (("q", hq), ("k", hkv))
        for name in names
    }
    phases = (
        torch.rand(KNOWN_POSITIONS, case.rotated // 2, generator=draw, device=case.device) * 6.3
    )
    angles = torch.cat([phases.cos(), phases.sin()], 1)
    pages = 2 * case.tokens // case.page_size + 2
    slots = torch.randperm(pages * case.page_size, generator=draw, device=case.device)[
        : case.tokens
    ]
    slots[::3] = -1
    positions = torch.randint(
        KNOWN_POSITIONS, (case.tokens,), generator=draw, device=case.device, dtype=case.indices
    )
    return Call(
        case,
        qkv,
        weights,
        angles if case.float_angles else angles.to(case.dtype),
        positions,
        slots.to(case.indices),
        poisoned_caches(case, pages),
    )


def poisoned_caches(case: Case, pages: int) -> list[Tensor]:
    """Return caches of NaN: what is not written stays that, bit for bit."""
    shape = [pages, case.page_size, case.heads[1], case.depth]
    if case.layout == "HND":
        shape[1:3] = shape[2:0:-1]
    if not case.halves:
        return [
            torch.full(shape, torch.nan, dtype=case.dtype, device=case.device) for _ in range(2)
        ]
    both = torch.full([*shape[:3], 2 * shape[3]], torch.nan, dtype=case.dtype, device=case.device)
    return list(both.chunk(2, -1))


def exact(call: Call, kind: str, lines: Tensor) -> Tensor:
    """Norm and rotate lines `[tokens, heads, D]` in float64."""
    case, x = call.case, lines.double()
    if case.norm == "layer":
        x = x - x.mean(-1, keepdim=True)
    x = x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt()
    x = x * (call.weights[f"{kind}_weight"].double() + case.weight_offset)
    if case.norm == "layer":
        x = x + call.weights[f"{kind}_bias"].double()
    turned, rest = x.tensor_split([case.rotated], -1)
    cos, sin = call.angles[call.positions.long()].double()[:, None].chunk(2, -1)
    if case.rope == "neox":
        a, b = turned.chunk(2, -1)
        return torch.cat([a * cos - b * sin, b * cos + a * sin, rest], -1)
    a, b = turned[..., ::2], turned[..., 1::2]
    turned = torch.stack([a * cos - b * sin, b * cos + a * sin], -1).flatten(-2)
    return torch.cat([turned, rest], -1)


def bits(tensor: Tensor) -> Tensor:
    return tensor.contiguous().view(torch.int16)


def assert_close(found: Tensor, expected: Tensor) -> None:
    close = CLOSE[found.dtype]
    torch.testing.assert_close(found.double(), expected, rtol=close, atol=1e-5)


def check(case: Case) -> None:
    call = made(case)
    check_results(call, call.run())


def check_results(call: Call, q: Tensor) -> None:
    hq, hkv = call.case.heads
    lines = call.qkv.view(call.case.tokens, -1, call.case.depth)
    queries, keys, values = lines.tensor_split([hq, hq + hkv], 1)
    assert_close(q, exact(call, "q", queries))
    k, v = (call.slot_lines(cache) for cache in call.caches)
    written = (call.slots >= 0) & (call.slots < k.shape[0])
    places = call.slots[written].long()
    assert_close(k[places], exact(call, "k", keys)[written])
    assert torch.equal(bits(v[places]), bits(values[written]))
    others = torch.ones(k.shape[0], dtype=torch.bool, device=k.device)
    others[places] = False
    for lines_now, before in zip((k, v), call.before, strict=True):
        assert torch.equal(bits(lines_now[others]), bits(call.slot_lines(before)[others]))


def some_case(depth: int, seed: int) -> Case:
    """Draw how the tensors of a call lie."""
    draw = random.Random(f"{depth} {seed}")
    return Case(
        depth=depth,
        rotated=draw.choice([depth, depth // 2, 16]),
        heads=draw.choice([(8, 2), (32, 8), (5, 1), (7, 7), (1, 3)]),
        tokens=draw.choice([1, 3, 8, 64, 300]),
        page_size=draw.choice([1, 16, 16, 24, 256]),
        layout=draw.choice(["NHD", "HND"]),
        halves=draw.random() < 0.4,
        strided=draw.random() < 0.4,
        by_head=draw.random() < 0.3,
        float_angles=draw.random() < 0.6,
        indices=draw.choice([torch.int32, torch.int64]),
        weight_offset=draw.choice([0.0, 1.0]),
        seed=seed,
    )


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
