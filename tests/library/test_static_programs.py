"""Programs of static numbers of rows in one folder share kernels, and a call finds its own."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from compilers import programs
from torch import Tensor

import mirage_kernels

pytestmark = pytest.mark.usefixtures("nothing_loaded")
BLOCK = """
import torch
from torch.nn import functional as F
K, N = 1024, 2048
def block(x, n, gate_up, down):
    gate, up = F.linear(F.rms_norm(x, (K,), n, 1e-5), gate_up).chunk(2, -1)
    return x + F.linear(F.silu(gate) * up, down)
example_inputs = {"x": torch.empty(ROWS, K), "n": torch.empty(K),
    "gate_up": torch.empty(2 * N, K), "down": torch.empty(K, N)}
"""
K, N = 1024, 2048
SIZES = ((1,), (16,), (4, 16), (65,))


@pytest.fixture(scope="module")
def block(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A gated MLP with its norm at several numbers of rows, compiled."""
    texts = [BLOCK.replace("ROWS", ", ".join(map(str, rows))) for rows in SIZES]
    return programs(tmp_path_factory.mktemp("block"), [("block", text) for text in texts])


def tensors(rows: tuple[int, ...], device: str) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(len(rows))
    shapes = {"x": (*rows, K), "n": (K,), "gate_up": (2 * N, K), "down": (K, N)}
    drawn = {n: torch.randn(shape, generator=generator) for n, shape in shapes.items()}
    scales = {"gate_up": K**-0.5, "down": N**-0.5}
    return {n: (x * scales.get(n, 1.0)).bfloat16().to(device) for n, x in drawn.items()}


def exact(x: Tensor, n: Tensor, gate_up: Tensor, down: Tensor) -> Tensor:
    normed = torch.nn.functional.rms_norm(x, (K,), n, 1e-5)
    gate, up = torch.nn.functional.linear(normed, gate_up).chunk(2, -1)
    silu = torch.nn.functional.silu(gate)
    return x + torch.nn.functional.linear(silu * up, down)


def test_numbers_of_rows_share_kernels(block: Path) -> None:
    assert len([*block.glob("*/*.program.json")]) == len(SIZES)
    objects = {path.parent.name: [*path.parent.glob("*.so")] for path in block.glob("*/*/*.so")}
    assert {len(of_one) for of_one in objects.values()} == {1}


@pytest.mark.parametrize("rows", SIZES)
def test_a_call_has_the_shape_of_its_rows(block: Path, rows: tuple[int, ...]) -> None:
    assert mirage_kernels.load(block) == ["block"]
    assert mirage_kernels.program("block")(**tensors(rows, "meta")).shape == (*rows, K)


def test_another_number_of_rows_is_refused_with_those_that_work(block: Path) -> None:
    mirage_kernels.load(block)
    with pytest.raises(ValueError, match=r"x is \[8, 1024\]; \[16, 1024\] works"):
        mirage_kernels.program("block")(**tensors((8,), "meta"))


@pytest.mark.gpu
@pytest.mark.parametrize("promised", [False, True])
@pytest.mark.parametrize("rows", SIZES)
def test_its_kernels_compute_it(block: Path, rows: tuple[int, ...], promised: bool) -> None:
    mirage_kernels.load(block)
    given = tensors(rows, "cuda")
    wanted = exact(**{n: x.double() for n, x in given.items()})
    with mirage_kernels.constant_weights(promised):
        found = mirage_kernels.program("block")(**given)
    assert ((found.double() - wanted).norm() / wanted.norm()) < 5e-3


@pytest.mark.gpu
@pytest.mark.parametrize("rows", SIZES[:3])
def test_its_kernels_run_in_a_graph(block: Path, rows: tuple[int, ...]) -> None:
    mirage_kernels.load(block)
    given, program = tensors(rows, "cuda"), mirage_kernels.program("block")
    wanted = program(**given)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = program(**given)
    found.zero_()
    graph.replay()
    assert torch.equal(found, wanted)
