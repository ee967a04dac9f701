"""What `tune` reports: candidates that were compiled, what was chosen, what serves other calls."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from mirage_kernels.generator.terminal import Table, Terminal, counted
from mirage_kernels.generator.tuning.catalog import Bucket, Section, Tried, Tuned
from mirage_kernels.generator.tuning.choice import EQUAL_MEANS
from mirage_kernels.generator.tuning.knobs import Values, text
from mirage_kernels.generator.tuning.manifest import Manifest

TIMES = ("us", "floor", "ratio", "rule us", "default us", "PyTorch us", "library us")
OF_TOKENS = ("kernel", "knobs", "M", *TIMES, "rank corr.", "schedules")
OF_ROWS = ("kernel", "rows", "calls", "knobs", "time/floor", "rule's", "candidates")
DENSE = ("kernel", "call", "us", "PyTorch us", "served by", "PyTorch's kernels")


def report_compiled(made: Manifest, folder: Path, terminal: Terminal) -> None:
    """Print how many candidates there are, and which cannot be measured."""
    built = {b.digest: b for k in made.kernels for bucket in k.buckets for b in bucket.built}
    failed = [b for b in built.values() if b.failed]
    terminal.line(
        f"{counted(len(made.kernels), 'kernel')}, {counted(len(built), 'candidate')}, of which "
        f"{len(failed)} cannot be measured, in {folder}"
    )
    for one in failed:
        terminal.line(f"  {_knobs(one.schedule, one.knobs)}: {one.failed}")


def report(section: Section, terminal: Terminal) -> None:
    """Print what was chosen, and why candidates failed."""
    of_tokens = [k for k in section.kernels if not k.mugraph]
    of_rows = [k for k in section.kernels if k not in of_tokens]
    if of_tokens:
        _report_tokens(section, of_tokens, terminal)
    if of_rows:
        _report_rows(of_rows, terminal)
    for kernel in section.kernels:
        for bucket in kernel.buckets:
            for tried in (t for t in bucket.tried if t.failed):
                name = f"{kernel.key.name}, {_size(bucket)}, {_knobs(tried.schedule, tried.knobs)}"
                terminal.line(f"{name}: {tried.failed}")


# -- over tokens -----------------------------------------------------------------------------------


def _report_tokens(section: Section, kernels: list[Tuned], terminal: Terminal) -> None:
    rows = tuple(row for kernel in kernels for row in _token_rows(kernel))
    terminal.table(Table(OF_TOKENS, rows, left=2))
    terminal.line("us: with weights promised to be constant")
    terminal.line("library us: what the op runs above the tokens that a kernel serves")
    terminal.line("schedules: the fastest of each, as predicted one is measured at least")
    terminal.line("rank corr.: Spearman's, of the candidates' predicted and measured times")
    terminal.line(f"over all buckets, relative to each one's best: {_number(section.correlation)}")


def _token_rows(kernel: Tuned) -> Iterator[tuple[str, ...]]:
    for b in kernel.buckets:
        (call,), (us, *_) = b.calls, b.best.us
        times = (f"{us:.2f}", f"{call.floor_us:.2f}", f"{us / call.floor_us:.2f}")
        ours = (_number(b.tried[0].first_us), _number(next(iter(b.best.default_us), None)))
        peers = (*ours, _number(call.eager_us), _number(call.library_us))
        schedules = ", ".join(f"{name} {us:.2f}" for name, us in b.schedules.items())
        named = (kernel.key.name, _knobs(b.best.schedule, b.best.knobs), str(b.size))
        yield (*named, *times, *peers, _number(b.correlation), schedules)
    for beyond in kernel.beyond:
        serves = f"serves up to {kernel.max_tokens}" if kernel.max_tokens else "serves all"
        cells = (kernel.key.name, serves, str(beyond.sizes["tokens"]), "", "", "", "")
        others = (_number(beyond.eager_us), _number(beyond.library_us))
        yield (*cells, _number(beyond.default_us), *others, "", "")


# -- over query rows -------------------------------------------------------------------------------


def _report_rows(kernels: list[Tuned], terminal: Terminal) -> None:
    terminal.table(Table(OF_ROWS, tuple(row for k in kernels for row in _row_rows(k)), left=4))
    terminal.line("time/floor: geometric means, of calls with and without assumption flags")
    dense = tuple(row for kernel in kernels for row in _dense_rows(kernel))
    if dense:
        terminal.table(Table(DENSE, dense, left=2))
    for kernel in kernels:
        if kernel.mugraphs:
            ratios = ", ".join(f"{g.name} {g.ratio or 'failed'}" for g in kernel.mugraphs)
            terminal.line(f"{kernel.key.name}: muGraphs {ratios}; {kernel.mugraph} is chosen")
        for bucket in kernel.buckets:
            for line in _misplaced(bucket):
                terminal.line(f"{kernel.key.name}, {_size(bucket)}: {line}")


def _row_rows(kernel: Tuned) -> Iterator[tuple[str, ...]]:
    for bucket in kernel.buckets:
        measured = sum(not t.failed for t in bucket.tried)
        others = "others" if bucket.choice(few=True) else "all"
        for c in bucket.chosen:
            calls = "of few work tiles" if c.few_tiles else others
            cells = (_size(bucket), calls, text(c.knobs), f"{c.ratio:.3f}")
            rule = "-" if c.rule_ratio is None else f"{c.rule_ratio:.3f}"
            yield (kernel.key.name, *cells, rule, str(measured))


def _dense_rows(kernel: Tuned) -> Iterator[tuple[str, ...]]:
    for d in kernel.beyond:
        size = d.sizes
        causal = ", causal" if d.causal else ""
        call = f"B={size['sequences']} T={size['tokens']} L={size['keys']}{causal}"
        peers = ", ".join(f"{name} {us:.1f}" for name, us in d.peers.items())
        times = (_number(d.default_us), _number(d.other_us))
        yield (kernel.key.name, call, *times, "ours" if d.is_ours else "SDPA", peers)


def _misplaced(bucket: Bucket) -> Iterator[str]:
    """Say where the launch's rule takes the slower one of the two variants that were chosen."""
    chosen = {few: bucket.choice(few=few) for few in (False, True)}

    def means(knobs: Values) -> Tried:
        return next(t for t in bucket.tried if t.knobs == knobs and not t.failed)

    for i, at in enumerate(bucket.calls):
        taken, other = chosen[at.few_tiles], chosen[not at.few_tiles]
        if taken is None or other is None:
            continue
        us, others_us = means(taken.knobs).means[i], means(other.knobs).means[i]
        if us > EQUAL_MEANS * others_us:
            yield (
                f"{at.name} takes {us:.2f} us by {text(taken.knobs)}, "
                f"{others_us:.2f} by {text(other.knobs)}"
            )


def _size(bucket: Bucket) -> str:
    return f"<= {bucket.size}" if bucket.size else "any"


def _knobs(schedule: str, knobs: Values) -> str:
    return f"{schedule} {text(knobs)}".strip()


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"
