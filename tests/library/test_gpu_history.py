"""What attention reads before the kernel in front of it has ended, on a GPU.

Lengths, page tables and keys are written by an op of the library that lets the next one start
early: attention over a single key copies its value, bit for bit. So the next call sees old numbers
first.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from mirage_kernels import constant_history, gqa, kernel_table, qk_norm_rope_append

pytestmark = pytest.mark.gpu
HEADS, KV_HEADS, DEPTH, PAGE, PLACES = 8, 2, 128, 16, 20
ROUNDS = 60
NUMBERS = 64 * DEPTH // 2  # int32 in 64 lines of an attention result


@pytest.fixture(autouse=True)
def nothing_promised() -> Iterator[None]:
    if not any(entry.recipe == "gqa" for entry in kernel_table()):
        pytest.skip("this build has no kernel of gqa")
    yield
    constant_history(False)


def number(value: object) -> Tensor:
    return torch.tensor(value, dtype=torch.int32, device="cuda")


@dataclass
class Board:
    """Numbers that a kernel of the library writes, which lets the next one start meanwhile."""

    choices: list[Tensor]  # int32 [NUMBERS] each

    def __post_init__(self) -> None:
        self.at = torch.zeros(1, 64, DEPTH, dtype=torch.float16, device="cuda")
        self.lines = [c.view(torch.float16).view(1, 1, 64, DEPTH) for c in self.choices]
        self.q = torch.zeros_like(self.at)
        self.zero, self.one = number([[0]]), number([1])

    @property
    def numbers(self) -> Tensor:
        return self.at.view(torch.int32).view(-1)

    def write(self, choice: int) -> None:
        lines = self.lines[choice]
        gqa(self.q, lines, lines, self.zero, self.one, out=self.at, max_seq_len=1)


def test_a_board_is_written_bit_for_bit() -> None:
    numbers = torch.arange(NUMBERS, dtype=torch.int32, device="cuda") % 500
    board = Board([numbers])
    board.write(0)
    assert torch.equal(board.numbers, numbers)


@pytest.mark.parametrize("batch", [1, 5, 32, 40, 130, 200])
def test_lengths_and_pages_written_just_before_are_read(batch: int) -> None:
    draw = torch.Generator("cuda").manual_seed(batch)
    pages = batch * PLACES
    shape = (pages, PAGE, KV_HEADS, DEPTH)
    k, v = (torch.randn(shape, generator=draw, device="cuda").half() for _ in range(2))
    q = torch.randn((batch, HEADS, DEPTH), generator=draw, device="cuda").half()
    lengths = [
        torch.randint(0, PLACES * PAGE + 1, (batch,), generator=draw, device="cuda").int()
        for _ in range(3)
    ]
    tables = [
        torch.randperm(pages, generator=draw, device="cuda").int().view(batch, PLACES)
        for _ in range(3)
    ]
    most = PLACES * PAGE
    wanted = [gqa(q, k, v, t, n, max_seq_len=most) for t, n in zip(tables, lengths, strict=True)]
    padding = NUMBERS - batch
    boards = Board([torch.cat([n, n.new_zeros(padding)]) for n in lengths])
    table_fits = batch * PLACES <= NUMBERS
    paged = Board([torch.cat([t.view(-1), t.new_zeros(NUMBERS)])[:NUMBERS] for t in tables])
    results = torch.empty(ROUNDS, *q.shape, dtype=q.dtype, device="cuda")
    for i in range(ROUNDS):
        table = tables[i % 3]
        if table_fits:
            paged.write(i % 3)
            table = paged.numbers[: batch * PLACES].view(batch, PLACES)
        boards.write(i % 3)
        gqa(q, k, v, table, boards.numbers[:batch], max_seq_len=most, out=results[i])
    for i in range(ROUNDS):
        assert torch.equal(results[i], wanted[i % 3]), i


@pytest.mark.parametrize("batch", [1, 4, 40])
@pytest.mark.parametrize("promised", [False, True])
def test_the_token_that_was_just_appended_is_seen(batch: int, promised: bool) -> None:
    draw = torch.Generator("cuda").manual_seed(batch)
    shape = (batch * PLACES, PAGE, KV_HEADS, DEPTH)
    before = [torch.randn(shape, generator=draw, device="cuda").half() for _ in range(2)]
    table = torch.randperm(batch * PLACES, generator=draw, device="cuda").int().view(batch, PLACES)
    width = (HEADS + 2 * KV_HEADS) * DEPTH
    weights = [torch.ones(DEPTH, dtype=torch.float16, device="cuda") for _ in range(2)]
    angles = torch.randn((PLACES * PAGE, DEPTH), generator=draw, device="cuda")
    steps = [
        torch.randn((batch, width), generator=draw, device="cuda").half() for _ in range(ROUNDS)
    ]

    def run(apart: bool) -> Tensor:
        caches = [c.clone() for c in before]
        results = torch.empty(ROUNDS, batch, HEADS, DEPTH, dtype=torch.float16, device="cuda")
        lengths = [number([100 + i] * batch) for i in range(ROUNDS)]
        places = [n.long() - 1 for n in lengths]
        rows = torch.arange(batch, device="cuda")
        slots = [table[rows, p // PAGE].long() * PAGE + p % PAGE for p in places]
        torch.cuda.synchronize()
        for i, qkv in enumerate(steps):
            given = (qkv, *weights, angles, places[i], *caches, slots[i])
            q = qk_norm_rope_append(*given, num_heads=HEADS, num_kv_heads=KV_HEADS)
            if apart:
                torch.cuda.synchronize()
            q, most = q.view(batch, HEADS, DEPTH), PLACES * PAGE
            gqa(q, *caches, table, lengths[i], max_seq_len=most, out=results[i])
            if apart:
                torch.cuda.synchronize()
        return results

    wanted = run(apart=True)
    constant_history(promised)
    assert torch.equal(run(apart=False), wanted)


def test_positions_and_slots_written_just_before_are_read() -> None:
    draw = torch.Generator("cuda").manual_seed(0)
    width, shape = (HEADS + 2 * KV_HEADS) * DEPTH, (PLACES, PAGE, KV_HEADS, DEPTH)
    qkv = torch.randn((8, width), generator=draw, device="cuda").half()
    weights = [torch.ones(DEPTH, dtype=torch.float16, device="cuda") for _ in range(2)]
    angles = torch.randn((NUMBERS, DEPTH), generator=draw, device="cuda")
    places = [torch.randperm(PLACES * PAGE, generator=draw, device="cuda").int() for _ in range(3)]

    def step(numbers: Tensor, caches: list[Tensor]) -> Tensor:
        given = (qkv, *weights, angles, numbers[:8], *caches, numbers[:8])
        return qk_norm_rope_append(*given, num_heads=HEADS, num_kv_heads=KV_HEADS)

    def empty() -> list[list[Tensor]]:
        return [[torch.zeros(shape, device="cuda").half() for _ in "kv"] for _ in places]

    wanted, made = empty(), empty()
    queries = [step(n, caches) for n, caches in zip(places, wanted, strict=True)]
    boards = Board([torch.cat([n, n.new_zeros(NUMBERS)])[:NUMBERS] for n in places])
    torch.cuda.synchronize()
    for i in range(ROUNDS):
        boards.write(i % 3)
        assert torch.equal(step(boards.numbers, made[i % 3]), queries[i % 3]), i
    for some, others in zip(made, wanted, strict=True):
        assert all(map(torch.equal, some, others))


BROKEN = """
import torch
from mirage_kernels import constant_history, gqa

B, PAGES, PAGE, HEADS, DEPTH = 3, 600, 16, 8, 128
shape = (PAGES, PAGE, 2, DEPTH)
k, v = (torch.randn(shape, device="cuda").half() for _ in range(2))
q = torch.randn(B, HEADS, DEPTH, device="cuda").half()
table = torch.arange(PAGES, device="cuda").int().view(B, -1)
choices = [torch.tensor(n, device="cuda").int() for n in ([3200, 1, 1], [1, 3200, 7], [64] * B)]
written = torch.zeros(1, 1, 64, DEPTH, device="cuda").half()
lines = [torch.zeros_like(written) for _ in choices]
for line, choice in zip(lines, choices):
    line.view(torch.int32).view(-1)[:B] = choice
one, zero = torch.tensor([1], device="cuda").int(), torch.tensor([[0]], device="cuda").int()
lens = written.view(torch.int32).view(-1)[:B]
constant_history()
try:
    for i in range(20000):
        gqa(written[0] * 0, lines[i % 3], lines[i % 3], zero, one, out=written[0], max_seq_len=1)
        gqa(q, k, v, table, lens, max_seq_len=3200)
    torch.cuda.synchronize()
except RuntimeError as error:
    assert "launch failure" in str(error), error
print("ended")
"""


def test_a_broken_promise_ends_all_the_same() -> None:
    """In a process of its own: a launch that fails leaves no GPU to it."""
    ran = subprocess.run(
        [sys.executable, "-c", BROKEN], capture_output=True, text=True, timeout=300, check=False
    )
    assert ran.stdout.strip().endswith("ended"), ran.stderr
