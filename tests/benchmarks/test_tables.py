"""The numbers of the docs are those of the committed result files."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# Scripts, and how the page that one checks is made again.
PAGES = {
    "tables": "rewrites the tables of docs/performance.md",
    "summary": "rewrites the README's table and plot (matplotlib: the extra `plot`)",
    "search_table": "--tables rewrites the page",
}


@pytest.mark.skipif(not (ROOT / "docs").is_dir(), reason="not a checkout")
@pytest.mark.parametrize("script", PAGES)
def test_a_page_shows_what_was_measured(script: str) -> None:
    command = [sys.executable, str(ROOT / "benchmarks" / f"{script}.py"), "--check"]
    ran = subprocess.run(command, check=False)
    assert ran.returncode == 0, f"python benchmarks/{script}.py {PAGES[script]}"
