"""The part of `tune` that reports on attention: what was chosen, and what serves dense calls."""

from __future__ import annotations

from collections.abc import Iterator

from mirage_kernels.generator.schedules.attention.knobs import AttentionKnobs
from mirage_kernels.generator.terminal import Table, Terminal
from mirage_kernels.generator.tuning.attention_catalog import TunedAttention, TunedRows
from mirage_kernels.generator.tuning.attention_choice import EQUAL
from mirage_kernels.generator.tuning.attention_manifest import CompiledAttention
from mirage_kernels.generator.tuning.catalog import Section

COLUMNS = ("kernel", "rows", "calls", "knobs", "time/floor", "rule's", "candidates")
DENSE = ("kernel", "call", "us", "PyTorch us", "served by", "PyTorch's kernels")


def knobs_text(k: AttentionKnobs) -> str:
    """Write knobs as rows of a tile, keys of a step, warps, stages, blocks: `8/16/4/3/2`."""
    waits = ", sums of keys" if k.constants.get("key_sums") else ""
    return f"{k.rows}/{k.keys}/{k.warps}/{k.stages}/{k.blocks}{waits}"


def report_attention(section: Section, terminal: Terminal) -> None:
    """Print what was chosen, why candidates failed, and where a call's other variant is faster."""
    if not section.attention:
        return
    rows = tuple(row for kernel in section.attention for row in _rows(kernel))
    terminal.table(Table(COLUMNS, rows, left=4))
    terminal.line("knobs: rows/keys/warps/stages/blocks; time/floor: geometric means, of calls")
    terminal.line("that promise nothing and that promise a constant history, over the workloads")
    dense = tuple(row for kernel in section.attention for row in _dense_rows(kernel))
    if dense:
        terminal.table(Table(DENSE, dense, left=2))
    for kernel in section.attention:
        if kernel.forms:
            ratios = ", ".join(f"{f.form} {f.ratio or 'failed'}" for f in kernel.forms)
            terminal.line(f"{kernel.key.name}: muGraphs {ratios}; {kernel.form} is chosen")
        for bucket in kernel.buckets:
            for line in (*_failures(bucket), *_misplaced(bucket)):
                terminal.line(f"{kernel.key.name}, {_rows_text(bucket)}: {line}")


def report_compiled_attention(kernels: tuple[CompiledAttention, ...], terminal: Terminal) -> None:
    """Print how many candidates of attention there are, and which cannot be measured."""
    built = {b.digest: b for k in kernels for bucket in k.buckets for b in bucket.built}
    if built:
        failed = [b for b in built.values() if b.failed]
        terminal.line(f"attention: {len(built)} candidates, {len(failed)} cannot be measured")
        for one in failed:
            terminal.line(f"  {knobs_text(one.knobs)}: {one.failed}")


def _rows(kernel: TunedAttention) -> Iterator[tuple[str, ...]]:
    for bucket in kernel.buckets:
        measured = sum(not t.failed for t in bucket.tried)
        for c in bucket.chosen:
            calls = "of few work tiles" if c.few_tiles else "all" if not _few(bucket) else "others"
            rule = "-" if c.rule_ratio is None else f"{c.rule_ratio:.3f}"
            cells = (_rows_text(bucket), calls, knobs_text(c.knobs), f"{c.ratio:.3f}")
            yield (kernel.key.name, *cells, rule, str(measured))


def _dense_rows(kernel: TunedAttention) -> Iterator[tuple[str, ...]]:
    for d in kernel.dense:
        call = f"B={d.sequences} T={d.tokens} L={d.keys}{', causal' if d.causal else ''}"
        peers = ", ".join(f"{name} {us:.1f}" for name, us in d.peers.items())
        yield (kernel.key.name, call, f"{d.us:.1f}", f"{d.sdpa_us:.1f}", d.served_by, peers)


def _rows_text(bucket: TunedRows) -> str:
    return f"<= {bucket.rows}" if bucket.rows else "any"


def _few(bucket: TunedRows) -> bool:
    return bucket.choice(few=True) is not None


def _failures(bucket: TunedRows) -> Iterator[str]:
    for tried in bucket.tried:
        if tried.failed:
            yield f"{knobs_text(tried.knobs)}: {tried.failed}"


def _misplaced(bucket: TunedRows) -> Iterator[str]:
    """Say where the launch's rule takes the slower one of the two variants that were chosen."""
    chosen = {few: bucket.choice(few=few) for few in (False, True)}
    times = {t.knobs: t.means() for t in bucket.tried if not t.failed}
    for i, at in enumerate(bucket.workloads):
        taken, other = chosen[at.few_tiles], chosen[not at.few_tiles]
        if taken is None or other is None:
            continue
        us, others_us = times[taken.knobs][i], times[other.knobs][i]
        if us > EQUAL * others_us:
            yield (
                f"{at.name} takes {us:.2f} us by {knobs_text(taken.knobs)}, "
                f"{others_us:.2f} by {knobs_text(other.knobs)}"
            )
