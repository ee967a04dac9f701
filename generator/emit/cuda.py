"""The CUDA files of a recipe: a text per form, and a short file per shape that instantiates forms.

    forms/rms_norm_linear/sliced_k_fp16.cuh       what the kernel does: templates over `Config`
    forms/rms_norm_linear/cluster_split_k.cuh     the same muGraph by another schedule
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

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Container, Mapping, Sequence
from dataclasses import dataclass, replace
from graphlib import TopologicalSorter
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from mirage_kernels.generator.emit.statements import camel
from mirage_kernels.generator.emit.writer import WIDTH, Writer, wrapped
from mirage_kernels.generator.ir import DType

if TYPE_CHECKING:
    from mirage_kernels.generator.plan.program import TileProgram
    from mirage_kernels.generator.schedules.attention.program import AttentionProgram
    from mirage_kernels.generator.schedules.schedule import Knobs, Variant

P = TypeVar("P", bound="TileProgram | AttentionProgram")
OF_THE_FORM = ("Formula", "Expects")
OF_THE_SHAPE = ("Shape", "Proved")
FORMS = "forms"  # the folder beside those of the architectures
TYPES = {DType.FP16: "__half", DType.BF16: "__nv_bfloat16", DType.FP32: "float"}


@dataclass(frozen=True)
class Header:
    """The comment that opens a file: the command that makes it; paragraphs after a word each."""

    command: str
    stem: str  # of the file's name: K4096_N6144_fp16
    paragraphs: Sequence[tuple[str, str]]
    recipe_command: str = ""  # makes what is the same for all shapes
    arch: str = ""

    def of_form(self, schedule: str, about: Container[str] = OF_THE_FORM) -> Header:
        """Return the header of a form: its schedule, and what holds for every shape."""
        said = [(word, text) for word, text in self.paragraphs if word in about]
        command = self.recipe_command or self.command
        return replace(self, command=command, paragraphs=[("Schedule", schedule), *said])

    def lines(self, mark: str) -> list[str]:
        """Return the header as comment lines that start with `mark`."""
        lines = [f"{mark} {self.command}"]
        indent = max((len(word) for word, _ in self.paragraphs), default=0) + 2
        for word, text in self.paragraphs:
            for line in wrapped(text, WIDTH - len(mark) - 1 - indent):
                lines.append(f"{mark} {word.ljust(indent)}{line}")
                word = ""
        return lines


@dataclass(frozen=True)
class Part:
    """One form, written."""

    name: str
    about: str
    includes: tuple[str, ...]  # of the vocabulary
    beside: tuple[str, ...]  # the forms that it is written in terms of
    lines: tuple[str, ...]
    describes: bool = False  # whether its header describes the muGraph

    def text(self, header: Header, files: Mapping[str, str]) -> str:
        """Return the form as a file of its own; `files`: those of the forms, by name."""
        said = OF_THE_FORM if self.describes else OF_THE_FORM[:1]
        lines = [*header.of_form(f"{self.about}.", said).lines("//"), "#pragma once", ""]
        beside = [files[name] for name in self.beside]
        writer = opened(lines, {*self.includes, "variants.h"}, beside)
        writer.lines += self.lines
        writer.write("}  // namespace", "}  // namespace mirage::generated")
        return writer.text()


def opened(lines: Sequence[str], *includes: Collection[str]) -> Writer:
    """Return the writer of a CUDA file behind its first lines, groups of includes, namespaces."""
    writer = Writer()
    writer.write(*lines)
    for group in filter(None, includes):
        writer.write(*(f'#include "{file}"' for file in sorted(group)), "")
    writer.write("namespace mirage::generated {", "namespace {", "")
    return writer


@dataclass(frozen=True)
class KernelSource(ABC, Generic[P]):
    """What the emitted files of a kernel are made of."""

    listing: ClassVar[str]  # the template that lists variants
    entry: ClassVar[str]  # the macro of the host functions

    program: P
    variants: Sequence[Variant]
    storage: DType
    header: Header

    @property
    def symbol(self) -> str:
        """Name of the host function: recipe and file stem."""
        return f"{self.program.recipe}_{self.header.stem}"

    @property
    def name(self) -> str:
        """Name among the kernels of its recipe, which also gives their order."""
        return f"{self.header.stem}_{self.header.arch}"

    @property
    def marks(self) -> tuple[str, ...]:
        """What may tell it from other kernels of its recipe: first choice first, its name last."""
        extents = (f"{name}{size}" for name, size in self.extents.items())
        return (self.storage.value, self.header.arch, *extents, self.name)

    @property
    @abstractmethod
    def extents(self) -> dict[str, int]:
        """Return the static extents, which its text takes from `Config`."""

    @abstractmethod
    def parts(self) -> list[Part]:
        """Return the forms, each below those that it is written in terms of.

        Raises PlanError for an op that the device vocabulary lacks.
        """

    @property
    @abstractmethod
    def counted(self) -> str:
        """What names of configs count."""

    def conditions(self, variant: Variant, name: str) -> list[str]:
        """Return which of the calls that are small enough a config serves."""
        return []

    def constants(self, knobs: Knobs) -> dict[str, int]:
        """Return the constants of a config."""
        return knobs.config(self.program)

    def entry_arguments(self) -> list[str]:
        """Return what the macro of the host functions takes beside their name."""
        return []


def lines_of(write: Callable[..., None], *given: object) -> tuple[str, ...]:
    """Return the lines that a function writes."""
    writer = Writer()
    write(writer, *given)
    return tuple(writer.lines)


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
    variants, rows = list(kernel.variants), []
    named = {v.knobs: v.name(kernel.counted) for v in reversed(variants)}  # of the first
    for knobs in dict.fromkeys(v.knobs for v in variants):
        constants = (f"{camel(k)}<{n}>" for k, n in kernel.constants(knobs).items())
        _alias(writer, f"using {named[knobs]} =", knobs.template, ["Shape", *constants])
    while len(variants) > 1 and variants[-2].knobs == variants[-1].knobs:
        del variants[-2]  # one kernel for all the rest
    for v in variants:
        name = named[v.knobs]
        serves = f"UpTo<{v.bucket}, {name}" if v.bucket else f"Any<{name}"
        rows.append(f"{', '.join((serves, *kernel.conditions(v, name)))}>")
    _alias(writer, "using Variants =", kernel.listing, rows)
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


def recipe_files(kernels: Sequence[KernelSource[Any]]) -> dict[str, str]:
    """Return the CUDA files of all kernels of a recipe by path below the kernels folder.

    A file comes after those that it includes. Raises PlanError for an op that the device
    vocabulary lacks.
    """
    kernels = sorted(kernels, key=lambda kernel: kernel.name)
    parts = [{part.name: part for part in kernel.parts()} for kernel in kernels]
    names: list[dict[str, str]] = [{} for _ in kernels]  # of form files, by form
    files: dict[str, str] = {}
    beside: dict[str, list[str]] = {}
    for part in (part for own in parts for part in own.values()):
        beside.setdefault(part.name, []).extend(part.beside)
    for form in TopologicalSorter(beside).static_order():
        texts = {
            i: own[form].text(kernels[i].header, names[i])
            for i, own in enumerate(parts)
            if form in own
        }
        for i, suffix in suffixes([k.marks for k in kernels], texts).items():
            names[i][form] = f"{form}{suffix}.cuh"
            files[f"{FORMS}/{kernels[i].program.recipe}/{names[i][form]}"] = texts[i]
    for kernel, own_names in zip(kernels, names, strict=True):
        header, recipe = kernel.header, kernel.program.recipe
        includes = [f"../../{FORMS}/{recipe}/{name}" for name in own_names.values()]
        said = [p for p in header.paragraphs if p[0] in OF_THE_SHAPE]
        writer = opened(replace(header, paragraphs=said).lines("//"), includes)
        files[f"{header.arch}/{recipe}/{header.stem}.cu"] = _instantiated(writer, kernel)
    return files


def suffixes(marks: Sequence[tuple[str, ...]], texts: dict[int, str]) -> dict[int, str]:
    """Return what is put behind the name of each kernel's text, where there are several texts.

    `marks`: of every kernel what may tell it from the others, its own name last.
    """
    several = len({*texts.values()})
    if several < 2:
        return dict.fromkeys(texts, "")
    for alike in zip(*(marks[i][:-1] for i in texts), strict=False):
        pairs = {*zip(alike, texts.values(), strict=True)}
        if len(pairs) == len({*alike}) == several:
            return {i: f"_{mark}" for i, mark in zip(texts, alike, strict=True)}
    first = {text: marks[i][-1] for i, text in reversed(texts.items())}
    return {i: f"_{first[text]}" for i, text in texts.items()}


# -- the dispatch table of an architecture --------------------------------------------------------

TABLE = (
    "Which kernel serves which recipe, element type and static extents. A row names recipe, file, "
    "element type, most tokens (0: any number; rows of attention have none), inputs that a call "
    "may leave out, and static extents. SPACE: the kernel needs a workspace."
)


@dataclass(frozen=True)
class Entry:
    """One kernel: what it serves and the host function that launches it.

    Above `max_tokens` the library runs PyTorch's own program (0: never). `options` names the
    recipe's inputs that a call may leave out.
    """

    recipe: str
    dtype: str
    dims: Mapping[str, int]
    stem: str
    max_tokens: int = 0
    options: tuple[str, ...] = ()
    workspace: bool = False  # whether a launch needs one
    reads_cache: bool = False  # whether a call's keys and values lie in a cache


def emit_table(arch: str, entries: Sequence[Entry]) -> str:
    """Return table.cpp; entries are listed in the order of their symbols, a line each.

    `csrc/table.h` reads a list twice: to declare and to tabulate.
    """
    writer = Writer()
    writer.write(f"// mirage-kernels generate RECIPE --arch {arch}", "//")
    writer.write(*(f"// {line}" for line in wrapped(TABLE, WIDTH - len("// "))), "")
    ordered = sorted(entries, key=lambda e: f"{e.recipe}_{e.stem}")
    for macro in ("KERNELS(PLAIN, SPACE)", "ATTENTION_KERNELS(ATTENTION)"):
        own = (e for e in ordered if e.reads_cache is macro.startswith("ATTENTION"))
        lines = [f"#define {macro}", *(line for entry in own for line in _row(entry))]
        writer.write(*(f"{line} \\" for line in lines[:-1]), lines[-1], "")
    writer.write(f'#define ARCH "{arch}"', "", '#include "table.h"')
    return writer.text()


def _row(entry: Entry) -> list[str]:
    """Return a row's macro, its extents on a line of their own if it is too long."""
    kind = "ATTENTION" if entry.reads_cache else "SPACE" if entry.workspace else "PLAIN"
    most = "" if entry.reads_cache else f", {entry.max_tokens}"  # attention's rows have none
    first = f"  {kind}({entry.recipe}, {entry.stem}, {entry.dtype}{most}"
    first += f', "{" ".join(entry.options)}",'
    dims = ", ".join(f'{{"{name}", {size}}}' for name, size in entry.dims.items()) + ")"
    fits = len(f"{first} {dims} \\") <= WIDTH
    return [f"{first} {dims}"] if fits else [first, f"      {dims}"]
