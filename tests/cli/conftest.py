"""The command line in this process: what it prints, and the exit code."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from mirage_kernels.generator.cli import main


@dataclass(frozen=True)
class Outcome:
    code: int
    out: str
    err: str


Command = Callable[..., Outcome]


@pytest.fixture
def mirage_kernels(capsys: pytest.CaptureFixture[str]) -> Command:
    def run(*words: str) -> Outcome:
        capsys.readouterr()
        code = main(words)
        printed = capsys.readouterr()
        return Outcome(code, printed.out, printed.err)

    return run


@pytest.fixture
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path
