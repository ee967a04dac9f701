"""How elements that groups of rows have in common read in CUDA (csrc/tile/row_groups.cuh)."""

from __future__ import annotations

from collections.abc import Sequence

from mirage_kernels.generator.emit.statements import OTHER_TYPES, all_rows
from mirage_kernels.generator.emit.writer import Writer
from mirage_kernels.generator.ir import DType
from mirage_kernels.generator.plan.program import Statement, TileProgram


def type_text(s: Statement, program: TileProgram, depth: str, own: str = "T") -> str:
    """Return the type of a block's rows of which groups have one element, of so much depth.

    `own`: the kernel's own type.
    """
    of, roles = dict(program.operand(s).grouped), program.roles
    same = f", {of[roles.rows]}" if roles.rows in of else ""
    element = OTHER_TYPES.get(s.dtype, own)
    return f"tile::RowGroups<{element}, Config::kRows, {depth}, {of[roles.depth]}{same}>"


def copy_line(s: Statement, program: TileProgram, threads: str, behind: str = "") -> str:
    """Return the line that says from where threads copy elements that groups of rows have.

    `behind`: the first of those of a row, where a block has a part of the depth.
    """
    pitch = program.operand(s).in_memory[-1]
    where = f"{s.args[0]}{behind}, {pitch}, first_row, {all_rows(program)}"
    return f"auto {s.out}_early = tile::copy_of<{threads}>({s.out}_groups, {where});"


def write_work(
    writer: Writer, reads: Sequence[Statement], barrier: str, more: Sequence[str] = ()
) -> None:
    """Write the work that copies elements that groups of rows have, for all to see, and `more`."""
    names = {do: [f"{s.out}_early.{do}();" for s in reads] for do in ("prefetch", "ask", "keep")}
    writer.function("const auto prefetch_groups = [&] {", *names["prefetch"])
    writer.function("const auto ask_groups = [&] {", *names["ask"])
    writer.function("const auto keep_groups = [&] {", *more, *names["keep"], barrier)
    called = "args.constant_weights, prefetch_groups, ask_groups, keep_groups"
    writer.line(f"const auto early = tile::around_copies({called});")


def converted_type(s: Statement, program: TileProgram) -> str:
    """Return what rows of 8 bits are converted to: what they are multiplied by, if by numbers."""
    users = [u for u in program.loop if s.out in u.args]
    wide = {g.out for g in program.group_reads if g.dtype is DType.FP32}
    return "float" if all(wide & {*u.args} for u in users) else "T"
