"""Specs of several programs that share nothing but inputs: taken apart, their muGraphs united.

Each is searched by itself. United they are the kernels of one muGraph, of which none takes what
another makes, so that one launch runs all: horizontal fusion.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import accumulate

from mirage_kernels.generator.errors import SearchError
from mirage_kernels.generator.ir import Graph, Node, check


def independent_specs(spec: Graph, counts: Sequence[int]) -> list[Graph]:
    """Return the specs of programs that have so many of a spec's results each; itself for none.

    Raises SearchError where two of them compute a value in common.
    """
    if not counts:
        return [spec]
    ends = [*accumulate(counts)]
    if ends[-1] != len(spec.outputs):
        raise SearchError(f"{sum(counts)} results of {len(spec.outputs)} are of some program")
    pairs = zip((0, *ends), ends, strict=False)
    found = [_of_results(spec, spec.outputs[first:end]) for first, end in pairs]
    computed = [n.name for one in found for n in one.nodes if n.args]
    twice = next((name for name in computed if computed.count(name) > 1), "")
    if twice:
        raise SearchError(f"two of {len(counts)} independent programs compute {twice}")
    return found


def _of_results(spec: Graph, results: Sequence[str]) -> Graph:
    """Return what a spec computes some of its results from."""
    needed = {*results}
    for node in reversed(spec.nodes):
        if node.name in needed:
            needed.update(node.args)
    return replace(
        spec, nodes=tuple(n for n in spec.nodes if n.name in needed), outputs=(*results,)
    )


def united(spec: Graph, graphs: Sequence[Graph]) -> Graph:
    """Return the muGraphs of a spec's independent programs as one, kernel behind kernel.

    Raises SearchError for a program of several kernels: those depend on one another.
    """
    names = iter((graphs[0].outputs[0], *spec.outputs[1:]))
    sources = {n.name: n for graph in graphs for n in graph.nodes if n.op != "block"}
    kernels, outputs = list[Node](), list[str]()
    for graph in graphs:
        if len(graph.blocks) != 1:
            raise SearchError(
                f"an independent program has {len(graph.blocks)} kernels, not one",
                "a launch runs kernels that take nothing of each other",
            )
        own = {name: next(names) for name in graph.outputs}
        kernels += _renamed(graph, own)
        outputs += own.values()
    ordered = [sources[n.name] for n in spec.nodes if n.name in sources]
    return check(replace(graphs[0], nodes=(*ordered, *kernels), outputs=(*outputs,)))


def _renamed(graph: Graph, own: dict[str, str]) -> Iterator[Node]:
    for node in graph.blocks:
        yield replace(node, outs=tuple(replace(v, name=own[v.name]) for v in node.outs))
