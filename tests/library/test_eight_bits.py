"""Weights of 8 bits on a GPU: kernels convert them, of any rows, up to the ends of tensors."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from cut_functions import TYPES, compiled, program_of, require_blocks, require_right, taken
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from mirage_kernels.generator.partition.program import Program

# Rows and depth of weights: no whole tiles of rows, and of the depth a rest or whole steps.
SMALL, LARGE = (136, 1040), (4104, 2048)
Size = tuple[int, int]
ROWS = (0, 1, 5, 8, 13, 16, 17, 32, 40, 64, 65, 100)
BYTES = {
    "int8": torch.int8,
    "uint8": torch.uint8,
    "fp8_e4m3": torch.float8_e4m3fn,
    "fp8_e5m2": torch.float8_e5m2,
}
Run = Callable[..., Any]


def scaled(x: Tensor, q: Tensor, s: Tensor) -> Tensor:
    return F.linear(x, q.to(x.dtype) * s[:, None])


def normed(x: Tensor, n: Tensor, q: Tensor, s: Tensor, r: Tensor) -> Tensor:
    return r + F.linear(F.rms_norm(x, x.shape[-1:], n, 1e-5), q.to(x.dtype)) * s


def gated(x: Tensor, q: Tensor, p: Tensor, s: Tensor) -> Tensor:
    return F.silu(F.linear(x, q.to(x.dtype)) * s) * F.linear(x, p.to(x.dtype))


def three(x: Tensor, q: Tensor, s: Tensor, p: Tensor, t: Tensor, w: Tensor, u: Tensor) -> Any:
    pairs = ((q, s), (p, t), (w, u))
    first, second, third = (F.linear(x, a.to(x.dtype)) * b for a, b in pairs)
    return first, second, third


def batched(x: Tensor, e: Tensor) -> Tensor:
    """A product that only general kernels multiply."""
    return torch.einsum("mk,enk->men", x, e.to(x.dtype))


def spread(x: Tensor, d: Tensor, n: Tensor) -> Tensor:
    return d.to(x.dtype) * n + x


def shapes_of(run: Run, rows: int, size: Size) -> dict[str, tuple[int, ...]]:
    """The extents of a function's tensors."""
    n, k = size
    known = {"x": (rows, k), "d": (rows, k), "n": (k,), "r": (rows, n), "e": (4, n, k)}
    known |= {"q": (n, k), "p": (n, k), "w": (2 * n, k), "s": (n,), "t": (n,), "u": (2 * n,)}
    return taken(run, known)


@cache
def cut(run: Run, dtype: str, kind: str, size: Size) -> Program:
    """The program of a function whose weights are of a kind."""
    shapes = shapes_of(run, 8, size)
    types = {n: BYTES[kind] for n in shapes if n in "qpwed"}
    name = f"{run.__name__}_{kind}_{dtype}_{size[0]}"
    return program_of(run, name, dtype, shapes, ("x", "d", "r"), types=types)


def drawn(name: str, shape: tuple[int, ...], dtype: str, kind: str) -> Tensor:
    """A random tensor; whole numbers are of all that a byte holds."""
    generator = torch.Generator().manual_seed(sum(shape))
    if name not in "qpwed":
        return torch.randn(shape, generator=generator).to(TYPES[dtype])
    if BYTES[kind].is_floating_point:
        return torch.randn(shape, generator=generator).to(BYTES[kind])
    ends = torch.iinfo(BYTES[kind])
    return torch.randint(ends.min, ends.max + 1, shape, generator=generator, dtype=BYTES[kind])


ALL = (scaled, normed, gated, three, batched, spread)
CASES = [(run, "bf16", "int8", SMALL) for run in ALL]
CASES += [(run, "fp16", "fp8_e4m3", SMALL) for run in ALL]
CASES += [(gated, "bf16", "fp8_e5m2", SMALL), (scaled, "fp16", "uint8", SMALL)]
CASES += [(scaled, "bf16", "fp8_e4m3", LARGE), (gated, "bf16", "int8", LARGE)]
CASES += [(three, "fp16", "fp8_e5m2", LARGE), (normed, "bf16", "int8", LARGE)]
SLICED = {"sliced_k"}


@pytest.mark.parametrize(
    ("run", "kind", "size", "schedules"),
    [
        (three, "int8", SMALL, SLICED),
        (gated, "fp8_e5m2", SMALL, SLICED),
        (gated, "int8", LARGE, SLICED | {"cluster_split_k"}),
    ],
)
def test_blocks_of_fast_schedules_compute_their_mugraphs(
    run: Run, kind: str, size: Size, schedules: set[str]
) -> None:
    made = cut(run, "bf16", kind, size)
    (record, *_) = (r.record for r in made.results if "linear" in r.record.summary)
    assert {v.schedule for v in record.variants} == schedules
    require_blocks(record)


@pytest.mark.parametrize(
    ("run", "dtype", "kind", "size"), CASES, ids=lambda x: getattr(x, "__name__", str(x))
)
class TestEightBits:
    """Kernels that convert what they read."""

    @pytest.mark.gpu
    def test_results_are_right(
        self, run: Run, dtype: str, kind: str, size: Size, tmp_path: Path
    ) -> None:
        program = compiled(cut(run, dtype, kind, size), tmp_path)
        for rows in ROWS:
            shapes = shapes_of(run, rows, size)
            given = {n: drawn(n, shape, dtype, kind).cuda() for n, shape in shapes.items()}
            require_right(program, run, given, dtype)

    @pytest.mark.gpu
    def test_whole_numbers_are_summed_exactly(
        self, run: Run, dtype: str, kind: str, size: Size, tmp_path: Path
    ) -> None:
        if run in (normed, gated):
            pytest.skip("it rounds")
        program = compiled(cut(run, dtype, kind, size), tmp_path)
        for rows in ROWS:
            whole = {}
            for name, shape in shapes_of(run, rows, size).items():
                small = torch.randint(0 if kind == "uint8" else -2, 3, shape).float()
                small = torch.ones(shape) if name in "stu" else small
                whole[name] = small.to(BYTES[kind] if name in "qpwed" else TYPES[dtype]).cuda()
            doubles = {n: x.double() if x.is_floating_point() else x for n, x in whole.items()}
            wanted, made = run(**doubles), program(**whole)
            pairs = zip(made, wanted, strict=True) if run is three else [(made, wanted)]
            assert all(torch.equal(mine, one.to(mine.dtype)) for mine, one in pairs)
