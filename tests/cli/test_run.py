"""`run` and `bench`: what their tables say, and when they fail; compilers and GPUs are stood in."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from mirage_kernels.generator.bench import measure
from mirage_kernels.generator.bench.demonstrate import Demonstration
from mirage_kernels.generator.bench.measure import Environment, Row
from mirage_kernels.generator.bench.workloads.tensors import TensorWorkload
from mirage_kernels.generator.commands import arguments, bench, extension
from mirage_kernels.generator.commands import run as run_verb
from mirage_kernels.generator.commands.extension import Loaded
from mirage_kernels.generator.errors import ToolchainError, VerifyError
from mirage_kernels.generator.ir.dtypes import DType

KERNELS = arguments.package_kernels()
KERNEL = "rms_norm_linear/K4096_N6144_fp16"
LOADED = Loaded("2.13.0", kernels=(KERNEL,), arch="sm_90a", call=(3e-4, 3e-4, 0.01))
SIZES = {"K": 4096, "N": 6144, "M": 5}
SHOWN = [Demonstration("muGraph, block by block", SIZES, 2.9e-4, 3.0e-4, 0.3)]
ROW = Row(
    workload="rms_norm_linear",
    dtype="fp16",
    dims={"K": 4096, "N": 6144, "M": 8},
    bytes_read=50_339_840,
    floor_us=12.5,
    ours_us=14.0,
    eager_us=23.2,
    compile_us=None,
    warm_us=13.1,
    ratio=1.12,
    promised_us=12.9,
    promised_ratio=1.03,
    error_ours=2.9e-4,
    error_eager=3.0e-4,
)
HERE = Environment("NVIDIA H200", "580.1", "13.0", "2.11.0", "2026-01-01", "abc", "mirage-kernels")


@pytest.fixture
def stand_ins(
    monkeypatch: pytest.MonkeyPatch, without_search: None, workplace: Path
) -> pytest.MonkeyPatch:
    def build_extension(*_: object, progress, **__: object) -> None:
        progress("compile", 3, 15, "x.cu  6 s, about 24 s left")
        progress("link", 1, 1, "_C.abi3.so  0.3 s")

    monkeypatch.setattr(arguments, "is_checkout", lambda: True)
    monkeypatch.setattr(arguments, "package_kernels", lambda: workplace)
    monkeypatch.setattr(run_verb, "find_toolchain", lambda: None)
    monkeypatch.setattr(run_verb, "selected", lambda names, *_: names)
    monkeypatch.setattr(run_verb, "build_extension", build_extension)
    monkeypatch.setattr(extension, "load", lambda *_: LOADED)
    monkeypatch.setattr(run_verb, "demonstrate", lambda *_: SHOWN)
    return monkeypatch


def test_without_a_gpu_three_things_run(mirage_kernels, stand_ins, workplace: Path) -> None:
    outcome = mirage_kernels("run", "rms_norm_linear")
    assert outcome.code == 0, outcome.err
    assert "muGraph, block by block" in outcome.out
    assert "compiled extension (1 kernel), op on CPU tensors" in outcome.out
    assert "FAILED" not in outcome.out
    assert "  compile  3/15  x.cu" in outcome.err
    assert (workplace / f"sm_90a/{KERNEL}.cu").is_file()


def test_no_write_compiles_nothing_and_leaves_the_kernels_alone(
    mirage_kernels, stand_ins, workplace: Path
) -> None:
    stand_ins.setattr(run_verb, "build_extension", None)
    assert mirage_kernels("run", "rms_norm_linear", "--no-write").code == 0
    assert list(workplace.iterdir()) == []


def test_run_compiles_its_kernel_beside_those_of_the_extension(
    mirage_kernels, stand_ins, workplace: Path
) -> None:
    built: list[list[str]] = []
    other = Path("sm_90a/gqa/D128_fp16.json")
    (workplace / other).parent.mkdir(parents=True)
    shutil.copy(KERNELS / other, workplace / other)
    stand_ins.setattr(extension, "compiled_paths", lambda records: {str(other)})
    stand_ins.setattr(run_verb, "build_extension", lambda names, *_, **__: built.append(names))
    assert mirage_kernels("run", "rms_norm_linear").code == 0
    assert built == [["gqa/D128_fp16", KERNEL]]


def test_row_beyond_the_tolerance_fails(mirage_kernels, stand_ins) -> None:
    wrong = replace(SHOWN[0], error=float("nan"))
    stand_ins.setattr(run_verb, "demonstrate", lambda *_: [wrong])
    outcome = mirage_kernels("run", "rms_norm_linear", "--json")
    assert outcome.code == 1
    rows = json.loads(outcome.out)["rows"]
    assert [row["passed"] for row in rows] == [False, True]


def test_failing_triton_program_is_a_failed_row(mirage_kernels, stand_ins) -> None:
    def demonstrate(*_: object) -> None:
        raise VerifyError("the Triton program fails: no such op", "look at it")

    stand_ins.setattr(run_verb, "demonstrate", demonstrate)
    outcome = mirage_kernels("run", "rms_norm_linear")
    assert outcome.code == 1
    assert "the Triton program fails: no such op" in outcome.out


def test_extension_that_does_not_load_is_a_failed_row(mirage_kernels, stand_ins) -> None:
    stand_ins.setattr(
        extension, "load", lambda *_: replace(LOADED, kernels=(), call=None, problem="no _C")
    )
    outcome = mirage_kernels("run", "rms_norm_linear")
    assert outcome.code == 1
    assert "no _C" in outcome.out


def test_kernel_that_does_not_compile_is_a_failed_row(mirage_kernels, stand_ins) -> None:
    def build_extension(*_: object, **__: object) -> None:
        raise ToolchainError("x.cu does not build", "nvcc x.cu\nerror: expected ;")

    stand_ins.setattr(run_verb, "build_extension", build_extension)
    outcome = mirage_kernels("run", "rms_norm_linear")
    assert outcome.code == 1
    assert "FAILED compiled extension: x.cu does not build" in outcome.out
    assert "error: expected ;" in outcome.out
    assert "muGraph, block by block" in outcome.out


def test_without_nvcc_the_row_says_so_and_nothing_is_written(
    mirage_kernels, stand_ins, workplace: Path
) -> None:
    def find_toolchain() -> None:
        raise ToolchainError("no CUDA compiler", "`pip install 'mirage-kernels[nvcc]'` brings one")

    stand_ins.setattr(run_verb, "find_toolchain", find_toolchain)
    outcome = mirage_kernels("run", "rms_norm_linear")
    assert outcome.code == 2
    assert "FAILED compiled extension: no CUDA compiler" in outcome.out
    assert "hint: `pip install 'mirage-kernels[nvcc]'`" in outcome.out
    assert "Traceback" not in outcome.err
    assert list(workplace.iterdir()) == []


def test_installed_package_cannot_run(mirage_kernels, stand_ins) -> None:
    stand_ins.setattr(arguments, "is_checkout", lambda: False)
    outcome = mirage_kernels("run", "rms_norm_linear")
    assert outcome.code == 2
    assert "needs a source checkout" in outcome.err


def test_with_a_gpu_the_op_is_measured(mirage_kernels, stand_ins) -> None:
    def bench_in_a_process(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        assert command[3:6] == ["bench", "rms_norm_linear", "--shape"]
        rows = [vars(replace(ROW, dims={**ROW.dims, "M": m})) for m in (1, 8, 16, 64)]
        return subprocess.CompletedProcess(command, 0, json.dumps({"rows": rows}))

    on_h200 = replace(LOADED, gpu="NVIDIA H200", capability=(9, 0))
    stand_ins.setattr(extension, "load", lambda *_: on_h200)
    stand_ins.setattr(run_verb.subprocess, "run", bench_in_a_process)
    outcome = mirage_kernels("run", "rms_norm_linear")
    assert outcome.code == 0
    assert "on NVIDIA H200" in outcome.out
    assert outcome.out.count("compiled op on the GPU") == 4
    for word in ("14.0 us", "23.2 us", "1.12", "2.90e-04", "M=64"):
        assert word in outcome.out


def test_gpu_of_another_architecture_is_not_used(mirage_kernels, stand_ins) -> None:
    on_a100 = replace(LOADED, gpu="NVIDIA A100", capability=(8, 0))
    stand_ins.setattr(extension, "load", lambda *_: on_a100)
    outcome = mirage_kernels("run", "rms_norm_linear")
    assert outcome.code == 0
    assert "NVIDIA A100 does not run sm_90a code" in outcome.err


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch, workplace: Path) -> None:
    def measured_row(workload: TensorWorkload, clock: object, *, with_compile: bool) -> Row:
        us = 15.9 if with_compile else None
        return replace(ROW, dims=workload.dims, dtype=workload.dtype.value, compile_us=us)

    clock = measure.Clock("cpu", len, float, lambda _: 0.0, lambda _: 1)
    monkeypatch.setattr(bench, "_require_gpu", lambda: None)
    monkeypatch.setattr(measure, "gpu_clock", lambda: clock)
    monkeypatch.setattr(measure, "measured", measured_row)
    monkeypatch.setattr(measure, "environment", lambda **_: HERE)


BENCH = ("bench", "rms_norm_linear", "--shape", "K=4096,N=6144")


def test_bench_prints_times_and_errors(mirage_kernels, measured) -> None:
    outcome = mirage_kernels(*BENCH, "--m", "1,8", "--compile")
    assert outcome.code == 0, outcome.err
    assert outcome.out.count("K=4096,N=6144") == 2
    for word in ("12.50", "14.00", "1.12", "13.10", "23.20", "15.90", "2.90e-04", "NVIDIA H200"):
        assert word in outcome.out


def test_bench_writes_rows_and_environment(mirage_kernels, measured, workplace: Path) -> None:
    outcome = mirage_kernels(*BENCH, "--json", "rows.json")
    assert outcome.code == 0, outcome.err
    assert [p.name for p in workplace.iterdir()] == ["rows.json"]
    document = json.loads((workplace / "rows.json").read_text())
    assert [row["dims"]["M"] for row in document["rows"]] == [1, 8, 16, 64]
    assert set(document["environment"]) == set(vars(HERE))


def test_bench_prints_the_document(mirage_kernels, measured, workplace: Path) -> None:
    outcome = mirage_kernels(*BENCH, "--json", "-", "--dtype", "bf16", "--m", "8")
    assert [row["dtype"] for row in json.loads(outcome.out)["rows"]] == ["bf16"]
    assert list(workplace.iterdir()) == []


def test_bench_refuses_what_is_not_compiled(mirage_kernels, measured) -> None:
    outcome = mirage_kernels("bench", "rms_norm_linear", "--shape", "K=64,N=48")
    assert outcome.code == 2
    assert "no compiled kernel for rms_norm_linear K64_N48 fp16" in outcome.err
    assert "Traceback" not in outcome.err


@pytest.mark.parametrize("verb", ["bench", "run"])
def test_rows_by_index_tensors_are_not_drawn(mirage_kernels, measured, verb: str) -> None:
    outcome = mirage_kernels(verb, "rope_cache_write")
    assert outcome.code == 2
    assert f"{verb} draws the inputs of a recipe, and rope_cache_write takes rows" in outcome.err


SMALL = TensorWorkload("rms_norm_linear", {"M": 3, "K": 64, "N": 16}, dtype=DType.BF16)


def test_inputs_are_drawn_in_recipe_order() -> None:
    given = SMALL.draw(0, "cpu")
    assert [t.shape for t in given.values()] == [(3, 64), (64,), (16, 64)]
    assert given["x"].dtype == torch.bfloat16
    assert torch.equal(given["x"], SMALL.draw(0, "cpu")["x"])
    assert not torch.equal(given["x"], SMALL.draw(1, "cpu")["x"])
    assert SMALL.eager()(given).shape == (3, 16)
    assert SMALL.bytes_read == sum(t.nbytes for t in given.values())


@pytest.mark.parametrize(
    "workload", [SMALL, replace(SMALL, recipe="rms_norm_linear_residual", dtype=DType.FP16)]
)
def test_a_workload_of_tensors_is_measured_whole(workload: TensorWorkload) -> None:
    def per_call(calls: list[Callable[[], object]]) -> float:
        return 10.0 + 0 * len([call() for call in calls])

    clock = measure.Clock("cpu", per_call, lambda size: 5.0, lambda dtype: 1.0, lambda size: 2)
    (row,) = measure.rows([workload], clock)
    assert 0 < row.error_ours <= 1.1 * row.error_eager
    assert (row.ratio, row.compute_us, row.compile_us, row.peers) == (2.0, 0.0, None, {})
