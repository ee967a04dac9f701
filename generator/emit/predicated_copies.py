"""Where a load's tile begins and where its tensor ends: arguments of predicated copies."""

from __future__ import annotations

from mirage_kernels.generator.plan.program import Layout, Operand, Statement, TileProgram


def edge_text(s: Statement, operand: Operand, program: TileProgram) -> str:
    """Return the line that says where a load's tile begins and where its tensor ends."""
    roles, name = program.roles, operand.name
    if s.layout is Layout.DEPTH and operand.optional:
        return f"const auto {name}_edge = tile::optional_edge({name}, {roles.depth});"
    if s.layout is Layout.DEPTH:
        return f"const auto {name}_edge = tile::depth_edge<kEvenDepth>({name}, {roles.depth});"
    inner = roles.inner_of(s.type)
    stride = f"tile::Static<{roles.depth}>{{}}"
    if inner is not None:
        extent = f"{{0, {inner.name}, {roles.depth}}}"
        even = f"kEven{inner.name}"
    elif s.layout is Layout.ROWS:
        extent = f"{{first_row, {roles.rows}, {roles.depth}}}"
        even = "kEvenRows"
    elif program.produces and program.stacked:
        where = f"args.row_strides[{operand.index}], group, first_token, {roles.depth}"
        return f"const auto {name}_edge = tile::gathered_line<kEvenDepth>({name}, {where});"
    else:
        extent = f"{{first_token, {roles.tokens}, {roles.depth}}}"
        stride = f"args.row_strides[{operand.index}]"
        even = "false"
    return f"const auto {name}_edge = tile::edge<{even}, kEvenDepth>({name}, {stride}, {extent});"
