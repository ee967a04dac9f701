"""Candidates of a generated folder's kernels, which are programs, and calls to compare them at.

A candidate is a whole program of one variant. Each bucket has one call, at its largest extent. Its
tensors are drawn from what the program's signature says, and what the rule's choice computes is
what the others must compute.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from math import prod
from pathlib import Path

from mirage_kernels.generator.emit.cuda import Header, emit_cuda
from mirage_kernels.generator.errors import FileError
from mirage_kernels.generator.plan.program import Roles
from mirage_kernels.generator.records.folder import emitted
from mirage_kernels.generator.records.programs import program_entry
from mirage_kernels.generator.records.record import KernelRecord
from mirage_kernels.generator.schedules.choose import (
    Wanted,
    by_size,
    candidates,
    member,
    programs_of,
)
from mirage_kernels.generator.schedules.general import (
    GeneralRoles,
    planned_sizes,
    predict,
)
from mirage_kernels.generator.schedules.general import plan as general
from mirage_kernels.generator.schedules.general.candidates import TOO_SLOW, general_candidates
from mirage_kernels.generator.schedules.schedule import Knobs, Variant
from mirage_kernels.generator.schedules.sliced_k import SlicedK
from mirage_kernels.generator.schedules.streaming import Kernel, as_called
from mirage_kernels.generator.target import target
from mirage_kernels.generator.tuning.candidates import Candidates
from mirage_kernels.generator.tuning.catalog import Bucket, Key, Tried, Tuned
from mirage_kernels.generator.tuning.choice import has_producers

MOST_BYTES = 2**32  # of a call's tensors
MANY_BYTES, MOST_ROWS = 2**28, 8192  # of calls of many rows, which no cache holds
GENERAL_MORE = 3  # candidates more than asked for of general kernels, whose model is coarser


def is_generated(folder: Path) -> bool:
    """Say whether `generate --out` wrote a folder."""
    return folder.is_dir() and any(folder.glob("sm_*"))


def generated_records(folder: Path, arch: str, only: str = "") -> list[KernelRecord]:
    """Return the records of a folder's programs whose paths match; raises FileError for none.

    Attention over a cache is no program, nor are slices of stacks.
    """
    found = [
        r
        for path, r in emitted(folder, arch).items()
        if re.search(only, path) and isinstance(r.roles, Roles | GeneralRoles) and not r.stacked
    ]
    if not found:
        named = f" whose paths match {only!r}" if only else ""
        raise FileError(
            f"{folder} holds no programs for {arch}{named}",
            "`mirage-kernels generate FILE --out DIR` writes them",
        )
    return found


def program_candidates(record: KernelRecord, top: int) -> Candidates:
    """Return the candidates of a program: the rule's choice of every bucket, and others.

    Raises PlanError for a muGraph that nothing fits.
    """
    key = Key(record.recipe, record.dtype, dict(record.shape))
    of = _of_general if isinstance(record.roles, GeneralRoles) else _of_tokens
    buckets, dim, source = of(record, top)
    symbol = f"{record.recipe}_{record.stem}"
    return Candidates(Tuned(key, buckets, dim=dim, symbol=symbol), source)


Made = tuple[tuple[Bucket, ...], str, Callable[[Knobs], str]]


def _of_general(record: KernelRecord, top: int) -> Made:
    graph, on, counted = record.graph, target(record.arch), record.roles.counted
    buckets, planned = list[Bucket](), planned_sizes(graph)
    found = {n: dict(general_candidates(graph, n, on, top + GENERAL_MORE)) for n in planned}
    every = dict.fromkeys(k for own in found.values() for k in own)
    for size, extents in planned.items():
        own = found[size]  # the rule's choice first
        more = {k: predict(graph, k, extents, on) for k in every if k not in own}
        # The model is coarse: what may be fast at other sizes is tried here, too.
        slow = TOO_SLOW * next(iter(own.values()))
        own |= {k: round(us, 3) for k, us in more.items() if us <= slow}
        sizes = {d: n for d, n in extents.items() if d in _dynamic(record)}
        buckets.append(Bucket(size, tried=_tried(own.items()), sizes=sizes))

    def source(knobs: Knobs) -> str:
        one = replace(record, variants=(Variant(0, knobs),))
        return general.launcher(one).text([*_header(record, knobs).lines("//"), ""])

    return tuple(_affordable(record, counted, buckets)), counted, source


def _of_tokens(record: KernelRecord, top: int) -> Made:
    """Return candidates of schedules for tokens.

    How a function is cut depends on whether its last bucket has sliced-K (`partition/program.py`):
    where the rule has another schedule there, sliced-K is none of the candidates.
    """
    programs, on = programs_of(record.recipe, record.graph, record.arch), target(record.arch)
    tokens_of = record.roles.tokens
    by_rule, buckets = by_size(programs[0], on), []
    for tokens, variant in by_rule.items():
        found = candidates(programs, tokens, on, Wanted(top))
        if not variant.bucket and not isinstance(variant.knobs, SlicedK):
            found = [c for c in found if not isinstance(c.knobs, SlicedK)]
        tried = _tried((c.knobs, round(c.predicted_us, 3)) for c in found)
        buckets.append(Bucket(tokens, tried=tried, sizes={tokens_of: tokens}))

    def source(knobs: Knobs) -> str:
        program = member(programs, producers=has_producers(knobs))
        header = _header(record, knobs)
        one = replace(record, variants=(Variant(0, knobs),))
        text = emit_cuda(Kernel(as_called(program, one), one.variants, record.storage, header))
        return text + program_entry(one)

    return tuple(_affordable(record, tokens_of, buckets)), tokens_of, source


def _header(record: KernelRecord, knobs: Knobs) -> Header:
    command = f"mirage-kernels tune {record.recipe}"
    return Header(command, record.stem, [("Knobs", str(knobs))])


def _tried(found: Iterable[tuple[Knobs, float]]) -> tuple[Tried, ...]:
    return tuple(Tried(knobs, us) for knobs, us in found)


def _dynamic(record: KernelRecord) -> dict[str, int]:
    """Return the dynamic dims of a record's inputs, and how long they may be."""
    dims = (d for n in record.graph.inputs for d in n.out.type.dims if d.dynamic)
    return {d.name: d.size for d in dims}


def _affordable(record: KernelRecord, dim: str, buckets: list[Bucket]) -> Iterator[Bucket]:
    """Yield buckets with calls whose tensors are not too large, nor small where rows are many.

    A bucket where no number of rows fits has no call, and is left.
    """
    before = 0
    for bucket in buckets:
        sizes = dict(bucket.sizes)
        rows, most = sizes.get(dim, 0), min(MOST_ROWS, _dynamic(record).get(dim, 0))
        while not bucket.size and 0 < 2 * rows <= most and _bytes(record, sizes) < MANY_BYTES:
            rows = sizes[dim] = 2 * rows
        while dim and sizes[dim] > before and _bytes(record, sizes) > MOST_BYTES:
            sizes[dim] //= 2
        if _bytes(record, sizes) <= MOST_BYTES and (not dim or sizes[dim] > before):
            yield replace(bucket, sizes=sizes)
        before = bucket.size or before


def _bytes(record: KernelRecord, sizes: Mapping[str, int]) -> int:
    types = [record.graph.values[o].type for o in record.graph.outputs]
    types += [n.out.type for n in record.graph.inputs]
    return sum(t.dtype.bytes * prod(sizes.get(d.name, d.size) for d in t.dims) for t in types)
