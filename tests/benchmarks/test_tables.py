"""The numbers of the docs are those of the result files, and their links lead somewhere."""

from __future__ import annotations

import re
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


def anchors_of(text: str) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    plain = (re.sub(r"[^\w\- ]", "", line.lower()) for line in re.findall(r"^#+ (.+)$", text, re.M))
    return {line.strip().replace(" ", "-") for line in plain}


@pytest.mark.parametrize(
    "page", [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")], ids=lambda page: page.name
)
def test_links_to_a_heading_find_it(page: Path) -> None:
    links = re.findall(r"\]\((?!http)([^)\s#]*)#([^)\s]+)\)", page.read_text())
    missing = [
        f"{name}#{anchor}"
        for name, anchor in links
        if anchor not in anchors_of((page.parent / name if name else page).read_text())
    ]
    assert not missing
