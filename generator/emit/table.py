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

    @property
    def symbol(self) -> str:
        """Name of the host function; that of the workspace has an ending of its own."""
        return f"{self.recipe}_{self.stem}"


@dataclass(frozen=True)
class AttentionEntry:
    """One attention kernel."""

    recipe: str
    dtype: str
    dims: Mapping[str, int]
    stem: str
    options: tuple[str, ...] = ()

    @property
    def symbol(self) -> str:
        """Name of the host function; that of the workspace has an ending of its own."""
        return f"{self.recipe}_{self.stem}"


def emit_table(
    arch: str, entries: Sequence[Entry], attention: Sequence[AttentionEntry] = ()
) -> str:
    """Return table.cpp; entries are listed in the order of their symbols, a line each."""
    writer = Writer()
    writer.line(f"// mirage-kernels generate RECIPE --arch {arch}")
    writer.line("//")
    for line in wrapped(ABOUT, WIDTH - len("// ")):
        writer.line(f"// {line}")
    writer.line()
    _list(writer, "KERNELS(PLAIN, SPACE)", [_row(e) for e in sorted(entries, key=_symbol)])
    rows = [_attention_row(e) for e in sorted(attention, key=_symbol)]
    _list(writer, "ATTENTION_KERNELS(ATTENTION)", rows)
    writer.line(f'#define ARCH "{arch}"')
    writer.line()
    writer.line('#include "table.h"')
    return writer.text()


def _symbol(entry: Entry | AttentionEntry) -> str:
    return entry.symbol


def _row(entry: Entry) -> list[str]:
    kind = "SPACE" if entry.workspace else "PLAIN"
    return [*_names(kind, entry), str(entry.max_tokens), _options(entry), *_dims(entry)]


def _attention_row(entry: AttentionEntry) -> list[str]:
    return [*_names("ATTENTION", entry), _options(entry), *_dims(entry)]


def _names(kind: str, entry: Entry | AttentionEntry) -> list[str]:
    return [f"{kind}({entry.recipe}", entry.stem, entry.dtype]


def _options(entry: Entry | AttentionEntry) -> str:
    return f'"{" ".join(entry.options)}"'


def _dims(entry: Entry | AttentionEntry) -> list[str]:
    return [f'{{"{name}", {size}}}' for name, size in entry.dims.items()]


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
