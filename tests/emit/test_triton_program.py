"""Emitted Triton programs are executed, by Triton's interpreter, and compared with float64."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from handmade_lines import record as lines_record
from handmade_lines import record_of
from sources import error, source

from mirage_kernels.generator.bench.demonstrate import triton_results
from mirage_kernels.generator.emit.statements import ELEMENTWISE as LINES
from mirage_kernels.generator.errors import VerifyError
from mirage_kernels.generator.ir import OPS, DType
from mirage_kernels.generator.language import Tensor, contract
from mirage_kernels.generator.meaning.arrays import Array, array_reading
from mirage_kernels.generator.meaning.reals import ELEMENTWISE, FLOAT64, STORAGE, round_to
from mirage_kernels.generator.meaning.walk import results
from mirage_kernels.generator.recipe import Shape, load_recipe, recipe, trace
from mirage_kernels.generator.records.record import KernelRecord
from mirage_kernels.generator.search.gate import Gate
from mirage_kernels.generator.search.sketch import BlockSketch, Setting, Step, View

GoldenRecord = Callable[[DType], KernelRecord]
Adapted = Callable[..., KernelRecord]
SIZES = {"M": 19, "K": 72, "N": 40, "R": 8}  # no multiples of a tile, of golden records as well
K, N = SIZES["K"], SIZES["N"]
SCALARS = {"eps": 1e-6, "scale": 2.0}
RESIDUAL = ("M K", "K", "N K", "", "N", "M K", "")  # inputs of rms_norm_linear_residual


def rounded(data: np.ndarray, dtype: DType = DType.FP16) -> np.ndarray:
    """Return numbers that the storage type holds."""
    return np.asarray(round_to(data, dtype), np.float64)


def drawn(dims: Sequence[str], of: Callable[..., np.ndarray]) -> list[np.ndarray]:
    """Return a tensor for each that has dims: numbers of a distribution; of scalars nothing."""
    return [of(tuple(SIZES[d] for d in names.split())) for names in dims if names]


def run(record: KernelRecord, dims: Sequence[str], values: Sequence[object]) -> list[np.ndarray]:
    """Return the results of a record's Triton program."""
    names = [tuple(text.split()) for text in dims]
    tensors = [np.asarray(value, np.float64) for value in values]
    return triton_results(record, [Array(d, (a,)) for d, a in zip(names, tensors, strict=True)])


@recipe(
    inputs={"x": "M K", "weight": "N K", "residual": "M N"},
    output="M N",
    dynamic={"M": 64},
    shapes=(),
    reference=max,  # never run
)
def linear_and_residual(x: Tensor, weight: Tensor, residual: Tensor) -> Tensor:
    """linear(x, weight) + residual."""
    return contract(x, weight, over="K") + residual


@pytest.fixture
def record(golden_record: GoldenRecord, adapted_record: Adapted) -> Callable[..., KernelRecord]:
    def make(name: str, dtype: DType = DType.FP16, rank: int = SIZES["R"]) -> KernelRecord:
        if name == "rms_norm_linear":
            return golden_record(dtype)
        if name == "lora_linear":
            return adapted_record({"K": K, "N": N, "R": rank}, dtype)
        views = (View("x", (None, "M"), "K"), View("weight", ("N", None), "K"))
        views += (View("residual", ("N", "M"), None),)
        steps = (Step("contract", (0, 1), "K"), Step("accum", (3,)), Step("add", (2, 4)))
        sketch = BlockSketch(Setting(("N", "M"), "K"), views, steps, ((5, ("M", "N")),))
        return record_of(linear_and_residual, sketch, Shape("a test", {"K": K, "N": N}))

    return make


@pytest.mark.parametrize(
    ("name", "dtype", "rank"),
    [
        ("rms_norm_linear", DType.FP16, 0),
        ("rms_norm_linear", DType.BF16, 0),
        ("lora_linear", DType.FP16, 24),
        ("lora_linear", DType.BF16, 8),
    ],
)
def test_a_program_with_uneven_edges_is_as_accurate_as_the_unfused_program(
    record: Callable[..., KernelRecord], name: str, dtype: DType, rank: int
) -> None:
    sizes = SIZES | {"R": rank}
    dims = {d: sizes[d] for d in ("K", "N", "R") if sizes[d]}
    program, rng = load_recipe(name), np.random.default_rng(sizes["M"])
    spec = trace(program, Shape("a test", dims), dtype)
    inputs = []
    for node in spec.inputs:
        names = node.out.type.names
        data = rng.standard_normal([sizes[d] for d in names]) / np.sqrt(K)
        value = rounded(data, dtype) if names else SCALARS[node.name]
        inputs.append(Array(names, (np.asarray(value),)))
    exact = np.asarray(results(spec, inputs, array_reading(FLOAT64, sizes))[0].parts[0])
    unfused = Gate(spec, program, dtype).unfused()
    theirs = results(unfused, inputs, array_reading(STORAGE, sizes))[0].parts[0]
    (mine,) = triton_results(record(name, dtype, rank), inputs)
    assert mine.shape == (19, N)
    assert error(mine, exact) <= 1.1 * error(np.asarray(theirs, np.float64), exact)


@pytest.mark.parametrize(
    ("name", "dims", "exact"),
    [
        # The mean square of x is exactly 1, and so is its root.
        ("rms_norm_linear", ("M K", "K", "N K", ""), lambda x, norm, w, eps: (x * norm) @ w.T),
        (
            "lora_linear",
            ("M K", "N K", "R K", "N R", ""),
            lambda x, w, a, b, scale: x @ w.T + scale * (x @ a.T) @ b.T,
        ),
        # A tensor of the output's dims is read where its tokens lie.
        ("linear_and_residual", ("M K", "N K", "M N"), lambda x, w, residual: x @ w.T + residual),
    ],
)
def test_small_integers_come_out_bit_for_bit(
    record: Callable[..., KernelRecord],
    name: str,
    dims: Sequence[str],
    exact: Callable[..., np.ndarray],
) -> None:
    rng = np.random.default_rng(0)
    x, *others = drawn(dims, lambda shape: rng.integers(-2, 3, shape).astype(np.float64))
    values = [rng.choice([-1.0, 1.0], x.shape), *others]
    scalars = {"rms_norm_linear": [0.0], "lora_linear": [2.0]}.get(name, [])
    (made,) = run(record(name), dims, [*values, *scalars])
    np.testing.assert_array_equal(made, exact(*values, *scalars))


# -- rows ------------------------------------------------------------------------------------------


def ntrans(h: np.ndarray, x: np.ndarray, alpha: np.ndarray) -> np.ndarray:
    moved = h + alpha * (x / np.linalg.norm(x, axis=1, keepdims=True) - h)
    return moved / np.linalg.norm(moved, axis=1, keepdims=True)


def rms_norm_residual(
    x: np.ndarray, weight: np.ndarray, eps: float, residual: np.ndarray, offset: float
) -> np.ndarray:
    total = x + residual
    root = np.sqrt((total**2).mean(1, keepdims=True) + eps)
    return total / root * (weight + offset)


def gelu_tanh_and_mul(gate: np.ndarray, up: np.ndarray) -> np.ndarray:
    inner = 0.7978845608028654 * (gate + 0.044715 * gate**3)
    return gate / 2 * (1 + np.tanh(inner)) * up


def layer_norm_linear(
    x: np.ndarray, norm_weight: np.ndarray, bias: np.ndarray, weight: np.ndarray, eps: float
) -> np.ndarray:
    centred = x - x.mean(1, keepdims=True)
    root = np.sqrt((centred**2).mean(1, keepdims=True) + eps)
    return (centred / root * norm_weight + bias) @ weight.T


ROWS = {
    "ntrans": (("M K", "M K", "K"), ntrans),
    "rms_norm_residual": (("M K", "K", "", "M K", ""), rms_norm_residual),
    "silu_and_mul": (("M N", "M N"), lambda gate, up: gate / (1 + np.exp(-gate)) * up),
    "gelu_tanh_and_mul": (("M N", "M N"), gelu_tanh_and_mul),
    "layer_norm_linear": (("M K", "K", "K", "N K", ""), layer_norm_linear),
}


@pytest.mark.parametrize("name", ROWS)
def test_the_program_of_rows_is_close_to_float64(name: str) -> None:
    dims, exact = ROWS[name]
    rng = np.random.default_rng(5)
    tensors = iter(drawn(dims, lambda shape: rounded(rng.standard_normal(shape) + 1)))
    scalars = iter((1e-6, 1.0))
    values = [next(tensors) if names else next(scalars) for names in dims]
    made, *_ = run(lines_record(name), dims, values)
    assert error(made, exact(*values)) < (1e-3 if name == "layer_norm_linear" else 5e-4)


def test_a_formula_too_long_for_a_line_takes_a_name_for_what_it_is_of() -> None:
    text = source(lines_record("gelu_tanh_and_mul"), "py")
    assert "wide = gate_tile.to(tl.float32)" in text
    assert max(map(len, text.splitlines())) <= 100


def with_residual(*values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    x, norm_weight, weight, eps, bias, residual, offset = values
    normed = rms_norm_residual(x, norm_weight, float(eps), residual, float(offset))
    return normed @ weight.T + bias, x + residual


@pytest.mark.parametrize("integers", [True, False])
def test_a_result_beside_the_output_is_rounded_once(integers: bool) -> None:
    """Integers come out bit for bit: x + residual is +1 and -1, so that the norm divides by 1."""
    rng = np.random.default_rng(3)
    of = (lambda shape: rng.integers(-2, 3, shape)) if integers else rng.standard_normal
    x, norm_weight, weight, bias, residual = map(rounded, drawn(RESIDUAL, of))
    if integers:
        x = rng.choice([-1.0, 1.0], x.shape) - residual
    eps = 0.0 if integers else 1e-6
    values = [x, norm_weight, weight, np.asarray(eps), bias, residual, np.asarray(1.0)]
    made = run(lines_record("rms_norm_linear_residual"), RESIDUAL, values)
    (out, total), (exact, sums) = made, with_residual(*values)
    np.testing.assert_array_equal(total, rounded(sums))
    assert error(out, exact) <= (0.0 if integers else 1e-3)


# -- programs --------------------------------------------------------------------------------------


def test_a_program_that_fails_is_said_to_fail(golden_record: GoldenRecord) -> None:
    values = drawn(("M K", "K", "N K"), np.ones)
    with pytest.raises(VerifyError, match="the Triton program of K72_N40_fp16 fails: TypeError"):
        run(golden_record(DType.FP16), ("M K", "K", "N K"), values)


_FAR = """
import sys, torch
sys.path.insert(0, sys.argv[1])
from program import rms_norm_linear
rows = torch.empty(2**31 + 2**7, dtype=torch.float16).as_strided((3, {K}), (2**30, 1))
x = torch.randn(3, {K}, generator=torch.Generator().manual_seed(0)).half()
rows.copy_(x)
weights = torch.ones({K}, dtype=torch.float16), torch.eye({N}, {K}, dtype=torch.float16)
assert torch.equal(rms_norm_linear(rows, *weights, 1e-6), rms_norm_linear(x, *weights, 1e-6))
"""


def test_rows_may_lie_further_apart_than_int32_counts(
    golden_record: GoldenRecord, tmp_path: Path
) -> None:
    """Three rows in 4 GiB, of which pages that nobody touches take no memory."""
    (tmp_path / "program.py").write_text(source(golden_record(DType.FP16), "py"))
    ran = subprocess.run(
        [sys.executable, "-c", _FAR.format(K=K, N=N), str(tmp_path)],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    if "can't allocate memory" in ran.stderr:
        pytest.skip("memory is not overcommitted here")
    assert ran.returncode == 0, ran.stderr


_PROGRAM = """
import numpy, sys, torch, triton
import triton.language as tl
{kernels}
a, b = (torch.from_numpy(x).float() for x in numpy.load(sys.argv[1]))
made = []
for kernel in ({names}):
    out = torch.full_like(a, float("nan"))
    kernel[(1,)](a, b, out, {size})
    made.append(out.numpy())
numpy.save(sys.argv[1], numpy.stack(made))
"""
_KERNEL = """
@triton.jit
def _{op}(a_ptr, b_ptr, out_ptr, SIZE: tl.constexpr):
    i = tl.arange(0, SIZE)
    a = tl.load(a_ptr + i)
    b = tl.load(b_ptr + i)
    tl.store(out_ptr + i, {text})
"""


def test_every_line_of_triton_computes_what_its_op_means(tmp_path: Path) -> None:
    operands = np.random.default_rng(0).uniform(0.1, 3.0, (2, 32))
    texts = {op: text.format("a", "b") for op, text in LINES.items()}
    kernels = "".join(_KERNEL.format(op=op, text=text) for op, text in texts.items())
    names = "".join(f"_{op}, " for op in texts)
    program, data = tmp_path / "program.py", tmp_path / "data.npy"
    program.write_text(_PROGRAM.format(kernels=kernels, names=names, size=operands.shape[1]))
    np.save(data, operands)
    command = [sys.executable, str(program), str(data)]
    subprocess.run(command, env={**os.environ, "TRITON_INTERPRET": "1"}, check=True)
    for op, made in zip(texts, np.load(data), strict=True):
        exact = ELEMENTWISE[op](*((o,) for o in operands[: OPS[op].arity]))[0]
        np.testing.assert_allclose(made, exact, rtol=1e-5, atol=1e-6, err_msg=op)
