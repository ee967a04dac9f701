"""Products of uneven rows that PyTorch multiplies padded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from mirage_kernels import padded_products
from mirage_kernels.padded_products import LEAST, LINEAR, called, is_slow, multiplied
from mirage_kernels.program_steps import operator_named

MM, MATMUL = "aten.mm.default", "aten.matmul.default"


def drawn(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).bfloat16()


@pytest.mark.parametrize(
    ("name", "given"),
    [
        (MM, (drawn(7, 13), drawn(13, 21))),
        (MM, (drawn(7, 13), drawn(21, 13).mT)),
        (MATMUL, (drawn(2, 3, 13), drawn(13, 16))),
        (LINEAR, (drawn(2, 3, 13), drawn(21, 13))),
        (LINEAR, (drawn(3, 16), drawn(21, 16), drawn(21))),
        (LINEAR, (drawn(3, 13), drawn(24, 13), None)),
    ],
    ids=["rows", "transposed", "of-three-dims", "linear", "with-bias", "without-bias"],
)
def test_the_result_is_the_operator_s(name: str, given: tuple[Any, ...]) -> None:
    operator = operator_named(name)
    found, wanted = multiplied(name, operator, [*given]), operator(*given)
    torch.testing.assert_close(found, wanted, atol=0.02, rtol=0.02)
    assert found.is_contiguous()


class OnDevice:
    """Stands for a matrix of 16 bits in a GPU's memory."""

    is_cuda = True

    def __init__(self, *shape: int, bytes_: int = 2, cuda: bool = True) -> None:
        self.shape, self.bytes, self.is_cuda = shape, bytes_, cuda

    def element_size(self) -> int:
        return self.bytes

    def dim(self) -> int:
        return len(self.shape)

    def stride(self) -> tuple[int, ...]:
        return torch.empty(self.shape, device="meta").stride()


MANY, UNEVEN = LEAST + 8, LEAST + 3


@pytest.mark.parametrize(
    ("name", "x", "w", "slow"),
    [
        (MM, OnDevice(MANY, UNEVEN), OnDevice(UNEVEN, MANY), True),
        (MM, OnDevice(MANY, MANY), OnDevice(MANY, UNEVEN), True),
        (LINEAR, OnDevice(MANY, UNEVEN), OnDevice(MANY, UNEVEN), True),
        (LINEAR, OnDevice(MANY, MANY), OnDevice(UNEVEN, MANY), False),
        (MM, OnDevice(UNEVEN, MANY), OnDevice(MANY, MANY), False),
        (MM, OnDevice(64, UNEVEN), OnDevice(UNEVEN, MANY), False),
        (MM, OnDevice(MANY, UNEVEN, bytes_=4), OnDevice(UNEVEN, MANY), False),
        (MM, OnDevice(MANY, UNEVEN, cuda=False), OnDevice(UNEVEN, MANY), False),
        ("aten.bmm.default", OnDevice(MANY, UNEVEN), OnDevice(UNEVEN, MANY), False),
    ],
)
def test_large_matrices_of_uneven_rows_are_padded(
    name: str, x: OnDevice, w: OnDevice, slow: bool
) -> None:
    assert is_slow(name, [x, w]) is slow


def test_a_program_s_call_takes_that_way(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = list[tuple[int, ...]]()

    def operator(*args: Tensor) -> Tensor:
        seen.extend(tuple(x.shape) for x in args)
        return args[0] @ args[1]

    monkeypatch.setattr(padded_products, "is_slow", lambda name, args: True)
    found = called(MM, operator, [drawn(3, 5), drawn(5, 7)], {})
    assert seen == [(3, 8), (8, 8)]
    assert found.shape == (3, 7)


@pytest.mark.gpu
@pytest.mark.parametrize("name", [MM, LINEAR])
def test_large_products_are_right_on_a_gpu(name: str) -> None:
    x, w = drawn(1030, 2949).cuda(), drawn(2949, 1021).cuda()
    given = [x, w.mT.contiguous() if name == LINEAR else w]
    operator: Callable[..., Tensor] = operator_named(name)
    assert is_slow(name, given)
    found, exact = called(name, operator, given, {}), x.double() @ w.double()
    assert (found.double() - exact).norm() <= 2.0**-8 * exact.norm()
