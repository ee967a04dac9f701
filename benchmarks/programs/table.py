"""Makes docs/programs.md of the result files: python -m programs.table

`results/programs_made.json` is what `programs.generate` wrote, `results/programs_bf16.json` and
`results/programs_fp16.json` are what `programs.measure` did; `results/mirage_made.json` and
`results/mirage_fp16.json` are the same of `programs.mirage`; `results/triton.json` and
`results/triton_programs.json` are what `programs.triton` wrote, `results/published_made.json` is
what `programs.published` did. The page has the parts whose files are there. Floors are those of
`results/programs_bare.json`, which `programs.bare` wrote.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from programs import PROGRAMS, level1, level2, others, serving  # noqa: F401  (they register)

HERE = Path(__file__).resolve().parents[1]
PAGE = HERE.parent / "docs" / "programs.md"
Row = dict[str, Any]
FAR = 1.5  # times the floor: programs that are further away are named


def read(name: str) -> Any:
    """Return a result file."""
    return json.loads((HERE / "results" / f"{name}.json").read_text())


def made_lines(rows: Sequence[Row]) -> Iterator[str]:
    """Yield a line of each program: its kernels, what PyTorch runs, seconds."""
    yield "| program | kernels | run by PyTorch | seconds |"
    yield "| --- | --- | --- | --- |"
    for row in rows:
        if "reason" in row:
            yield f"| {row['program']} | none: {row['reason']} | | {row['seconds']} |"
            continue
        kernels = [
            f"{name.removeprefix(row['program'].replace('/', '_') + '_')} "
            f"({', '.join(k['schedules'])})"
            for name, k in row["kernels"].items()
        ]
        ways = [[]]
        for line in row["ways"]:
            if line.startswith("  PyTorch: "):
                ways[-1].append(line.removeprefix("  PyTorch: "))
            elif not line.startswith(" "):
                ways.append([])
        torch = "; ".join(", ".join(way) or "nothing" for way in ways[1:])
        yield f"| {row['program']} | {'; '.join(kernels)} | {torch} | {row['seconds']} |"


def promised(row: Row) -> str:
    """Return the time within `constant_weights()`, where that was measured."""
    return f"{row['promised_us']:.1f}" if "promised_us" in row else ""


def measured_lines(rows: Sequence[Row]) -> Iterator[str]:
    """Yield a line of each program and number of rows."""
    bare = bare_reads()
    yield (
        "| program | rows | error | PyTorch's | streamed, us | floor, us | us | promised | over | "
        "eager | torch.compile |"
    )
    yield f"|{' --- |' * 11}"
    for row in rows:
        if "us" not in row:
            yield f"| {row['program']} | {row['rows']} | {row['reason']} |{' |' * 8}"
            continue
        floor = bare[row["program"], row["rows"]]
        yield (
            f"| {row['program']} | {row['rows']} | {row['error']:.1e} | {row['eager_error']:.1e} | "
            f"{row['floor_us']:.1f} | {floor:.1f} | {row['us']:.1f} | {promised(row)} | "
            f"{row['us'] / floor:.2f} | {row['eager_us']:.1f} | {row['compile_us']:.1f} |"
        )


@cache
def bare_reads() -> dict[tuple[str, int], float]:
    """Return the time of a bare read of each program's bytes, by name and number of rows."""
    return {(row["program"], row["rows"]): row["us"] for row in read("programs_bare")["rows"]}


def there(name: str) -> bool:
    """Say whether there is a result file."""
    return (HERE / "results" / f"{name}.json").is_file()


def mean(numbers: Iterable[float]) -> float:
    """Return the geometric mean."""
    return math.exp(statistics.fmean(map(math.log, numbers)))


def summary(rows: Sequence[Row]) -> str:
    """Say how often and by how much programs are faster than torch.compile."""
    timed = [r for r in rows if "us" in r]
    few = [r for r in timed if r["program"].startswith(("level2", "serving")) and r["rows"] <= 64]
    unseen = [r for r in timed if r["program"].startswith("others")]
    said = []
    for what, some in (
        ("up to 64 rows of level 2 and serving", few),
        ("others, written after the generator", unseen),
        ("all rows", timed),
    ):
        gains = [r["compile_us"] / r["us"] for r in some]
        slower = sum(g < 1 for g in gains)
        said.append(
            f"Over {what} ({len(some)}), time of torch.compile over ours has the geometric mean "
            f"{mean(gains):.2f}; {slower} are slower."
        )
        if all("promised_us" in r for r in some):
            gains = [r["compile_us"] / r["promised_us"] for r in some]
            said.append(
                "Where callers promise constant weights it is "
                f"{mean(gains):.2f}; {sum(g < 1 for g in gains)} are slower."
            )
    over = [(r["us"] / bare_reads()[r["program"], r["rows"]], r) for r in few]
    far = [f"{r['program']} with {r['rows']} rows {x:.2f}" for x, r in over if x > FAR]
    said.append(
        "Up to 64 rows, ours over a bare read of the bytes has the geometric mean "
        f"{mean(x for x, _ in over):.2f}; above {FAR}: {', '.join(far) or 'none'}."
    )
    return " ".join(said)


def triton_lines() -> Iterator[str]:
    """Yield the lines on Triton programs that ran on a GPU."""
    for name, what in (
        ("triton", "`--json FILE`: of all forms of the catalog, in both types,"),
        ("triton_programs", "`--json FILE DIR`: of these programs, with Triton for every kernel,"),
    ):
        if not there(name):
            continue
        found = read(name)
        good = [row for row in found["rows"] if row["good"]]
        bad = ", ".join(row["call"] for row in found["rows"] if not row["good"])
        gain = mean(row["eager_us"] / row["triton_us"] for row in good)
        yield from ("", *(["## Triton", ""] if name == "triton" else []))
        yield (
            f"{found['device']}, torch {found['torch']}; `python -m programs.triton`, {what} "
            f"{len(good)} of {len(found['rows'])} calls are as exact as PyTorch"
            f"{f' (not {bad})' if bad else ''}. PyTorch's time over theirs is {gain:.2f} "
            "as a geometric mean; tiles are chosen by a rule, not measured."
        )


def times_lines(found: Row) -> Iterator[str]:
    """Yield the table of a result file of `programs.measure`, and how it was measured."""
    bare = read("programs_bare")
    yield (
        f"{found['device']}, torch {found['torch']}; `{found['command']}`. Errors are relative to "
        "float64. *Streamed* is the time of all tensors' bytes, of tables and caches those of the "
        f"rows that an index says, at {found['tb_s']} TB/s, the streaming rate of that run. "
        "The floor, of which *over* is a multiple, is what the fastest bare kernel takes to read "
        f"as many bytes from memory ({bare['device']}, {bare['tb_s']} TB/s; `{bare['command']}`). "
        "Calls are timed in a CUDA graph and go round sets of tensors that together exceed the L2 "
        "cache; *promised* is within `constant_weights()`, where kernels read weights while the "
        "kernel before still runs."
    )
    for again in found.get("again", []):
        yield ""
        yield (
            f"Measured again after their kernels changed, at {again['tb_s']} TB/s "
            f"({again['device']}): {', '.join(again['programs'])}."
        )
    if note := found.get("note"):
        yield from ("", note)
    if since := found.get("since"):
        yield from ("", f"Changed since, and not measured in this table yet: {since}.")
    yield ""
    yield from measured_lines(found["rows"])


def recorded_lines(made: Sequence[Row], found: Row) -> Iterator[str]:
    """Yield the section of the programs that were recorded with Mirage's interface."""
    yield from ("", "## Programs of Mirage's interface", "")
    yield (
        "Recorded with `mi`, superoptimized and emitted at the sizes of Mirage's workloads "
        "([mirage.md](mirage.md#kernels)); those that end in checkpoint are the best of the "
        "muGraphs in its published files. *Rows* is the batch size, or the rows of a program that "
        "has one size."
    )
    yield from ("", *times_lines(found), "")
    measured = {row["program"] for row in found["rows"]}
    if missing := sorted({row["program"] for row in made} - measured):
        yield from (f"Not measured: {', '.join(missing)}.", "")
    yield "| program | rows | proved muGraphs | failure bound | schedules | seconds |"
    yield "| --- | --- | --- | --- | --- | --- |"
    for row in made:
        if "reason" in row:
            yield f"| {row['program']} | {row.get('rows', '')} | {row['reason']} | | | |"
            continue
        ((_, kernel),) = row["kernels"].items()
        yield (
            f"| {row['program']} | {row['rows']} | {row['muGraphs']} | 2^{kernel['proved']:g} | "
            f"{', '.join(kernel['schedules'])} | {row['seconds']} |"
        )


def published_lines(made: Sequence[Row]) -> Iterator[str]:
    """Yield the section of the layers that transformers has."""
    whole = [row for row in made if "ways" in row and not torch_of(row)]
    seconds = [row["seconds"] for row in made]
    yield from ("", "## Layers of transformers", "")
    yield (
        f"{len(made)} layers, each the package's own module at small sizes: two sequences of eight "
        "tokens; `python -m programs.published`. PyTorch runs nothing of "
        f"{len(whole)}. Two were generated at a time on two cores; median "
        f"{statistics.median(seconds):.0f} s, at most {max(seconds):.0f} s. Mixtures of experts "
        "that choose tokens by their values are left out: `torch.export` stops there."
    )
    yield from ("", "| layer | kernels | run by PyTorch | seconds |", "| --- | --- | --- | --- |")
    for row in made:
        kernels = len(row["kernels"]) if "kernels" in row else f"none: {row['reason']}"
        yield f"| {row['program']} | {kernels} | {', '.join(torch_of(row))} | {row['seconds']} |"


def torch_of(row: Row) -> list[str]:
    """Return the operators that PyTorch runs of a program with one way."""
    said = (line for line in row.get("ways", []) if line.startswith("  PyTorch: "))
    return [line.removeprefix("  PyTorch: ").partition(":")[0] for line in said]


def page() -> str:
    """Return docs/programs.md."""
    made = [row for row in read("programs_made") if row.get("dtype") != "fp16"]
    seconds = [row["seconds"] for row in made]
    lines = [
        "# PyTorch functions, measured",
        "",
        "Programs of KernelBench's levels 1 and 2, of serving and others (`benchmarks/programs`), "
        "from their PyTorch functions to kernels ([from_torch.md](from_torch.md)). This page is "
        "made by `python -m programs.table`.",
    ]
    for dtype in ("bf16", "fp16"):
        if not there(f"programs_{dtype}"):
            continue
        found = read(f"programs_{dtype}")
        lines += ["", f"## Time and error, {dtype}", "", summary(found["rows"]), ""]
        lines += times_lines(found)
    if there("mirage_fp16"):
        lines += recorded_lines(read("mirage_made"), read("mirage_fp16"))
    if there("published_made"):
        lines += published_lines(read("published_made"))
    lines += triton_lines()
    lines += ["", "## What each became", ""]
    lines += [
        f"{len(made)} programs in bf16, two generated at a time on two cores; "
        f"median {statistics.median(seconds):.0f} s, at most {max(seconds):.0f} s. Kernels are "
        "named by their first and last operator, with their schedules; what PyTorch runs is given "
        "up to 64 rows and above, or for all.",
        "",
        *made_lines(made),
        "",
        "## Left out",
        "",
        *(f"* Level 1, {k}: {why}." for k, why in level1.OUT.items()),
        *(f"* Level 2, {k}: {why}." for k, why in level2.OUT.items()),
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page())
