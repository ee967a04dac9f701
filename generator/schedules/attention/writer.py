"""The CUDA writer of attention: an attention program as readable text over `csrc/tile/attention`.

One node of the muGraph is one call of the vocabulary; a table says how each statement reads. The
form is one text for all head dims and element types: a template over `Config`, which the file of a
shape defines for each bucket of query rows. What a work tile is, how keys come and how splits of
the keys combine is the vocabulary's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mirage_kernels.generator.emit.header import Header
from mirage_kernels.generator.emit.names import (
    dims_text,
    vocabulary,
    write_alias,
    write_config,
    write_shape,
)
from mirage_kernels.generator.emit.writer import WIDTH, Writer
from mirage_kernels.generator.errors import PlanError
from mirage_kernels.generator.ir import DType, TensorType, number_text
from mirage_kernels.generator.schedules.attention.knobs import AttentionKnobs
from mirage_kernels.generator.schedules.attention.program import (
    AttentionProgram,
    Carried,
    Do,
    Held,
    Step,
)
from mirage_kernels.generator.schedules.attention.variants import AttentionVariant, name_of

MASKS = ("less", "both", "where")  # beyond what other kernels' vocabulary has
FORMS, FORM = "forms", "flash_attention"  # the folder of forms, and the name of this one
ABOUT = (
    "flash attention: few query rows by flash decode, where keys take the M side of mma and the "
    "warps of a block take different keys; many rows by wgmma, where query rows take the M side."
)
Row = tuple[str, str]  # code, and the dims of its result


@dataclass(frozen=True)
class AttentionSource:
    """What one emitted kernel is made of."""

    program: AttentionProgram
    variants: Sequence[AttentionVariant]
    storage: DType
    header: Header

    @property
    def symbol(self) -> str:
        """Name of the host function: recipe and file stem."""
        return f"{self.program.recipe}_{self.header.stem}"

    def serves(self, variant: AttentionVariant) -> AttentionVariant:
        """Return the first variant with the knobs of one, whose kernel serves its calls too."""
        return next(v for v in self.variants if v.knobs == variant.knobs)

    @property
    def form(self) -> str:
        """Return the form as a file of its own."""
        writer = Writer()
        self.header.of_form(ABOUT).write(writer, "//")
        writer.line("#pragma once")
        writer.line()
        _open(writer, ("tile/attention/attention.cuh", "variants.h"))
        _write_form(writer, self.program)
        writer.line("}  // namespace")
        writer.line("}  // namespace mirage::generated")
        return writer.text()

    def instantiation(self, form_file: str) -> str:
        """Return the file of one shape and element type, given the name of its form's file."""
        writer = Writer()
        self.header.of_shape().write(writer, "//")
        _open(writer, (), form_file)
        _write_configs(writer, self)
        return writer.text()


def emit_attention(source: AttentionSource) -> str:
    """Return a planned attention kernel as one text: its form, then its instantiation.

    Raises PlanError for an op that the device vocabulary lacks.
    """
    writer = Writer()
    source.header.write(writer, "//")
    writer.line()
    _open(writer, ("tile/attention/attention.cuh", "variants.h"))
    _write_form(writer, source.program)
    _write_configs(writer, source)
    return writer.text()


def attention_files(emitted: Sequence[tuple[str, AttentionSource]]) -> dict[str, str]:
    """Return the files of all kernels of a recipe, each with its architecture, by path.

    Kernels with the same text share a form; of several, each is named after its first kernel.
    """
    emitted = sorted(emitted, key=lambda one: (one[1].header.stem, one[0]))
    first: dict[str, str] = {}
    for arch, source in emitted:
        first.setdefault(source.form, f"_{source.header.stem}_{arch}")
    suffixes = first if len(first) > 1 else dict.fromkeys(first, "")
    files: dict[str, str] = {}
    for arch, source in emitted:
        recipe, text = source.program.recipe, source.form
        form = f"{FORMS}/{recipe}/{FORM}{suffixes[text]}.cuh"
        files[form] = text
        files[f"{arch}/{recipe}/{source.header.stem}.cu"] = source.instantiation(f"../../{form}")
    return files


def _open(writer: Writer, includes: Sequence[str], beside: str = "") -> None:
    for include in includes:
        writer.line(f'#include "{include}"')
    if beside:
        writer.line(f'#include "{beside}"')
    for line in ("", "namespace mirage::generated {", "namespace {", ""):
        writer.line(line)


def _write_form(writer: Writer, program: AttentionProgram) -> None:
    roles = program.roles
    depths = ["typename Config::T", f"Config::{roles.depth}", "Config"]
    depths += [f"Config::{roles.more}"] if roles.more else []
    writer.line("template <class Config>")
    writer.line(f"using Work = tile::AttentionWork<{', '.join(depths)}>;")
    writer.line()
    _after(writer, program)
    _kernel(writer, program)
    kernel = f"{program.recipe}<Config>"
    for result, name, arguments, call in (
        (
            "cudaError_t",
            "launch",
            ", cudaStream_t stream",
            f"launch_attention<Work<Config>>({kernel}, args, stream)",
        ),
        ("int64_t", "workspace", "", "attention_workspace<Work<Config>>(args)"),
    ):
        writer.line("template <class Config>")
        with writer.block(f"{result} {name}(Config, const AttentionArgs& args{arguments}) {{"):
            writer.line(f"return tile::{call};")
        writer.line()


def _write_configs(writer: Writer, source: AttentionSource) -> None:
    """Write the shape, the knobs of each bucket, which of them serve a call, host functions."""
    program = source.program
    extents = {program.roles.depth: program.depth}
    extents |= {program.roles.more: program.more_depth} if program.roles.more else {}
    extents |= {"kKeyWork": program.key_work} if program.key_work else {}
    write_shape(writer, source.storage, extents)
    for variant in source.variants:
        if source.serves(variant) is not variant:  # one kernel serves both
            continue
        write_config(writer, name_of(variant), "FlashAttention", variant.knobs.constants)
    _dispatch(writer, source)
    writer.line("}  // namespace")
    writer.line()
    writer.line(f"MIRAGE_ATTENTION({source.symbol})")
    writer.line()
    writer.line("}  // namespace mirage::generated")


def _kernel(writer: Writer, program: AttentionProgram) -> None:
    writer.line("template <class Config>")
    bounds = "Work<Config>::kThreads, Work<Config>::kBlocks"
    writer.line(f"__global__ void __launch_bounds__({bounds})")
    with writer.block(f"    {program.recipe}(const __grid_constant__ AttentionArgs args) {{"):
        _prologue(writer, program)
        with writer.block("while (work.next_item()) {"):
            _part(writer, program)
    writer.line()


def _prologue(writer: Writer, program: AttentionProgram) -> None:
    steps = (*program.before, *program.loop, *program.after)
    used = {a for s in steps for a in s.args}
    if any(s.op and s.dtype in (DType.FP16, DType.BF16) for s in (*program.before, *program.loop)):
        writer.line("using T = typename Config::T;")
    for dim in sorted({v for n, v in program.literals.items() if n in used and isinstance(v, str)}):
        writer.line(f"constexpr int {dim} = Config::{dim};")
    writer.line("extern __shared__ __align__(1024) char shared[];")
    scalars = ((n, f"const float {n} = args.scalars[{i}];") for i, n in enumerate(program.scalars))
    numbers = ((n, f"const int {n} = args.integers[{i}];") for i, n in enumerate(program.integers))
    for name, line in (*scalars, *numbers):
        if name in used:
            writer.line(line)
    writer.line()
    writer.line("Work<Config> work(args, shared);")


_SOFTMAX_NOTE = (
    "The running maximum rises to the largest score that the mask shows; both sums become",
    "relative to it and add exp(score - maximum) of these keys, the product times their values.",
)


def _part(writer: Writer, program: AttentionProgram) -> None:
    """Write what runs once per work item, and its loop over steps of keys."""
    work = "typename Work<Config>::"
    carried = [
        (f"{work}Maxima {program.peak};", program.sum.type),
        (f"{work}Sums {program.sum.name};", program.sum.type),
        (f"{work}Product {program.product.name};", program.product.type),
    ]
    rows = [_row(s, program) for s in program.before]
    rows.append((f"work.hold_resident({program.resident});", "for all steps of the work item"))
    if program.more_resident:
        rows.append((f"work.hold_more_resident({program.more_resident});", ""))
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
    """Return an elementwise op's name in csrc/tile/attention/values.cuh, which has masks too."""
    return op if op in MASKS else vocabulary(op)


def _map(s: Step, args: Sequence[str], program: AttentionProgram) -> str:
    """Return an elementwise line; what is one number for a work item is a plain one."""
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
    return f"tile::rescale({s.out}, {args[0]}, {', '.join(c.name for c in carried)});"


def _softmax(s: Step, args: Sequence[str], program: AttentionProgram) -> str:
    carried = (program.peak, program.sum.name, program.product.name)
    return f"work.online_softmax({', '.join((*args, *carried))});"


def _way(name: str, program: AttentionProgram) -> str:
    """Return how a block has an input: partitioned over its threads, or as warps need it."""
    return "partitioned_" if name in program.partitioned else ""


LINES: dict[Do, Callable[[Step, Sequence[str], AttentionProgram], str]] = {
    Do.QUERIES: lambda s, args, p: f"const auto {s.out} = work.{_way(s.out, p)}queries();",
    Do.KEYS: lambda s, args, p: f"const auto {s.out} = work.keys();",
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
    kernels = [(v, name_of(source.serves(v))) for v in source.variants]
    while len(kernels) > 1 and kernels[-2][1] == kernels[-1][1]:  # one kernel for all the rest
        del kernels[-2]
    rows = []
    for variant, kernel in kernels:
        given = [f"UpTo<{variant.bucket}, {kernel}" if variant.bucket else f"Any<{kernel}"]
        if variant.few_tiles:
            given.append(few_tiles(source.program, variant.knobs))
        if variant.knobs.is_dynamic:
            given.append(f"tile::ManyTiles<{kernel}>")
        rows.append(f"{', '.join(given)}>")
    write_alias(writer, "Variants", "AttentionKernels", rows)
    writer.line()


def few_tiles(program: AttentionProgram, knobs: AttentionKnobs) -> str:
    """Return the condition that a call has few work tiles with much to read for each."""
    numbers = [knobs.rows, program.depth, *([program.key_work] if program.key_work else [])]
    return f"tile::FewTiles<{', '.join(map(str, numbers))}>"
