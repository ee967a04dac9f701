"""Emulated storage precision rounds as PyTorch does, and the oracle computes in float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from mirage_kernels.generator.ir import Builder, Dim, DType, Level, Node, TensorType, Value
from mirage_kernels.generator.meaning.arrays import Array, array_reading
from mirage_kernels.generator.meaning.reals import STORAGE, round_to
from mirage_kernels.generator.meaning.walk import results

TORCH = {DType.FP16: torch.float16, DType.BF16: torch.bfloat16, DType.FP32: torch.float32}


def every_kind_of_float32() -> np.ndarray:
    """Return random bit patterns: every exponent, both signs, subnormals, infinities, nan."""
    bits = np.random.default_rng(0).integers(0, 2**32, 200_000, dtype=np.uint32)
    edges = np.array([0, -0.0, np.inf, -np.inf, np.nan, 65504, 65519.99, 65520, 3.4e38], np.float32)
    return np.concatenate([bits.view(np.float32), edges])


def half_way() -> np.ndarray:
    """Return float32 numbers half-way between neighbours in bf16, odd and even, up and down."""
    patterns = np.arange(0x3F00, 0x4100, dtype=np.uint32) << 16
    return np.concatenate([(patterns | 0x8000 | tail).view(np.float32) for tail in (0, 1)])


@pytest.mark.parametrize("dtype", TORCH, ids=lambda d: d.value)
def test_rounding_is_pytorchs_for_every_kind_of_number(dtype: DType) -> None:
    x = every_kind_of_float32()
    theirs = torch.from_numpy(x).to(TORCH[dtype]).float().numpy()
    np.testing.assert_array_equal(round_to(x, dtype), theirs)


def test_bf16_rounds_half_way_to_even_as_pytorch_does() -> None:
    x = half_way()
    theirs = torch.from_numpy(x).to(torch.bfloat16).float().numpy()
    np.testing.assert_array_equal(round_to(x, DType.BF16), theirs)


def product(dtype: DType) -> Array:
    """Multiply 1 + 2^-7 with itself along K and add up, each value stored as `dtype`."""
    type_ = TensorType((Dim("K", 4),), dtype)
    builder = Builder(Level.KERNEL)
    x = builder.input("x", type_)
    square = builder.add(Node("mul", (x, x), (Value("square", type_),)))
    builder.nodes[-1] = Node("mul", (x, x), (Value(square, type_),))
    data = np.full(4, 1 + 2**-7, np.float32)
    return results(builder.graph([square]), [Array(("K",), (data,))], array_reading(STORAGE, {}))[0]


def test_storage_rounds_every_value_to_its_type() -> None:
    assert product(DType.BF16).parts[0].tolist() == [1 + 2**-6] * 4


def summed(op: str, order: np.ndarray) -> list[float]:
    """Contract or sum 999 numbers of very different size along K, in this order."""
    long = TensorType((Dim("K", 999),), DType.FP16)
    builder = Builder(Level.KERNEL)
    x = builder.input("x", long)
    scalar = Value("s", TensorType((), DType.FP32))
    args = (x, x) if op == "contract" else (x,)
    graph = builder.graph([builder.add(Node(op, args, (scalar,), over="K"))])
    data = np.random.default_rng(0).standard_normal(999) * 2.0 ** (np.arange(999) % 12)
    inputs = [Array(("K",), (round_to(data, DType.FP16)[order],))]
    return results(graph, inputs, array_reading(STORAGE, {}))[0].parts[0].reshape(-1).tolist()


@pytest.mark.parametrize("op", ["contract", "sum"])
def test_a_stored_sum_does_not_depend_on_the_order_that_a_machine_adds_in(op: str) -> None:
    orders = [np.random.default_rng(seed).permutation(999) for seed in range(8)]
    assert len({tuple(summed(op, order)) for order in orders}) == 1
