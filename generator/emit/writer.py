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

    def declaration(self, opening: str, names: Sequence[str]) -> None:
        """Write a declaration of several names, on lines that begin below the first of them."""
        text = opening
        for place, name in enumerate(names):
            mark = ";" if place == len(names) - 1 else ","
            longer = f"{text} {name}{mark}" if place else f"{text}{name}{mark}"
            if len(self.unit) * self.depth + len(longer) > WIDTH:
                self.line(text)
                longer = f"{' ' * len(opening)}{name}{mark}"
            text = longer
        self.line(text)

    def assignment(self, text: str) -> None:
        """Write an assignment, its right-hand side on a line of its own if it is too long.

        A call that nothing is assigned from, or an initialiser, is broken between its arguments.
        """
        if len(self.unit) * self.depth + len(text) <= WIDTH:
            self.line(text)
            return
        left, assigned, right = text.partition(" = ")
        if not assigned:
            self.arguments(text)
            return
        self.line(f"{left} =")
        self.depth += 2
        if len(self.unit) * self.depth + len(right) <= WIDTH or "(" not in right:
            self.line(right)
        else:
            self.arguments(right)
        self.depth -= 2

    def arguments(self, text: str) -> None:
        """Write a call over several lines, its arguments below one another, or all on the next."""
        indent = len(self.unit) * self.depth
        opening = min(i for i in (text.find("("), text.find("{")) if i >= 0) + 1
        first, *rest = wrapped(text[opening:], WIDTH - indent - opening)
        too_long = max(map(len, (first, *rest))) > WIDTH - indent - opening
        if too_long or (len(rest) > 1 and indent + 4 + len(text) - opening <= WIDTH):
            self.line(text[:opening])
            self.line(f"{self.unit * 2}{text[opening:]}")
            return
        self.line(text[:opening] + first)
        for line in rest:
            self.line(f"{' ' * opening}{line}")

    def call(self, opening: str, arguments: Sequence[str], closing: str) -> None:
        """Write a call with one argument per line, each with a comma behind."""
        with self.block(opening, closing):
            for argument in arguments:
                self.line(f"{argument},")

    def table(self, rows: Sequence[tuple[str, str]], mark: str = "//") -> None:
        """Write code lines with the comments of neighbours in one column, if that fits the page.

        A line that leaves no room for its comment goes without; one too long in itself is broken
        after its `=`.
        """
        room = WIDTH - len(self.unit) * self.depth - len(f"  {mark} ")
        columns = _columns(rows, room)
        for (code, note), column in zip(rows, columns, strict=True):
            if column:
                self.line(f"{code.ljust(column)}  {mark} {note}")
            else:
                self.assignment(code)

    def text(self) -> str:
        """Return the file."""
        return "\n".join(self.lines) + "\n"


def _columns(rows: Sequence[tuple[str, str]], room: int) -> list[int]:
    """Return where each line's comment stands, 0 for a line without; `room` = for code and note."""
    shown = [bool(note) and len(code) + len(note) <= room for code, note in rows]
    while True:
        columns = [0] * len(rows)
        for run in _runs(shown):
            column = max(len(rows[i][0]) for i in run)
            if any(column + len(rows[i][1]) > room for i in run):
                shown[max(run, key=lambda i: len(rows[i][0]))] = False
                break
            for i in run:
                columns[i] = column
        else:
            return columns


def _runs(shown: Sequence[bool]) -> list[list[int]]:
    """Return the stretches of lines that are shown."""
    runs: list[list[int]] = [[]]
    for i, one in enumerate(shown):
        if one:
            runs[-1].append(i)
        elif runs[-1]:
            runs.append([])
    return [run for run in runs if run]


def wrapped(text: str, width: int) -> list[str]:
    """Break a sentence into lines of at most `width` characters."""
    lines = [""]
    for word in text.split():
        if lines[-1] and len(lines[-1]) + 1 + len(word) > width:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".strip()
    return lines
