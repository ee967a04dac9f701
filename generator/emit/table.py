"""The dispatch table of everything emitted for one architecture, as one C++ file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mirage_kernels.generator.emit.writer import WIDTH, Writer, wrapped

ABOUT = (
    "Which kernel serves which recipe, element type and static extents. A row names recipe, file, "
    "element type, most tokens (0: any number; rows of attention have none), inputs that a call "
    "may leave out, and static extents. SPACE: the kernel needs a workspace."
)


@dataclass(frozen=True)
class Entry:
    """One kernel: what it serves and the host function that launches it.

    Above `max_tokens` the library runs PyTorch's own program (0: never). `options` names the
    recipe's inputs that a call may leave out.
    """

    recipe: str
    dtype: str
    dims: Mapping[str, int]
    stem: str
    max_tokens: int = 0
    options: tuple[str, ...] = ()
    workspace: bool = False  # whether a launch needs one
    reads_cache: bool = False  # whether a call's keys and values lie in a cache

    @property
    def symbol(self) -> str:
        """Name of the host function; that of the workspace has an ending of its own."""
        return f"{self.recipe}_{self.stem}"


def emit_table(arch: str, entries: Sequence[Entry]) -> str:
    """Return table.cpp; entries are listed in the order of their symbols, a line each."""
    writer = Writer()
    writer.line(f"// mirage-kernels generate RECIPE --arch {arch}")
    writer.line("//")
    for line in wrapped(ABOUT, WIDTH - len("// ")):
        writer.line(f"// {line}")
    writer.line()
    ordered = sorted(entries, key=lambda entry: entry.symbol)
    _list(writer, "KERNELS(PLAIN, SPACE)", [_row(e) for e in ordered if not e.reads_cache])
    _list(writer, "ATTENTION_KERNELS(ATTENTION)", [_row(e) for e in ordered if e.reads_cache])
    writer.line(f'#define ARCH "{arch}"')
    writer.line()
    writer.line('#include "table.h"')
    return writer.text()


def _row(entry: Entry) -> list[str]:
    """Return the arguments of a row's macro; rows of attention have no most tokens."""
    kind = "ATTENTION" if entry.reads_cache else "SPACE" if entry.workspace else "PLAIN"
    most = [] if entry.reads_cache else [str(entry.max_tokens)]
    options = f'"{" ".join(entry.options)}"'
    dims = [f'{{"{name}", {size}}}' for name, size in entry.dims.items()]
    return [f"{kind}({entry.recipe}", entry.stem, entry.dtype, *most, options, *dims]


def _list(writer: Writer, macro: str, rows: Sequence[Sequence[str]]) -> None:
    """Write a list of rows, which `csrc/table.h` reads twice: to declare and to tabulate."""
    lines = [f"#define {macro}"]
    for row in rows:
        whole = f"{writer.unit}{', '.join(row)})"
        fits = len(f"{whole} \\") <= WIDTH
        first, dims = [p for p in row if "{" not in p], [p for p in row if "{" in p]
        broken = [f"{writer.unit}{', '.join(first)},", f"{writer.unit * 3}{', '.join(dims)})"]
        lines += [whole] if fits else broken
    for line in lines[:-1]:
        writer.line(f"{line} \\")
    writer.line(lines[-1])
    writer.line()
