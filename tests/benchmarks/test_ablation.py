"""The ablation's kernels launch as the library's."""

from __future__ import annotations

import ctypes
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from scripts import script

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.skipif(not (ROOT / "docs").is_dir(), reason="not a checkout")


def test_a_launch_gives_as_many_bytes_as_the_library_reads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    torch = pytest.importorskip("torch")
    from mirage_kernels.generator.bench.launch_args import LaunchArgs

    beyond = 24  # fields that the structure of Python does not name
    seen: list[bytes] = []

    def launch(index: int, args: Any, stream: object) -> int:
        end = ctypes.addressof(args._obj) + ctypes.sizeof(LaunchArgs)
        seen.append(ctypes.string_at(end, beyond))
        return 0

    size = ctypes.sizeof(LaunchArgs) + beyond
    library = SimpleNamespace(mirage_launch=launch, mirage_launch_bytes=lambda: size)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: SimpleNamespace(cuda_stream=0))
    x = torch.ones(2, 8)
    script("ablation_gpu").Plan("one", library).run(torch.empty(2, 4), x)
    assert seen == [bytes(beyond)]
    header = (ROOT / "csrc" / "bench" / "calls.cpp").read_text()
    assert (
        "mirage_launch_bytes() { return static_cast<int>(sizeof(mirage::LaunchArgs)); }" in header
    )
