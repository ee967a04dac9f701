"""The CUDA writer of attention: an attention program as one readable .cu file over `csrc/tile`.

One node of the muGraph is one call of the vocabulary; a table says how each statement reads. What
a part is, how keys come and how blocks combine is the vocabulary's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from mirage_kernels.generator.emit.header import Header
from mirage_kernels.generator.emit.words import TYPES, camel, dims_text, vocabulary
from mirage_kernels.generator.emit.writer import WIDTH, Writer
from mirage_kernels.generator.errors import PlanError
from mirage_kernels.generator.ir import DType, TensorType, number_text
from mirage_kernels.generator.plan.attention import AttentionProgram, Carried, Do, Held, Step
from mirage_kernels.generator.plan.attention_variants import AttentionKnobs, AttentionVariant

MASKS = ("less", "both", "where")  # beyond what other kernels' vocabulary has
Row = tuple[str, str]  # code, and the dims of its result


@dataclass(frozen=True)
class AttentionSource:
    """What one emitted file is made of."""

    program: AttentionProgram
    variants: Sequence[AttentionVariant]
    storage: DType
    header: Header

    @property
    def is_wide(self) -> bool:
        """Say whether a variant has tiles of many rows; types differ by variant then."""
        return any(v.knobs.copiers for v in self.variants)

    @property
    def symbol(self) -> str:
        """Name of the host function: recipe and file stem."""
        return f"{self.program.recipe}_{self.header.stem}"


def emit_attention(source: AttentionSource) -> str:
    """Return the .cu file of a planned attention kernel.

    Raises PlanError for an op that the device vocabulary lacks.
    """
    writer = Writer()
    source.header.write(writer, "//")
    writer.line()
    for line in (
        '#include "launch.h"',
        f'#include "tile/attention{"_wide" if source.is_wide else ""}.cuh"',
        "",
        "namespace mirage::generated {",
        "namespace {",
        "",
    ):
        writer.line(line)
    _constants(writer, source)
    _after(writer, source.program)
    _kernel(writer, source)
    _dispatch(writer, source)
    writer.line("}  // namespace")
    writer.line()
    _host(writer, source)
    writer.line()
    writer.line("}  // namespace mirage::generated")
    return writer.text()


def _constants(writer: Writer, source: AttentionSource) -> None:
    program = source.program
    writer.line(f"using T = {TYPES[source.storage]};")
    rows = [(f"constexpr int {program.roles.depth} = {program.depth};", "of a head")]
    if program.roles.more:
        more = f"constexpr int {program.roles.more} = {program.more_depth};"
        rows.append((more, "of keys, beside what are values too"))
    writer.table(rows)
    writer.line()
    known: dict[AttentionKnobs, str] = {}
    for variant in source.variants:
        if variant.knobs in known:  # one kernel serves both
            writer.line(f"using {variant.name} = {known[variant.knobs]};")
            continue
        known[variant.knobs] = variant.name
        knobs = [f"k{camel(k)} = {v}" for k, v in variant.knobs.to_json().items()]
        if program.key_work and not variant.knobs.copiers:
            knobs.append(f"kKeyWork = {program.key_work}")
        with writer.block(f"struct {variant.name} {{", "};"):
            writer.declaration("static constexpr int ", knobs)
    writer.line()
    writer.line("template <class Knobs>")
    depths = [program.roles.depth, "Knobs", *([program.roles.more] if program.roles.more else [])]
    work = "AttentionWorkOf" if source.is_wide else "AttentionWork"
    writer.line(f"using Work = tile::{work}<T, {', '.join(depths)}>;")
    writer.line()


def _kernel(writer: Writer, source: AttentionSource) -> None:
    program = source.program
    writer.line("template <class Knobs>")
    bounds = "Work<Knobs>::kThreads, Work<Knobs>::kBlocks"
    writer.line(f"__global__ void __launch_bounds__({bounds})")
    with writer.block(f"    {program.recipe}(const __grid_constant__ AttentionArgs args) {{"):
        _prologue(writer, source)
        with writer.block("while (work.next_part()) {"):
            _part(writer, source)
    writer.line()


def _prologue(writer: Writer, source: AttentionSource) -> None:
    program = source.program
    if not source.is_wide:
        writer.line("constexpr int kRows = Knobs::kRows;")
    writer.line("extern __shared__ __align__(1024) char shared[];")
    scalars = ((n, f"const float {n} = args.scalars[{i}];") for i, n in enumerate(program.scalars))
    numbers = ((n, f"const int {n} = args.integers[{i}];") for i, n in enumerate(program.integers))
    used = {a for s in (*program.before, *program.loop, *program.after) for a in s.args}
    for name, line in (*scalars, *numbers):
        if name in used:
            writer.line(line)
    writer.line()
    writer.line("Work<Knobs> work(args, shared);")


_SOFTMAX_NOTE = (
    "The running maximum rises to the largest score that the mask shows; both sums become",
    "relative to it and add exp(score - maximum) of these keys, the product times their values.",
)


def _carried(source: AttentionSource) -> tuple[str, str, str]:
    """Return the types of peaks, sums and products."""
    if source.is_wide:
        work = "typename Work<Knobs>::"
        return f"{work}Peaks", f"{work}Sums", f"{work}Product"
    product = f"tile::ValueProduct<{source.program.roles.depth}, kRows>"
    return "tile::RowPeaks<kRows>", "tile::RowSums<kRows>", product


def _part(writer: Writer, source: AttentionSource) -> None:
    """Write what runs once per part, and its loop over steps of keys."""
    program = source.program
    peaks, sums, products = _carried(source)
    carried = [
        (f"{peaks} {program.peak};", program.sum.type),
        (f"{sums} {program.sum.name};", program.sum.type),
        (f"{products} {program.product.name};", program.product.type),
    ]
    rows = [_row(s, program) for s in program.before]
    rows.append((f"work.keep({program.kept});", "for all steps of the part"))
    if program.more_kept:
        rows.append((f"work.keep_more({program.more_kept});", ""))
    writer.table([*rows, *((code, _dims(program, type_)) for code, type_ in carried)])
    with writer.block("while (work.next_step()) {"):
        *others, last = program.loop
        writer.table([_row(s, program) for s in others])
        if last.do is Do.SOFTMAX:
            for line in _SOFTMAX_NOTE:
                writer.line(f"// {line}")
        writer.table([_row(last, program)])
    names = (program.peak, program.sum.name, program.product.name)
    call = _filled(writer, "work.template combine<AfterCombine>(", f"{', '.join(names)});")
    for line in call:
        writer.line(line)


def _after(writer: Writer, program: AttentionProgram) -> None:
    """Write what is done per element of the result, once the blocks have combined."""
    writer.line("// With each element of the result, once the sums of all keys are known.")
    rows = "const Rows& rows, tile::RowElement e"
    wholes = f"tile::Divisor {program.sum.whole}, float {program.product.whole}"
    with writer.block("struct AfterCombine {", "};"):
        writer.line("template <class Rows>")
        *lines, last = _filled(writer, "__device__ static void of(", f"{rows}, {wholes}) {{")
        for line in lines:
            writer.line(line)
        with writer.block(last):
            writer.table([_row(s, program) for s in program.after])
    writer.line()


def _filled(writer: Writer, opening: str, parameters: str) -> list[str]:
    """Return a call in as many lines as it needs, broken at commas, parameters below each other."""
    room = WIDTH - len(writer.unit) * writer.depth - len(opening)
    lines = [""]
    for parameter in parameters.split(", "):
        if lines[-1] and len(f"{lines[-1]}, {parameter}") >= room:
            lines.append(parameter)
        else:
            lines[-1] = f"{lines[-1]}, {parameter}" if lines[-1] else parameter
    lines = [f"{line}," for line in lines[:-1]] + lines[-1:]
    return [opening + lines[0], *(" " * len(opening) + line for line in lines[1:])]


def _row(step: Step, program: AttentionProgram) -> Row:
    args = [_operand(a, program) for a in step.args]
    code = LINES[step.do](step, args, program)
    return code, "" if step.do is Do.STORE else _dims(program, step.type)


def _dims(program: AttentionProgram, type_: TensorType) -> str:
    names = program.roles.own(type_)
    return dims_text(names) if names else ""


def _operand(name: str, program: AttentionProgram) -> str:
    """Return how an operand is written: by its name, or as the literal that it is."""
    if name not in program.literals:
        return name
    value = program.literals[name]
    if isinstance(value, str):  # an extent; as a value of its own, device code takes no address
        return f"float{{{value}}}"
    return _float_text(value) if isinstance(value, float) else str(value)


def _float_text(value: float) -> str:
    text = number_text(value)
    if "inf" in text:
        return text.replace("inf", "INFINITY")
    return f"{text}f" if "." in text or "e" in text else f"{text}.0f"


def word_of(op: str) -> str:
    """Return an elementwise op's name in csrc/tile/attention_values.cuh, which has masks too."""
    return op if op in MASKS else vocabulary(op)


def _map(s: Step, args: Sequence[str], program: AttentionProgram) -> str:
    """Return an elementwise line; numbers that are the same for a whole part are plain ones."""
    joined = s in program.after
    if not joined and program.roles.held(s.type) is not Held.SCALAR:
        call = f"{word_of(s.op)}{_ELEMENTS.get(s.dtype, '<T>')}"
        return f"const auto {s.out} = tile::{call}({', '.join(args)});"
    if s.dtype is not DType.INT32:
        kind = "bool" if s.dtype is DType.BOOL else "float"
        return f"const {kind} {s.out} = tile::{word_of(s.op)}({', '.join(args)});"
    if s.op not in _INFIX:
        raise PlanError(f"{s.out}: the device vocabulary has no {s.op!r} of whole numbers yet")
    return f"const int {s.out} = {f' {_INFIX[s.op]} '.join(args)};"


_ELEMENTS = {DType.FP32: "<float>", DType.INT32: "<int>", DType.BOOL: ""}
_INFIX = {"add": "+", "sub": "-", "mul": "*"}


def _raise(s: Step, args: Sequence[str], program: AttentionProgram) -> str:
    carried: tuple[Carried, ...] = (program.sum, program.product)
    return f"tile::raise({s.out}, {args[0]}, {', '.join(c.name for c in carried)});"


def _softmax(s: Step, args: Sequence[str], program: AttentionProgram) -> str:
    carried = (program.peak, program.sum.name, program.product.name)
    return f"work.online_softmax({', '.join((*args, *carried))});"


def _way(name: str, program: AttentionProgram, *, late: bool = False) -> str:
    """Return how a block has an input: dealt out to threads, where it lies, or as warps need it."""
    if name in program.dealt:
        return "dealt_"
    return "unread_" if late else ""


LINES: dict[Do, Callable[[Step, Sequence[str], AttentionProgram], str]] = {
    Do.QUERIES: lambda s, args, p: (
        f"const auto {s.out} = work.{_way(s.out, p, late=p.reads_queries_late)}queries();"
    ),
    Do.KEYS: lambda s, args, p: (
        f"const auto {s.out} = work.{_way(s.out, p, late=p.reads_late)}keys();"
    ),
    Do.MORE_QUERIES: lambda s, args, p: f"const auto {s.out} = work.more_queries();",
    Do.MORE_KEYS: lambda s, args, p: f"const auto {s.out} = work.more_keys();",
    Do.LENGTH: lambda s, args, p: f"const int {s.out} = work.seq_len();",
    Do.VECTOR: lambda s, args, p: (
        f"const auto {s.out} = work.{_way(s.out, p)}vector({p.vectors.index(args[0])});"
    ),
    Do.ROW_VECTORS: lambda s, args, p: (
        f"const auto {s.out} = work.{_way(s.out, p)}row_vectors({p.vectors.index(args[0])});"
    ),
    Do.KEY_POSITIONS: lambda s, args, p: f"const auto {s.out} = work.key_positions();",
    Do.ROW_TOKENS: lambda s, args, p: f"const auto {s.out} = work.row_tokens();",
    Do.TOKEN_COUNT: lambda s, args, p: f"const int {s.out} = work.token_count();",
    Do.MAP: _map,
    Do.LINE_SUM: lambda s, args, p: f"const auto {s.out} = tile::line_sum({', '.join(args)});",
    Do.SCORES: lambda s, args, p: f"const auto {s.out} = work.scores({args[0]});",
    Do.MORE_SCORES: lambda s, args, p: f"const auto {s.out} = work.more_scores({args[0]});",
    Do.RAISE: _raise,
    Do.SUM: lambda s, args, p: f"tile::sum_over_keys({s.out}, {args[0]});",
    Do.PRODUCT: lambda s, args, p: f"tile::contract_values({s.out}, work.values(), {args[1]});",
    Do.SOFTMAX: _softmax,
    Do.STORE: lambda s, args, p: f"rows.store(e, {args[0]});",
}


def _dispatch(writer: Writer, source: AttentionSource) -> None:
    """Write which variant serves a call: its launch and its workspace ask the same question."""
    writer.line("template <class Call>")
    with writer.block("auto with_knobs(const AttentionArgs& args, Call call) {"):
        if any(v.bucket for v in source.variants):
            writer.line("const int64_t rows = static_cast<int64_t>(args.q_len) * args.G;")
        for variant in source.variants:
            conditions = [f"rows <= {variant.bucket}"] if variant.bucket else []
            if variant.few_segments:
                conditions.append(f"tile::{few_segments(source.program, variant.knobs)}(args)")
            if variant.knobs.deals:
                conditions.append(f"tile::has_many_segments<{variant.name}>(args)")
            guard = f"if ({' && '.join(conditions)})" if conditions else ""
            _returned(writer, guard, f"return call({variant.name}{{}});")
    writer.line()


def _returned(writer: Writer, guard: str, statement: str) -> None:
    """Write a guarded statement, below its guard where one line is too short."""
    line = f"{guard} {statement}".lstrip()
    fits = len(writer.unit) * writer.depth + len(line) <= WIDTH
    for text in (line,) if fits else (guard, f"{writer.unit}{statement}"):
        writer.line(text)


def few_segments(program: AttentionProgram, knobs: AttentionKnobs) -> str:
    """Return the function that says whether a call has few segments with much to read for each."""
    numbers = [knobs.rows, program.depth, *([program.key_work] if program.key_work else [])]
    return f"has_few_segments<{', '.join(map(str, numbers))}>"


def _host(writer: Writer, source: AttentionSource) -> None:
    """Write the functions that the dispatch table names: launch, and bytes of the workspace."""
    of = "_of" if source.is_wide else ""
    call = f"launch_attention{of}<Work<Knobs>>({source.program.recipe}<Knobs>, args, stream)"
    parameters = "(const AttentionArgs& args, cudaStream_t stream)"
    with _function(writer, f"cudaError_t {source.symbol}{parameters}"):
        writer.line(f"return tile::{call};")
    writer.line()
    with _function(writer, f"int64_t {source.symbol}_workspace(const AttentionArgs& args)"):
        writer.line(f"return tile::attention_workspace{of}<Work<Knobs>>(args);")


@contextmanager
def _function(writer: Writer, signature: str) -> Iterator[None]:
    """Write a host function around what it does with the knobs that serve a call."""
    opening = f"{signature} {{"
    if len(opening) > WIDTH:
        opening = opening.replace("(const", "(\n    const")
    chosen = writer.block("return with_knobs(args, [&](auto knobs) {", "});")
    with writer.block(opening), chosen:
        writer.line("using Knobs = decltype(knobs);")
        yield
