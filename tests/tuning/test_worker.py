"""What the worker measures, on the CPU: a library whose launch is written in C calls back."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from pretended import KEY, TOKENS_KEY, of_calls, of_tokens

from mirage_kernels.generator.bench.measure import Clock
from mirage_kernels.generator.bench.workload import AttentionArgs, LaunchArgs
from mirage_kernels.generator.bench.workloads.cache import CacheWorkload
from mirage_kernels.generator.bench.workloads.lists import Workload, dense_calls, kernel_calls
from mirage_kernels.generator.bench.workloads.tensors import TensorWorkload
from mirage_kernels.generator.build.compile import ROOT
from mirage_kernels.generator.errors import ToolchainError
from mirage_kernels.generator.ir.dtypes import DType
from mirage_kernels.generator.tuning.catalog import Section, write_file
from mirage_kernels.generator.tuning.process import worker_process
from mirage_kernels.generator.tuning.worker import (
    ALIGNMENT,
    Buffers,
    Library,
    RefusedError,
    Worker,
)

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="needs a C compiler")

PROGRAM = """
#include <stdint.h>
int (*back)(const void*) = 0;
int64_t mirage_candidate_workspace(const void* args) { return 16; }
int mirage_candidate_few_tiles(const void* args) { return 1; }
int mirage_candidate_launch(const void* args, void* stream) { return back(args); }
int mirage_candidate_args_bytes(void) { return BYTES; }
"""
TENSORS = TensorWorkload(TOKENS_KEY.recipe, {**TOKENS_KEY.shape, "M": 8})
CACHE = CacheWorkload("gqa", (5, 37), (8, 2), depth=64)
Back = Callable[[Any], int]
MakeLibrary = Callable[..., Library]


def pretended_time(calls: Sequence[Callable[[], object]]) -> float:
    for call in calls:
        call()
    return 5.0


CLOCK = Clock("cpu", pretended_time, lambda size: size / 1e6, lambda dtype: 1.0, lambda size: 2)


@pytest.fixture
def library(tmp_path: Path) -> MakeLibrary:
    kept: list[object] = []

    def make(back: Back, kind: type[Any] = LaunchArgs, size: int = 768) -> Library:
        source, made = tmp_path / "library.c", tmp_path / f"library{len(kept)}.so"
        source.write_text(PROGRAM.replace("BYTES", str(size)))
        subprocess.run(["gcc", "-shared", "-fPIC", str(source), "-o", str(made)], check=True)
        called = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(kind))(lambda a: back(a.contents))
        kept.append(called)
        pointer = ctypes.c_void_p.in_dll(ctypes.CDLL(str(made)), "back")
        pointer.value = ctypes.cast(called, ctypes.c_void_p).value
        return Library.load(made, kind)

    return make


def kernel_of(buffers: Buffers, *, rows_left_out: int = 0) -> Back:
    """Return what the kernel would do, of whichever input set a launch is."""

    def first(args: Any) -> int:
        return int(args.q.at if isinstance(args, AttentionArgs) else args.inputs[0])

    def back(args: Any) -> int:
        workload, cache = buffers.workload, isinstance(args, AttentionArgs)
        own = next(s for s in buffers.sets if s["q" if cache else "x"].data_ptr() == first(args))
        exact = workload.exact(workload.dense(own))
        (out,) = workload.new_outs(own)
        made = exact.reshape(out.shape).to(out.dtype).contiguous()
        place = args.out if cache else args.outputs[0]
        ctypes.memmove(place, made.data_ptr(), made[rows_left_out:].nbytes)
        return 0

    return back


@pytest.mark.parametrize("kind", [LaunchArgs, AttentionArgs])
def test_the_structure_names_the_first_fields_of_launch_h(kind: type[Any]) -> None:
    header = (ROOT / "csrc" / "launch.h").read_text()
    body = header.partition(f"struct {kind.__name__} {{")[2].partition("};")[0]
    members = re.sub(r"//.*", "", re.sub(r"\([^()]*\) const \{[^}]*\}", "();", body)).split(";")
    names = [
        re.sub(r"\[\d+\]|=.*", "", name).split()[-1].lstrip("*")
        for statement in members
        if statement.strip() and "(" not in statement
        for name in statement.split(",")
    ]
    own = [field[0] for field in kind._fields_]
    assert names[: len(own)] == own


@pytest.mark.parametrize("workload", [TENSORS, CACHE])
def test_a_right_candidate_has_a_time_one_that_leaves_something_out_is_wrong(
    library: MakeLibrary, workload: Workload
) -> None:
    buffers = Buffers(workload, CLOCK)
    answer = buffers.candidate(library(kernel_of(buffers), workload.arguments), assumed=False)
    assert (answer["us"], answer["few_tiles"]) == (5.0, True)
    assert isinstance(answer["error"], float)
    assert 0 < answer["error"] < 1e-3
    for back in (lambda args: 0, kernel_of(buffers, rows_left_out=1)):
        answer = buffers.candidate(library(back, workload.arguments), assumed=True)
        assert str(answer["failed"]).startswith(f"its error is nan at {workload.recipe}")


def test_a_failed_launch_other_arguments_and_what_is_no_library_are_refused(
    library: MakeLibrary, tmp_path: Path
) -> None:
    with pytest.raises(RefusedError, match="CUDA error 700"):
        Buffers(TENSORS, CLOCK).candidate(library(lambda args: 700), assumed=True)
    with pytest.raises(RefusedError, match="LaunchArgs"):
        library(lambda args: 0, size=8)
    (tmp_path / "a.so").write_bytes(b"")
    with pytest.raises(RefusedError, match="does not load"):
        Library.load(tmp_path / "a.so", LaunchArgs)


def test_arguments_lie_at_aligned_places_and_unknown_fields_are_zeros(library: MakeLibrary) -> None:
    made = library(lambda args: 0, size=ctypes.sizeof(LaunchArgs) + 16)
    for args in [made.args() for _ in range(9)]:
        assert ctypes.addressof(args) % ALIGNMENT == 0
        end = ctypes.addressof(args) + ctypes.sizeof(LaunchArgs)
        assert ctypes.string_at(end, 16) == bytes(16)


@pytest.mark.parametrize(
    ("workload", "history"),
    [(CACHE, True), (replace(CACHE, lengths=(37,), page_size=0), False), (TENSORS, None)],
)
def test_every_call_has_a_nonce_and_says_what_is_assumed(
    library: MakeLibrary, workload: Workload, history: bool | None
) -> None:
    buffers, seen = Buffers(workload, CLOCK), []
    write = kernel_of(buffers)

    def back(args: Any) -> int:
        known = getattr(args, "constant_history", None)
        seen.append((args.nonce, args.constant_weights, known))
        return write(args)

    for assumed in (False, True):
        assert "us" in buffers.candidate(library(back, workload.arguments), assumed=assumed)
    assert len({nonce for nonce, *_ in seen}) == len(seen) == 6
    unassumed = None if history is None else False
    assert [said for _, *said in seen] == [[False, unassumed]] * 3 + [[True, history]] * 3


@pytest.mark.parametrize(
    ("recipe", "dims", "vectors"),
    [
        ("gqa", {"D": 128}, []),
        ("qk_norm_attention", {"D": 64}, [0, 0]),
        ("qk_layer_norm_attention", {"D": 64}, [64] * 4),
        ("mla_decode", {"C": 512, "P": 64}, []),
    ],
)
def test_arguments_are_those_of_the_call(
    recipe: str, dims: dict[str, int], vectors: list[int]
) -> None:
    call = replace(next(iter(kernel_calls(recipe, DType.BF16, dims).values())), lengths=(37,))
    given, args = call.draw(0, "cpu"), AttentionArgs()
    (out,) = call.new_outs(given)
    call.fill(args, given, [out])
    assert (args.q.at, args.k.at) == (given["q"].data_ptr(), given["k"].data_ptr())
    assert args.v.at == (given["k"][..., 512:] if call.more else given["v"]).data_ptr()
    assert (args.page_size, args.table_row) == (call.page_size, given["table"].shape[1])
    assert (args.Hkv, args.G, args.max_len) == (call.heads[1], call.group, 37)
    assert (args.out_token, args.out_head) == (call.heads[0] * call.depth, call.depth)
    assert [args.vector_heads[i] for i in range(4) if args.vectors[i]] == vectors


def test_tensor_arguments_are_those_of_the_recipe() -> None:
    given, args = TENSORS.draw(0, "cpu"), LaunchArgs()
    outs = TENSORS.new_outs(given)
    TENSORS.fill(args, given, outs)
    assert [args.inputs[i] for i in range(3)] == [t.data_ptr() for t in given.values()]
    assert [args.row_strides[i] for i in range(3)] == [72, 1, 72]
    assert (args.dims[0], args.outputs[0]) == (8, outs[0].data_ptr())
    assert args.scalars[0] == pytest.approx(TENSORS.source.scalars["eps"])


def test_the_worker_measures_the_floor_and_what_would_run_in_a_kernels_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("mirage_kernels.ops", reason="needs the compiled extension")
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    kernels = (of_tokens(), of_calls())
    worker = Worker(Path(), Section("sm_90a", {}, None, kernels), CLOCK)
    answer = worker.answer({"kernel": TOKENS_KEY.name, "at": "M=8"})
    floor_us = TENSORS.bytes_read / 1e6
    assert answer == {"floor_us": floor_us, "eager_us": 5.0, "library_us": 5.0}
    first = worker.kept
    assert worker.buffers(TOKENS_KEY.name, "M=8") is (first[1] if first else None)
    name, call = next(iter(kernel_calls("gqa", DType.FP16, {"D": 128}).items()))
    worker = replace(worker, clock=replace(CLOCK, sets=lambda size: 0))
    answer = worker.answer({"kernel": KEY.name, "at": name})
    assert answer == {"floor_us": call.bytes_read / 1e6}


def test_a_dense_call_of_many_tokens_is_compared_with_pytorchs() -> None:
    *_, call = dense_calls("sliding_window_attention", DType.FP16, {"D": 64}).values()
    answer = Buffers(replace(call, lengths=(24,), tokens=24), CLOCK).peers()
    assert answer["library_us"] == 5.0
    assert isinstance(answer["peers"], dict)
    assert "SDPA flash" in answer["peers"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_the_worker_process_refuses(tmp_path: Path) -> None:
    write_file(tmp_path / "manifest.json", Section("sm_90a", {}, None, ()))
    with pytest.raises(ToolchainError, match="needs an NVIDIA GPU"):
        worker_process(tmp_path).ask({"environment": "tune"}, seconds=60)


SIZES = {"M": 70, "K": 256, "N": 64, "R": 16}


@pytest.mark.parametrize(
    "name",
    [
        *("rms_norm_linear_full", "layer_norm_linear", "lora_linear_full", "geglu_mlp"),
        *("rms_norm_gated_mlp", "ntrans", "layer_norm", "silu_and_mul"),
    ],
)
def test_the_library_s_program_computes_the_recipe(name: str) -> None:
    pytest.importorskip("mirage_kernels.ops", reason="needs the compiled extension")
    workload = TensorWorkload(name, SIZES)
    given = workload.draw(1, "cpu")
    exact, made = workload.exact(given), workload.in_place()["library_us"](given)
    torch.testing.assert_close(made.double(), exact, rtol=5e-3, atol=5e-3)


@pytest.mark.parametrize("name", ["relu2_mlp", "rms_norm_linear_residual"])
def test_what_has_another_kernel_or_none_above_has_no_program(name: str) -> None:
    assert set(TensorWorkload(name, SIZES).in_place()) == {"eager_us"}
