"""Buffers by number of tokens on the CPU, and a library whose launch is written in C."""

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
from mirage_kernels.generator.tuning.manifest import Compiled, Manifest

torch = pytest.importorskip("torch")
from mirage_kernels.generator.tuning import tokens_bench, worker  # noqa: E402  (need torch)
from mirage_kernels.generator.tuning.library import (  # noqa: E402
    LaunchArgs,
    Library,
    RefusedError,
)
from mirage_kernels.generator.tuning.tokens_bench import TokensBench  # noqa: E402
from mirage_kernels.generator.tuning.worker import refusal  # noqa: E402

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
int mirage_candidate_few_tiles(const struct Args* args) { return 0; }
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
def bench(monkeypatch: pytest.MonkeyPatch) -> TokensBench:
    """A kernel's buffers on the CPU; every call is made once and takes 5 us."""

    def time(self: TokensBench, calls: list[Callable[[], None]]) -> float:
        for call in calls:
            call()
        return 5.0

    monkeypatch.setattr(tokens_bench, "rotation_count", lambda set_bytes: 3)
    monkeypatch.setattr(TokensBench, "time", time)
    return TokensBench(kernel(), device="cpu")


def loaded(path: Path) -> Library[LaunchArgs]:
    return Library.load(path, LaunchArgs)


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


def test_a_right_candidate_has_a_time_and_an_error(
    bench: TokensBench, library: MakeLibrary
) -> None:
    answer = bench.candidate("M=8", loaded(library(computed)), assumed=True)
    assert answer["us"] == 5.0
    assert isinstance(answer["error"], float)
    assert 0 < answer["error"] < 1e-3


def test_a_candidate_that_writes_nothing_is_wrong(bench: TokensBench, library: MakeLibrary) -> None:
    answer = bench.candidate("M=8", loaded(library(lambda args: 0)), assumed=True)
    assert str(answer["failed"]).startswith("its error is nan")


def test_a_candidate_that_leaves_a_row_out_is_wrong(
    bench: TokensBench, library: MakeLibrary
) -> None:
    def short(args: LaunchArgs) -> int:
        args.dims[0] -= 1
        return computed(args)

    assert "failed" in bench.candidate("M=8", loaded(library(short)), assumed=True)


def test_a_launch_that_fails_is_refused(bench: TokensBench, library: MakeLibrary) -> None:
    with pytest.raises(RefusedError, match="CUDA error 700"):
        bench.candidate("M=8", loaded(library(lambda args: 700)), assumed=True)


def test_a_library_for_other_arguments_is_refused(library: MakeLibrary) -> None:
    with pytest.raises(RefusedError, match="LaunchArgs"):
        loaded(library(extra="- 8"))


def test_fields_that_the_worker_does_not_know_are_zeros(
    bench: TokensBench, library: MakeLibrary
) -> None:
    said: list[bytes] = []

    def back(args: LaunchArgs) -> int:
        said.append(ctypes.string_at(ctypes.addressof(args) + ctypes.sizeof(LaunchArgs), 16))
        return computed(args)

    assert "us" in bench.candidate("M=8", loaded(library(back, "+ 16")), assumed=True)
    assert set(said) == {bytes(16)}


def test_what_the_library_would_run_has_a_time(bench: TokensBench) -> None:
    pytest.importorskip("mirage_kernels.ops", reason="needs the compiled extension")
    assert bench.library_us(64) == {"library_us": 5.0}


def test_what_is_no_library_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.so").write_bytes(b"")
    with pytest.raises(RefusedError, match="does not load"):
        loaded(tmp_path / "a.so")


@pytest.mark.parametrize("assumed", [True, False])
def test_what_is_assumed_about_weights_is_told_to_the_kernel(
    bench: TokensBench, library: MakeLibrary, assumed: bool
) -> None:
    said: list[bool] = []

    def back(args: LaunchArgs) -> int:
        said.append(args.constant_weights)
        return 0

    bench.candidate("M=8", loaded(library(back)), assumed=assumed)
    assert said == [assumed]


def test_all_buckets_share_the_weights(bench: TokensBench) -> None:
    few, many = bench.inputs(8)[0], bench.inputs(64)[0]
    assert few[2].data_ptr() == many[2].data_ptr()
    assert (few[0].shape[0], many[0].shape[0]) == (8, 64)


def test_where_tokens_are_what_is_read_every_number_of_them_has_its_own_sets(
    bench: TokensBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokens_bench, "SHARED_BYTES", 0)
    few, many = bench.inputs(8), bench.inputs(64)
    assert (few[0][0].shape[0], many[0][0].shape[0]) == (8, 64)
    assert list(bench.made) == [64]


def test_as_many_bytes_have_the_same_floor(
    bench: TokensBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    monkeypatch.setattr(worker, "floor_microseconds", lambda r, n: float(asked.append(n) or 1))
    made = worker.Worker(Path(), Manifest("sm_90a", "", (kernel(),)), reader=None)  # type: ignore[arg-type]
    made.benches[kernel().key.name] = bench
    monkeypatch.setattr(TokensBench, "peers", lambda self, call: {"eager_us": 2.0})
    for call in ("M=8", "M=8", "M=64"):
        question = {"kernel": kernel().key.name, "at": call}
        assert made.answer(question) == {"floor_us": 1.0, "eager_us": 2.0}
    assert asked == [bench.bytes_read("M=8"), bench.bytes_read("M=64")]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_the_worker_refuses() -> None:
    assert "needs an NVIDIA GPU" in str(refusal(Manifest("sm_90a", "", ()))["refused"])
