"""Makes the README's part on compute-sanitizer, of what `benchmarks/sanitize.py` wrote."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TypedDict

from attention_tables import line, source

RESULT = Path(__file__).resolve().parent / "results" / "sanitizers.json"
TOOLS = ("memcheck", "initcheck", "synccheck", "racecheck")
CLEAN = "clean"


class Run(TypedDict):
    """One kernel under one tool."""

    kernel: str
    tool: str
    outcome: str
    calls: int
    reports: dict[str, int]


def runs(path: Path = RESULT) -> list[Run]:
    """Return a result file's rows."""
    found: list[Run] = json.loads(path.read_text())["rows"]
    return found


def short(path: Path = RESULT) -> str:
    """Return the README's table by recipe and tool, and below it whatever was not clean."""
    if not path.is_file():
        return ""
    rows = runs(path)
    heads = ["kernels of", "number", *TOOLS]
    lines = [line(heads), line(["---"] * len(heads))]
    recipes = dict.fromkeys(row["kernel"].partition("/")[0] for row in rows)
    for recipe in recipes:
        own = [row for row in rows if row["kernel"].partition("/")[0] == recipe]
        number = str(len({row["kernel"] for row in own}))
        cells = [_cell([row for row in own if row["tool"] == tool]) for tool in TOOLS]
        lines.append(line([recipe, number, *cells]))
    return "\n".join([*lines, "", *_exceptions(rows), source(path), ""])


def _cell(own: Sequence[Run]) -> str:
    clean = sum(row["outcome"] == CLEAN for row in own)
    return CLEAN if clean == len(own) else f"{clean} of {len(own)} {CLEAN}"


def _exceptions(rows: Sequence[Run]) -> Iterator[str]:
    """Yield a line for every outcome under a tool that is not clean, with the kernels."""
    others: dict[tuple[str, str], list[str]] = {}
    for row in (row for row in rows if row["outcome"] != CLEAN):
        kinds = ", ".join(sorted(row["reports"])) or row["outcome"]
        others.setdefault((row["tool"], kinds), []).append(row["kernel"])
    for (tool, kinds), kernels in sorted(others.items()):
        yield f"* {tool}, {kinds}: {', '.join(f'`{kernel}`' for kernel in kernels)}"
    if others:
        yield ""
