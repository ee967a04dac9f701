"""What a person sees: results on stdout, progress and errors on stderr, rich only on a terminal.

Where a stream is no terminal, everything is plain lines. With `--json` stdout holds
one JSON document and nothing else.
"""

from __future__ import annotations

import io
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TextIO

from mirage_kernels.generator.errors import MirageError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, TaskID
    from rich.table import Table

    from mirage_kernels.generator.request import Event

Watcher = Callable[["Event"], None]

PROGRAM = "mirage-kernels"
# A stage that goes on shows a plain line this often.
PLAIN_SECONDS = 5.0
_CELL_STYLES = {"ok": "green", "FAILED": "bold red", "missing": "yellow", "broken": "bold red"}


@dataclass
class Terminal:
    """Where results, progress and errors go; `as_json` keeps stdout for one document."""

    as_json: bool = False
    out: TextIO = field(default_factory=lambda: sys.stdout)
    err: TextIO = field(default_factory=lambda: sys.stderr)

    def line(self, text: str = "") -> None:
        """Print a result as it is."""
        if not self.as_json:
            _print(text, self.out)

    def note(self, text: str) -> None:
        """Print what is not a result: on stderr."""
        _print(text, self.err)

    def table(self, rows: Sequence[Mapping[str, str]], *, left: int) -> None:
        """Print rows by column: in a frame on a terminal that is wide enough, else aligned lines.

        The first `left` columns are words, the others numbers; one that no row fills is left away.
        """
        names = list(dict.fromkeys(name for row in rows for name in row))
        filled = {n: i < left for i, n in enumerate(names) if any(row.get(n) for row in rows)}
        cells = [list(filled), *([row.get(name, "") for name in filled] for row in rows)]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        columns = list(zip(widths, filled.values(), strict=True))
        console = _console(self.out) if rows and not self.as_json else None
        if console is None or sum(widths) + 2 * len(widths) - 2 > console.width:
            for row in cells if rows else ():
                padded = [
                    cell.ljust(width) if is_left else cell.rjust(width)
                    for cell, (width, is_left) in zip(row, columns, strict=True)
                ]
                self.line("  ".join(padded).rstrip())
            return
        console.print(_framed(filled, cells[1:]))

    def document(self, data: object) -> None:
        """Print the one JSON document of `--json`; dataclasses in it are objects."""
        if self.as_json:
            _print(json.dumps(data, indent=2, default=vars), self.out)

    def fail(self, error: MirageError) -> None:
        """Print an error: its sentence and its hint, on stderr; with `--json` on stdout as well.

        A stream that takes no more is left alone: it may be what the error is about.
        """
        with suppress(OSError):
            self.document({"error": error.sentence, "hint": error.hint})
        with suppress(OSError):
            self.note(f"{PROGRAM}: {error.sentence}")
            if error.hint:
                self.note(f"  hint: {error.hint}")

    def end(self) -> None:
        """Print what is left on stdout; raises OSError where it does not take it."""
        with _named(self.out):
            self.out.flush()

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
        from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

        with Progress(
            SpinnerColumn(finished_text="✓"),
            TextColumn("{task.description:<8}", markup=False),
            BarColumn(bar_width=16),
            TimeElapsedColumn(),
            TextColumn("{task.fields[words]}", markup=False),
            console=console,
            transient=True,
        ) as bars:
            bars.console.print(title, style="bold")
            yield _BarWatch(bars, abreast)


def complete_streams() -> None:
    """Let the process print anything: a closed stream swallows it, letters it lacks are escaped."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        stream = getattr(sys, name)
        if stream is None:  # in this order, each takes the number of the stream that was closed
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode))
        elif mode == "w" and isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def drop_unwritable() -> None:
    """Let what streams hold and cannot write vanish, or Python's exit would complain again."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


@contextmanager
def _named(stream: TextIO) -> Iterator[None]:
    """Give an error of writing the name of its stream."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or stream.name
        raise


def _print(text: str, stream: TextIO) -> None:
    with _named(stream):
        print(text, file=stream, flush=True)


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
        if event.stage not in self.tasks:
            for task in () if self.abreast else self.bars.tasks:
                if not task.finished:
                    self.bars.update(task.id, total=1, completed=1)
            self.tasks[event.stage] = self.bars.add_task(event.stage, total=None, words="")
        bar, total = self.tasks[event.stage], event.total or None
        self.bars.update(bar, completed=event.done, total=total, words=event.text)


def _framed(columns: Mapping[str, bool], rows: Sequence[Sequence[str]]) -> Table:
    """Return rows in a frame, with colours for what is good and what is not."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    framed = Table(box=box.SIMPLE_HEAD)
    for name, is_left in columns.items():
        framed.add_column(Text(name), justify="left" if is_left else "right")
    for row in rows:
        framed.add_row(*(Text(cell, style=_CELL_STYLES.get(cell, "")) for cell in row))
    return framed


def _console(stream: TextIO) -> Console | None:
    if not stream.isatty():
        return None
    from rich.console import Console

    return Console(file=stream, markup=False, highlight=False, emoji=False)
