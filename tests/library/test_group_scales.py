"""Weights of 8 bits with scales of groups and blocks on a GPU, up to the ends of tensors."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from cut_functions import (
    TYPES,
    compiled,
    only_kernel,
    program_of,
    require_blocks,
    require_right,
    taken,
)
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from mirage_kernels.generator.partition.program import Program

ROWS = (0, 1, 5, 8, 13, 16, 17, 32, 40, 64, 65)
SCALES = ("s", "b", "t", "c")
Run = Callable[..., Any]


def in_groups(q: Tensor, s: Tensor) -> Tensor:
    count = q.shape[-1] // s.shape[-1]
    return (q.to(s.dtype).unflatten(-1, (-1, count)) * s[..., None]).flatten(-2)


def in_blocks(f: Tensor, b: Tensor, dtype: torch.dtype) -> Tensor:
    (n, k), (rows, columns) = f.shape, b.shape
    parts = f.float().view(rows, n // rows, columns, k // columns) * b[:, None, :, None]
    return parts.view(n, k).to(dtype)


def of_groups(x: Tensor, q: Tensor, s: Tensor, n: Tensor, r: Tensor) -> Tensor:
    return F.linear(x, in_groups(q, s), n) + r


def of_blocks(x: Tensor, f: Tensor, b: Tensor) -> Tensor:
    return F.linear(x, in_blocks(f, b, x.dtype))


def with_zeros(x: Tensor, q: Tensor, z: Tensor, s: Tensor) -> Tensor:
    parts = q.to(x.dtype).unflatten(-1, (-1, q.shape[-1] // s.shape[-1]))
    return F.linear(x, ((parts - z[..., None]) * s[..., None]).flatten(-2))


def gated(x: Tensor, f: Tensor, b: Tensor, q: Tensor, s: Tensor) -> Tensor:
    return F.silu(F.linear(x, in_blocks(f, b, x.dtype))) * F.linear(x, in_groups(q, s))


def siblings(x: Tensor, f: Tensor, b: Tensor, g: Tensor, c: Tensor) -> Any:
    return tuple(F.linear(x, in_blocks(w, s, x.dtype)) for w, s in ((f, b), (g, c)))


# Rows, depth, and elements of a group. Of the depth there are whole steps, a rest, or less than a
# step; blocks of rows end within a block's rows, and within a cluster's.
SIZES = {
    "whole": (256, 2048, 128),
    "rest": (384, 1920, 128),
    "short": (136, 64, 32),
    "small": (1032, 1024, 64),
}
CASES = [(of_groups, "bf16", size) for size in SIZES]
CASES += [(with_zeros, "fp16", size) for size in ("whole", "short", "small")]
CASES += [(of_blocks, dtype, size) for dtype in TYPES for size in ("whole", "rest")]
CASES += [(gated, "bf16", "whole"), (gated, "fp16", "rest"), (siblings, "bf16", "whole")]
CASES += [(siblings, "fp16", "rest")]


def shapes_of(run: Run, rows: int, size: str) -> dict[str, tuple[int, ...]]:
    """The extents of a function's tensors."""
    n, k, count = SIZES[size]
    groups, blocks = k // count, (n // 128, k // 128)
    known = {"x": (rows, k), "r": (rows, n), "n": (n,), "q": (n, k), "f": (n, k), "g": (2 * n, k)}
    known |= {"s": (n, groups), "z": (n, groups), "b": blocks, "c": (2 * blocks[0], blocks[1])}
    return taken(run, known)


def type_of(name: str, dtype: str) -> torch.dtype:
    bytes_ = {"q": torch.int8, "f": torch.float8_e4m3fn, "g": torch.float8_e4m3fn}
    return bytes_.get(name, torch.float32 if name in "bc" else TYPES[dtype])


@cache
def cut(run: Run, dtype: str, size: str) -> Program:
    """The program of a function."""
    shapes = shapes_of(run, 8, size)
    types = {n: type_of(n, dtype) for n in shapes}
    return program_of(run, f"{run.__name__}_{size}_{dtype}", dtype, shapes, ("x", "r"), types=types)


def drawn(name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    if dtype is torch.int8:
        return torch.randint(-128, 128, shape, generator=generator).to(dtype)
    values = torch.randn(shape, generator=generator)
    return (values / 16 + 0.1 if name in SCALES else values).to(dtype)


# Of each function the sizes whose blocks end differently; the types are the same to blocks.
@pytest.mark.parametrize(
    ("run", "size"),
    [(of_groups, "small"), (with_zeros, "short"), (of_blocks, "rest"), (siblings, "whole")],
)
def test_blocks_compute_their_mugraph(run: Run, size: str) -> None:
    record = only_kernel(cut(run, "bf16", size))
    assert {v.schedule for v in record.variants} <= {"sliced_k", "cluster_split_k"}
    require_blocks(record)


@pytest.mark.parametrize(("run", "dtype", "size"), CASES, ids=lambda x: getattr(x, "__name__", x))
class TestGroupScales:
    """Kernels that scale groups of what they convert."""

    @pytest.mark.gpu
    def test_results_are_right(self, run: Run, dtype: str, size: str, tmp_path: Path) -> None:
        program = compiled(cut(run, dtype, size), tmp_path)
        for rows in ROWS:
            shapes = shapes_of(run, rows, size).items()
            given = {n: drawn(n, shape, type_of(n, dtype)).cuda() for n, shape in shapes}
            require_right(program, run, given, dtype)

    @pytest.mark.gpu
    def test_whole_numbers_are_summed_exactly(
        self, run: Run, dtype: str, size: str, tmp_path: Path
    ) -> None:
        if run is gated:
            pytest.skip("it rounds")
        program = compiled(cut(run, dtype, size), tmp_path)
        most = 64 if run is of_groups else max(ROWS)  # above, PyTorch rounds before it adds
        for rows in (n for n in ROWS if n <= most):
            whole = {}
            for name, shape in shapes_of(run, rows, size).items():
                numbers = torch.randint(-2, 3, shape).float()
                numbers = 2.0**numbers if name in SCALES else numbers
                whole[name] = numbers.to(type_of(name, dtype)).cuda()
            doubles = {n: x.double() if x.is_floating_point() else x for n, x in whole.items()}
            wanted, made = run(**doubles), program(**whole)
            pairs = zip(made, wanted, strict=True) if run is siblings else [(made, wanted)]
            assert all(torch.equal(mine, one.to(mine.dtype)) for mine, one in pairs)
