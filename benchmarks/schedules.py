"""Measures fast schedules beside the general writer, on the same muGraphs.

    python benchmarks/schedules.py make --out DIR             # no GPU: general kernels, compiled
    python benchmarks/schedules.py measure DIR --json FILE    # on a GPU

A form is a recipe with the schedules that its kernels have, in its smallest committed shape. Both
kernels are timed cold, under CUDA graphs, as `mirage-kernels bench` measures, at some numbers of
tokens; attention over dense keys and values, at some numbers of sequences. A schedule stays where
it is faster than the general kernel. What `make` made is not made again.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from fnmatch import fnmatchcase
from functools import partial
from math import prod
from pathlib import Path

from mirage_kernels import load, program
from mirage_kernels.generator.bench.measure import Clock, gpu_clock
from mirage_kernels.generator.bench.workload import Inputs, Results, largest_error, poisoned
from mirage_kernels.generator.bench.workloads.cache import EPS, LATENT, NO_WINDOW, CacheWorkload
from mirage_kernels.generator.bench.workloads.lists import Workload, kernel_calls, usual
from mirage_kernels.generator.bench.workloads.tensors import TOKENS, TensorWorkload
from mirage_kernels.generator.build.compile import DEFAULT_ARCH, ROOT
from mirage_kernels.generator.build.programs import SharedObject, compile_programs
from mirage_kernels.generator.commands.bench import document_of, measured_here
from mirage_kernels.generator.errors import MirageError
from mirage_kernels.generator.ir import DType
from mirage_kernels.generator.plan.threads import with_threads
from mirage_kernels.generator.records.files import write_whole
from mirage_kernels.generator.records.folder import emitted
from mirage_kernels.generator.records.programs import object_text
from mirage_kernels.generator.records.record import About, KernelRecord, load_record
from mirage_kernels.generator.schedules.attention.program import AttentionRoles
from mirage_kernels.generator.schedules.general import plan as general

KERNELS = ROOT / "kernels"
ROWS, SEQUENCES, KEYS = (1, 8, 16, 64), (1, 8), 1024
HEAD = f"{'form':<40}{'call':<10}{'schedule':<18}{'us':>8}{'general us':>12}{'ratio':>7}"
Given = Mapping[str, object]  # what a program is called with, by the names of a recipe's inputs
Run = Callable[..., Results]


# -- general kernels -------------------------------------------------------------------------------


def forms(records: Iterable[KernelRecord], pattern: str, dtype: str) -> list[KernelRecord]:
    """Return the smallest record of each recipe and set of schedules, by name."""
    smallest: dict[object, KernelRecord] = {}
    for record in records:
        key = record.recipe, frozenset(v.schedule for v in record.variants)
        of_type = record.dtype == dtype and not record.indexed
        if of_type and fnmatchcase(f"{record.recipe}/{record.stem}", pattern):
            both = (record, smallest.get(key, record))
            smallest[key] = min(both, key=lambda r: prod(r.shape.values()))
    return sorted(smallest.values(), key=lambda r: r.path)


def general_record(record: KernelRecord) -> KernelRecord:
    """Return the record of the general kernel of a record's muGraph."""
    about = About(**{f.name: getattr(record, f.name) for f in fields(About)})
    return general.planned(about, with_threads(record.graph))


def make(records: Sequence[KernelRecord], folder: Path, jobs: int) -> list[Path]:
    """Write general kernels of muGraphs below a folder, compile them and return their objects."""
    wanted = list[SharedObject]()
    for record in records:
        path = folder / record.path
        if path.is_file():
            made = load_record(path)
        else:
            try:
                made = general_record(record)
            except MirageError as error:
                print(f"  left out: {record.path}: {error.sentence}", file=sys.stderr)
                continue
            for file, text in general.sources([made]).items():
                write_whole(folder / file, text)
            write_whole(path, made.text())
        out, text = path.with_suffix(".so").resolve(), object_text(made)
        wanted.append(SharedObject(out, text.text, (out.with_suffix(".cu"),), text.uses_cute))
    return compile_programs(
        wanted, jobs=jobs, progress=lambda *said: print("  ", *said, file=sys.stderr)
    )


# -- calls -----------------------------------------------------------------------------------------


def calls(record: KernelRecord) -> dict[str, Workload]:
    """Return the calls at which a kernel is measured, by a short name."""
    dtype = record.storage
    if not isinstance(record.roles, AttentionRoles):
        sizes = {f"{TOKENS}={n}": {TOKENS: n, **record.shape} for n in ROWS}
        return {name: TensorWorkload(record.recipe, s, dtype=dtype) for name, s in sizes.items()}
    if record.recipe == LATENT:
        every = kernel_calls(LATENT, dtype, record.shape).values()
        found = {w.sequences: w for w in every if w.sequences in SEQUENCES}
    else:
        depth = record.shape["D"]
        found = {w.sequences: w for w in usual(record.recipe, depth, SEQUENCES, [dtype])}
    return {
        f"B={n}": replace(w, lengths=(KEYS,) * n, page_size=0) for n, w in sorted(found.items())
    }


def arguments(record: KernelRecord, workload: Workload, given: Inputs) -> Given:
    """Return what a general kernel of a recipe is called with for a workload's tensors."""
    if isinstance(workload, CacheWorkload):
        return _of_cache(record, workload, given)
    scalars = {n.name for n in record.graph.inputs if not n.out.type.dims}
    return {**given, **{name: workload.source.scalars[name] for name in scalars}}


def _of_cache(record: KernelRecord, workload: CacheWorkload, given: Inputs) -> Given:
    """Return the inputs of attention: queries by head of the cache, dense lines by token."""
    w, q, names = workload, given["q"], {n.name: n.out.type.names for n in record.graph.inputs}
    k, v = (given[name].transpose(1, 2).contiguous() for name in "kv")  # [B, L, Hkv, D]
    lengths = q.new_full((w.sequences,), w.longest).int()
    found: dict[str, object] = {"k": k, "v": v, "seq_lens": lengths}
    found["scale"] = w.depth**-0.5 if w.scale is None else w.scale
    found["window"] = NO_WINDOW if w.window_left < 0 else w.window_left + 1
    found |= {"cap": w.logits_soft_cap, "eps": EPS, "weight_offset": 0.0}
    if w.more:
        for kind, lines in (("q_latent q_rope", q[:, 0]), ("latent k_rope", k[:, :, 0])):
            parts = lines.split([w.depth, w.more], dim=-1)
            found |= {n: x.contiguous() for n, x in zip(kind.split(), parts, strict=True)}
    else:
        tokens = (w.tokens,) if "T" in names["q"] else ()
        found["q"] = q.reshape(w.sequences, *tokens, w.heads[1], w.group, w.depth)
    for name in ("q_weight", "q_bias", "k_weight", "k_bias"):
        if name in given:
            own = given[name]
            by_head = name.startswith("q") and own.dim() > 1
            found[name] = own.reshape(w.heads[1], w.group, w.depth) if by_head else own
    return {name: found[name] for name in names}


# -- times -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    """Times of one call by the library and by the general kernel, errors against float64."""

    form: str
    call: str
    schedule: str
    us: float
    general_us: float
    ratio: float  # of the general kernel's time to the library's
    error: float
    general_error: float

    def line(self) -> str:
        """Return the row of the table."""
        times = f"{self.us:>8.2f}{self.general_us:>12.2f}{self.ratio:>7.2f}"
        return f"{self.form:<40}{self.call:<10}{self.schedule:<18}{times}"


def schedule_at(record: KernelRecord, rows: int) -> str:
    """Return the schedules that serve so many rows."""
    large = [v for v in record.variants if not v.bucket or v.bucket >= rows]
    return ", ".join(dict.fromkeys(v.schedule for v in large if v.bucket == large[0].bucket))


def measured(record: KernelRecord, call: str, run: Run, clock: Clock) -> Row:
    """Measure a call of the library's kernel of a record, and of its general kernel `run`."""
    workload = calls(record)[call]
    sets = [workload.draw(n, clock.device) for n in range(clock.sets(workload.bytes_read))]
    exact = workload.exact(sets[0])
    outs = poisoned(workload.new_outs(sets[0]))
    workload.ours(sets[0], outs)
    error = largest_error(outs, exact)
    us = clock.cold(workload.ours, sets)
    given = [arguments(record, workload, one) for one in sets]
    general_error = largest_error(run(**given[0]), exact)
    general_us = clock.per_call([partial(run, **one) for one in given])
    return Row(
        form=f"{record.recipe}/{record.stem}",
        call=call,
        schedule=schedule_at(record, workload.rows),
        us=us,
        general_us=general_us,
        ratio=general_us / us,
        error=error,
        general_error=general_error,
    )


def measure(folder: Path, json: Path | None, pattern: str) -> None:
    """Measure the kernels of a folder, print a row each, and write JSON where asked."""
    load(folder)
    clock, rows = gpu_clock(), list[Row]()
    committed = [load_record(KERNELS / p.relative_to(folder)) for p in folder.glob("sm_*/*/*.json")]
    print(HEAD)
    for record in sorted(committed, key=lambda r: r.path):
        if not fnmatchcase(f"{record.recipe}/{record.stem}", pattern):
            continue
        run = program(record.recipe)
        for call in calls(record):
            rows.append(measured(record, call, run, clock))
            print(rows[-1].line(), flush=True)
        if json is not None:
            here = measured_here("python benchmarks/schedules.py")
            write_whole(json, document_of(here, [asdict(row) for row in rows]))


def main() -> int:
    """Make or measure."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    verbs = parser.add_subparsers(dest="verb", required=True)
    maker, measurer = verbs.add_parser("make"), verbs.add_parser("measure")
    maker.add_argument("--out", type=Path, required=True)
    maker.add_argument("--dtype", default="fp16", choices=[DType.FP16.value, DType.BF16.value])
    maker.add_argument("--jobs", type=int, default=1, help="compilations at once")
    measurer.add_argument("folder", type=Path)
    measurer.add_argument("--json", type=Path)
    for verb in (maker, measurer):
        verb.add_argument("--kernels", default="*", help="a pattern: 'gqa/*'")
    options = parser.parse_args()
    if options.verb == "measure":
        measure(options.folder.resolve(), options.json, options.kernels)
        return 0
    chosen = forms(emitted(KERNELS, DEFAULT_ARCH).values(), options.kernels, options.dtype)
    if not chosen:
        parser.error(f"no kernel is called {options.kernels!r}: `mirage-kernels list` names all")
    made = make(chosen, options.out, options.jobs)
    print(f"{len(made)} kernels, {sum(p.stat().st_size for p in made) / 2**20:.1f} MiB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
