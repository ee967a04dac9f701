"""The kernel behind qk_norm_rope_append on a GPU, against the same program in float64."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace

import pytest
import torch
from torch import Tensor

from mirage_kernels import qk_norm_rope_append

pytestmark = pytest.mark.gpu

DEPTHS = [64, 96, 128, 192, 256]
DTYPES = [torch.float16, torch.bfloat16]
CLOSE = {torch.float16: 2**-10, torch.bfloat16: 2**-7}  # a rounding, and a bit
KNOWN_POSITIONS = 50


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

    def run(self) -> Tensor:
        case = self.case
        weights = dict(self.weights)
        return qk_norm_rope_append(
            *(self.qkv, weights.pop("q_weight"), weights.pop("k_weight"), self.angles),
            *(self.positions, *self.caches, self.slots),
            num_heads=case.heads[0],
            num_kv_heads=case.heads[1],
            eps=1e-5,
            weight_offset=case.weight_offset,
            norm=case.norm,
            rope=case.rope,
            kv_layout=case.layout,
            **weights,
        )

    def slot_lines(self, cache: Tensor) -> Tensor:
        """View a cache as lines by slot, `[slots, Hkv, D]`, copied."""
        pages = cache if self.case.layout == "NHD" else cache.transpose(1, 2)
        return pages.flatten(0, 1)


def made(case: Case) -> Call:
    """Draw the tensors of a call: a third of its tokens is not written."""
    draw = torch.Generator("cuda").manual_seed(case.seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=draw, device="cuda").to(case.dtype)

    hq, hkv = case.heads
    width = (hq + 2 * hkv) * case.depth
    qkv = normal(case.tokens, width + 64 * case.strided)[:, :width]
    names = ["weight", "bias"] if case.norm == "layer" else ["weight"]
    weights = {
        f"{kind}_{name}": normal(*([heads] * case.by_head), case.depth) / 4 + (name == "weight")
        for kind, heads in (("q", hq), ("k", hkv))
        for name in names
    }
    phases = torch.rand(KNOWN_POSITIONS, case.rotated // 2, generator=draw, device="cuda") * 6.3
    angles = torch.cat([phases.cos(), phases.sin()], 1)
    pages = 2 * case.tokens // case.page_size + 2
    slots = torch.randperm(pages * case.page_size, generator=draw, device="cuda")[: case.tokens]
    slots[::3] = -1
    positions = torch.randint(
        KNOWN_POSITIONS, (case.tokens,), generator=draw, device="cuda", dtype=case.indices
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
        return [torch.full(shape, torch.nan, dtype=case.dtype, device="cuda") for _ in range(2)]
    both = torch.full([*shape[:3], 2 * shape[3]], torch.nan, dtype=case.dtype, device="cuda")
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
    others = torch.ones(k.shape[0], dtype=torch.bool, device="cuda")
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
@pytest.mark.parametrize("depth", DEPTHS)
def test_is_close_to_float64_and_writes_only_its_slots(
    depth: int, dtype: torch.dtype, norm: str, rope: str
) -> None:
    for seed in range(6):
        check(replace(some_case(depth, seed), dtype=dtype, norm=norm, rope=rope))


@pytest.mark.parametrize("rotated", [0, 8, 24, 40, 64, 120, 128])
@pytest.mark.parametrize("rope", ["neox", "interleaved"])
def test_any_even_part_may_be_rotated(rope: str, rotated: int) -> None:
    """Those of parts of octets run PyTorch's program."""
    check(Case(rope=rope, rotated=rotated))


@pytest.mark.parametrize("depth", [32, 80])
def test_other_head_sizes_are_computed_too(depth: int) -> None:
    check(Case(depth=depth, rotated=depth))


@pytest.mark.parametrize("rope", ["neox", "interleaved"])
@pytest.mark.parametrize("depth", DEPTHS)
def test_a_call_is_one_kernel(depth: int, rope: str) -> None:
    (name,) = kernels_of(made(Case(depth=depth, rotated=depth, rope=rope)))
    assert "append" in name


@pytest.mark.parametrize("float_angles", [True, False])
def test_large_values_neither_overflow_nor_vanish(float_angles: bool) -> None:
    call = made(Case(float_angles=float_angles))
    call.qkv.mul_(1000)
    check_results(call, call.run())


@pytest.mark.parametrize("depth", [128, 80])
def test_slots_outside_the_cache_are_not_written(depth: int) -> None:
    call = made(Case(depth=depth, rotated=depth, tokens=6))
    slots = call.slot_lines(call.caches[0]).shape[0]
    call.slots.copy_(torch.tensor([slots, 2**40, -1, -(2**40), slots - 1, 2**32]))
    check_results(call, call.run())


def test_no_slot_inside_writes_nothing() -> None:
    call = made(Case())
    call.slots.fill_(-1)
    check_results(call, call.run())


def test_positions_outside_the_table_give_nan_where_rotated() -> None:
    call = made(Case(rotated=64, tokens=3))
    call.positions.copy_(torch.tensor([KNOWN_POSITIONS, 2**40, -1]))
    q = call.run()
    assert q[..., :64].isnan().all()
    assert not q[..., 64:].isnan().any()


def test_every_other_element_of_indices_works() -> None:
    call = made(Case())
    call.slots = torch.stack([call.slots, call.slots * 0], 1)[:, 0]
    call.positions = torch.stack([call.positions, call.positions * 0], 1)[:, 0]
    check_results(call, call.run())


def test_misaligned_rows_of_qkv_are_computed_too() -> None:
    call = made(Case())
    width = call.qkv.shape[1]
    apart = torch.empty(call.case.tokens, width + 1, dtype=call.qkv.dtype, device="cuda")
    call.qkv = apart[:, 1:].copy_(call.qkv)
    check_results(call, call.run())


def test_many_tokens_work() -> None:
    """More than a second dim of a grid could count."""
    check(Case(depth=64, rotated=64, tokens=70_000, heads=(1, 1)))


def test_a_replayed_graph_sees_new_values() -> None:
    call = made(Case(tokens=20))
    call.run()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        q = call.run()
    other = made(Case(tokens=20, seed=1))
    call.qkv.copy_(other.qkv)
    call.slots.copy_(other.slots)
    call.positions.copy_(other.positions)
    for cache, before in zip(call.caches, call.before, strict=True):
        cache.copy_(before)
    graph.replay()
    check_results(call, q)
