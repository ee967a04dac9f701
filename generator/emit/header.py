"""The comment that opens every emitted file: command, formula, muGraph in words, proof, needs."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass, replace

from mirage_kernels.generator.emit.writer import WIDTH, Writer, wrapped

OF_THE_FORM = ("Formula", "Expects")
OF_THE_SHAPE = ("Shape", "Proved")


@dataclass(frozen=True)
class Header:
    """Line 1 is the command that makes the file; then paragraphs, each with a word in front."""

    command: str
    stem: str  # of the file's name: K4096_N6144_fp16
    paragraphs: Sequence[tuple[str, str]]
    recipe_command: str = ""  # makes what is the same for all shapes

    def of_form(self, schedule: str, about: Container[str] = OF_THE_FORM) -> Header:
        """Return the header of a form: its schedule, and what holds for every shape."""
        said = [(word, text) for word, text in self.paragraphs if word in about]
        command = self.recipe_command or self.command
        return replace(self, command=command, paragraphs=[("Schedule", schedule), *said])

    def of_shape(self) -> Header:
        """Return the header of an instantiation: where its shape comes from, and its proof."""
        return replace(self, paragraphs=[p for p in self.paragraphs if p[0] in OF_THE_SHAPE])

    def write(self, writer: Writer, mark: str) -> None:
        """Write the header as comment lines that start with `mark`."""
        writer.line(f"{mark} {self.command}")
        indent = max((len(word) for word, _ in self.paragraphs), default=0) + 2
        for word, text in self.paragraphs:
            lines = wrapped(text, WIDTH - len(mark) - 1 - indent)
            for i, line in enumerate(lines):
                writer.line(f"{mark} {(word if i == 0 else '').ljust(indent)}{line}")
