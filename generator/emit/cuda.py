"""The CUDA files of a recipe: a text per form, and a short file per shape that instantiates forms.

    forms/rms_norm_linear/sliced_k_fp16.cuh       what the kernel does: templates over `Config`
    forms/rms_norm_linear/cluster_split_k.cuh     the same muGraph by another schedule
    forms/rms_norm_linear/triton.py               the same in Triton, for any shape
    sm_90a/rms_norm_linear/K4096_N6144_fp16.cu    a shape: what was proved, its `Shape`, the knobs
                                                  of each bucket, the host function
    sm_90a/rms_norm_linear/K4096_N6144_fp16.json  its record, of which all this is made

A form serves all shapes, element types and architectures, and is named after its schedule. Where
the kernels of a recipe have different texts of one schedule, a suffix tells them apart: the element
type (`_fp16`) if that does, else the architecture, else the first static extent that does
(`_K256`), else the name of the first kernel that has the text.

The schedules' modules write forms, statement by statement; this module puts them together. A text
is a pure function of its arguments.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from graphlib import TopologicalSorter
from typing import Any, ClassVar

from mirage_kernels.generator.emit.names import camel, statics
from mirage_kernels.generator.emit.part import KernelSource, Part, opened
from mirage_kernels.generator.emit.triton import emit_triton
from mirage_kernels.generator.emit.writer import WIDTH, Writer
from mirage_kernels.generator.ir import DType
from mirage_kernels.generator.plan.program import Layout, TileProgram
from mirage_kernels.generator.schedules import PARTS, RANKED, prologue
from mirage_kernels.generator.schedules.batched_lora import slices_ahead
from mirage_kernels.generator.schedules.loop import LoopKnobs, producers_of, prologue_warps
from mirage_kernels.generator.schedules.producer_blocks import PAIRS, WHERE_MEASURED
from mirage_kernels.generator.schedules.producer_blocks.forms import pairs, producers
from mirage_kernels.generator.schedules.schedule import Knobs, Variant
from mirage_kernels.generator.target import target

FORMS = "forms"  # the folder beside those of the architectures
TYPES = {DType.FP16: "__half", DType.BF16: "__nv_bfloat16", DType.FP32: "float"}
CONTIGUOUS = (Layout.ROWS, Layout.INNER, Layout.FACTORS)  # weights, whose rows lie side by side


@dataclass(frozen=True)
class Kernel(KernelSource[TileProgram]):
    """The source of a kernel that runs a tile program."""

    listing: ClassVar[str] = "Kernels"
    entry: ClassVar[str] = "MIRAGE_KERNEL"

    @property
    def extents(self) -> dict[str, int]:
        """Return the static extents, which its text takes from `Config`."""
        return statics(self.program)

    def parts(self) -> list[Part]:
        """Return the forms, each below those that it is written in terms of.

        Raises PlanError for an op that the device vocabulary lacks.
        """
        variants = self.variants
        consumers = self.program.streamed
        parts = [producers(consumers, variants)] if consumers.received else []
        if not any(p.groups for v in variants if (p := producers_of(v.knobs))):
            consumers = replace(consumers, producers=None)
        behind = {v.schedule for v in variants if prologue_warps(v.knobs)}
        used = {v.schedule for v in variants}
        for schedule in (s for s in reversed(RANKED.values()) if s.name in used):
            own = prologue.main_program(consumers) if schedule.name in behind else consumers
            written = PARTS[schedule.name](own, variants)
            if any(PAIRS in part.beside for part in written):
                parts.append(pairs(consumers))
            parts += written
        return [*parts, *(prologue.part(consumers, name) for name in behind)]

    def configs(self) -> dict[str, Knobs]:
        """Return the knobs of each bucket, by the name of its config."""
        return {bucket_name(v, self.program.roles.tokens): v.knobs for v in self.variants}

    def listed(self) -> list[str]:
        """Return which config serves which numbers of tokens."""
        sizes = zip((v.bucket for v in self.variants), self.configs(), strict=True)
        return [f"UpTo<{size}, {name}>" if size else f"Any<{name}>" for size, name in sizes]

    def constants(self, knobs: Knobs) -> dict[str, int]:
        """Return the constants of a config."""
        found = knobs.config(self.program)
        if self.program.stacked and isinstance(knobs, LoopKnobs):
            on = target(WHERE_MEASURED[0])
            found |= {"slices": slices_ahead(self.program, knobs, on)}
        return found

    def entry_arguments(self) -> list[str]:
        """Return the strides of the weights, whose rows lie side by side."""
        program = self.program
        operands = {o.name: o for o in program.inputs}
        loads = [s for s in (*program.loads, *program.fetches) if s.layout in CONTIGUOUS]
        weights = [operands[s.args[0]] for s in loads]
        return [f"{{{o.index}, Shape::{o.type.names[-1]}}}" for o in weights]


def bucket_name(variant: Variant, dim: str) -> str:
    """Return the name of a variant's config: `UpTo8M`, `AnyM`."""
    return f"UpTo{variant.bucket}{dim}" if variant.bucket else f"Any{dim}"


# -- one text, or the file of a shape --------------------------------------------------------------


def emit_cuda(kernel: KernelSource[Any]) -> str:
    """Return a planned kernel as one text: its forms, then their instantiation.

    Raises PlanError for an op that the device vocabulary lacks.
    """
    parts = kernel.parts()
    includes = {"variants.h"}.union(*(part.includes for part in parts))
    writer = opened([*kernel.header.lines("//"), ""], includes)
    for part in parts:
        writer.lines += part.lines
    return _instantiated(writer, kernel)


def _instantiated(writer: Writer, kernel: KernelSource[Any]) -> str:
    """Return a file that ends in the shape, the knobs of each variant, and what callers see.

    All are words of csrc/variants.h.
    """
    extents = ", ".join(f"{name} = {size}" for name, size in kernel.extents.items())
    writer.line(f"MIRAGE_SHAPE({TYPES[kernel.storage]}, {extents})")
    for name, knobs in kernel.configs().items():
        constants = (f"{camel(k)}<{n}>" for k, n in kernel.constants(knobs).items())
        _alias(writer, f"using {name} =", knobs.template, ["Shape", *constants])
    _alias(writer, "using Variants =", kernel.listing, kernel.listed())
    entry = ", ".join((kernel.symbol, *kernel.entry_arguments()))
    writer.write("", "}  // namespace", "", f"{kernel.entry}({entry})", "")
    writer.line("}  // namespace mirage::generated")
    return writer.text()


def _alias(writer: Writer, left: str, template: str, arguments: Sequence[str]) -> None:
    """Write an alias of a template, broken where clang-format breaks it."""
    found = []
    for rows in ([f"{left} {template}<"], [left, f"    {template}<"]):
        indent = " " * len(rows[-1])
        for i, argument in enumerate(arguments):
            text = f"{argument}{'>;' if i + 1 == len(arguments) else ','}"
            if i and len(f"{rows[-1]} {text}") > WIDTH:
                rows.append(indent + text)
            else:
                rows[-1] += f" {text}" if i else text
        found.append(rows)
    beside, below = found
    writer.write(*(beside if len(beside) == 1 else min(below, beside, key=len)))


# -- files -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Emitted:
    """A kernel of a recipe, and the architecture that it is for."""

    arch: str
    kernel: KernelSource[Any]

    @property
    def name(self) -> str:
        """Return its name among those of its recipe, which also gives their order."""
        return f"{self.kernel.header.stem}_{self.arch}"

    @property
    def marks(self) -> tuple[str, ...]:
        """What may tell it from other kernels of its recipe, the first choice first."""
        extents = (f"{name}{size}" for name, size in self.kernel.extents.items())
        return (self.kernel.storage.value, self.arch, *extents)

    @property
    def folder(self) -> str:
        """The folder of its forms."""
        return f"{FORMS}/{self.kernel.program.recipe}"


def recipe_files(emitted: Sequence[Emitted]) -> dict[str, str]:
    """Return the CUDA files of all kernels of a recipe by path below the kernels folder.

    A file comes after those that it includes. Raises PlanError for an op that the device
    vocabulary lacks.
    """
    emitted = sorted(emitted, key=lambda one: one.name)
    parts = [{part.name: part for part in one.kernel.parts()} for one in emitted]
    names: list[dict[str, str]] = [{} for _ in emitted]  # of form files, by form
    files: dict[str, str] = {}
    beside: dict[str, list[str]] = {}
    for part in (part for own in parts for part in own.values()):
        beside.setdefault(part.name, []).extend(part.beside)
    for form in TopologicalSorter(beside).static_order():
        texts = {
            i: own[form].text(emitted[i].kernel.header, names[i])
            for i, own in enumerate(parts)
            if form in own
        }
        for i, suffix in suffixes(emitted, texts).items():
            names[i][form] = f"{form}{suffix}.cuh"
            files[f"{emitted[i].folder}/{names[i][form]}"] = texts[i]
    for one, own_names in zip(emitted, names, strict=True):
        header, path = one.kernel.header, f"{one.arch}/{one.kernel.program.recipe}"
        includes = [f"../../{one.folder}/{name}" for name in own_names.values()]
        writer = opened(header.of_shape().lines("//"), includes)
        files[f"{path}/{header.stem}.cu"] = _instantiated(writer, one.kernel)
    return files


def triton_files(emitted: Sequence[Emitted]) -> dict[str, str]:
    """Return the Triton programs of all kernels of a recipe by path below the kernels folder."""
    emitted = sorted(emitted, key=lambda one: one.name)
    texts = {i: emit_triton(one.kernel) for i, one in enumerate(emitted)}
    named = suffixes(emitted, texts).items()
    return {f"{emitted[i].folder}/triton{suffix}.py": texts[i] for i, suffix in named}


def suffixes(emitted: Sequence[Emitted], texts: dict[int, str]) -> dict[int, str]:
    """Return what is put behind the name of each kernel's text, where there are several texts."""
    several = len({*texts.values()})
    if several < 2:
        return dict.fromkeys(texts, "")
    for marks in zip(*(emitted[i].marks for i in texts), strict=False):
        pairs = {*zip(marks, texts.values(), strict=True)}
        if len(pairs) == len({*marks}) == several:
            return {i: f"_{mark}" for i, mark in zip(texts, marks, strict=True)}
    first = {text: emitted[i].name for i, text in reversed(texts.items())}
    return {i: f"_{first[text]}" for i, text in texts.items()}
