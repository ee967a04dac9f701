"""Makes the tables of attention, of results that `mirage-kernels bench --attention` wrote."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from statistics import geometric_mean
from typing import TypedDict

RESULTS = Path(__file__).resolve().parent / "results"
SHOWN = (1, 8, 16, 64)  # sequences, in the README
SHOWN_TYPE, OTHER_TYPE = "fp16", "bf16"  # in the README
Group = tuple[str, str, str, str]  # recipe, setting, shape, type
Call = tuple[object, ...]  # what a row is of, but for the type


class Timed(TypedDict):
    """What a row of every result file has; times in microseconds, cold unless named warm."""

    workload: str
    dtype: str
    dims: dict[str, int]
    floor_us: float
    ours_us: float


class AttentionRow(Timed):
    """One line of a result file of attention."""

    setting: str
    compute_us: float
    warm_us: float
    ratio: float
    promised_us: float
    eager_us: float
    peers: dict[str, float]
    best_peer: str
    best_peer_us: float | None
    error_ours: float
    error_eager: float


def attention_results(folder: Path = RESULTS) -> list[Path]:
    """Return the result files of attention."""
    return sorted(folder.glob("bench_attention_*.json"))


def attention_rows(path: Path) -> list[AttentionRow]:
    """Return a result file's rows."""
    rows: list[AttentionRow] = json.loads(path.read_text())["rows"]
    return rows


def short(folder: Path = RESULTS) -> str:
    """Return the README's table: ours as called and promised, and in brackets the best peer's."""
    heads = ["op", "call", *(f"B = {b}" for b in SHOWN)]
    if not attention_results(folder):
        return ""
    lines = [line(heads), line(["---"] * len(heads))]
    every = [row for path in attention_results(folder) for row in attention_rows(path)]
    for (recipe, setting, shape, dtype), rows in groups(every).items():
        if dtype != SHOWN_TYPE:
            continue
        by_batch = {row["dims"]["B"]: row for row in rows}
        cells = [_short(by_batch.get(b)) for b in SHOWN]
        lines.append(line([recipe, f"{setting}, {shape}", *cells]))
    return "\n".join([*lines, "", *other_type([(_call(row), row) for row in every])])


def _call(row: AttentionRow) -> Call:
    return row["workload"], row["setting"], *row["dims"].items()


def other_type(rows: Iterable[tuple[Call, Timed]]) -> Iterator[str]:
    """Yield what there is to say of the type that the README's tables do not show."""
    found = list(rows)
    shown = {call: row["ours_us"] for call, row in found if row["dtype"] == SHOWN_TYPE}
    others = [(call, row["ours_us"]) for call, row in found if row["dtype"] == OTHER_TYPE]
    parts = [us / shown[call] for call, us in others if call in shown]
    if parts:
        yield (
            f"The same calls in {OTHER_TYPE} ({len(parts)} of them) take {min(parts):.2f} to "
            f"{max(parts):.2f} times as long, {geometric_mean(parts):.2f} in the geometric mean."
        )
        yield ""


def _short(row: AttentionRow | None) -> str:
    if row is None:
        return ""
    bound = max(row["floor_us"], row["compute_us"])
    peer = row["best_peer_us"]
    beside = "" if peer is None else f" ({peer / bound:.2f})"
    times = f"{row['ours_us']:.1f}, {row['promised_us']:.1f} us"
    return f"{times}: {row['ratio']:.2f}, {row['promised_us'] / bound:.2f}{beside}"


def long(folder: Path = RESULTS) -> str:
    """Return all rows: a table per result file, with where it comes from."""
    return "\n".join(_section(path) for path in attention_results(folder))


def groups(rows: list[AttentionRow]) -> dict[Group, list[AttentionRow]]:
    """Return rows that differ in the number of sequences alone, together."""
    found: dict[Group, list[AttentionRow]] = {}
    for row in rows:
        kind = (row["workload"], row["setting"], shape_of(row), row["dtype"])
        found.setdefault(kind, []).append(row)
    return found


def shape_of(row: AttentionRow) -> str:
    """Return heads, keys and pages in words: `32/8 heads of 128, L 4096, pages of 16`."""
    dims = row["dims"]
    keys = f"L {dims['L']}" if "mixed" not in row["setting"] else f"L 1 to {dims['L']}"
    place = f"pages of {dims['page']}" if dims["page"] else "dense"
    return f"{dims['Hq']}/{dims['Hkv']} heads of {dims['D']}, {keys}, {place}"


def _section(path: Path) -> str:
    rows = attention_rows(path)
    heads = ["call", "B", "floor", "compute", "ours", "ratio", "promised", "ratio", "warm"]
    heads += ["best peer", ""]
    heads += ["PyTorch unfused", "error (unfused's)"]
    lines = [line(heads), line(["---"] * len(heads))]
    lines += [line(_cells(row)) for row in rows]
    return "\n".join([*lines, "", source(path), ""])


def source(path: Path) -> str:
    """Say where a result file's rows come from."""
    document = json.loads(path.read_text())
    e = document["environment"]
    watched = "sanitizer" in document
    tool = f"compute-sanitizer {document['sanitizer']}" if watched else f"torch {e['torch']}"
    again = "".join(f"; what had not ended, again {a['date']}" for a in document.get("again", []))
    return (
        f"`benchmarks/results/{path.name}`: {e['gpu']}, driver {e['driver']}, CUDA {e['cuda']}, "
        f"{tool}, {e['date']}, commit {e['commit']}, `{e['command']}`{again}"
    )


def _cells(row: AttentionRow) -> list[str]:
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


def line(cells: list[str]) -> str:
    """Return a line of a table."""
    return f"| {' | '.join(cells)} |"
