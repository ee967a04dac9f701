"""Kernels with a second product after the loop: emitted, compiled, and run as Triton programs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from compilers import assembled
from sources import error, source, written

from mirage_kernels.generator.bench.demonstrate import run_triton
from mirage_kernels.generator.ir import DType, Graph
from mirage_kernels.generator.meaning.arrays import Array, array_reading
from mirage_kernels.generator.meaning.reals import FLOAT64, STORAGE, round_to
from mirage_kernels.generator.meaning.walk import results
from mirage_kernels.generator.plan.threads import with_threads
from mirage_kernels.generator.recipe import Recipe, Shape, load_recipe, trace
from mirage_kernels.generator.records.record import About, KernelRecord, load_record
from mirage_kernels.generator.schedules.streaming import planned
from mirage_kernels.generator.search.gate import Gate

Adapted = Callable[..., Graph]
GoldenRecord = Callable[[DType], KernelRecord]
ROOT = Path(__file__).parents[2]
DTYPES = [DType.FP16, DType.BF16]
DIMS = {"K": 72, "N": 40, "R": 8}
each_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: d.value)


@pytest.fixture(scope="session")
def recorded(
    adapted: Adapted, golden_record: GoldenRecord
) -> Callable[[dict[str, int], DType], KernelRecord]:
    """The record of a kernel with an adapter, not proved."""

    def make(dims: dict[str, int], dtype: DType = DType.FP16, arch: str = "sm_90a") -> KernelRecord:
        fields = vars(golden_record(dtype))
        about = About(**{name: fields[name] for name in About.__dataclass_fields__})
        mine = replace(about, recipe="lora_linear", shape=dims, arch=arch)
        return planned(mine, with_threads(adapted(Shape("a test", dims), dtype)))

    return make


Recorded = Callable[..., KernelRecord]


def test_a_record_keeps_its_inner_dims(recorded: Recorded, tmp_path: Path) -> None:
    record = recorded(DIMS)
    path = tmp_path / "record.json"
    path.write_text(record.text())
    assert record.roles.inner == ("R",)
    assert load_record(path) == record


def test_weights_are_fetched_before_the_loop(recorded: Recorded) -> None:
    text = source(recorded(DIMS), "cu")
    fetch, loop = text.index("tile::fetch"), text.index("tile::pipeline")
    assert fetch < loop < text.index("tile::wait_copies<0>();")


def test_contiguous_weights_are_asked_for(recorded: Recorded) -> None:
    text = source(recorded(DIMS), "cu")
    assert ", {1, Shape::K}, {2, Shape::K}, {3, Shape::R})" in text


@pytest.mark.parametrize("rank", [16, 24])
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_a_kernel_spills_no_registers(
    recorded: Recorded, tmp_path: Path, arch: str, rank: int
) -> None:
    record = recorded({"K": 4096, "N": 4096, "R": rank}, DType.BF16, arch)  # needs most registers
    made = assembled(written(record, tmp_path), arch, tmp_path)
    assert len(made) == 4
    assert [kernel.spill_bytes for kernel in made] == [0] * 4


@pytest.fixture(scope="module")
def lora_linear() -> Recipe:
    return load_recipe("lora_linear")


def drawn(sizes: dict[str, int], dtype: DType) -> list[Array]:
    """Return x, weight, lora_a, lora_b and the scale: numbers that the storage type holds."""
    rng = np.random.default_rng(sizes["M"])
    names = (("M", "K"), ("N", "K"), ("R", "K"), ("N", "R"))
    arrays = [
        rng.standard_normal([sizes[d] for d in dims]) / np.sqrt(sizes[dims[1]]) for dims in names
    ]
    held = [np.asarray(round_to(a, dtype), np.float64) for a in arrays]
    tensors = [Array(d, (a,)) for d, a in zip(names, held, strict=True)]
    return [*tensors, Array((), (np.asarray(2.0),))]


@each_dtype
@pytest.mark.parametrize("rank", [8, 24])
def test_a_triton_program_is_as_accurate_as_the_unfused_program(
    recorded: Recorded, lora_linear: Recipe, rank: int, dtype: DType
) -> None:
    dims = DIMS | {"R": rank}
    sizes = dims | {"M": 19}
    inputs = drawn(sizes, dtype)
    spec = trace(lora_linear, Shape("a test", dims), dtype)
    exact = np.asarray(results(spec, inputs, array_reading(FLOAT64, sizes))[0].parts[0])
    unfused = Gate(spec, lora_linear, dtype).unfused()
    theirs = results(unfused, inputs, array_reading(STORAGE, sizes))[0].parts[0]
    mine = run_triton(recorded(dims, dtype), inputs)
    assert mine.shape == (19, 40)
    assert error(mine, exact) <= 1.1 * error(np.asarray(theirs, np.float64), exact)


def test_small_integers_come_out_bit_for_bit(recorded: Recorded) -> None:
    rng = np.random.default_rng(0)
    names = (("M", "K"), ("N", "K"), ("R", "K"), ("N", "R"))
    sizes = DIMS | {"M": 5}
    x, weight, lora_a, lora_b = (
        rng.integers(-1, 2, [sizes[d] for d in dims]).astype(np.float64) for dims in names
    )
    tensors = (x, weight, lora_a, lora_b)
    inputs = [Array(d, (a,)) for d, a in zip(names, tensors, strict=True)]
    inputs.append(Array((), (np.asarray(2.0),)))
    exact = x @ weight.T + 2.0 * (x @ lora_a.T) @ lora_b.T
    np.testing.assert_array_equal(run_triton(recorded(DIMS), inputs), exact)
