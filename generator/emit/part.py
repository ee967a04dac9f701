"""A form of an emitted kernel: one text for all shapes and element types.

It is made of templates over a `Config`, which a shape's own file defines (`forms.py`). Where one
text is wanted (a candidate that is measured) forms stand below one another in it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from mirage_kernels.generator.emit.header import OF_THE_FORM, Header
from mirage_kernels.generator.emit.writer import Writer


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
        for include in sorted(self.includes):
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
