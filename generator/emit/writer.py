"""The line writer that all emission goes through: indentation, comment columns, nothing else."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

WIDTH = 100


@dataclass
class Writer:
    """Collects lines of one file."""

    unit: str = "  "
    depth: int = 0
    lines: list[str] = field(default_factory=list)

    def line(self, text: str = "") -> None:
        """Write one line at the current depth."""
        self.lines.append(self.unit * self.depth + text if text else "")

    @contextmanager
    def block(self, opening: str, closing: str = "}") -> Iterator[None]:
        """Write an opening line, the indented body, and a closing line."""
        self.line(opening)
        self.depth += 1
        yield
        self.depth -= 1
        if closing:
            self.line(closing)

    def assignment(self, text: str) -> None:
        """Write an assignment, its right-hand side on a line of its own if it is too long."""
        if len(self.unit) * self.depth + len(text) <= WIDTH:
            self.line(text)
            return
        left, _, right = text.partition(" = ")
        self.line(f"{left} =")
        self.line(f"{self.unit * 2}{right}")

    def call(self, opening: str, arguments: Sequence[str], closing: str) -> None:
        """Write a call with one argument per line, each with a comma behind."""
        with self.block(opening, closing):
            for argument in arguments:
                self.line(f"{argument},")

    def table(self, rows: Sequence[tuple[str, str]], mark: str = "//") -> None:
        """Write code lines with their comments aligned in one column."""
        column = max((len(code) for code, note in rows if note), default=0)
        for code, note in rows:
            self.line(f"{code.ljust(column)}  {mark} {note}" if note else code)

    def text(self) -> str:
        """Return the file."""
        return "\n".join(self.lines) + "\n"


def wrapped(text: str, width: int) -> list[str]:
    """Break a sentence into lines of at most `width` characters."""
    lines = [""]
    for word in text.split():
        if lines[-1] and len(lines[-1]) + 1 + len(word) > width:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".strip()
    return lines
