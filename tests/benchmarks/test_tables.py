"""The numbers of docs/performance.md are those of the committed result files."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

TABLES = Path(__file__).parents[2] / "benchmarks" / "tables.py"


@pytest.mark.skipif(not (TABLES.parents[1] / "docs").is_dir(), reason="not a checkout")
def test_the_page_shows_what_was_measured() -> None:
    ran = subprocess.run([sys.executable, str(TABLES), "--check"], check=False)
    assert ran.returncode == 0, "python benchmarks/tables.py rewrites the page's tables"
