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


def emit_table(arch: str, entries: Sequence[Entry]) -> str:
    """Return table.cpp; entries are listed in the order of their symbols, a line each.

    `csrc/table.h` reads a list twice: to declare and to tabulate.
    """
    writer = Writer()
    writer.write(f"// mirage-kernels generate RECIPE --arch {arch}", "//")
    writer.write(*(f"// {line}" for line in wrapped(ABOUT, WIDTH - len("// "))), "")
    ordered = sorted(entries, key=lambda e: f"{e.recipe}_{e.stem}")
    for macro in ("KERNELS(PLAIN, SPACE)", "ATTENTION_KERNELS(ATTENTION)"):
        own = (e for e in ordered if e.reads_cache is macro.startswith("ATTENTION"))
        lines = [f"#define {macro}", *(line for entry in own for line in _row(entry))]
        writer.write(*(f"{line} \\" for line in lines[:-1]), lines[-1], "")
    writer.write(f'#define ARCH "{arch}"', "", '#include "table.h"')
    return writer.text()


def _row(entry: Entry) -> list[str]:
    """Return a row's macro, its extents on a line of their own if it is too long."""
    kind = "ATTENTION" if entry.reads_cache else "SPACE" if entry.workspace else "PLAIN"
    most = "" if entry.reads_cache else f", {entry.max_tokens}"  # attention's rows have none
    first = f"  {kind}({entry.recipe}, {entry.stem}, {entry.dtype}{most}"
    first += f', "{" ".join(entry.options)}",'
    dims = ", ".join(f'{{"{name}", {size}}}' for name, size in entry.dims.items()) + ")"
    fits = len(f"{first} {dims} \\") <= WIDTH
    return [f"{first} {dims}"] if fits else [first, f"      {dims}"]
