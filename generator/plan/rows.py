"""Which values of a muGraph are computed of whole rows, and which are a number per token."""

from __future__ import annotations

from collections.abc import Mapping

from mirage_kernels.generator.ir import OPS, Graph, Kind, Phase
from mirage_kernels.generator.plan.program import Layout, Roles

COMPUTED = (Kind.ELEMENTWISE, Kind.REDUCE, Kind.CONTRACT)
READABLE = (Layout.ACCUM, Layout.ROW_SUMS)  # by the epilogue


def row_wise(body: Graph, roles: Roles, phases: Mapping[str, Phase | None]) -> set[str]:
    """Return the values of whole rows: before the loop, or of kernels without one."""
    found = set[str]()
    for node in body.nodes:
        place = roles.layout(node.out.type.names)
        if node.op == "output":
            whole = not roles.rows
        elif node.op == "input":
            early = node.loop_cut is None and bool(node.out.type.dims)
            whole = early and place not in (Layout.FACTORS, *READABLE)
        else:
            early = OPS[node.op].kind in COMPUTED and phases[node.name] is Phase.BEFORE
            whole = early and place not in READABLE
        found |= {node.name} if whole else set()
    return found


def token_numbers(body: Graph, roles: Roles) -> set[str]:
    """Return the inputs that are a number per token, and what is computed of such alone.

    Where there is a loop, epilogues read them.
    """
    found = set[str]()
    for node in body.nodes if roles.rows else ():
        known = {a for a in node.args if body.values[a].type.dims}
        given = node.op == "input" and node.loop_cut is None
        made = OPS[node.op].kind is Kind.ELEMENTWISE and known <= found
        if (given or made) and roles.layout(node.out.type.names) is Layout.TOKEN_SUMS:
            found.add(node.name)
    return found
