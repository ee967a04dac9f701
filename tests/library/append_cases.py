"""Calls of qk_norm_rope_append at random, and what they compute in float64."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import torch
from torch import Tensor

from mirage_kernels import qk_norm_rope_append

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
    return turned(call, x)


def turned(call: Call, lines: Tensor) -> Tensor:
    """Rotate lines `[tokens, heads, D]` in float64."""
    case, x = call.case, lines.double()
    rotated, rest = x.tensor_split([case.rotated], -1)
    cos, sin = call.angles[call.positions.long()].double()[:, None].chunk(2, -1)
    if case.rope == "neox":
        a, b = rotated.chunk(2, -1)
        return torch.cat([a * cos - b * sin, b * cos + a * sin, rest], -1)
    a, b = rotated[..., ::2], rotated[..., 1::2]
    rotated = torch.stack([a * cos - b * sin, b * cos + a * sin], -1).flatten(-2)
    return torch.cat([rotated, rest], -1)


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
