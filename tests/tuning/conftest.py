"""Lets the tests of tuning import the module that only they share; makes tunings."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))

from pretended import MakeTuning, Pretended, of_tokens

from mirage_kernels.generator.tuning.catalog import Section, Tuned
from mirage_kernels.generator.tuning.measurements import Results
from mirage_kernels.generator.tuning.session import Tuning


@pytest.fixture
def tuning(tmp_path: Path) -> MakeTuning:
    """Make a tuning in this test's folder; made again, it finds what was measured before."""

    def make(measurer: Pretended, kernel: Tuned | None = None) -> Tuning:
        manifest = Section("sm_90a", {}, None, (kernel or of_tokens(),))
        results = Results.at(tmp_path / "measured.json")
        return Tuning(manifest, results, measurer, "mirage-kernels tune")

    return make
