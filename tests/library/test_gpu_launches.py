"""On a GPU: one launch rotates queries and keys, and appends keys and values to caches."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from compilers import nvcc
from torch import Tensor

import mirage_kernels
from mirage_kernels.program_documents import kernels_of
from mirage_kernels.program_steps import SteppedProgram

pytestmark = pytest.mark.gpu

HEADS, KV_HEADS, DIM, POSITIONS, SLOTS = 8, 2, 64, 100, 300
FUNCTION = f"""
import torch


def rotated(x, cos, sin):
    half = x.shape[-1] // 2
    return x * cos + torch.cat((-x[..., half:], x[..., :half]), -1) * sin


def rope_append(q, k, v, cos, sin, positions, keys, values, slots):
    at = [t[positions].unsqueeze(1) for t in (cos, sin)]
    keys[slots] = rotated(k.view(-1, {KV_HEADS}, {DIM}), *at)
    values[slots] = v.view(-1, {KV_HEADS}, {DIM})
    return rotated(q.view(-1, {HEADS}, {DIM}), *at)


def example_inputs():
    tables = {{n: torch.empty({POSITIONS}, {DIM}) for n in ("cos", "sin")}}
    caches = {{n: torch.empty({SLOTS}, {KV_HEADS}, {DIM}) for n in ("keys", "values")}}
    rows = {{"q": {HEADS * DIM}, "k": {KV_HEADS * DIM}, "v": {KV_HEADS * DIM}}}
    whole = {{n: torch.empty(8, dtype=torch.int64) for n in ("positions", "slots")}}
    return tables | caches | {{n: torch.empty(8, c) for n, c in rows.items()}} | whole


dynamic = {{n: {{0: "M"}} for n in ("q", "k", "v", "positions", "slots")}}
"""
TYPES = {torch.bfloat16: 8e-3, torch.float16: 1e-3}


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> SteppedProgram:
    """The function's program, generated and compiled in both types."""
    from mirage_kernels.generator.cli import main

    nvcc()
    folder = tmp_path_factory.mktemp("made")
    (folder / "mine.py").write_text(FUNCTION)
    words = ["generate", f"{folder}/mine.py:rope_append", "--dtype", "bf16", "--dtype", "fp16"]
    assert main([*words, "--jobs", "1", "--out", f"{folder}/out", "--store", f"{folder}/s"]) == 0
    assert main(["compile", f"{folder}/out"]) == 0
    return loaded(folder / "out")


def loaded(folder: Path) -> SteppedProgram:
    mirage_kernels.load(folder)
    found = mirage_kernels.program("rope_append")
    assert isinstance(found, SteppedProgram)
    assert all(len(kernels_of(document)) == 1 for document in found.documents)
    return found


def inputs(rows: int, dtype: torch.dtype) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(rows)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator).to("cuda", dtype)

    slots = torch.randperm(SLOTS, generator=generator)[:rows]
    slots[1::5] -= SLOTS  # from the last row
    positions = torch.randint(-POSITIONS, POSITIONS, (rows,), generator=generator)
    return {
        "q": normal(rows, HEADS * DIM),
        "k": normal(rows, KV_HEADS * DIM),
        "v": normal(rows, KV_HEADS * DIM),
        "cos": normal(POSITIONS, DIM),
        "sin": normal(POSITIONS, DIM),
        "positions": positions.cuda(),
        "keys": normal(SLOTS, KV_HEADS, DIM),
        "values": normal(SLOTS, KV_HEADS, DIM),
        "slots": slots.cuda(),
    }


def rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    half = DIM // 2
    return x * cos + torch.cat((-x[..., half:], x[..., :half]), -1) * sin


def exact(given: dict[str, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """Queries and both caches in float64; no row is read as zeros, and is not written."""
    t = {n: x.double() if x.is_floating_point() else x for n, x in given.items()}
    positions, slots = t["positions"], t["slots"]
    there = (positions >= -POSITIONS) & (positions < POSITIONS)
    written = (slots >= -SLOTS) & (slots < SLOTS)
    rows = torch.where(there, positions, 0)
    at = [torch.where(there[:, None], t[n][rows], 0.0).unsqueeze(1) for n in ("cos", "sin")]
    keys, values = t["keys"].clone(), t["values"].clone()
    keys[slots[written]] = rotated(t["k"].reshape(-1, KV_HEADS, DIM), *at)[written]
    values[slots[written]] = t["v"].reshape(-1, KV_HEADS, DIM)[written]
    return rotated(t["q"].reshape(-1, HEADS, DIM), *at), keys, values


def require_exact(program: SteppedProgram, given: dict[str, Tensor]) -> None:
    wanted = exact(given)
    found = (program(**given), given["keys"], given["values"])
    torch.cuda.synchronize()
    most = TYPES[given["q"].dtype]
    for mine, theirs in zip(found, wanted, strict=True):
        assert (mine.double() - theirs).norm() <= most * theirs.norm()
    assert torch.equal(found[2].double(), wanted[2])  # values are copied as they are


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("rows", [0, 1, 2, 3, 16, 17, 64, 65, 299])
def test_a_launch_computes_at(program: SteppedProgram, rows: int, dtype: torch.dtype) -> None:
    require_exact(program, inputs(rows, dtype))


@pytest.mark.parametrize("rows", [1, 3, 17, 64])
def test_tensors_may_lie_at_odd_strides(program: SteppedProgram, rows: int) -> None:
    given = inputs(rows, torch.bfloat16)
    for name in ("q", "k", "v", "cos", "keys", "values"):
        x = given[name]
        apart = x.new_zeros(len(x), x[0].numel() + 3)[:, 1:-2].unflatten(1, x.shape[1:])
        given[name] = apart.copy_(x)
    given["slots"] = torch.stack((given["slots"], given["slots"]), 1)[:, 0]
    require_exact(program, given)


@pytest.mark.parametrize("rows", [3, 17, 64])
def test_rows_out_of_range_are_zeros_and_not_written(program: SteppedProgram, rows: int) -> None:
    given = inputs(rows, torch.bfloat16)
    given["slots"][::3] += 2 * SLOTS
    given["slots"][1] = -SLOTS - 1
    given["positions"][::2] = POSITIONS
    require_exact(program, given)


def test_a_launch_is_captured_in_a_graph(program: SteppedProgram) -> None:
    given = inputs(17, torch.bfloat16)
    again = {n: x.clone() for n, x in given.items()}
    program(**{n: x.clone() for n, x in given.items()})
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        made = program(**given)
    graph.replay()
    torch.cuda.synchronize()
    wanted = exact(again)
    assert (made.double() - wanted[0]).norm() <= 8e-3 * wanted[0].norm()
    assert torch.equal(given["values"].double(), wanted[2])
