"""Makes the README's tables from the measured results.

python benchmarks/tables.py            # rewrite the README between its markers
python benchmarks/tables.py --check    # exit 1 if the README is not what the results say
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TypedDict

HERE = Path(__file__).resolve().parent
README = HERE.parent / "README.md"
BEGIN, END = "<!-- measured: python benchmarks/tables.py -->", "<!-- end of measured -->"


class Row(TypedDict):
    """One line of a result file; times in microseconds, cold unless named warm."""

    workload: str
    dtype: str
    dims: dict[str, int]
    floor_us: float
    ours_us: float
    eager_us: float
    compile_us: float | None
    warm_us: float
    ratio: float
    error_ours: float
    error_eager: float


def main(arguments: list[str]) -> int:
    """Rewrite or check the README's measured part."""
    text = README.read_text()
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    made = f"{before}{BEGIN}\n\n{measured()}\n{END}{after}"
    if "--check" in arguments:
        return int(made != text)
    README.write_text(made)
    return 0


def measured() -> str:
    """Return the measured part: one table per result file, each with where it comes from."""
    paths = sorted(p for p in (HERE / "results").glob("*.json") if not _has_a_page(p.name))
    return "\n".join(_section(path) for path in paths)


def _has_a_page(name: str) -> bool:
    """Return whether other scripts make tables of a result file elsewhere."""
    return name.startswith(("ablation", "search"))


def _section(path: Path) -> str:
    data = json.loads(path.read_text())
    rows: list[Row] = data["rows"]
    e = data["environment"]
    with_compile = any(row["compile_us"] is not None for row in rows)
    heads = ["K -> N", "type", "M", "floor", "ours", "ours / floor", "warm", "PyTorch eager"]
    heads += ["torch.compile"] if with_compile else []
    heads += ["error (eager's)"]
    lines = [_line(heads), _line(["---"] * len(heads))]
    lines += [_line(_cells(row, with_compile)) for row in rows]
    source = (
        f"`benchmarks/results/{path.name}`: {e['gpu']}, driver {e['driver']}, CUDA {e['cuda']}, "
        f"torch {e['torch']}, {e['date']}, commit {e['commit']}, `{e['command']}`"
    )
    return "\n".join([*lines, "", source, ""])


def _cells(row: Row, with_compile: bool) -> list[str]:
    dims = row["dims"]
    cells = [f"{dims['K']} -> {dims['N']}", row["dtype"], str(dims["M"])]
    cells += [f"{row['floor_us']:.1f}", f"{row['ours_us']:.1f}", f"{row['ratio']:.2f}"]
    cells += [f"{row['warm_us']:.1f}", f"{row['eager_us']:.1f}"]
    if with_compile:
        cells.append("" if row["compile_us"] is None else f"{row['compile_us']:.1f}")
    return [*cells, f"{row['error_ours']:.1e} ({row['error_eager']:.1e})"]


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
