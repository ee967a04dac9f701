"""What the header of an emitted file says of its kernel: words, a pure function of its record."""

from __future__ import annotations

from collections.abc import Mapping

from mirage_kernels.generator.emit.header import Header
from mirage_kernels.generator.emit.names import dims_text
from mirage_kernels.generator.ir import Graph, Node, Phase, Space, phases_of
from mirage_kernels.generator.plan.program import Do, Layout, TileProgram
from mirage_kernels.generator.records.record import KernelRecord
from mirage_kernels.generator.schedules.attention.program import AttentionProgram


def kernel_header(record: KernelRecord, program: TileProgram) -> Header:
    """Return the header of a kernel that streams weights, or of lines."""
    return _header(record, _expectations(program))


def stacked_header(record: KernelRecord, program: TileProgram) -> Header:
    """Return the header of a kernel for slices of stacks: what differs from the plain one."""
    named = " and ".join(program.stacked)
    expects = _expectations(program)
    for name in program.stacked:
        expects = expects.replace(f"{name} [", f"{name} [slices, ")
    return _header(
        record,
        f"{expects} Every token has its own slices of {named}: a number per token, int32 or int64; "
        "any that is none's: no slice.",
    )


def attention_header(record: KernelRecord, program: AttentionProgram) -> Header:
    """Return the header of an attention kernel."""
    return _header(record, _attention_expects(record.graph, program))


def _header(record: KernelRecord, expects: str) -> Header:
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
