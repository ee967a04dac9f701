"""What emitted files are made of: header, forms, and what a shape's own file says.

A form is one text for all shapes and element types: templates over a `Config`, which the file of a
shape defines (`cuda.py`). Where one text is wanted (a candidate that is measured) forms stand
below one another in it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Container, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Generic, TypeVar

from mirage_kernels.generator.emit.writer import WIDTH, Writer, wrapped
from mirage_kernels.generator.ir import DType

if TYPE_CHECKING:
    from mirage_kernels.generator.plan.program import TileProgram
    from mirage_kernels.generator.schedules.attention.program import AttentionProgram
    from mirage_kernels.generator.schedules.schedule import Knobs, Variant

P = TypeVar("P", bound="TileProgram | AttentionProgram")
OF_THE_FORM = ("Formula", "Expects")
OF_THE_SHAPE = ("Shape", "Proved")


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

    def of_shape(self) -> Header:
        """Return the header of an instantiation: where its shape comes from, and its proof."""
        return replace(self, paragraphs=[p for p in self.paragraphs if p[0] in OF_THE_SHAPE])

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
        """What may tell it from other kernels of its recipe, the first choice first."""
        extents = (f"{name}{size}" for name, size in self.extents.items())
        return (self.storage.value, self.header.arch, *extents)

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

    def configs(self) -> dict[str, Knobs]:
        """Return the knobs of the kernels, each named after the first variant that it serves."""
        named = {v.knobs: v.name(self.counted) for v in reversed(self.variants)}
        return {named[v.knobs]: v.knobs for v in self.variants}

    def listed(self) -> list[str]:
        """Return which config serves which calls, in the words of csrc/variants.h."""
        named = {knobs: name for name, knobs in self.configs().items()}
        variants, rows = list(self.variants), []
        while len(variants) > 1 and variants[-2].knobs == variants[-1].knobs:
            del variants[-2]  # one kernel for all the rest
        for v in variants:
            name = named[v.knobs]
            serves = f"UpTo<{v.bucket}, {name}" if v.bucket else f"Any<{name}"
            rows.append(f"{', '.join((serves, *self.conditions(v, name)))}>")
        return rows

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
