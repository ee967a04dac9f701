"""Where exponentials are summed up: the dims along which they need one peak."""

from __future__ import annotations

from mirage_kernels.generator.ir import OPS, Graph, Kind


def summed_along(graph: Graph, name: str) -> set[str]:
    """Return the dims along which an exp is summed up before its peak cancels.

    What is computed of sums with other peaks than this would not be relative to one of its own.
    """
    dims, powers = set[str](), {name: 1}
    for user in graph.nodes:  # operands first
        found = [powers.get(a, 0) for a in user.args]
        if not any(found):
            continue
        if user.op in ("sum", "contract"):
            dims.add(user.over)
        if user.op in ("mul", "contract"):
            power = sum(found)
        elif user.op == "div":
            power = found[0] - found[1]
        else:
            op = OPS[user.op]
            has_law = op.kind is not Kind.ELEMENTWISE or op.arity > 1 or op.name == "neg"
            power = max(found) if has_law else 0
        powers |= dict.fromkeys((v.name for v in user.outs), power)
    return dims
