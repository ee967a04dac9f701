"""The line writer that all emission goes through: indentation, line breaks, comment columns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from textwrap import wrap

WIDTH = 100
# Breaks a sentence into lines of at most so many characters.
wrapped = partial(wrap, break_long_words=False, break_on_hyphens=False)


@dataclass
class Writer:
    """Collects lines of one file."""

    unit: str = "  "
    depth: int = 0
    lines: list[str] = field(default_factory=list)

    @property
    def room(self) -> int:
        """Columns of a line at the current depth."""
        return WIDTH - len(self.unit) * self.depth

    def line(self, text: str = "") -> None:
        """Write a line at the current depth; C++ too long for one, as clang-format breaks it."""
        rows = [text] if len(text) <= self.room else broken(text, self.room)
        self.lines += [self.unit * self.depth + row if row else "" for row in rows]

    def write(self, *texts: str) -> None:
        """Write lines at the current depth."""
        for text in texts:
            self.line(text)

    @contextmanager
    def block(self, opening: str, closing: str = "}") -> Iterator[None]:
        """Write an opening line, the indented body, and a closing line."""
        self.line(opening)
        self.depth += 1
        yield
        self.depth -= 1
        if closing:
            self.line(closing)

    def function(self, head: str, *body: str) -> None:
        """Write a lambda with its head, in one line if that fits."""
        whole = " ".join((head, *body, "};")) if body else f"{head}}};"
        if len(body) <= 1 and len(whole) <= self.room:
            self.line(whole)
        else:
            with self.block(head, "};"):
                self.write(*body)

    def call(self, opening: str, arguments: Sequence[str], closing: str) -> None:
        """Write a call with one argument per line, each with a comma behind."""
        with self.block(opening, closing):
            self.write(*(f"{argument}," for argument in arguments))

    def table(self, rows: Sequence[tuple[str, str]]) -> None:
        """Write code lines with the comments of neighbours in one column, if that fits the page.

        A line that leaves no room for its comment goes without, and parts the columns.
        """
        room = self.room - len("  // ")
        column = max((len(code) for code, _ in rows), default=0)
        alone = [i for i, (code, note) in enumerate(rows) if not note or len(code + note) > room]
        if not alone and any(column + len(note) > room for _, note in rows):
            alone = [i for i, (code, _) in enumerate(rows) if len(code) == column]
        for i in alone[:1]:
            self.table(rows[:i])
            self.line(rows[i][0])
            return self.table(rows[i + 1 :])
        return self.write(*(f"{code.ljust(column)}  // {note}" for code, note in rows))

    def text(self) -> str:
        """Return the file."""
        return "\n".join(self.lines) + "\n"


def broken(text: str, room: int) -> list[str]:
    """Break C++ behind its `=`, behind the first bracket, or between the arguments of a call."""
    left, assigned, right = text.partition(" = ")
    if assigned and (len(right) <= room - 4 or "(" not in right):
        return [f"{left} =", f"    {right}"]
    brackets = [i for i in (text.find("("), text.find("{")) if i >= 0]
    if not brackets:  # an include of a long name
        return [text]
    opening = min(brackets) + 1
    if assigned and len(text) - opening > room - 4:
        return [f"{left} =", *(f"    {row}" for row in broken(right, room - 4))]
    if opening > room - 8:
        first, *rest = wrapped(text, room - 4)
        return [first, *(f"    {row}" for row in rest)]
    first, *rest = wrapped(text[opening:], room - opening)
    too_long = max(map(len, (first, *rest))) > room - opening
    if assigned or too_long or (len(rest) > 1 and len(text) - opening <= room - 4):
        return [text[:opening], f"    {text[opening:]}"]
    return [text[:opening] + first, *(f"{' ' * opening}{row}" for row in rest)]
