"""Fast schedules and general kernels are given the same calls, and each form is measured once."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch

from mirage_kernels.generator.bench.measure import Clock
from mirage_kernels.generator.ir import parts_of, retile
from mirage_kernels.generator.meaning.arrays import Array, array_reading
from mirage_kernels.generator.meaning.reals import FLOAT64
from mirage_kernels.generator.meaning.walk import results
from mirage_kernels.generator.records.folder import emitted
from mirage_kernels.generator.records.record import KernelRecord, load_record
from tests.scripts import BENCHMARKS, script

KERNELS = BENCHMARKS.parent / "kernels"
ATTENTION = (
    "gqa/D64",
    "gqa_full/D64",
    "sliding_window_attention/D64",
    "qk_norm_attention/D64",
    "qk_layer_norm_attention/D64",
    "mla_decode/C512_P64",
)
CLOCK = Clock("cpu", lambda calls: float(len(calls)), float, lambda dtype: 1.0, lambda size: 2)


@pytest.fixture(scope="module")
def schedules() -> ModuleType:
    return script("schedules")


def record_of(name: str) -> KernelRecord:
    return load_record(KERNELS / "sm_90a" / f"{name}_fp16.json")


def interpreted(record: KernelRecord, **given: object) -> tuple[torch.Tensor, ...]:
    """Run a record's muGraph in place of its general kernel."""
    graph, sizes, arrays = record.graph, {}, []
    for node in graph.inputs:
        data, names = torch.as_tensor(given[node.name]).numpy(), node.out.type.names
        sizes |= zip(names, data.shape, strict=True)
        real = node.out.type.dtype.is_real
        arrays.append(Array(names, (data.astype(np.float64 if real else np.int64),), real=real))
    parts = {parts_of(d): sizes[d] for d in ("L",) if d in sizes}
    made = results(retile(graph, sizes | parts), arrays, array_reading(FLOAT64, sizes))
    dims = [graph.values[o].type.names for o in graph.outputs]
    return tuple(torch.from_numpy(x.over(d).parts[0]) for x, d in zip(made, dims, strict=True))


@pytest.mark.parametrize("name", ATTENTION)
def test_attention_is_called_with_the_workloads_tensors(schedules: ModuleType, name: str) -> None:
    record = record_of(name)
    long = schedules.calls(record)["B=8"]
    workload = replace(long, lengths=(24, 24), heads=(4, 1 if long.more else 2))
    given = workload.draw(0, "cpu")
    made = interpreted(record, **schedules.arguments(record, workload, given))
    assert schedules.largest_error(made[0], workload.exact(given)) < 1e-3


@pytest.mark.parametrize("name", ["rms_norm/K3584", "rms_norm_residual/K3584"])
def test_a_row_has_both_times_and_both_errors(schedules: ModuleType, name: str) -> None:
    record = record_of(name)
    row = schedules.measured(record, "M=8", lambda **given: interpreted(record, **given), CLOCK)
    assert (row.us, row.general_us, row.ratio) == (2.0, 2.0, 1.0)
    assert 0 < row.error < 1e-2
    assert row.general_error < 1e-3
    assert row.line().split()[:3] == [f"{name}_fp16", "M=8", "row_wise"]


def test_each_set_of_schedules_of_a_recipe_is_measured_at_its_smallest_shape(
    schedules: ModuleType,
) -> None:
    found = schedules.forms(emitted(KERNELS, "sm_90a").values(), "*", "fp16")
    fast = [r for r in emitted(KERNELS, "sm_90a").values() if not r.indexed]
    assert {r.recipe for r in found} == {r.recipe for r in fast}
    assert [r.stem for r in found if r.recipe == "rms_norm_residual"] == [
        "K3584_fp16",
        "K8192_fp16",  # by clusters
    ]


def test_the_schedule_is_that_of_the_number_of_rows(schedules: ModuleType) -> None:
    record = record_of("gated_mlp/K4096_N4096")
    assert schedules.schedule_at(record, 16) == "sliced_k"
    assert schedules.schedule_at(record, 64) == "register_operand"


def test_what_was_made_is_not_made_again(
    schedules: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = record_of("rms_norm/K3584")

    def pretended(wanted, **_):
        return [one.out for one in wanted]

    monkeypatch.setattr(schedules, "compile_programs", pretended)
    (made,) = schedules.make([record], tmp_path, 1)
    source = made.with_suffix(".cu")
    assert "// Schedule" in source.read_text()
    source.write_text("kept")
    assert schedules.make([record], tmp_path, 1) == [made]
    assert source.read_text() == "kept"
