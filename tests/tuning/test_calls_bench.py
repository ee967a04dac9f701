"""Buffers of calls over a cache on the CPU, and a library whose launch is written in C."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from pretended_calls import KEY, compiled

from mirage_kernels.generator.build.compile import ROOT
from mirage_kernels.generator.tuning.keys import Key
from mirage_kernels.generator.tuning.manifest import Manifest

torch = pytest.importorskip("torch")
from mirage_kernels.generator.bench.workloads.calls import CallWorkload  # noqa: E402
from mirage_kernels.generator.tuning import worker as module  # noqa: E402
from mirage_kernels.generator.tuning.calls import dense_calls, named_calls  # noqa: E402
from mirage_kernels.generator.tuning.calls_bench import CallBuffers, filled  # noqa: E402
from mirage_kernels.generator.tuning.library import (  # noqa: E402
    ALIGNMENT,
    AttentionArgs,
    Library,
)
from mirage_kernels.generator.tuning.worker import Worker  # noqa: E402

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="needs a C compiler")

# Calls back into this process, which writes the result with torch.
PROGRAM = """
#include <stdint.h>
int (*back)(const void*) = 0;
int64_t mirage_candidate_workspace(const void* args) { return 16; }
int mirage_candidate_few_tiles(const void* args) { return 1; }
int mirage_candidate_launch(const void* args, void* stream) { return back(args); }
int mirage_candidate_args_bytes(void) { return BYTES; }
"""
Back = Callable[[AttentionArgs], int]
SMALL = CallWorkload("gqa", "decode", (5, 37), (8, 2), depth=64, page_size=16)


@pytest.fixture
def library(tmp_path: Path) -> Callable[..., Path]:
    kept: list[object] = []

    def make(back: Back, size: int = 768) -> Path:
        source, made = tmp_path / "library.c", tmp_path / f"library{len(kept)}.so"
        source.write_text(PROGRAM.replace("BYTES", str(size)))
        subprocess.run(["gcc", "-shared", "-fPIC", str(source), "-o", str(made)], check=True)
        kind = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(AttentionArgs))
        called = kind(lambda args: back(args.contents))
        kept.append(called)
        pointer = ctypes.c_void_p.in_dll(ctypes.CDLL(str(made)), "back")
        pointer.value = ctypes.cast(called, ctypes.c_void_p).value
        return made

    return make


@pytest.fixture
def pretended(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two input sets; every call is made once and takes 5 us."""

    def time(self: CallBuffers, timed: Sequence[Callable[[], object]], method: object) -> float:
        for call in timed:
            call()
        return 5.0

    monkeypatch.setattr(CallBuffers, "time", time)
    monkeypatch.setattr(CallBuffers, "count", lambda self, size: 2)


@pytest.fixture
def bench(pretended: None) -> CallBuffers:
    return CallBuffers(SMALL, device="cpu")


def loaded(path: Path) -> Library[AttentionArgs]:
    return Library.load(path, AttentionArgs)


def writer(bench: CallBuffers) -> Back:
    """Write what the kernel would, of whichever input set it is."""

    def back(args: AttentionArgs) -> int:
        own = next(s for s in bench.sets if s.q.data_ptr() == args.q.at)
        result = CallBuffers(bench.call, device="cpu")
        result.__dict__["sets"] = [own]
        made = result.exact.to(own.q.dtype).contiguous()
        ctypes.memmove(args.out, made.data_ptr(), made.numel() * made.element_size())
        return 0

    return back


def test_the_structure_names_the_first_fields_of_launch_h() -> None:
    header = (ROOT / "csrc" / "launch.h").read_text()
    body = header.partition("struct AttentionArgs {")[2].partition("};")[0]
    code = re.sub(r"//.*", "", body)
    names = [
        re.sub(r"\[\d+\]", "", name).split()[-1].lstrip("*")
        for statement in code.split(";")
        if statement.strip()
        for name in statement.split(",")
    ]
    own = [name for name, _ in AttentionArgs._fields_]
    assert names[: len(own)] == own


def test_a_right_candidate_has_a_time(bench: CallBuffers, library: Callable[..., Path]) -> None:
    answer = bench.candidate(loaded(library(writer(bench))), assumed=False)
    assert (answer["us"], answer["few_tiles"]) == (5.0, True)
    assert isinstance(answer["error"], float)
    assert 0 < answer["error"] < 1e-3


def test_a_candidate_that_writes_nothing_is_wrong(
    bench: CallBuffers, library: Callable[..., Path]
) -> None:
    answer = bench.candidate(loaded(library(lambda args: 0)), assumed=False)
    assert str(answer["failed"]).startswith("its error is nan at gqa")


def test_arguments_lie_at_aligned_places(library: Callable[..., Path]) -> None:
    made = loaded(library(lambda args: 0))
    assert {ctypes.addressof(made.args()) % ALIGNMENT for _ in range(9)} == {0}


def test_every_call_has_a_nonce_and_says_what_is_assumed(
    bench: CallBuffers, library: Callable[..., Path]
) -> None:
    write, seen = writer(bench), []

    def back(args: AttentionArgs) -> int:
        seen.append((args.nonce, args.constant_weights, args.constant_history))
        return write(args)

    for assumed in (False, True):
        bench.candidate(loaded(library(back)), assumed=assumed)
    assert len({nonce for nonce, *_ in seen}) == len(seen) == 6
    assert [said for _, *said in seen] == [[False, False]] * 4 + [[True, True]] * 2


def test_dense_keys_are_no_history(pretended: None, library: Callable[..., Path]) -> None:
    bench = CallBuffers(replace(SMALL, lengths=(37,), page_size=0), device="cpu")
    write, seen = writer(bench), []

    def back(args: AttentionArgs) -> int:
        seen.append(args.constant_history)
        return write(args)

    assert "us" in bench.candidate(loaded(library(back)), assumed=True)
    assert set(seen) == {False}


@pytest.mark.parametrize(
    ("key", "vectors"),
    [
        (KEY, []),
        (Key("qk_norm_attention", "fp16", {"D": 64}), [0, 0]),
        (Key("qk_layer_norm_attention", "bf16", {"D": 64}), [64] * 4),
        (Key("mla_decode", "fp16", {"C": 512, "P": 64}), []),
    ],
)
def test_arguments_are_those_of_the_call(pretended: None, key: Key, vectors: list[int]) -> None:
    call = replace(named_calls(key)[0].call, lengths=(37,))
    bench = CallBuffers(call, device="cpu")
    given, args = bench.sets[0], AttentionArgs()
    filled(args, call, given, bench.new_out(given))
    assert given.table is not None
    assert (args.q.at, args.k.at) == (given.q.data_ptr(), given.k.data_ptr())
    assert args.v.at == (given.k[..., 512:] if call.more else given.v).data_ptr()
    assert (args.page_size, args.table_row) == (call.page_size, given.table.shape[1])
    assert (args.Hkv, args.G, args.max_len) == (call.heads[1], call.group, 37)
    assert [args.vector_heads[i] for i in range(4) if args.vectors[i]] == vectors


def test_a_dense_call_is_compared_with_pytorchs(
    pretended: None, library: Callable[..., Path]
) -> None:
    named = dense_calls(Key("sliding_window_attention", "fp16", {"D": 64}))[-1]
    call = replace(named.call, lengths=(24,), tokens=24)
    bench = CallBuffers(call, device="cpu")
    answer = bench.dense(loaded(library(writer(bench))), causal=True)
    assert (answer["us"], answer["sdpa_us"]) == (5.0, 5.0)
    wrong = bench.dense(loaded(library(lambda args: 0)), causal=True)
    assert "differs by nan" in str(wrong["failed"])


def test_the_worker_answers_by_name(pretended: None, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def candidate(self: CallBuffers, library: object, *, assumed: bool) -> dict[str, object]:
        asked.append(self.call.name)
        return {"us": 1.0}

    monkeypatch.setattr(CallBuffers, "candidate", candidate)
    monkeypatch.setattr(Library, "load", staticmethod(lambda *_: None))
    monkeypatch.setattr(module.torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setattr(module, "floor_microseconds", lambda reader, size: size / 1e6)
    worker = Worker(Path(), Manifest("sm_90a", "", (compiled(),)), reader=None)  # type: ignore[arg-type]
    named = named_calls(KEY)[0]
    question = {"kernel": KEY.name, "at": named.name}
    assert worker.answer(question) == {"floor_us": named.call.bytes_read / 1e6}
    assert worker.answer({**question, "library": "a.so", "assumed": True}) == {"us": 1.0}
    assert asked == [named.call.name]
    assert len(worker.benches) == 1
