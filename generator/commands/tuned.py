"""The part of `tune` that reports: what was compiled and chosen, and what else was measured."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from mirage_kernels.generator.schedules.schedule import Knobs
from mirage_kernels.generator.terminal import Table, Terminal, counted
from mirage_kernels.generator.tuning.catalog import Bucket, Section, Tried, Tuned
from mirage_kernels.generator.tuning.choice import EQUAL_MEANS
from mirage_kernels.generator.tuning.files import written
from mirage_kernels.generator.tuning.manifest import Manifest

COLUMNS = ("kernel", "size", "calls", "knobs", "us", "assumed us", "floor", "ratio", "rule's")
PEERS = ("PyTorch us", "library us", "rank corr.", "candidates", "schedules")
DENSE = ("kernel", "call", "us", "PyTorch us", "served by", "PyTorch's kernels")


def report_compiled(made: Manifest, folder: Path, terminal: Terminal) -> None:
    """Print how many candidates there are, and which cannot be measured."""
    built = [b for k in made.kernels for b in k.candidates.values()]
    failed = [b for b in built if b.failed]
    terminal.line(
        f"{counted(len(made.kernels), 'kernel')}, {counted(len(built), 'candidate')}, of which "
        f"{len(failed)} cannot be measured, in {folder}"
    )
    for one in failed:
        terminal.line(f"  {knobs_text(one.knobs)}: {one.failed}")
    terminal.document({"folder": str(folder), "kernels": written(made.kernels)})


def report(section: Section, terminal: Terminal) -> None:
    """Print what was chosen, why candidates failed, and where a call's other variant is faster."""
    rows = tuple(row for kernel in section.kernels for row in _rows(kernel))
    terminal.table(Table((*COLUMNS, *PEERS), rows, left=4))
    terminal.line("size: tokens, or query rows; us: of calls that assume nothing, of one call")
    terminal.line("assumed us: with constant weights and a constant history assumed")
    terminal.line("ratio: over the floor; of several calls the geometric mean of both times")
    terminal.line("library us: what the op runs above the tokens that a kernel serves")
    terminal.line("schedules: the fastest of each, as predicted one is measured at least")
    terminal.line("rank corr.: Spearman's, of the candidates' predicted and measured times")
    terminal.line(f"over all buckets, relative to each one's best: {_number(section.correlation)}")
    dense = tuple(row for kernel in section.kernels for row in _dense_rows(kernel))
    if dense:
        terminal.table(Table(DENSE, dense, left=2))
    for kernel in section.kernels:
        if kernel.forms:
            ratios = ", ".join(f"{f.form} {f.ratio or 'failed'}" for f in kernel.forms)
            terminal.line(f"{kernel.key.name}: muGraphs {ratios}; {kernel.form} is chosen")
        for bucket in kernel.buckets:
            for line in (*_failures(bucket), *_misplaced(bucket)):
                terminal.line(f"{kernel.key.name}, {_size(bucket)}: {line}")


def knobs_text(knobs: Knobs) -> str:
    """Write knobs as their schedule and each by its name."""
    words = (f"{name} {value}" for name, value in knobs.to_json().items() if name != "schedule")
    return f"{knobs.label}: {', '.join(words)}"


def _rows(kernel: Tuned) -> Iterator[tuple[str, ...]]:
    for bucket in kernel.buckets:
        measured = str(sum(not t.failed for t in bucket.tried))
        plans = ", ".join(f"{plan} {us:.2f}" for plan, us in bucket.plans.items())
        for c in bucket.chosen:
            others = "others" if bucket.choice(few=True) else "all"
            calls = "of few work tiles" if c.few_tiles else others
            cells = (kernel.key.name, _size(bucket), calls, knobs_text(c.knobs))
            alone = len(bucket.points) == 1
            times = _times(bucket) if alone else ("", "", "")
            ratios = (_ratio(c.ratio), _ratio(c.rule_ratio))
            point = bucket.points[0]
            peers = (_number(point.eager_us), _number(point.library_us)) if alone else ("", "")
            last = (_number(bucket.correlation), measured, plans if alone else "")
            yield (*cells, *times, *ratios, *peers, *last)
    for beyond in kernel.beyond:
        serves = f"serves up to {kernel.max_tokens}" if kernel.max_tokens else "serves all"
        others_us = (f"{beyond.eager_us:.2f}", _number(beyond.library_us))
        named = (kernel.key.name, str(beyond.tokens), "", serves, _number(beyond.us))
        yield (*named, "", "", "", "", *others_us, "", "", "")


def _times(bucket: Bucket) -> tuple[str, str, str]:
    best = bucket.best or Tried(bucket.chosen[0].knobs)
    us, assumed_us = (_number(t[0] if t else None) for t in (best.us, best.assumed_us))
    return us, assumed_us, f"{bucket.points[0].floor_us:.2f}"


def _dense_rows(kernel: Tuned) -> Iterator[tuple[str, ...]]:
    for d in kernel.dense:
        call = f"B={d.sequences} T={d.tokens} L={d.keys}{', causal' if d.causal else ''}"
        peers = ", ".join(f"{name} {us:.1f}" for name, us in d.peers.items())
        yield (kernel.key.name, call, f"{d.us:.1f}", f"{d.sdpa_us:.1f}", d.served_by, peers)


def _size(bucket: Bucket) -> str:
    return f"<= {bucket.size}" if bucket.size else "any"


def _failures(bucket: Bucket) -> Iterator[str]:
    for tried in bucket.tried:
        if tried.failed:
            yield f"{knobs_text(tried.knobs)}: {tried.failed}"


def _misplaced(bucket: Bucket) -> Iterator[str]:
    """Say where the launch's rule takes the slower one of the two variants that were chosen."""
    usual, of_few = (bucket.choice(few=few) for few in (False, True))
    if usual is None or of_few is None:
        return
    times = {t.knobs: t.means() for t in bucket.tried if not t.failed}
    for i, point in enumerate(bucket.points):
        taken, other = (of_few, usual) if point.few_tiles else (usual, of_few)
        us, others_us = times[taken.knobs][i], times[other.knobs][i]
        if us > EQUAL_MEANS * others_us:
            yield (
                f"{point.name} takes {us:.2f} us by {knobs_text(taken.knobs)}, "
                f"{others_us:.2f} by {knobs_text(other.knobs)}"
            )


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _ratio(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
