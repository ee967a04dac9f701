"""The command line in this process: what it prints, and the exit code."""

from __future__ import annotations

from pathlib import Path

import pytest

from mirage_kernels.generator import pipeline
from mirage_kernels.generator.commands.arguments import package_kernels
from mirage_kernels.generator.jobs.store import Store
from mirage_kernels.generator.pipeline import Event, Progress, Report, Request, Result
from mirage_kernels.generator.records.folder import emitted
from mirage_kernels.generator.records.record import KernelRecord
from mirage_kernels.generator.records.sources import files_of


@pytest.fixture
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="session")
def record() -> KernelRecord:
    """A committed kernel: the recipe's first shape in fp16."""
    return emitted(package_kernels())["sm_90a/rms_norm_linear/K4096_N6144_fp16.json"]


@pytest.fixture
def without_search(record: KernelRecord, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `generate` return the committed kernel at once, whatever is asked for."""

    def generate(request: Request, *, jobs: int, progress: Progress, store: Store) -> Result:
        progress(Event("search", jobs, jobs, "23 states"))
        report = Report(
            states=23_747,
            pruned=dict.fromkeys(("abstract", "type"), 1_200),
            candidates=55,
            proved=7,
            rejected=3,
            gated=1,
            seconds={"search": 1.5},
            alternatives=(
                "  14.80 us  one kernel (loop over K: mul, accum)",
                *["  19.20 us  two kernels"] * 2,
            ),
            refused=(),
        )
        return Result(request, record, report, files_of(record))

    monkeypatch.setattr(pipeline, "generate", generate)
