"""What the header of an emitted file says of its kernel: words, a pure function of its record."""

from __future__ import annotations

from mirage_kernels.generator.emit.cuda import Header
from mirage_kernels.generator.emit.statements import dims_text
from mirage_kernels.generator.ir import Graph, Phase, phases_of
from mirage_kernels.generator.plan.program import Do, Layout, TileProgram
from mirage_kernels.generator.records.record import KernelRecord
from mirage_kernels.generator.schedules.attention.program import AttentionProgram


def kernel_header(record: KernelRecord, program: TileProgram) -> Header:
    """Return the header of a kernel that streams weights, or of a row-wise one.

    Of a kernel for slices of stacks it says what differs from the plain one.
    """
    expects = _expectations(program)
    for name in program.stacked:
        expects = expects.replace(f"{name} [", f"{name} [slices, ")
    if program.stacked:
        named = " and ".join(program.stacked)
        expects += f" Every token has its own slices of {named}: a number per token, "
        expects += "int32 or int64; any that is none's: no slice."
    return header_of(record, expects)


def attention_header(record: KernelRecord, program: AttentionProgram) -> Header:
    """Return the header of an attention kernel."""
    order = ("queries", "more queries", "keys", "more keys", "values")
    tensors = dict.fromkeys(program.tensors[w] for w in order if w in program.tensors)
    types = record.graph.values
    named = ", ".join(f"{name} {dims_text(types[name].type.names)}" for name in tensors)
    roles = program.roles
    dims = ", ".join(d for d in (roles.sequences, roles.heads, *roles.rows, roles.keys) if d)
    along = f"{roles.depth} and {roles.more}" if roles.more else roles.depth
    return header_of(
        record,
        f"{named}: lines along {along} contiguous and 16-byte aligned, any other strides, "
        f"keys and values in pages or dense; {dims} at run time, {roles.keys} by sequence, 0 too.",
    )


def header_of(record: KernelRecord, expects: str) -> Header:
    """Return the header of a kernel that expects something of its tensors."""
    out = record.graph.values[record.graph.outputs[0]].type.names
    proof = record.proof
    paragraphs = [
        ("Formula", f"{dims_text(out)} = {record.summary}"),
        ("Shape", record.source),
        (
            "Proved",
            f"{proof.draws} random draws over finite fields; a wrong muGraph passes with "
            f"probability <= 2^{proof.log2_failure:g}.",
        ),
        ("Expects", expects),
    ]
    return Header(record.command, record.stem, paragraphs, record.recipe_command, record.arch)


def _expectations(program: TileProgram) -> str:
    given = [s for s in (*program.loop, *program.lines) if s.do is Do.LOAD]
    tokens = {s.args[0] for s in given if s.layout in (Layout.TOKENS, Layout.LINE)}
    parts = []
    for operand in program.inputs:
        how = "rows 16-byte aligned, any row stride" if operand.name in tokens else "contiguous"
        parts.append(f"{operand.name} {dims_text(operand.type.names)} {how}")
    parts += [f"{o.name} {dims_text(o.type.names)} contiguous" for o in program.results]
    return f"{', '.join(parts)}; any {program.roles.tokens} >= 0."


def mugraph_words(graph: Graph) -> str:
    """Return a muGraph of one kernel in words: its loop, its grid, what is computed when."""
    (node,) = graph.blocks
    body = node.body
    assert body is not None
    assert body.space is not None
    # What the axes of a muGraph's grid cut is not what those of a launch do.
    axes = (f"{a.name} {'splits' if a.reduced else 'cuts'} {a.dim}" for a in body.space.grid)
    cuts = ", ".join(axes)
    grid = f"Its grid, in the muGraph: {cuts} (a launch numbers its blocks as its plan needs). "
    if body.space.loop is None:
        cut = {axis.dim for axis in body.space.grid}
        dims = {d.name for v in body.values.values() for d in v.type.dims}
        rest = ": the other dims are whole in a block" if dims - cut else ""
        return f"one kernel, no loop{rest}. {grid.rstrip()}"
    phases = phases_of(body)
    early = [n.name for n in body.nodes if phases[n.name] is Phase.BEFORE and n.args]
    looped = [n.name for n in body.nodes if phases[n.name] is Phase.LOOP]
    looped = [name for name in looped if body.producers[name].op not in ("input", "output")]
    carried = ", ".join(n.name for n in body.of("accum"))
    pairs = zip(node.outs, body.outputs, strict=True)
    stored = [value.name for value, name in pairs if body.producers[name].loop_cut is not None]
    return (
        f"one kernel, its loop cuts {body.space.loop.dim}. {grid}"
        + (f"Before the loop: {', '.join(early)}. " if early else "")
        + f"In the loop: {', '.join(looped)}; carried: {carried}; "
        + (f"stored in the loop: {', '.join(stored)}; " if stored else "")
        + "the rest after it."
    )
