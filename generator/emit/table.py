"""The dispatch table of everything emitted for one architecture, as one C++ file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from mirage_kernels.generator.emit.writer import WIDTH, Writer


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
    """Return table.cpp; entries are listed in the order of their symbols."""
    ordered = sorted(entries, key=lambda e: e.symbol)
    attending = sorted(attention, key=lambda e: e.symbol)
    writer = Writer()
    writer.line(f"// mirage-kernels generate RECIPE --arch {arch}")
    writer.line("//")
    writer.line("// Which kernel serves which recipe, element type and static extents.")
    writer.line()
    writer.line('#include "launch.h"')
    writer.line()
    writer.line("namespace mirage {")
    writer.line("namespace generated {")
    for entry in ordered:
        writer.line(f"cudaError_t {entry.symbol}(const LaunchArgs&, cudaStream_t);")
        if entry.workspace:
            writer.line(f"int64_t {entry.symbol}_workspace(const LaunchArgs&);")
    for one in attending:
        writer.line(f"cudaError_t {one.symbol}(const AttentionArgs&, cudaStream_t);")
        writer.line(f"int64_t {one.symbol}_workspace(const AttentionArgs&);")
    writer.line("}  // namespace generated")
    writer.line()
    with _array(writer, "Kernel kKernels", len(ordered)):
        for entry in ordered:
            writer.line(f'{{"{entry.recipe}", "{entry.dtype}", {_dims(entry.dims)},')
            call, name = f" generated::{entry.symbol},", f' "{entry.recipe}/{entry.stem}",'
            fits = len(writer.unit) * writer.depth + len(call + name) <= WIDTH
            for text in [call + name] if fits else [call, name]:
                writer.line(text)
            space = f", generated::{entry.symbol}_workspace" if entry.workspace else ""
            writer.line(f' {entry.max_tokens}, "{" ".join(entry.options)}"{space}}},')
    writer.line(f"const int kKernelCount = {len(ordered)};")
    writer.line()
    _attention(writer, attending)
    writer.line(f'const char* const kArch = "{arch}";')
    writer.line()
    writer.line("}  // namespace mirage")
    return writer.text()


def _dims(dims: Mapping[str, int]) -> str:
    """Return static extents and how many there are."""
    sizes = ", ".join(f'{{"{name}", {size}}}' for name, size in dims.items())
    return f"{{{sizes}}}, {len(dims)}"


def _attention(writer: Writer, entries: Sequence[AttentionEntry]) -> None:
    """Write the table of attention."""
    with _array(writer, "AttentionKernel kAttentionKernels", len(entries)):
        for entry in entries:
            call = f"generated::{entry.symbol}"
            writer.line(f'{{"{entry.recipe}", "{entry.dtype}", {_dims(entry.dims)},')
            writer.line(f" {call},")
            writer.line(f" {call}_workspace,")
            writer.line(f' "{entry.recipe}/{entry.stem}", "{" ".join(entry.options)}"}},')
    writer.line(f"const int kAttentionKernelCount = {len(entries)};")
    writer.line()


@contextmanager
def _array(writer: Writer, declared: str, entries: int) -> Iterator[None]:
    """Write an array around its entries; it has an element even where there is none."""
    if not entries:
        writer.line(f"const {declared}[] = {{{{}}}};  // none")
        yield
        return
    with writer.block(f"const {declared}[] = {{", "};"):
        yield
