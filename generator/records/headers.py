"""What the header of an emitted file says of its kernel: words, a pure function of its record."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from mirage_kernels.generator.emit.header import Header
from mirage_kernels.generator.emit.names import dims_text
from mirage_kernels.generator.ir import Graph, Node, Phase, Space, phases_of
from mirage_kernels.generator.plan.blocks import without_threads
from mirage_kernels.generator.plan.program import Do, Layout, Roles, TileProgram
from mirage_kernels.generator.records.record import KernelRecord
from mirage_kernels.generator.schedules.attention import shared_bytes as shared_bytes_of
from mirage_kernels.generator.schedules.attention.program import AttentionProgram
from mirage_kernels.generator.schedules.batched_lora import (
    PRODUCER_BLOCKS,
    consumers_bytes,
    first_launch_bytes,
)
from mirage_kernels.generator.schedules.choose import producers_bytes, shared_bytes
from mirage_kernels.generator.schedules.cluster_split_k.knobs import ClusterSplitK
from mirage_kernels.generator.schedules.loop import producers_of, prologue_warps
from mirage_kernels.generator.schedules.register_operand.knobs import RegisterOperand
from mirage_kernels.generator.schedules.row_wise.knobs import RowWise
from mirage_kernels.generator.schedules.schedule import Variant
from mirage_kernels.generator.schedules.sliced_k.knobs import SlicedK


def kernel_header(record: KernelRecord, program: TileProgram) -> Header:
    """Return the header of a kernel that streams weights, or of lines."""
    own = (mugraph_words(record.graph), _expectations(program))
    header = _paragraphs(record, program.output.type.names, own)
    return replace(header, launches=_launches(record, program, record.variants))


def stacked_header(
    record: KernelRecord, program: TileProgram, variants: Sequence[Variant]
) -> Header:
    """Return the header of a kernel for slices of stacks: whose muGraph it is, and what differs."""
    named = " and ".join(program.stacked)
    expects = _expectations(program)
    for name in program.stacked:
        expects = expects.replace(f"{name} [", f"{name} [slices, ")
    first = (
        f"clusters of {PRODUCER_BLOCKS} blocks for the inner products of up to 8 tokens of a slice"
        f"{_kib(first_launch_bytes(program))} shared"
    )
    own = (
        f"that of {record.recipe}, for every token with its own slices of {named}; which those are "
        f"is addressing. {mugraph_words(record.graph)}",
        f"{expects} A number of a slice per token, int32 or int64; any that is none's: no slice.",
        f"first {first}; then what stands at the knobs.",
    )
    header = _paragraphs(record, program.output.type.names, own)
    return replace(header, launches=_launches(record, program, variants))


def attention_header(record: KernelRecord, program: AttentionProgram) -> Header:
    """Return the header of an attention kernel."""
    out = record.graph.values[program.output].type.names
    own = (
        _attention_mugraph(record.graph, program),
        _attention_expects(record.graph, program),
        _attention_launch(record, program),
    )
    return _paragraphs(record, out, own)


def _paragraphs(record: KernelRecord, out: Sequence[str], own: Sequence[str]) -> Header:
    """Return a header: what all kernels say, and in words of their own muGraph, needs, launch."""
    mugraph, expects, *launch = own
    paragraphs = [
        ("Formula", f"{dims_text(out)} = {record.summary}"),
        ("Shape", record.source),
        ("muGraph", mugraph),
        ("Found", f"{record.search.text()}."),
        ("Proved", _proof_words(record)),
        ("Accuracy", _accuracy_words(record)),
        ("Expects", expects),
        *(("Launch", words) for words in launch),
    ]
    return Header(record.command, record.stem, paragraphs, recipe_command(record))


def recipe_command(record: KernelRecord) -> str:
    """Return the command that makes what is the same for all shapes of a record's recipe."""
    return f"mirage-kernels generate {record.recipe}"


def mugraph_words(graph: Graph) -> str:
    """Return a muGraph of one kernel in words: its loop, its grid, what is computed when."""
    (node,) = graph.blocks
    body = node.body
    assert body is not None
    assert body.space is not None
    phases = phases_of(body)
    looped = [n.name for n in body.nodes if phases[n.name] is Phase.LOOP and n.op != "input"]
    looped = [name for name in looped if body.producers[name].op != "output"]
    grid = _grid_words(body.space)
    if body.space.loop is None:
        cut = {axis.dim for axis in body.space.grid}
        dims = {d.name for v in body.values.values() for d in v.type.dims}
        rest = ": the other dims are whole in a block" if dims - cut else ""
        return f"one kernel, no loop{rest}. {grid}."
    before = _before_words(body, phases)
    return (
        f"one kernel, its loop cuts {body.space.loop.dim}. {grid}. {before}In the loop: "
        f"{', '.join(looped)}; carried: {', '.join(n.name for n in body.of('accum'))}; "
        f"{_stored_words(node, body)}the rest after it."
    )


def _grid_words(space: Space) -> str:
    """Say what the axes of a muGraph's grid cut, which are not those of a launch."""
    axes = (f"{a.name} {'splits' if a.reduced else 'cuts'} {a.dim}" for a in space.grid)
    cuts = ", ".join(axes)
    return f"Its grid, in the muGraph: {cuts} (a launch numbers its blocks as its plan needs)"


def _stored_words(node: Node, body: Graph) -> str:
    """Say what is stored step by step, if anything is."""
    pairs = zip(node.outs, body.outputs, strict=True)
    stored = [value.name for value, name in pairs if body.producers[name].loop_cut is not None]
    return f"stored in the loop: {', '.join(stored)}; " if stored else ""


def _before_words(body: Graph, phases: Mapping[str, Phase | None]) -> str:
    """Say what is computed before the loop, if anything is."""
    early = [n.name for n in body.nodes if phases[n.name] is Phase.BEFORE and n.args]
    return f"Before the loop: {', '.join(early)}. " if early else ""


def _attention_mugraph(graph: Graph, program: AttentionProgram) -> str:
    (node,) = graph.blocks
    assert node.body is not None
    assert node.body.space is not None
    body, space = without_threads(node.body), node.body.space
    phases = phases_of(body)
    looped = [n.name for n in body.nodes if phases[n.name] is Phase.LOOP and n.op != "input"]
    carried = f"{program.sum.name}, {program.product.name}"
    return (
        f"one kernel, its loop cuts {program.roles.keys}. {_grid_words(space)}. In the loop: "
        f"{', '.join(looped)}; carried relative to {program.peak}: {carried}; the blocks that "
        f"split {program.roles.keys} combine, the rest after it."
    )


def _proof_words(record: KernelRecord) -> str:
    proof, count = record.proof, len(record.variants)
    variants = {1: "its one variant", 2: "both variants"}.get(count, f"all {count} variants")
    return (
        f"equal to the recipe on {proof.draws} random draws over finite fields, for the tiles of "
        f"{variants}, at {_extents_words(record)} and uneven edges; a wrong muGraph passes with "
        f"probability at most 2^{proof.log2_failure:g}."
    )


def _extents_words(record: KernelRecord) -> str:
    """Say what was proved whole: rows are independent, and of very many a few tiles are run."""
    whole = [d for d in record.shape if all(record.shape[d] in c for c in _sizes(record, d))]
    everything = len(whole) == len(record.shape) and isinstance(record.roles, Roles)
    return "full extents" if everything else f"full {', '.join(whole)}"


def _sizes(record: KernelRecord, dim: str) -> list[set[int]]:
    """Return, per tile shape of a variant, the sizes of a dim that the proof covers."""
    by_tiles: dict[tuple[tuple[str, int], ...], set[int]] = {}
    for case in (c for c in record.proof.cases if c.tiles in record.all_tiles):
        tiles = tuple(sorted(case.tiles.items()))
        by_tiles.setdefault(tiles, set()).add(case.sizes.get(dim, 0))
    return list(by_tiles.values())


def _accuracy_words(record: KernelRecord) -> str:
    parts = [f"{m.distribution} {m.error:.1e} ({m.unfused:.1e})" for m in record.accuracy]
    return f"emulated error against float64 (unfused program's): {', '.join(parts)}."


def _expectations(program: TileProgram) -> str:
    statements = (*program.loads, *program.lines)
    given = [s for s in statements if s.do is Do.LOAD]
    tokens = {s.args[0] for s in given if s.layout in (Layout.TOKENS, Layout.LINE)}
    parts = []
    for operand in program.inputs:
        how = "rows 16-byte aligned, any row stride" if operand.name in tokens else "contiguous"
        parts.append(f"{operand.name} {dims_text(operand.type.names)} {how}")
    results = (f"{o.name} {dims_text(o.type.names)} contiguous" for o in program.results)
    out = ", ".join(results)
    return f"{', '.join(parts)}, {out}; any {program.roles.tokens} >= 0."


def _attention_expects(graph: Graph, program: AttentionProgram) -> str:
    order = ("queries", "more queries", "keys", "more keys", "values")
    tensors = dict.fromkeys(program.tensors[w] for w in order if w in program.tensors)
    named = ", ".join(f"{name} {dims_text(graph.values[name].type.names)}" for name in tensors)
    roles = program.roles
    dims = ", ".join(d for d in (roles.sequences, roles.heads, *roles.rows, roles.keys) if d)
    along = f"{roles.depth} and {roles.more}" if roles.more else roles.depth
    return (
        f"{named}: lines along {along} contiguous and 16-byte aligned, any other strides, "
        f"keys and values in pages or dense; {dims} at run time, {roles.keys} by sequence, 0 too."
    )


def _launches(
    record: KernelRecord, program: TileProgram, variants: Sequence[Variant]
) -> dict[int, str]:
    """Say of every variant, by its bucket, what is launched."""
    words = _launch_of if record.roles.rows else _row_words
    return {v.bucket: words(record, program, v) for v in variants}


def _launch_of(record: KernelRecord, program: TileProgram, variant: Variant) -> str:
    knobs = variant.knobs
    assert isinstance(knobs, SlicedK | RegisterOperand | ClusterSplitK)
    count = -(-record.shape[record.roles.rows] // knobs.rows)
    blocks = f"{count} blocks of {knobs.warps} warps"
    if knobs.blocks > 1:
        blocks = f"{count} clusters of {knobs.blocks} blocks"
    shared = (consumers_bytes if program.stacked else shared_bytes)(program, knobs)
    if (made := producers_of(knobs)) is not None:
        (dim,) = record.roles.inner
        producers = -(-record.shape[dim] // made.rows) * (knobs.tokens // made.tokens)
        blocks = f"{producers} producer block{'s' if producers > 1 else ''} and {blocks}"
        shared = max(shared, producers_bytes(program, knobs))
    front = "a block per token, then " if prologue_warps(knobs) else ""
    each = "" if variant.bucket else f"each {knobs.tokens} tokens: "
    return f"{front}{each}{blocks}{_kib(shared)}"


def _row_words(record: KernelRecord, program: TileProgram, variant: Variant) -> str:
    knobs = variant.knobs
    assert isinstance(knobs, RowWise)
    whole = record.shape[record.roles.depth]
    count = whole // (knobs.elements or whole)
    blocks = f"{count} blocks" if count > 1 else "a block"
    return f"{blocks} of {knobs.warps} warp{'s' if knobs.warps > 1 else ''} per token"


def _kib(shared: int) -> str:
    return f", {-(-shared // 1024)} KiB"


def _attention_launch(record: KernelRecord, program: AttentionProgram) -> str:
    knobs = dict.fromkeys(v.knobs for v in record.variants)
    sizes = (f"{-(-shared_bytes_of(program, k) // 1024)}" for k in knobs)
    rows = " times ".join(program.roles.rows)
    return (
        f"as many blocks as run at once, by query rows ({rows}) as below; shared memory of their "
        f"blocks: {', '.join(sizes)} KiB."
    )
