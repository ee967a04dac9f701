"""Makes the measured tables of the README and of docs/performance.md from the result files.

python benchmarks/tables.py            # rewrite both pages between their markers
python benchmarks/tables.py --check    # exit 1 if a page is not what the results say
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import attention_tables
import sanitize_tables
from attention_tables import SHOWN_TYPE, Timed, line, other_type, source

HERE = Path(__file__).resolve().parent
README = HERE.parent / "README.md"
PERFORMANCE = HERE.parent / "docs" / "performance.md"
Marks = tuple[str, str]
MEASURED: Marks = ("<!-- measured: python benchmarks/tables.py -->", "<!-- end of measured -->")
ATTENTION: Marks = ("<!-- attention: python benchmarks/tables.py -->", "<!-- end of attention -->")
WATCHED: Marks = ("<!-- watched: python benchmarks/tables.py -->", "<!-- end of watched -->")
SHOWN = (1, 8, 16, 32, 64)  # tokens, in the README
Group = tuple[str, str, str]  # recipe, static dims, type


class Row(Timed):
    """One line of a result file of other ops."""

    eager_us: float
    compile_us: float | None
    warm_us: float
    ratio: float
    promised_us: float
    promised_ratio: float
    error_ours: float
    error_eager: float


def main(arguments: list[str]) -> int:
    """Rewrite or check the measured parts of both pages."""
    made: dict[Path, Mapping[Marks, str]] = {
        README: {
            MEASURED: short(),
            ATTENTION: attention_tables.short(),
            WATCHED: sanitize_tables.short(),
        },
        PERFORMANCE: {MEASURED: long(), ATTENTION: attention_tables.long()},
    }
    pages = {page: _filled(page.read_text(), parts) for page, parts in made.items()}
    if "--check" in arguments:
        return int(any(page.read_text() != text for page, text in pages.items()))
    for page, text in pages.items():
        page.write_text(text)
    return 0


def _filled(text: str, parts: Mapping[Marks, str]) -> str:
    for (begin, end), part in parts.items():
        before, _, rest = text.partition(begin)
        _, _, after = rest.partition(end)
        text = f"{before}{begin}\n\n{part}\n{end}{after}"
    return text


def short() -> str:
    """Return the README's table: ours / floor by tokens, and PyTorch eager's."""
    heads = ["op", "shape", *(f"M = {m}" for m in SHOWN)]
    lines = [line(heads), line(["---"] * len(heads))]
    # The others have the same kernels again, beside torch.compile.
    paths = [path for path in results() if "compile" not in path.name]
    every = [row for path in paths for row in rows_of(path)]
    for (recipe, shape, dtype), rows in groups(every).items():
        if dtype != SHOWN_TYPE:
            continue
        by_tokens = {row["dims"]["M"]: row for row in rows}
        lines.append(line([recipe, shape, *(_short(by_tokens.get(m)) for m in SHOWN)]))
    calls = (((row["workload"], *row["dims"].items()), row) for row in every)
    return "\n".join([*lines, "", *other_type(calls)])


def _short(row: Row | None) -> str:
    if row is None:
        return ""
    eager = row["eager_us"] / row["floor_us"]
    return f"{row['ratio']:.2f}, {row['promised_ratio']:.2f} ({eager:.2f})"


def long() -> str:
    """Return all rows: a table per result file and kernel, each file with where it comes from."""
    return "\n".join(_section(path) for path in results())


def results() -> list[Path]:
    """Return the result files of `mirage-kernels bench`, but for those of attention."""
    found = set((HERE / "results").glob("bench_*.json"))
    return sorted(found - set(attention_tables.attention_results()))


def rows_of(path: Path) -> list[Row]:
    """Return a result file's rows."""
    rows: list[Row] = json.loads(path.read_text())["rows"]
    return rows


def groups(rows: list[Row]) -> dict[Group, list[Row]]:
    """Return rows by kernel."""
    found: dict[Group, list[Row]] = {}
    for row in rows:
        shape = ", ".join(f"{n} {size}" for n, size in row["dims"].items() if n != "M")
        found.setdefault((row["workload"], shape, row["dtype"]), []).append(row)
    return found


def _section(path: Path) -> str:
    return "\n".join([*_tables(rows_of(path)), source(path), ""])


def _tables(rows: list[Row]) -> Iterator[str]:
    for (recipe, shape, dtype), own in groups(rows).items():
        with_compile = any(row["compile_us"] is not None for row in own)
        heads = ["M", "floor", "ours", "/ floor", "promised", "/ floor", "warm", "PyTorch eager"]
        heads += ["torch.compile"] if with_compile else []
        heads += ["error (eager's)"]
        yield f"**{recipe}**, {shape}, {dtype}\n"
        yield from (line(heads), line(["---"] * len(heads)))
        yield from (line(_cells(row, with_compile)) for row in own)
        yield ""


def _cells(row: Row, with_compile: bool) -> list[str]:
    cells = [str(row["dims"]["M"]), f"{row['floor_us']:.1f}", f"{row['ours_us']:.1f}"]
    cells += [f"{row['ratio']:.2f}", f"{row['promised_us']:.1f}", f"{row['promised_ratio']:.2f}"]
    cells += [f"{row['warm_us']:.1f}", f"{row['eager_us']:.1f}"]
    if with_compile:
        cells.append("" if row["compile_us"] is None else f"{row['compile_us']:.1f}")
    return [*cells, f"{row['error_ours']:.1e} ({row['error_eager']:.1e})"]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
