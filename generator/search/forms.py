"""The form of a muGraph: its kernels, what their loops and splits cut. The best of each form."""

from __future__ import annotations

from collections.abc import Sequence

from mirage_kernels.generator.ir import Graph, Node
from mirage_kernels.generator.search.select import Ranked


def form_of(graph: Graph) -> str:
    """Return the form in words: `blocks split L, loop over L, store partial sums; then ...`."""
    kernels = [n for n in graph.nodes if n.op in ("block", "contract")]
    return "; then ".join(_kernel_form(n) for n in kernels)


def _kernel_form(node: Node) -> str:
    if node.body is None or node.body.space is None:
        return "library product"
    space, words = node.body.space, []
    words += [f"blocks split {axis.dim}" for axis in space.reduced]
    words += [f"loop over {space.loop.dim}"] if space.loop is not None else []
    if space.reduced:
        combines = node.body.of("combine", "combine_rescaled")
        words.append("combine" if combines else "store partial sums")
    return ", ".join(words) or "no loop"


def best_of_forms(ranked: Sequence[Ranked]) -> dict[str, Ranked]:
    """Return the first muGraph of every form, in the order of rank."""
    best: dict[str, Ranked] = {}
    for candidate in ranked:
        best.setdefault(form_of(candidate.graph), candidate)
    return best
