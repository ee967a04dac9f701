"""Makes the measured tables of docs/performance.md from the result files.

python benchmarks/tables.py            # rewrite the page between its markers
python benchmarks/tables.py --check    # exit 1 if the page is not what the results say
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypedDict

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results"
PERFORMANCE = HERE.parent / "docs" / "performance.md"
TOOLS = ("memcheck", "initcheck", "synccheck", "racecheck")
CLEAN = "clean"
Group = tuple[str, str, str]  # recipe, static dims, type


class Row(TypedDict):
    """What a row of every result file has; times in microseconds, cold unless named warm."""

    workload: str
    dtype: str
    dims: dict[str, int]
    floor_us: float
    ours_us: float
    warm_us: float
    ratio: float
    promised_us: float
    eager_us: float
    error_ours: float
    error_eager: float


class TokensRow(Row):
    """One line of a result file of ops that take tokens."""

    compile_us: float | None
    promised_ratio: float


class CallsRow(Row):
    """One line of a result file of calls over a cache."""

    setting: str
    compute_us: float
    peers: dict[str, float]
    best_peer: str
    best_peer_us: float | None


class Run(TypedDict):
    """One kernel under one tool."""

    kernel: str
    tool: str
    outcome: str
    calls: int
    reports: dict[str, int]


def main(arguments: list[str]) -> int:
    """Rewrite or check the measured parts of the page."""
    before = made = PERFORMANCE.read_text()
    parts: dict[str, Callable[[], str]] = {
        "measured": by_tokens,
        "attention": by_calls,
        "watched": watched,
    }
    for name, part in parts.items():
        made = _filled(made, name, part())
    if "--check" in arguments:
        return int(made != before)
    PERFORMANCE.write_text(made)
    return 0


def _filled(text: str, name: str, part: str) -> str:
    begin, end = f"<!-- {name}: python benchmarks/tables.py -->", f"<!-- end of {name} -->"
    before, _, rest = text.partition(begin)
    _, _, after = rest.partition(end)
    return f"{before}{begin}\n\n{part}\n{end}{after}"


def source(path: Path) -> str:
    """Say where a result file's rows come from."""
    document = json.loads(path.read_text())
    e = document["environment"]
    watched = "sanitizer" in document
    tool = f"compute-sanitizer {document['sanitizer']}" if watched else f"torch {e['torch']}"
    again = "".join(
        f"; some kernels again at commit {a['commit']}, {a['date']}"
        for a in document.get("again", [])
    )
    return (
        f"`benchmarks/results/{path.name}`: {e['gpu']}, driver {e['driver']}, CUDA {e['cuda']}, "
        f"{tool}, {e['date']}, commit {e['commit']}, `{e['command']}`{again}"
    )


def line(cells: list[str]) -> str:
    """Return a line of a table."""
    return f"| {' | '.join(cells)} |"


# -- ops that take tokens ---------------------------------------------------------------------


def by_tokens(folder: Path = RESULTS) -> str:
    """Return all rows: a table per kernel of a result file, each file with where it comes from."""
    found = set(folder.glob("bench_*.json")) - set(folder.glob("bench_attention_*.json"))
    return "\n".join(
        "\n".join([*_tables(json.loads(path.read_text())["rows"]), source(path), ""])
        for path in sorted(found)
    )


def groups(rows: Sequence[TokensRow]) -> dict[Group, list[TokensRow]]:
    """Return rows by kernel."""
    found: dict[Group, list[TokensRow]] = {}
    for row in rows:
        shape = ", ".join(f"{n} {size}" for n, size in row["dims"].items() if n != "M")
        found.setdefault((row["workload"], shape, row["dtype"]), []).append(row)
    return found


def _tables(rows: Sequence[TokensRow]) -> Iterator[str]:
    for (recipe, shape, dtype), own in groups(rows).items():
        with_compile = any(row["compile_us"] is not None for row in own)
        heads = ["M", "floor", "ours", "/ floor", "promised", "/ floor", "warm", "PyTorch eager"]
        heads += ["torch.compile"] if with_compile else []
        heads += ["error (eager's)"]
        yield f"**{recipe}**, {shape}, {dtype}\n"
        yield from (line(heads), line(["---"] * len(heads)))
        yield from (line(_tokens_cells(row, with_compile)) for row in own)
        yield ""


def _tokens_cells(row: TokensRow, with_compile: bool) -> list[str]:
    cells = [str(row["dims"]["M"]), f"{row['floor_us']:.1f}", f"{row['ours_us']:.1f}"]
    cells += [f"{row['ratio']:.2f}", f"{row['promised_us']:.1f}", f"{row['promised_ratio']:.2f}"]
    cells += [f"{row['warm_us']:.1f}", f"{row['eager_us']:.1f}"]
    if with_compile:
        cells.append("" if row["compile_us"] is None else f"{row['compile_us']:.1f}")
    return [*cells, f"{row['error_ours']:.1e} ({row['error_eager']:.1e})"]


# -- calls over a cache -----------------------------------------------------------------------


def by_calls(folder: Path = RESULTS) -> str:
    """Return all rows: a table per result file, with where it comes from."""
    heads = ["call", "B", "floor", "compute", "ours", "ratio", "promised", "ratio", "warm"]
    heads += ["best peer", "", "PyTorch unfused", "error (unfused's)"]
    sections = []
    for path in sorted(folder.glob("bench_attention_*.json")):
        rows: list[CallsRow] = json.loads(path.read_text())["rows"]
        lines = [line(heads), line(["---"] * len(heads)), *(line(_calls_cells(r)) for r in rows)]
        sections.append("\n".join([*lines, "", source(path), ""]))
    return "\n".join(sections)


def shape_of(row: CallsRow) -> str:
    """Return heads, keys and pages in words: `32/8 heads of 128, L 4096, pages of 16`."""
    dims = row["dims"]
    keys = f"L {dims['L']}" if "mixed" not in row["setting"] else f"L 1 to {dims['L']}"
    place = f"pages of {dims['page']}" if dims["page"] else "dense"
    return f"{dims['Hq']}/{dims['Hkv']} heads of {dims['D']}, {keys}, {place}"


def _calls_cells(row: CallsRow) -> list[str]:
    call = f"{row['workload']}, {row['setting']}, {shape_of(row)}, {row['dtype']}"
    peer = row["best_peer_us"]
    times = [row["floor_us"], row["compute_us"], row["ours_us"]]
    return [
        call,
        str(row["dims"]["B"]),
        *(f"{t:.1f}" for t in times),
        f"{row['ratio']:.2f}",
        f"{row['promised_us']:.1f}",
        f"{row['promised_us'] / max(row['floor_us'], row['compute_us']):.2f}",
        f"{row['warm_us']:.1f}",
        "" if peer is None else f"{peer:.1f}",
        row["best_peer"],
        f"{row['eager_us']:.1f}",
        f"{row['error_ours']:.1e} ({row['error_eager']:.1e})",
    ]


# -- compute-sanitizer ------------------------------------------------------------------------


def runs(path: Path = RESULTS / "sanitizers.json") -> list[Run]:
    """Return a result file's rows."""
    found: list[Run] = json.loads(path.read_text())["rows"]
    return found


def watched(path: Path = RESULTS / "sanitizers.json") -> str:
    """Return a table by recipe and tool, and below it whatever was not clean."""
    if not path.is_file():
        return ""
    rows = runs(path)
    heads = ["kernels of", "number", *TOOLS]
    lines = [line(heads), line(["---"] * len(heads))]
    recipes = dict.fromkeys(row["kernel"].partition("/")[0] for row in rows)
    for recipe in recipes:
        own = [row for row in rows if row["kernel"].partition("/")[0] == recipe]
        number = str(len({row["kernel"] for row in own}))
        cells = [_outcomes([row for row in own if row["tool"] == tool]) for tool in TOOLS]
        lines.append(line([recipe, number, *cells]))
    return "\n".join([*lines, "", *_exceptions(rows), source(path), ""])


def _outcomes(own: Sequence[Run]) -> str:
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


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
