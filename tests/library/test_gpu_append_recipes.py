"""On a GPU: kernels of the recipes that norm, rotate and append, against float64."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from append_cases import KNOWN_POSITIONS, Call, Case, assert_close, bits, exact, made, turned
from compilers import nvcc
from torch import Tensor

import mirage_kernels

pytestmark = pytest.mark.gpu

PLAIN, STATIC, NORMED = (f"{x}rope_cache_write" for x in ("", "static_", "rms_norm_"))
DEPTHS = {PLAIN: (128, 256), STATIC: (64, 128), NORMED: (128, 256)}  # that they have shapes for
TYPES = [torch.float16, torch.bfloat16]
forms = pytest.mark.parametrize("form", DEPTHS)


@pytest.fixture(scope="module", autouse=True)
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All recipes, generated and compiled in both types."""
    from mirage_kernels.generator.cli import main

    nvcc()
    folder = tmp_path_factory.mktemp("made")
    for name in (f"{form}{more}" for form in DEPTHS for more in ("", "_fp32")):
        words = ["generate", name, "--dtype", "bf16", "--dtype", "fp16", "--jobs", "1"]
        assert main([*words, "--out", f"{folder}/out", "--store", f"{folder}/s"]) == 0
    assert main(["compile", f"{folder}/out"]) == 0
    mirage_kernels.load(folder / "out")
    return folder


def split(x: Tensor, rotated: int, rope: str) -> list[Tensor]:
    """Return views of what rotates with each other, and of the rest."""
    first, rest = x.tensor_split([rotated], -1)
    pairs = first.chunk(2, -1) if rope == "neox" else (first[..., ::2], first[..., 1::2])
    return [*pairs, rest]


def run(form: str, call: Call) -> Tensor:
    """Call the recipe's kernel with views of a call's tensors; return the queries."""
    case, normed = call.case, form == NORMED
    (hq, hkv), by = case.heads, (case.rotated, case.rope)
    q, k, v = call.qkv.unflatten(1, (-1, case.depth)).split([hq, hkv, hkv], 1)
    k_cache, v_cache = (x if case.layout == "NHD" else x.transpose(1, 2) for x in call.caches)
    out = torch.full((case.tokens, hq, case.depth), torch.nan, dtype=case.dtype, device="cuda")
    cos, sin = call.angles.chunk(2, -1)
    named: dict[str, Tensor | float] = {"v": v, "cos": cos, "sin": sin}
    named |= {"positions": call.positions, "slots": call.slots}
    into: list[Tensor] = []
    for name, x, to in (("q", q, out), ("k", k, k_cache)):
        parts = ("first", "second", *(["rest"] if form == PLAIN else []))
        named |= dict(zip((f"{name}_{p}" for p in parts), split(x, *by), strict=False))
        into += split(to, *by)[: len(parts)]
        if normed:
            halves = split(call.weights[f"{name}_weight"], *by)
            named |= {f"{name}_first_weight": halves[0], f"{name}_second_weight": halves[1]}
    if normed:
        named |= {"eps": 1e-5, "weight_offset": case.weight_offset}
    name = form + "_fp32" * case.float_angles
    mirage_kernels.program(name)(**named, into=[*into, v_cache])
    return out


def check(form: str, call: Call) -> None:
    """Compare queries and caches with float64: what has no slot stays, bit for bit."""
    q, (hq, hkv), lines = (
        run(form, call),
        call.case.heads,
        call.qkv.unflatten(1, (-1, call.case.depth)),
    )
    queries, keys, values = lines.split([hq, hkv, hkv], 1)
    if call.case.norm == "rms":
        wanted = exact(call, "q", queries), exact(call, "k", keys)
    else:
        wanted = turned(call, queries), turned(call, keys)
    k, v = (call.slot_lines(cache) for cache in call.caches)
    written = (call.slots >= 0) & (call.slots < k.shape[0])
    places = call.slots[written].long()
    assert_close(q, wanted[0])
    assert_close(k[places], wanted[1][written])
    assert torch.equal(bits(v[places]), bits(values[written]))
    others = torch.ones(k.shape[0], dtype=torch.bool, device=k.device)
    others[places] = False
    for now, before in zip((k, v), call.before, strict=True):
        assert torch.equal(bits(now[others]), bits(call.slot_lines(before)[others]))


def case_of(form: str, depth: int = 128, **more: object) -> Case:
    norm = "rms" if form == NORMED else "none"
    return replace(Case(device="cuda", depth=depth, rotated=depth, norm=norm), **more)


@pytest.mark.parametrize("rope", ["neox", "interleaved"])
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(("form", "depth"), [(f, d) for f, own in DEPTHS.items() for d in own])
def test_is_close_to_float64_and_writes_only_its_slots(
    form: str, depth: int, dtype: torch.dtype, rope: str
) -> None:
    for seed in range(6):
        draw = random.Random(f"{depth} {seed}")
        check(
            form,
            made(
                case_of(
                    form,
                    depth,
                    dtype=dtype,
                    rope=rope,
                    heads=draw.choice([(8, 2), (32, 8), (5, 1), (7, 7), (1, 3)]),
                    tokens=draw.choice([1, 3, 8, 64, 300]),
                    page_size=draw.choice([1, 16, 24, 256]),
                    layout=draw.choice(["NHD", "HND"]),
                    halves=draw.random() < 0.4,
                    strided=draw.random() < 0.4,
                    float_angles=draw.random() < 0.6,
                    indices=draw.choice([torch.int32, torch.int64]),
                    weight_offset=draw.choice([0.0, 1.0]),
                    seed=seed,
                )
            ),
        )


@pytest.mark.parametrize("rotated", [0, 8, 64, 120])
def test_without_norms_a_part_may_be_rotated(rotated: int) -> None:
    check(PLAIN, made(case_of(PLAIN, rotated=rotated)))


def test_large_values_neither_overflow_nor_vanish() -> None:
    call = made(case_of(NORMED))
    call.qkv.mul_(1000)
    check(NORMED, call)


@forms
def test_slots_outside_the_cache_are_not_written(form: str) -> None:
    call = made(case_of(form, tokens=6))
    slots = call.slot_lines(call.caches[0]).shape[0]
    call.slots.copy_(torch.tensor([slots, 2**40, -1, -(2**40), slots - 1, 2**32]))
    check(form, call)


@forms
def test_positions_outside_the_table_give_nan(form: str) -> None:
    call = made(case_of(form, tokens=4))
    call.positions.copy_(torch.tensor([KNOWN_POSITIONS, 2**40, -1, -(2**40)]))
    assert run(form, call).isnan().all()


@forms
def test_indices_and_rows_of_qkv_may_be_strided(form: str) -> None:
    call = made(case_of(form))
    call.slots = torch.stack([call.slots, call.slots * 0], 1)[:, 0]
    call.positions = torch.stack([call.positions, call.positions * 0], 1)[:, 0]
    apart = torch.empty(call.case.tokens, call.qkv.shape[1] + 1, dtype=call.qkv.dtype)
    call.qkv = apart.to("cuda")[:, 1:].copy_(call.qkv)
    check(form, call)


@forms
def test_many_tokens_work(form: str) -> None:
    check(form, made(case_of(form, tokens=70_000, heads=(1, 1))))


@forms
def test_a_call_is_one_kernel(form: str) -> None:
    call = made(case_of(form))
    run(form, call)
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as seen:
        run(form, call)
        torch.cuda.synchronize()
    names = [e.name for e in seen.events() if e.device_type.name == "CUDA"]
    assert sum("rope_cache_write" in name for name in names) == 1
