"""Attention whose blocks split the keys, joined by a second kernel: sources, and on a GPU exact."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest
import torch
from torch import Tensor

import mirage_kernels
from mirage_kernels.generator.cli import main
from mirage_kernels.generator.frontend.from_torch import from_torch
from mirage_kernels.generator.ir import MOST_PARTS, DType
from mirage_kernels.generator.pipeline import Result, generate
from mirage_kernels.generator.records.folder import write
from mirage_kernels.generator.request import Request
from mirage_kernels.generator.schedules.general import form_of

HEADS, DIM = 32, 128
UNIT = 2.0**-8  # of bf16, twice its rounding


def split_keys(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    scores = torch.einsum("hd,hld->hl", q, k) * DIM**-0.5 + bias
    return torch.einsum("hl,hld->hd", torch.softmax(scores, dim=-1), v)


@cache
def made(arch: str = "sm_90a") -> Result:
    shapes = {"q": (HEADS, DIM), "k": (HEADS, 4096, DIM), "v": (HEADS, 4096, DIM)}
    shapes["bias"] = (HEADS, 4096)
    given = {n: torch.empty(s, dtype=torch.bfloat16, device="meta") for n, s in shapes.items()}
    recipe = from_torch(split_keys, given, dynamic={n: {1: "M"} for n in ("k", "v", "bias")})
    request = Request(recipe, recipe.shapes[0], DType.BF16, arch)
    return generate(request, jobs=1, progress=lambda event: None)


def source(result: Result) -> str:
    return next(text for path, text in result.files.items() if path.endswith(".cu"))


@pytest.mark.parametrize("arch", ["sm_90a", "sm_80"])
def test_blocks_store_few_parts_and_a_second_kernel_joins_them(arch: str) -> None:
    """On an architecture without clusters too."""
    text = source(made(arch))
    assert text.count("inline cudaError_t launch_") == 2
    assert "cluster" not in text
    assert re.search(rf"general::split\(M, \d+, \d+, {MOST_PARTS}\)", text)


def test_the_kernel_that_joins_copies_the_parts_before_it_waits_for_any() -> None:
    _, last = source(made()).split("_1_any(const __grid_constant__")
    start = last[: last.index("cp_async_wait")]
    record = made().record
    assert len(record.graph.blocks) == 1  # as it was found: blocks combine in a cluster
    names = {v.name for v in form_of(record.graph, record.variants[-1].knobs).blocks[0].outs}
    assert len(names) == 3
    assert all(f"args.{name.removesuffix('s')}_in" in start for name in names)


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("split_keys")
    write([made()], out)
    assert main(["compile", str(out)]) == 0
    mirage_kernels.load(out)
    return out


def random(*shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(shape, generator=generator).bfloat16().cuda()


def inputs(keys: int) -> tuple[Tensor, ...]:
    return random(HEADS, DIM), *(random(HEADS, keys, DIM) for _ in "kv"), random(HEADS, keys)


def error(*given: Tensor) -> float:
    """The distance from PyTorch's result in float64, relative to that."""
    exact = split_keys(*(tensor.double() for tensor in given))
    found = mirage_kernels.program("split_keys")(*given)
    return float((found.double() - exact).norm() / exact.norm())


@pytest.mark.gpu
@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize(
    "keys", [1, 2, 63, 64, 65, 255, 512, 513, 4096, 4099, 8192, 16_384, 16_385, 40_000]
)
def test_any_number_of_keys_is_split_into_parts(keys: int) -> None:
    """Into more parts the more there are, then into longer ones."""
    assert error(*inputs(keys)) < UNIT


@pytest.mark.gpu
@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("seen", [0, 700, 4095])
def test_parts_that_see_nothing_count_nothing(seen: int) -> None:
    q, k, v, bias = inputs(4096)
    only = torch.full_like(bias, float("-inf"))
    only[:, seen] = bias[:, seen]
    assert error(q, k, v, only) < UNIT


@pytest.mark.gpu
@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("by", [-1000.0, -180.0, 1000.0])
def test_scores_may_all_be_far_from_zero(by: float) -> None:
    q, k, v, bias = inputs(1500)
    assert error(q, k, v, bias.mul(0.25).add(by).bfloat16()) < UNIT


@pytest.mark.gpu
@pytest.mark.usefixtures("compiled")
def test_keys_that_lie_apart_in_memory_are_read_where_they_are() -> None:
    q, _, v, bias = inputs(1031)
    wide = random(HEADS, 1031, 2 * DIM + 1)
    assert error(q, wide[:, :, 1 : DIM + 1], v, bias) < UNIT
    assert error(q, wide[:, :, : 2 * DIM : 2], wide.flip(1)[:, :, DIM : 2 * DIM], bias) < UNIT


@pytest.mark.gpu
@pytest.mark.usefixtures("compiled")
def test_the_same_call_gives_the_same_bits() -> None:
    given, op = inputs(20_000), mirage_kernels.program("split_keys")
    first = op(*given)
    assert all(torch.equal(op(*given), first) for _ in range(20))
