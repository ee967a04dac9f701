"""The abstract reading: every value of a graph as a term that forgets indices."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mirage_kernels.generator.ir import (
    Axis,
    Graph,
    Kind,
    Node,
    Phase,
    number_text,
    ops_of_kind,
    phases_of,
)
from mirage_kernels.generator.meaning.terms import Terms
from mirage_kernels.generator.meaning.walk import Reading, Rule, results

# Summing a dim whole is summing within tiles, then over the tiles: one factor for each.
PARTS = ("tile", "loop")


def summed(terms: Terms, term: int, dim: str, parts: Sequence[str] = PARTS) -> int:
    """Return the term of the sum of `term` along `dim`, or along a part of that sum."""
    for part in parts:
        term = terms.mul(term, terms.leaf("sum", dim, part))
    return term


def elementwise(terms: Terms, op: str, args: Sequence[int]) -> int:
    """Return the term of an elementwise op."""
    rule = _LAWFUL.get(op)
    return rule(terms, *args) if rule else terms.function(op, *args)


def _minus(terms: Terms, a: int) -> int:
    return terms.mul(a, terms.leaf("const", "-1"))


_LAWFUL: dict[str, Callable[..., int]] = {
    "add": lambda t, a, b: t.add(a, b),
    "mul": lambda t, a, b: t.mul(a, b),
    "div": lambda t, a, b: t.div(a, b),
    "sub": lambda t, a, b: t.add(a, _minus(t, b)),
    "neg": _minus,
    "square": lambda t, a: t.mul(a, a),
}


def source(terms: Terms, node: Node) -> int:
    """Return the term of a constant, an extent or positions."""
    return terms.leaf(node.op, number_text(node.value) if node.op == "const" else node.over)


def sum_parts(dim: str, phase: Phase | None, loop: Axis | None) -> tuple[str, ...]:
    """Return which parts of a sum along `dim` an op in this phase does.

    In the loop, a dim that the loop cuts is summed within the tile only; `accum` does the rest.
    """
    cut = loop is not None and loop.dim == dim and phase is Phase.LOOP
    return ("tile",) if cut else PARTS


def abstract_reading(terms: Terms, block: Graph | None = None) -> Reading[int]:
    """Return the reading into `terms`, of a kernel graph or inside the block graph `block`."""
    phases = phases_of(block) if block is not None else {}
    loop = block.space.loop if block is not None and block.space is not None else None

    def parts_of(node: Node) -> tuple[str, ...]:
        return sum_parts(node.over, phases.get(node.args[0]), loop)

    def contract(node: Node, args: Sequence[int]) -> list[int]:
        return [summed(terms, terms.mul(*args), node.over, parts_of(node))]

    def nested(node: Node, args: Sequence[int]) -> list[int]:
        assert node.body is not None
        inner = abstract_reading(terms, node.body if node.op == "block" else block)
        return results(node.body, args, inner)

    def accum(node: Node, args: Sequence[int]) -> list[int]:
        return [summed(terms, args[0], loop.dim if loop else "", ("loop",))]

    def lawful(node: Node, args: Sequence[int]) -> list[int]:
        return [elementwise(terms, node.op, args)]

    rules: dict[str, Rule[int]] = dict.fromkeys(ops_of_kind(Kind.ELEMENTWISE), lawful)
    rules |= {name: lambda node, args: [source(terms, node)] for name in ("const", "size", "iota")}
    rules |= {
        "sum": lambda node, args: [summed(terms, args[0], node.over, parts_of(node))],
        "contract": contract,
        "accum": accum,
        "output": lambda node, args: [args[0]],
        "block": nested,
        "thread": nested,
    }
    return Reading("abstract", rules)


def target_term(terms: Terms, spec: Graph) -> int:
    """Return the term of a spec's result, its inputs by name."""
    inputs = [terms.leaf("input", n.name) for n in spec.inputs]
    return results(spec, inputs, abstract_reading(terms))[0]
