"""Weights that a slow kernel writes right before a program is called are read when they are there.

The kernel that writes them lets the next one start at once, has few blocks, and writes at its end:
where a kernel of the program reads them too soon, it finds those of the call before.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from compilers import programs
from torch import Tensor
from torch.nn import functional

import mirage_kernels
from mirage_kernels.program_library import SteppedProgram

pytestmark = pytest.mark.usefixtures("nothing_loaded")
ROWS, K, N, LONG = 64, 1024, 128, 32768
CALLS = 100
FUNCTIONS = """
import torch
from torch.nn import functional as F
ROWS, K, N, LONG = 64, 1024, 128, 32768
def refilled(v, a, b):
    v.copy_(F.linear(a, b))
    return a[:, :1]
def fast(x, w, v, n):
    return F.rms_norm(F.linear(F.linear(x, w), v), (ROWS,), n, 1e-5)
def general(x, v, n):
    return F.rms_norm(F.linear(torch.softmax(x, -1), v), (ROWS,), n, 1e-5)
shapes = {"v": (ROWS, N), "n": (ROWS,), "a": (ROWS, LONG), "b": (N, LONG), "w": (N, K)}
shapes["x"] = (ROWS, OWN)
def example_inputs(): return {n: torch.empty(shapes[n], device="meta") for n in TAKEN}
"""
TAKEN = {"refilled": "vab", "fast": "xwvn", "general": "xvn"}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Programs that begin with a fast and with a general kernel, and what writes their weights."""
    long = {"fast": "K"}
    functions = [
        (name, FUNCTIONS.replace("TAKEN", repr(taken)).replace("OWN", long.get(name, "N")))
        for name, taken in TAKEN.items()
    ]
    return programs(tmp_path_factory.mktemp("fresh"), functions)


@pytest.mark.parametrize(("name", "count"), [("refilled", 1), ("fast", 3), ("general", 2)])
def test_programs_of_several_kernels_begin_with_one_that_waits_first(
    made: Path, name: str, count: int
) -> None:
    mirage_kernels.load(made)
    program = mirage_kernels.program(name)
    assert isinstance(program, SteppedProgram)
    steps = program.documents[0]["ways"][0]["steps"]
    kernels = [f"sm_90a/{step['kernel']}" for step in steps if "kernel" in step]
    assert len(kernels) >= count
    waiting = [program.waits_first(key) for key in kernels]
    assert waiting == [name != "refilled", *[False] * (len(kernels) - 1)]


def drawn(*shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return (torch.randn(shape, generator=generator) * shape[-1] ** -0.5).bfloat16().cuda()


class Calls:
    """Calls of a program on weights that another one wrote right before, of two kinds in turn."""

    def __init__(self, made: Path, name: str) -> None:
        mirage_kernels.load(made)
        self.refilled, self.program = map(mirage_kernels.program, ("refilled", name))
        self.x, self.w = drawn(ROWS, K if name == "fast" else N), drawn(N, K)
        self.name, self.a, self.b = name, drawn(2, ROWS, LONG) * LONG**0.5, drawn(N, LONG)
        self.v = torch.empty(ROWS, N, device="cuda", dtype=torch.bfloat16)
        self.exact = []
        for i in range(2):
            self.refill(i)
            torch.cuda.synchronize()
            self.exact.append(self.computed())

    def refill(self, i: int) -> None:
        self.refilled(self.v, self.a[i], self.b)

    def run(self) -> Tensor:
        n = self.v.view(-1)[:ROWS]
        given = (self.x, self.w, self.v, n) if self.name == "fast" else (self.x, self.v, n)
        found: Tensor = self.program(*given)
        return found

    def computed(self) -> Tensor:
        x, w, v = (t.double() for t in (self.x, self.w, self.v))
        h = x @ w.T if self.name == "fast" else torch.softmax(x, -1)
        return functional.rms_norm(h @ v.T, (ROWS,), v.view(-1)[:ROWS], 1e-5)

    def require(self, found: Tensor, i: int) -> None:
        wanted = self.exact[i]
        assert ((found.double() - wanted).norm() / wanted.norm()) < 2e-2, f"of call {i}"


FIRST = pytest.mark.parametrize("name", ["fast", "general"])


@pytest.mark.gpu
@FIRST
def test_weights_that_were_just_written_are_read(made: Path, name: str) -> None:
    calls, found = Calls(made, name), list[Tensor]()
    assert (calls.exact[0] - calls.exact[1]).norm() > calls.exact[0].norm() / 2
    for i in range(CALLS):
        calls.refill(i % 2)
        found.append(calls.run())
    for i, result in enumerate(found):
        calls.require(result, i % 2)


@pytest.mark.gpu
@FIRST
def test_weights_that_were_just_written_are_read_in_a_graph(made: Path, name: str) -> None:
    calls, graph = Calls(made, name), torch.cuda.CUDAGraph()
    calls.run()
    with torch.cuda.graph(graph):
        found = []
        for i in range(4):
            calls.refill(i % 2)
            found.append(calls.run())
    for _ in range(CALLS // 4):
        graph.replay()
        for i, result in enumerate(found):
            calls.require(result, i % 2)
            result.zero_()
