"""What a person sees: results on stdout, progress and errors on stderr, rich only on a terminal.

Where a stream is no terminal, everything is plain lines. With `--json` stdout holds
one JSON document and nothing else.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TextIO

from mirage_kernels.generator.errors import MirageError
from mirage_kernels.generator.ir.text import Json

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.progress import Progress, TaskID

    from mirage_kernels.generator.request import Event

Watcher = Callable[["Event"], None]

PROGRAM = "mirage-kernels"
# A stage that goes on shows a plain line this often.
PLAIN_SECONDS = 5.0
_CELL_STYLES = {"ok": "green", "FAILED": "bold red", "missing": "yellow", "broken": "bold red"}


@dataclass(frozen=True)
class Table:
    """Rows of text under column names; the first `left` columns are words, the rest numbers."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    left: int
    title: str = ""

    @property
    def plain_lines(self) -> list[str]:
        """The table as aligned lines, without colour or frame."""
        cells = [self.columns, *self.rows]
        widths = [max(len(row[i]) for row in cells) for i in range(len(self.columns))]
        lines = [self.title] if self.title else []
        for row in cells:
            padded = [
                cell.ljust(width) if i < self.left else cell.rjust(width)
                for i, (cell, width) in enumerate(zip(row, widths, strict=True))
            ]
            lines.append("  ".join(padded).rstrip())
        return lines

    def framed(self) -> RenderableType:
        """Return the table in a frame, with colours for what is good and what is not."""
        from rich import box
        from rich.table import Table as Framed
        from rich.text import Text

        framed = Framed(title=self.title or None, title_justify="left", box=box.SIMPLE_HEAD)
        for i, column in enumerate(self.columns):
            framed.add_column(Text(column), justify="left" if i < self.left else "right")
        for row in self.rows:
            framed.add_row(*(Text(cell, style=_CELL_STYLES.get(cell, "")) for cell in row))
        return framed


@dataclass
class Terminal:
    """Where results, progress and errors go; `as_json` keeps stdout for one document."""

    as_json: bool = False
    out: TextIO = field(default_factory=lambda: sys.stdout)
    err: TextIO = field(default_factory=lambda: sys.stderr)

    def line(self, text: str = "") -> None:
        """Print a result as it is."""
        if not self.as_json:
            print(text, file=self.out, flush=True)

    def note(self, text: str) -> None:
        """Print what is not a result: on stderr."""
        print(text, file=self.err, flush=True)

    def table(self, table: Table) -> None:
        """Print a table: framed on a terminal that is wide enough, aligned lines elsewhere."""
        lines = table.plain_lines
        if self.as_json:
            return
        console = _console(self.out)
        if console is None or max(map(len, lines)) > console.width:
            for line in lines:
                self.line(line)
            return
        console.print(table.framed())

    def document(self, data: Json) -> None:
        """Print the one JSON document of `--json`."""
        if self.as_json:
            print(json.dumps(data, indent=2), file=self.out, flush=True)

    def fail(self, error: MirageError) -> None:
        """Print an error: its sentence and its hint, on stderr; with `--json` on stdout as well."""
        self.document({"error": error.sentence, "hint": error.hint})
        self.note(f"{PROGRAM}: {error.sentence}")
        if error.hint:
            self.note(f"  hint: {error.hint}")

    @contextmanager
    def watch(self, title: str, *, abreast: bool = False) -> Iterator[Watcher]:
        """Show the progress of some work on stderr: stage by stage, or all stages abreast."""
        console = _console(self.err)
        if console is None:
            plain = _PlainWatch(self.note, abreast)
            self.note(title)
            yield plain
            plain.flush()
            return
        with _bars(console) as bars:
            bars.console.print(title, style="bold")
            yield _BarWatch(bars, abreast)


def listed(words: Sequence[str]) -> str:
    """Join words for a sentence: `a, b and c`."""
    return " and ".join(filter(None, [", ".join(words[:-1]), *words[-1:]]))


def counted(number: int, noun: str) -> str:
    """Write a number with its noun: `1 kernel`, `6 kernels`."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


@dataclass
class _PlainWatch:
    """A line when a stage ends, and one now and then while it lasts."""

    write: Callable[[str], None]
    abreast: bool = False
    waiting: Event | None = None
    written_at: float = field(default_factory=time.monotonic)

    def __call__(self, event: Event) -> None:
        changed = self.waiting is not None and self.waiting.stage != event.stage
        if changed and not self.abreast:
            self.flush()
        self.waiting = event
        ended = self.abreast and event.done == event.total > 0
        if ended or time.monotonic() - self.written_at > PLAIN_SECONDS:
            self.flush()

    def flush(self) -> None:
        """Write what the stage said last."""
        if self.waiting is None:
            return
        count = f"{self.waiting.done}/{self.waiting.total}  " if self.waiting.total else ""
        self.write(f"  {self.waiting.stage:<8} {count}{self.waiting.text}".rstrip())
        self.waiting, self.written_at = None, time.monotonic()


@dataclass
class _BarWatch:
    """A bar per stage; only the last stage moves, unless they run abreast."""

    bars: Progress
    abreast: bool = False
    tasks: dict[str, TaskID] = field(default_factory=dict)

    def __call__(self, event: Event) -> None:
        known = self.tasks.get(event.stage)
        if known is None:
            if not self.abreast:
                self._finish_all()
            total = event.total or None
            known = self.bars.add_task(event.stage, total=total, words="")
            self.tasks[event.stage] = known
        self.bars.update(known, completed=event.done, total=event.total or None, words=event.text)

    def _finish_all(self) -> None:
        for task in self.bars.tasks:
            if not task.finished:
                self.bars.update(task.id, total=1, completed=1)


def _console(stream: TextIO) -> Console | None:
    if not stream.isatty():
        return None
    from rich.console import Console

    return Console(file=stream, markup=False, highlight=False, emoji=False)


def _bars(console: Console) -> Progress:
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    return Progress(
        SpinnerColumn(finished_text="✓"),
        TextColumn("{task.description:<8}", markup=False),
        BarColumn(bar_width=16),
        TimeElapsedColumn(),
        TextColumn("{task.fields[words]}", markup=False),
        console=console,
        transient=True,
    )
