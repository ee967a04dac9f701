"""What emitted files are made of: the forms of a kernel, and what a shape's own file says.

A form is one text for all shapes and element types: templates over a `Config`, which the file of a
shape defines (`forms.py`). Where one text is wanted (a candidate that is measured) forms stand
below one another in it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Generic, Protocol, TypeVar

from mirage_kernels.generator.emit.header import OF_THE_FORM, Header
from mirage_kernels.generator.emit.writer import Writer
from mirage_kernels.generator.ir import DType

if TYPE_CHECKING:
    from mirage_kernels.generator.schedules.schedule import Knobs, Variant


class Named(Protocol):
    """A program that knows the recipe it is of."""

    @property
    def recipe(self) -> str:
        """Name of the recipe."""


P = TypeVar("P", bound=Named)


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
        writer = Writer()
        said = OF_THE_FORM if self.describes else OF_THE_FORM[:1]
        header.of_form(f"{self.about}.", said).write(writer, "//")
        writer.line("#pragma once")
        writer.line()
        for include in sorted({*self.includes, "variants.h"}):
            writer.line(f'#include "{include}"')
        writer.line()
        write_includes(writer, [files[name] for name in self.beside])
        writer.line("namespace mirage::generated {")
        writer.line("namespace {")
        writer.line()
        writer.lines += self.lines
        writer.line("}  // namespace")
        writer.line("}  // namespace mirage::generated")
        return writer.text()


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
    @abstractmethod
    def extents(self) -> dict[str, int]:
        """Return the static extents, which its text takes from `Config`."""

    @abstractmethod
    def parts(self) -> list[Part]:
        """Return the forms, each below those that it is written in terms of.

        Raises PlanError for an op that the device vocabulary lacks.
        """

    @abstractmethod
    def configs(self) -> dict[str, Knobs]:
        """Return the knobs of the kernels that there are, by the name of the config."""

    @abstractmethod
    def listed(self) -> list[str]:
        """Return which config serves which calls, in the words of csrc/variants.h."""

    def constants(self, knobs: Knobs) -> dict[str, int]:
        """Return the constants of a config."""
        return knobs.config(self.program)

    def entry_arguments(self) -> list[str]:
        """Return what the macro of the host functions takes beside their name."""
        return []


def write_includes(writer: Writer, files: Sequence[str]) -> None:
    """Write the includes of files beside a file, if it needs any."""
    for file in sorted(files):
        writer.line(f'#include "{file}"')
    if files:
        writer.line()


def lines_of(write: Callable[..., None], *given: object) -> tuple[str, ...]:
    """Return the lines that a function writes."""
    writer = Writer()
    write(writer, *given)
    return tuple(writer.lines)
