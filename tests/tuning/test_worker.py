"""The worker without a GPU: tensors on the CPU, a library whose launch is written in C."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from pretended_tuning import compiled

from mirage_kernels.generator.build.compile import ROOT
from mirage_kernels.generator.tuning.entries import RefusedError
from mirage_kernels.generator.tuning.manifest import Compiled

torch = pytest.importorskip("torch")
from mirage_kernels.generator.tuning import worker as worker_module  # noqa: E402  (needs torch)
from mirage_kernels.generator.tuning.worker import (  # noqa: E402
    Bench,
    LaunchArgs,
    Library,
    refusal,
)

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="needs a C compiler")

# Calls back into this process, which computes the result with torch.
PROGRAM = """
#include <stdbool.h>
#include <stdint.h>
struct Args {
  const void* inputs[8]; void* outputs[4]; int64_t row_strides[8]; int64_t dims[4];
  float scalars[4]; bool constant_weights; void* workspace; uint64_t nonce;
};
int (*back)(const struct Args*) = 0;
int64_t mirage_candidate_workspace(const struct Args* args) { return 16; }
int mirage_candidate_launch(const struct Args* args, void* stream) { return back(args); }
int mirage_candidate_args_bytes(void) { return sizeof(struct Args) EXTRA; }
"""
Back = Callable[[LaunchArgs], int]
MakeLibrary = Callable[..., Path]


@pytest.fixture
def library(tmp_path: Path) -> MakeLibrary:
    kept: list[object] = []

    def make(back: Back | None = None, extra: str = "") -> Path:
        source, made = tmp_path / "library.c", tmp_path / f"library{len(kept)}.so"
        source.write_text(PROGRAM.replace("EXTRA", extra))
        subprocess.run(["gcc", "-shared", "-fPIC", str(source), "-o", str(made)], check=True)
        kind = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(LaunchArgs))
        called = kind(lambda args: back(args.contents) if back else 0)
        kept.append(called)
        ctypes.c_void_p.in_dll(ctypes.CDLL(str(made)), "back").value = ctypes.cast(
            called, ctypes.c_void_p
        ).value
        return made

    return make


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
    """A kernel's buffers on the CPU; every call is made once and takes 5 us."""

    def time(self: Bench, calls: list[Callable[[], None]]) -> float:
        for call in calls:
            call()
        return 5.0

    monkeypatch.setattr(worker_module, "rotation_count", lambda set_bytes: 3)
    monkeypatch.setattr(Bench, "time", time)
    return Bench(kernel(), device="cpu")


def kernel() -> Compiled:
    return compiled()


def tensor(address: int, *shape: int) -> torch.Tensor:
    count = 1
    for size in shape:
        count *= size
    words = (ctypes.c_int16 * count).from_address(address)
    return torch.frombuffer(words, dtype=torch.float16).view(*shape)


def computed(args: LaunchArgs) -> int:
    """Do what the kernel would."""
    m, k, n = args.dims[0], 72, 40
    assert [args.row_strides[i] for i in range(3)] == [k, k, k]
    x, norm, weight = (
        tensor(args.inputs[i], *shape).double() for i, shape in enumerate([(m, k), (k,), (n, k)])
    )
    scale = (x.square().mean(-1, keepdim=True) + args.scalars[0]).rsqrt()
    tensor(args.outputs[0], m, n).copy_((x * scale * norm) @ weight.T)
    return 0


def test_the_structure_names_the_first_fields_of_launch_h() -> None:
    header = (ROOT / "csrc" / "launch.h").read_text()
    body = header.partition("struct LaunchArgs {")[2].partition("};")[0]
    fields = re.findall(r"^  \w[^;/]*?(\w+)(?:\[(\d+)\])?;", body, re.MULTILINE)
    own = [(f[0], str(getattr(f[1], "_length_", ""))) for f in LaunchArgs._fields_]
    assert fields[: len(own)] == own


def test_a_right_candidate_has_a_time_and_an_error(bench: Bench, library: MakeLibrary) -> None:
    answer = bench.candidate(8, Library.load(library(computed)))
    assert answer["us"] == 5.0
    assert isinstance(answer["error"], float)
    assert 0 < answer["error"] < 1e-3


def test_a_candidate_that_writes_nothing_is_wrong(bench: Bench, library: MakeLibrary) -> None:
    answer = bench.candidate(8, Library.load(library(lambda args: 0)))
    assert str(answer["failed"]).startswith("its error is nan")


def test_a_candidate_that_leaves_a_row_out_is_wrong(bench: Bench, library: MakeLibrary) -> None:
    def short(args: LaunchArgs) -> int:
        args.dims[0] -= 1
        return computed(args)

    assert "failed" in bench.candidate(8, Library.load(library(short)))


def test_a_launch_that_fails_is_refused(bench: Bench, library: MakeLibrary) -> None:
    with pytest.raises(RefusedError, match="CUDA error 700"):
        bench.candidate(8, Library.load(library(lambda args: 700)))


def test_a_library_for_other_arguments_is_refused(library: MakeLibrary) -> None:
    with pytest.raises(RefusedError, match="LaunchArgs"):
        Library.load(library(extra="- 8"))


def test_fields_that_the_worker_does_not_know_are_zeros(bench: Bench, library: MakeLibrary) -> None:
    said: list[bytes] = []

    def back(args: LaunchArgs) -> int:
        said.append(ctypes.string_at(ctypes.addressof(args) + ctypes.sizeof(LaunchArgs), 16))
        return computed(args)

    assert "us" in bench.candidate(8, Library.load(library(back, "+ 16")))
    assert set(said) == {bytes(16)}


def test_what_the_library_would_run_has_a_time(bench: Bench) -> None:
    pytest.importorskip("mirage_kernels.ops", reason="needs the compiled extension")
    assert bench.library_us(64) == {"library_us": 5.0}


def test_what_is_no_library_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.so").write_bytes(b"")
    with pytest.raises(RefusedError, match="does not load"):
        Library.load(tmp_path / "a.so")


@pytest.mark.parametrize("promised", [True, False])
def test_what_is_promised_about_weights_is_told_to_the_kernel(
    bench: Bench, library: MakeLibrary, promised: bool
) -> None:
    said: list[bool] = []

    def back(args: LaunchArgs) -> int:
        said.append(args.constant_weights)
        return 0

    bench.candidate(8, Library.load(library(back)), promised=promised)
    assert said == [promised]


def test_all_buckets_share_the_weights(bench: Bench) -> None:
    few, many = bench.inputs(8)[0], bench.inputs(64)[0]
    assert few[2].data_ptr() == many[2].data_ptr()
    assert (few[0].shape[0], many[0].shape[0]) == (8, 64)


def test_where_tokens_are_what_is_read_every_number_of_them_has_its_own_sets(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_module, "SHARED_BYTES", 0)
    few, many = bench.inputs(8), bench.inputs(64)
    assert (few[0][0].shape[0], many[0][0].shape[0]) == (8, 64)
    assert list(bench.made) == [64]


def test_as_many_bytes_have_the_same_floor(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    monkeypatch.setattr(
        worker_module, "floor_microseconds", lambda r, n: float(asked.append(n) or 1)
    )
    manifest = worker_module.Manifest("sm_90a", "", (kernel(),))
    worker = worker_module.Worker(Path(), manifest, reader=None)  # type: ignore[arg-type]
    assert worker.floor_us(bench, 8) == worker.floor_us(bench, 8) == 1.0
    worker.floor_us(bench, 64)
    assert asked == [bench.bytes(8), bench.bytes(64)]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_the_worker_refuses() -> None:
    from mirage_kernels.generator.tuning.manifest import Manifest

    assert "needs an NVIDIA GPU" in str(refusal(Manifest("sm_90a", "", ()))["refused"])
