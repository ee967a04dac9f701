"""Tests of ops run for every case of `op_cases.py` that their parameters stand for.

A test that takes `case` runs for every case at a small size on the CPU; one that takes
`kernel_case` for every kernel of the compiled table that serves a case, one that takes `gpu_case`
for one kernel per case and dtype.
"""

from __future__ import annotations

import fcntl
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).resolve().parent))  # for op_cases, exact, pretend
from op_cases import CASES, Case, gpu_cases, kernel_cases

KEPT_BYTES = 1 << 30  # of freed memory, for the tests that follow
PARAMETERS = {"case": lambda: CASES, "kernel_case": kernel_cases, "gpu_case": gpu_cases}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test for every case that its parameter stands for."""
    for name in {*PARAMETERS} & {*metafunc.fixturenames}:
        ids = [case.name.replace(" ", "-") for case in PARAMETERS[name]()]
        metafunc.parametrize(name, PARAMETERS[name](), ids=ids)


@pytest.fixture
def nothing_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget kernels and programs that other tests have loaded."""
    monkeypatch.setattr("mirage_kernels.program_library._kernels", dict[str, object]())
    monkeypatch.setattr("mirage_kernels.program_library._documents", dict[str, object]())


@pytest.fixture(scope="session")
def cases() -> Mapping[str, Case]:
    """The cases by name, on the CPU."""
    return {case.name: case for case in CASES}


@pytest.fixture(scope="session")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What each call of pretended/calls.py prints, with kernels that print what they get.

    The first of the processes that pytest runs side by side compiles them.
    """
    import pretend

    if not pretend.has_sources():
        pytest.skip("an installed wheel holds no sources")
    shared = tmp_path_factory.getbasetemp()
    shared = shared.parent if "PYTEST_XDIST_WORKER" in os.environ else shared
    found = shared / "pretended.json"
    with (shared / "pretended.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not found.exists():
            folder = tmp_path_factory.mktemp("pretended")
            found.write_text(json.dumps(pretend.what_calls_print(folder / "mirage_kernels")))
    said: dict[str, str] = json.loads(found.read_text())
    return said


@pytest.fixture
def captured() -> Callable[[Callable[[], object]], torch.cuda.CUDAGraph]:
    """Capture a call in a CUDA graph, after a warm-up."""

    def capture(run: Callable[[], object]) -> torch.cuda.CUDAGraph:
        run()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            run()
        return graph

    return capture


@pytest.fixture
def sync_is_an_error() -> Callable[[], AbstractContextManager[None]]:
    """A context in which whatever waits for the GPU raises."""

    @contextmanager
    def watched() -> Iterator[None]:
        torch.cuda.set_sync_debug_mode("error")
        try:
            yield
        finally:
            torch.cuda.set_sync_debug_mode("default")

    return watched


@pytest.fixture
def fresh_compiler() -> None:
    """What other tests compiled is forgotten."""
    torch.compiler.reset()


@pytest.fixture
def memory_given_back() -> Iterator[None]:
    """Float64 references are large, and other processes test on the same GPU."""
    yield
    if torch.cuda.is_available() and torch.cuda.memory_reserved() > KEPT_BYTES:
        torch.cuda.empty_cache()
