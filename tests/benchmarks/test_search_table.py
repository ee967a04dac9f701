"""The search's tables are those of its committed results."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "benchmarks" / "search_table.py"
pytestmark = pytest.mark.skipif(not (ROOT / "docs").is_dir(), reason="not a checkout")


def test_the_page_shows_what_was_measured() -> None:
    ran = subprocess.run([sys.executable, str(SCRIPT), "--check"], check=False)
    assert ran.returncode == 0, "python benchmarks/search_table.py --tables rewrites the page"
