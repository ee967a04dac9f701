"""The abstract reading: every value of a graph as a term that forgets indices."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mirage_kernels.generator.ir import Graph, Kind, Node, number_text, parts_of
from mirage_kernels.generator.ir.ops import MAXIMA
from mirage_kernels.generator.meaning.terms import Terms
from mirage_kernels.generator.meaning.walk import Reading, Rule, reading, results

# Summing a dim whole is summing within tiles, over the loop's steps, over the blocks of a reduced
# grid axis: one factor for each.
PARTS = ("tile", "loop", "grid")


def summed(terms: Terms, term: int, dim: str, parts: Sequence[str] = PARTS) -> int:
    """Return the term of the sum of `term` along `dim`, or along a part of that sum."""
    for part in parts:
        term = terms.mul(term, terms.leaf("sum", dim, part))
    return term


def largest(terms: Terms, term: int, dim: str, parts: Sequence[str] = PARTS) -> int:
    """Return the term of the maximum of `term` along `dim`, or along a part of it.

    Maxima commute as sums do: they are products of the ranked value and a factor for each part.
    """
    product, *more = terms.table[term]
    atoms = list(terms.factors(product))
    ranked = [atom for atom in atoms if atom[:2] == ("fn", "ranked")]
    is_maximum = not more and len(ranked) == 1 and all(a[0] == "max" or a in ranked for a in atoms)
    term = term if is_maximum else terms.function("ranked", term)
    for part in parts:
        term = terms.mul(term, terms.leaf("max", dim, part))
    return term


def reduced(terms: Terms, op: str, term: int, dim: str, parts: Sequence[str]) -> int:
    """Return the term of a sum or a maximum along a dim, or along a part of it."""
    return (largest if op in MAXIMA else summed)(terms, term, dim, parts)


def elementwise(terms: Terms, op: str, args: Sequence[int]) -> int:
    """Return the term of an elementwise op."""
    rule = _LAWFUL.get(op)
    return rule(terms, *args) if rule else terms.function(op, *args)


def _minus(terms: Terms, a: int) -> int:
    return terms.mul(a, terms.leaf("const", "-1"))


def _where(terms: Terms, condition: int, a: int, b: int) -> int:
    """Return where(condition, a, b); with 0 for b a mask, which products and sums may pass."""
    if b == terms.leaf("const", number_text(0)):
        return terms.mul(a, terms.function("where", condition))
    return terms.function("where", condition, a, b)


_LAWFUL: dict[str, Callable[..., int]] = {
    "add": lambda t, a, b: t.add(a, b),
    "mul": lambda t, a, b: t.mul(a, b),
    "div": lambda t, a, b: t.div(a, b),
    "sub": lambda t, a, b: t.add(a, _minus(t, b)),
    "neg": _minus,
    "square": lambda t, a: t.mul(a, a),
    "rsqrt": lambda t, a: t.div(t.one, t.function("sqrt", a)),
    "max": lambda t, a, b: t.function("max", min(a, b), max(a, b)),
    "both": lambda t, a, b: t.function("both", min(a, b), max(a, b)),
    "where": _where,
}


def source(terms: Terms, node: Node) -> int:
    """Return the term of a constant, an extent or positions."""
    return terms.leaf(node.op, number_text(node.value) if node.op == "const" else node.over)


def sum_parts(dim: str, *, looped: bool, split: bool) -> tuple[str, ...]:
    """Return which parts of a sum along `dim` an op does, on tiles cut by the loop or a split.

    The rest is done by `accum` and by the combine of the blocks' partial sums.
    """
    if looped:
        return PARTS[:1]
    return PARTS[:2] if split else PARTS


def accum_parts(*, split: bool) -> tuple[str, ...]:
    """Return which parts of a sum `accum` does, where blocks make partial sums or where not."""
    return ("loop",) if split else ("loop", "grid")


COMBINE_PARTS = ("grid",)


def abstract_reading(terms: Terms, block: Graph | None = None) -> Reading[int]:
    """Return the reading into `terms`, of a kernel graph or inside the block graph `block`."""
    space = block.space if block is not None else None
    loop = space.loop.dim if space is not None and space.loop is not None else None
    split = {a.dim for a in space.reduced} if space is not None else set[str]()
    cut: set[str] = set()  # values that have the loop's dim cut by the loop
    for made in block.nodes if block is not None and loop is not None else ():
        if made.loop_cut is not None if made.op == "input" else cut & {*made.args}:
            cut |= {v.name for v in made.outs if loop in v.type.names}

    def total(node: Node, args: Sequence[int]) -> list[int]:
        term = terms.mul(*args) if node.op == "contract" else args[0]
        if node.over.endswith(parts_of("")):
            whole = node.over.removesuffix(parts_of(""))
            return [reduced(terms, node.op, term, whole, COMBINE_PARTS)]
        looped = loop == node.over and not cut.isdisjoint(node.args)
        parts = sum_parts(node.over, looped=looped, split=node.over in split)
        return [reduced(terms, node.op, term, node.over, parts)]

    def nested(node: Node, args: Sequence[int]) -> list[int]:
        assert node.body is not None
        inner = abstract_reading(terms, node.body if node.op == "block" else block)
        return results(node.body, args, inner)

    def carried(node: Node, args: Sequence[int]) -> list[int]:
        if node.op.startswith("combine"):
            return [reduced(terms, node.op, args[0], node.over, COMBINE_PARTS)]
        parts = accum_parts(split=loop in split)
        return [reduced(terms, node.op, args[0], loop or "", parts)]

    rules: dict[Kind | str, Rule[int]] = {
        Kind.SOURCE: lambda node, args: [source(terms, node)],
        Kind.ELEMENTWISE: lambda node, args: [elementwise(terms, node.op, args)],
        Kind.CARRY: carried,
        Kind.GRAPH: nested,
        Kind.OUTPUT: lambda node, args: [args[0]],
        "last": lambda node, args: [args[0]],
        Kind.REDUCE: total,
        "contract": total,
        "peak": lambda node, args: [terms.function("peak", args[0])],
    }
    return reading(rules)


def target_term(terms: Terms, spec: Graph) -> int:
    """Return the term of a spec's result, its inputs by name."""
    inputs = [terms.leaf("input", n.name) for n in spec.inputs]
    return results(spec, inputs, abstract_reading(terms))[0]
