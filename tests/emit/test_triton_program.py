"""KernelRecord Triton programs are executed, by Triton's interpreter, and compared with float64."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from handmade_lines import record_of
from sources import error

from mirage_kernels.generator.bench.demonstrate import run_triton
from mirage_kernels.generator.emit.names import ELEMENTWISE as TRITON
from mirage_kernels.generator.errors import VerifyError
from mirage_kernels.generator.ir import OPS, DType, Graph
from mirage_kernels.generator.language import Tensor, contract
from mirage_kernels.generator.meaning.arrays import Array, array_reading
from mirage_kernels.generator.meaning.reals import ELEMENTWISE, FLOAT64, STORAGE, round_to
from mirage_kernels.generator.meaning.walk import results
from mirage_kernels.generator.recipe import Recipe, Shape, recipe, trace
from mirage_kernels.generator.records.record import KernelRecord
from mirage_kernels.generator.schedules.streaming import triton_of
from mirage_kernels.generator.search.gate import Gate
from mirage_kernels.generator.search.settings import Setting, View
from mirage_kernels.generator.search.sketch import BlockSketch, Step

GoldenRecord = Callable[[DType], KernelRecord]
K, N = 72, 40  # of the golden records: no multiple of a tile
EPS = 1e-6
DTYPES = [DType.FP16, DType.BF16]
each_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: d.value)


def drawn(tokens: int, dtype: DType) -> list[Array]:
    """Return x, norm weight, weight and eps: numbers that the storage type holds."""
    rng = np.random.default_rng(tokens)
    x = rng.standard_normal((tokens, K))
    norm_weight = rng.uniform(0.5, 4.0, K)
    weight = rng.standard_normal((N, K)) / np.sqrt(K)
    held = [np.asarray(round_to(a, dtype), np.float64) for a in (x, norm_weight, weight)]
    names = (("M", "K"), ("K",), ("N", "K"))
    return [Array(d, (a,)) for d, a in zip(names, held, strict=True)] + [
        Array((), (np.asarray(EPS),))
    ]


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


def spec_of(recipe: Recipe, dtype: DType) -> Graph:
    return trace(recipe, Shape("a test", {"K": K, "N": N}), dtype)


@each_dtype
def test_a_program_with_uneven_edges_is_as_accurate_as_the_unfused_program(
    golden_record: GoldenRecord, rms_norm_linear: Recipe, dtype: DType
) -> None:
    inputs, sizes = drawn(19, dtype), {"M": 19, "K": K, "N": N}
    spec = spec_of(rms_norm_linear, dtype)
    exact = np.asarray(results(spec, inputs, array_reading(FLOAT64, sizes))[0].parts[0])
    unfused = Gate(spec, rms_norm_linear, dtype).unfused()
    theirs = results(unfused, inputs, array_reading(STORAGE, sizes))[0].parts[0]
    mine = run_triton(golden_record(dtype), inputs)
    assert mine.shape == (19, N)
    assert error(mine, exact) <= 1.1 * error(np.asarray(theirs, np.float64), exact)


def test_small_integers_come_out_bit_for_bit(golden_record: GoldenRecord) -> None:
    rng = np.random.default_rng(0)
    x = rng.choice([-1.0, 1.0], (5, K))  # the mean square is exactly 1, and so is its root
    norm_weight = rng.integers(1, 3, K).astype(np.float64)
    weight = rng.integers(-3, 4, (N, K)).astype(np.float64)
    inputs = [
        Array(("M", "K"), (x,)),
        Array(("K",), (norm_weight,)),
        Array(("N", "K"), (weight,)),
        Array((), (np.asarray(0.0),)),
    ]
    np.testing.assert_array_equal(
        run_triton(golden_record(DType.FP16), inputs), (x * norm_weight) @ weight.T
    )


def test_a_tensor_of_the_outputs_dims_is_read_where_its_tokens_lie() -> None:
    sketch = BlockSketch(
        Setting(("N", "M"), "K"),
        (
            View("x", (None, "M"), "K"),
            View("weight", ("N", None), "K"),
            View("residual", ("N", "M"), None),
        ),
        (Step("contract", (0, 1), "K"), Step("accum", (3,)), Step("add", (2, 4))),
        ((5, ("M", "N")),),
    )
    made = record_of(linear_and_residual, sketch, Shape("a test", {"K": K, "N": N}))
    rng = np.random.default_rng(1)
    inputs = [
        Array(names, (rng.integers(-2, 3, shape).astype(np.float64),))
        for names, shape in [
            (("M", "K"), (19, K)),
            (("N", "K"), (N, K)),
            (("M", "N"), (19, N)),
        ]
    ]
    x, weight, residual = (np.asarray(a.parts[0]) for a in inputs)
    np.testing.assert_array_equal(run_triton(made, inputs), x @ weight.T + residual)


def test_a_program_that_fails_is_said_to_fail(golden_record: GoldenRecord) -> None:
    with pytest.raises(VerifyError, match="the Triton program of K72_N40_fp16 fails: TypeError"):
        run_triton(golden_record(DType.FP16), drawn(2, DType.FP16)[:3])


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
    (tmp_path / "program.py").write_text(triton_of(golden_record(DType.FP16)))
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


@pytest.fixture(scope="module")
def computed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """What every elementwise line of the writer computes, and what it should."""
    folder = tmp_path_factory.mktemp("elementwise")
    operands = np.random.default_rng(0).uniform(0.1, 3.0, (2, 32))
    lines = {op: text.format("a", "b") for op, text in TRITON.items()}
    kernels = "".join(_KERNEL.format(op=op, text=text) for op, text in lines.items())
    names = "".join(f"_{op}, " for op in lines)
    program = folder / "program.py"
    program.write_text(_PROGRAM.format(kernels=kernels, names=names, size=operands.shape[1]))
    np.save(folder / "data.npy", operands)
    subprocess.run(
        [sys.executable, str(program), str(folder / "data.npy")],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        check=True,
    )
    return dict(zip(lines, _paired(folder / "data.npy", operands), strict=True))


def _paired(made: Path, operands: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
    exact = [ELEMENTWISE[op](*((o,) for o in operands[: OPS[op].arity]))[0] for op in TRITON]
    return list(zip(np.load(made), exact, strict=True))


@pytest.mark.parametrize("op", TRITON)
def test_a_line_of_triton_computes_what_its_op_means(
    computed: dict[str, tuple[np.ndarray, np.ndarray]], op: str
) -> None:
    made, exact = computed[op]
    np.testing.assert_allclose(made, exact, rtol=1e-5, atol=1e-6)
