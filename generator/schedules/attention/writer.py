"""The CUDA writer of attention: an attention program as readable text over `csrc/tile/attention`.

One node of the muGraph is one call of the vocabulary; a table says how each statement reads. The
form is one text for all head dims and element types: a template over `Config`, which the file of a
shape defines for each bucket of query rows. What a work tile is, how keys come and how splits of
the keys combine is the vocabulary's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from mirage_kernels.generator.emit.cuda import KernelSource, Part, lines_of
from mirage_kernels.generator.emit.statements import dims_text, vocabulary
from mirage_kernels.generator.emit.writer import Writer
from mirage_kernels.generator.errors import PlanError
from mirage_kernels.generator.ir import DType, TensorType, number_text
from mirage_kernels.generator.schedules.attention.knobs import AttentionKnobs
from mirage_kernels.generator.schedules.attention.program import AttentionProgram, Do, Place, Step
from mirage_kernels.generator.schedules.attention.variants import COUNTED
from mirage_kernels.generator.schedules.schedule import Variant

MASKS = ("less", "both", "where")  # beyond what other kernels' vocabulary has
ABOUT = (
    "flash attention: few query rows by flash decode, where keys take the M side of mma and the "
    "warps of a block take different keys; many rows by wgmma, where query rows take the M side"
)


@dataclass(frozen=True)
class AttentionKernel(KernelSource[AttentionProgram]):
    """The source of an attention kernel."""

    listing: ClassVar[str] = "AttentionKernels"
    entry: ClassVar[str] = "MIRAGE_ATTENTION"
    counted: ClassVar[str] = COUNTED

    @property
    def extents(self) -> dict[str, int]:
        """Return the static extents, which its text takes from `Config`, and its key work."""
        program, roles = self.program, self.program.roles
        found = {roles.depth: program.depth, roles.more: program.more_depth}
        return {n: size for n, size in {**found, "kKeyWork": program.key_work}.items() if size}

    def parts(self) -> list[Part]:
        """Return the one form; raises PlanError for an op that the device vocabulary lacks."""
        lines, includes = lines_of(_form, self.program), ("tile/attention/attention.cuh",)
        return [Part("flash_attention", ABOUT, includes, (), lines, describes=True)]

    def conditions(self, variant: Variant, name: str) -> list[str]:
        """Return which calls a variant is for; launch and workspace ask the same question."""
        many = [f"tile::ManyTiles<{name}>"] if variant.knobs.is_dynamic else []
        if variant.few_tiles and isinstance(variant.knobs, AttentionKnobs):
            return [few_tiles(self.program, variant.knobs), *many]
        return many


def few_tiles(program: AttentionProgram, knobs: AttentionKnobs) -> str:
    """Return the condition that a call has few work tiles with much to read for each."""
    work = f", {program.key_work}" if program.key_work else ""
    return f"tile::FewTiles<{knobs.rows}, {program.depth}{work}>"


# -- the form --------------------------------------------------------------------------------------

SOFTMAX_NOTE = (
    "// The running maximum rises to the largest score that the mask shows; both sums become",
    "// relative to it and add exp(score - maximum) of these keys, the product times their values.",
)


def _form(writer: Writer, program: AttentionProgram) -> None:
    """Write what follows the loop, the kernel, and the functions that launch it."""
    roles, name, template = program.roles, program.recipe, "template <class Config>"
    depths = ["typename Config::T", f"Config::{roles.depth}", "Config"]
    depths += [f"Config::{roles.more}"] if roles.more else []
    writer.write(
        template,
        f"using Work = tile::AttentionWork<{', '.join(depths)}>;",
        "",
        "// With each element of the result, once the sums of all keys are known.",
    )
    sums = f"tile::Divisor {program.sum.whole}, float {program.product.whole}"
    with writer.block("struct AfterCombine {", "};"):
        writer.line("template <class Rows>")
        rows = "const Rows& rows, tile::RowElement e"
        with writer.block(f"__device__ static void of({rows}, {sums}) {{"):
            writer.table([_row(s, program) for s in program.after])
    bounds = "__launch_bounds__(Work<Config>::kThreads, Work<Config>::kBlocks)"
    writer.write("", template, f"__global__ void {bounds}")
    with writer.block(f"    {name}(const __grid_constant__ AttentionArgs args) {{"):
        _inputs(writer, program)
        with writer.block("while (work.next_item()) {"):
            _work_item(writer, program)
    arguments = "Config, const AttentionArgs& args"
    writer.write("", template)
    with writer.block(f"cudaError_t launch({arguments}, cudaStream_t stream) {{"):
        writer.line(f"const auto general = {name}<Config>;")
        writer.line(f"const auto plain = {name}<tile::Plain<Config>>;")
        call = "general, plain, args, stream"
        writer.line(f"return tile::launch_attention<Work<Config>, AfterCombine>({call});")
    writer.write("", template)
    with writer.block(f"int64_t workspace({arguments}) {{"):
        writer.line("return tile::attention_workspace<Work<Config>>(args);")
    writer.line()


def _inputs(writer: Writer, program: AttentionProgram) -> None:
    """Write what all work items have: types, extents and scalars that statements name."""
    early = (*program.before, *program.loop)
    used = {a for s in (*early, *program.after) for a in s.args}
    if any(s.op and s.dtype in (DType.FP16, DType.BF16) for s in early):
        writer.line("using T = typename Config::T;")
    for dim in sorted({v for n, v in program.literals.items() if n in used and isinstance(v, str)}):
        writer.line(f"constexpr int {dim} = Config::{dim};")
    writer.line("extern __shared__ __align__(1024) char shared[];")
    numbers = [f"float {name} = args.scalars[{i}]" for i, name in enumerate(program.scalars)]
    numbers += [f"int {name} = args.integers[{i}]" for i, name in enumerate(program.integers)]
    writer.write(*(f"const {text};" for text in numbers if text.split()[1] in used))
    writer.write("", "Work<Config> work(args, shared);")


def _work_item(writer: Writer, program: AttentionProgram) -> None:
    """Write what runs once per work item, and its loop over steps of keys."""
    rows = [_row(s, program) for s in program.before]
    rows.append((f"work.hold_resident({program.resident});", "for all steps of the work item"))
    if program.more_resident:
        rows.append((f"work.hold_more_resident({program.more_resident});", ""))
    sum_, product = program.sum, program.product
    carried = {"Maxima": program.peak, "Sums": sum_.name, "Product": product.name}
    for kind, name in carried.items():
        dims = _dims(program, product.type if kind == "Product" else sum_.type)
        rows.append((f"typename Work<Config>::{kind} {name};", dims))
    writer.table(rows)
    with writer.block("while (work.next_step()) {"):
        *others, last = program.loop
        writer.table([_row(s, program) for s in others])
        if last.do is Do.SOFTMAX:
            writer.write(*SOFTMAX_NOTE)
        writer.table([_row(last, program)])
    writer.line(f"work.template combine<AfterCombine>({', '.join(carried.values())});")


def _dims(program: AttentionProgram, type_: TensorType) -> str:
    """Return a value's dims without those that a work item has one of, or all."""
    ones = (program.roles.heads, program.roles.sequences)
    names = [d for d in type_.names if d not in ones] or type_.names
    return dims_text(names) if names else ""


# -- statements ------------------------------------------------------------------------------------

# How statements read that are not `const auto OUT = work.WORDS_OF_THE_DO(ARGS);`.
LINES = {
    Do.LENGTH: "const int {out} = work.seq_len();",
    Do.TOKEN_COUNT: "const int {out} = work.token_count();",
    Do.LINE_SUM: "const auto {out} = tile::line_sum({args});",
    Do.RAISE: "tile::rescale({out}, {args}, {sum}, {product});",
    Do.SUM: "tile::sum_over_keys({out}, {args});",
    Do.PRODUCT: "tile::contract_values({out}, work.values(), {weights});",
    Do.SOFTMAX: "work.online_softmax({args}, {peak}, {sum}, {product});",
    Do.STORE: "rows.store(e, {args});",
}


def _row(step: Step, program: AttentionProgram) -> tuple[str, str]:
    """Return a statement and the dims of its result."""
    args = [_operand(a, program) for a in step.args]
    if step.do is Do.MAP:
        return _map(step, args, program), _dims(program, step.type)
    if step.do in (Do.VECTOR, Do.ROW_VECTORS):
        args = [str(program.vectors.index(step.args[0]))]
    shared = "partitioned_" if step.out in program.partitioned else ""  # by threads
    call = f"work.{shared}{step.do.value.replace(' ', '_')}"
    code = LINES.get(step.do, f"const auto {{out}} = {call}({{args}});").format(
        out=step.out,
        args=", ".join(args),
        weights=args[-1] if args else "",
        peak=program.peak,
        sum=program.sum.name,
        product=program.product.name,
    )
    return code, "" if step.do is Do.STORE else _dims(program, step.type)


def _map(s: Step, args: Sequence[str], program: AttentionProgram) -> str:
    """Return an elementwise line; what is one number for a work item is a plain one."""
    word, given = word_of(s.op), ", ".join(args)
    if s not in program.after and program.roles.place(s.type) is not Place.SCALAR:
        return f"const auto {s.out} = tile::{word}{_ELEMENTS.get(s.dtype, '<T>')}({given});"
    if s.dtype is not DType.INT32:
        kind = "bool" if s.dtype is DType.BOOL else "float"
        return f"const {kind} {s.out} = tile::{word}({given});"
    if s.op not in _INFIX:
        raise PlanError(f"{s.out}: the device vocabulary has no {s.op!r} of whole numbers yet")
    return f"const int {s.out} = {f' {_INFIX[s.op]} '.join(args)};"


_ELEMENTS = {DType.FP32: "<float>", DType.INT32: "<int>", DType.BOOL: ""}
_INFIX = {"add": "+", "sub": "-", "mul": "*"}


def word_of(op: str) -> str:
    """Return an elementwise op's name in csrc/tile/attention/values.cuh, which has masks too."""
    return op if op in MASKS else vocabulary(op)


def _operand(name: str, program: AttentionProgram) -> str:
    """Return how an operand is written: by its name, or as the literal that it is."""
    value = program.literals.get(name, name)
    if isinstance(value, str):  # an extent; as a value of its own, device code takes no address
        return f"float{{{value}}}" if name in program.literals else name
    if isinstance(value, int):
        return str(value)
    text = number_text(value)
    if "inf" in text:
        return text.replace("inf", "INFINITY")
    return f"{text}f" if "." in text or "e" in text else f"{text}.0f"
