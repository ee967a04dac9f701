"""Emission: every file of a kernel as a pure function of its record."""

from __future__ import annotations

from collections.abc import Sequence

from mirage_kernels.generator.emit.cuda import Kernel, dims_text, emit_cuda
from mirage_kernels.generator.emit.header import Header
from mirage_kernels.generator.emit.table import Entry, emit_table
from mirage_kernels.generator.emit.triton import emit_triton
from mirage_kernels.generator.ir import Graph, Phase, phases_of
from mirage_kernels.generator.plan.lower import tile_program
from mirage_kernels.generator.plan.program import Layout, TileProgram
from mirage_kernels.generator.plan.tiles import Planning
from mirage_kernels.generator.record import KernelRecord, MuGraphRecord, Record


def files_of(record: Record) -> dict[str, str]:
    """Return every file of a record by path below the kernels folder."""
    if isinstance(record, MuGraphRecord):
        return {record.path: record.text()}
    return sources_of(record)


def sources_of(record: KernelRecord) -> dict[str, str]:
    """Return the kernel's files by path below the kernels folder: record, CUDA, Triton."""
    program = tile_program(record.recipe, record.graph, Planning(arch=record.arch))
    kernel = Kernel(program, record.variants, record.storage, _header(record, program))
    base = record.path.removesuffix(".json")
    return {
        record.path: record.text(),
        f"{base}.cu": emit_cuda(kernel),
        f"{base}.py": emit_triton(kernel),
    }


def table_of(arch: str, records: Sequence[KernelRecord]) -> str:
    """Return the dispatch table of an architecture."""
    return emit_table(arch, [_entry(r) for r in records])


def _entry(record: KernelRecord) -> Entry:
    options = tuple(n.name for n in record.graph.of("input") if n.optional)
    most = record.max_tokens
    return Entry(record.recipe, record.dtype, record.shape, record.stem, most, options)


def _header(record: KernelRecord, program: TileProgram) -> Header:
    paragraphs = [
        ("Formula", f"{dims_text(program.output.type.names)} = {record.summary}"),
        ("Shape", record.source),
        ("muGraph", _mugraph_words(record.graph)),
        ("Found", f"{record.search.text()}."),
        ("Proved", _proof_words(record)),
        ("Accuracy", _accuracy_words(record)),
        ("Expects", _expectations(program)),
        ("Launch", _launch_words(record)),
    ]
    return Header(record.command, record.stem, paragraphs)


def _mugraph_words(graph: Graph) -> str:
    (node,) = graph.blocks
    body = node.body
    assert body is not None
    assert body.space is not None
    assert body.space.loop is not None
    phases = phases_of(body)
    looped = [n.name for n in body.nodes if phases[n.name] is Phase.LOOP and n.op != "input"]
    grid = ", ".join(f"grid.{a.name} cuts {a.dim}" for a in body.space.grid)
    return (
        f"one kernel; {grid}, the loop cuts {body.space.loop.dim}. In the loop: "
        f"{', '.join(looped)}; carried: {', '.join(n.name for n in body.of('accum'))}; "
        "the rest after it."
    )


def _proof_words(record: KernelRecord) -> str:
    proof = record.proof
    return (
        f"equal to the recipe on {proof.draws} random draws over finite fields, for the tiles of "
        f"all {len(record.variants)} variants, at {_extents_words(record)} and uneven edges; a "
        f"wrong muGraph passes with probability at most 2^{proof.log2_failure:g}."
    )


def _extents_words(record: KernelRecord) -> str:
    """Say what was proved whole: rows are independent, and of very many a few tiles are run."""
    whole = [d for d in record.shape if all(record.shape[d] in c for c in _sizes(record, d))]
    return "full extents" if len(whole) == len(record.shape) else f"full {', '.join(whole)}"


def _sizes(record: KernelRecord, dim: str) -> list[set[int]]:
    """Return, per tile shape, the sizes of a dim that the proof covers."""
    by_tiles: dict[tuple[tuple[str, int], ...], set[int]] = {}
    for case in record.proof.cases:
        tiles = tuple(sorted(case.tiles.items()))
        by_tiles.setdefault(tiles, set()).add(case.sizes.get(dim, 0))
    return list(by_tiles.values())


def _accuracy_words(record: KernelRecord) -> str:
    parts = [f"{m.distribution} {m.error:.1e} ({m.unfused:.1e})" for m in record.accuracy]
    return f"emulated error against float64 (unfused program's): {', '.join(parts)}."


def _expectations(program: TileProgram) -> str:
    tokens = {s.args[0] for s in program.loads if s.layout is Layout.TOKENS}
    parts = []
    for operand in program.inputs:
        how = "rows 16-byte aligned, any row stride" if operand.name in tokens else "contiguous"
        parts.append(f"{operand.name} {dims_text(operand.type.names)} {how}")
    out = f"{program.output.name} {dims_text(program.output.type.names)} contiguous"
    return f"{', '.join(parts)}, {out}; any {program.roles.tokens} >= 0."


def _launch_words(record: KernelRecord) -> str:
    parts = []
    for variant in record.variants:
        knobs = variant.knobs
        blocks = -(-record.shape[record.roles.rows] // knobs.rows)
        limit = f"up to {variant.bucket}" if variant.bucket else "any number of"
        parts.append(f"{limit} tokens {blocks} blocks of {knobs.warps} warps")
    return f"{'; '.join(parts)} per {record.variants[-1].knobs.tokens}."
