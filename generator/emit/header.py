"""The comment that opens every emitted file: command, formula, muGraph in words, proof, needs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from mirage_kernels.generator.emit.writer import WIDTH, Writer, wrapped

IN_FRONT = -1  # among buckets: the launch that makers have of their own


@dataclass(frozen=True)
class Header:
    """Line 1 is the command that makes the file; then paragraphs, each with a word in front."""

    command: str
    stem: str  # of the file's name: K4096_N6144_fp16
    paragraphs: Sequence[tuple[str, str]]
    launches: Mapping[int, str] = field(default_factory=dict)  # in words, by bucket

    def write(self, writer: Writer, mark: str) -> None:
        """Write the header as comment lines that start with `mark`."""
        writer.line(f"{mark} {self.command}")
        writer.line(mark)
        indent = max(len(word) for word, _ in self.paragraphs) + 2
        for word, text in self.paragraphs:
            lines = wrapped(text, WIDTH - len(mark) - 1 - indent)
            for i, line in enumerate(lines):
                writer.line(f"{mark} {(word if i == 0 else '').ljust(indent)}{line}")
