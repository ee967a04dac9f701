"""Kernels of muGraphs that superoptimize found: their records, sources and program in a folder.

Extents are those that were recorded. Where a fast schedule serves any number of rows the kernel
does, and programs with other numbers of them share it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any

from mirage_kernels.generator.build.compile import DEFAULT_ARCH
from mirage_kernels.generator.errors import MirageError, PlanError
from mirage_kernels.generator.frontend.mirage.optimize import MuGraph, recipe_of, storage_of
from mirage_kernels.generator.frontend.mirage.running import TORCH_NAMES
from mirage_kernels.generator.frontend.positional.lower import Layout, flat, sizes_of
from mirage_kernels.generator.frontend.positional.program import Tensor
from mirage_kernels.generator.ir import Graph, Node, Value, retile
from mirage_kernels.generator.meaning.cost import estimate
from mirage_kernels.generator.partition.document import Document, write_program
from mirage_kernels.generator.pipeline import Clock, Result, result_of
from mirage_kernels.generator.plan.threads import with_threads
from mirage_kernels.generator.recipe import Recipe, Shape
from mirage_kernels.generator.records.folder import write
from mirage_kernels.generator.records.sources import FAST, plan_for
from mirage_kernels.generator.request import Request
from mirage_kernels.generator.schedules.schedule import Subject
from mirage_kernels.generator.search.select import Candidates, Ranked
from mirage_kernels.generator.target import target

ANY_ROWS = 2**20  # bound of how many rows a kernel takes


@dataclass(frozen=True)
class Kernel:
    """The kernel of a recorded graph, and the document of the program that runs it."""

    result: Result
    document: dict[str, Any]

    def write(self, folder: Path) -> list[Path]:
        """Write its record, sources and document below a folder and return their paths."""
        return [*write([self.result], folder), write_program(self.document, folder)]


def kernel_of(
    found: MuGraph, name: str, inputs: Sequence[str] = (), catalogs: tuple[Path, ...] = ()
) -> Kernel:
    """Make the kernel of the first muGraph that has one; `inputs` names what the program takes.

    `catalogs` are files of measured knobs (see `Request`). Raises MirageError for names that are
    none, PlanError where no muGraph has a kernel.
    """
    program, reason = found.program, "no muGraph was found"
    names = [*inputs] or [n.name for n in found.spec.graph.inputs]
    if not all(n.isidentifier() for n in (name, *names)) or len({*names}) != len(program.inputs):
        raise MirageError(
            f"{name}({', '.join(names)}) is no name of a program and its {len(program.inputs)} "
            "inputs",
            'write generate_kernels("DIR", "attention", inputs=["q", "k", "v"])',
        )
    if any(out.strides for out in program.outputs):
        raise MirageError("a kernel's result is row-major", "leave out mark_output's strides")
    for alike in _alike(found.candidates):
        result = _result(alike, name, catalogs)
        if not result.record.no_plan:
            return Kernel(result, _document(result, alike[0], names))
        reason = result.record.no_plan
    raise PlanError(f"{name}: {reason}")


def _alike(candidates: Sequence[MuGraph]) -> list[list[MuGraph]]:
    """Return muGraphs in groups that have the same dims: those of a checkpoint split them."""
    groups: dict[object, list[MuGraph]] = {}
    for one in candidates:
        sizes = tuple(sorted(sizes_of(one.gate.spec).items()))
        groups.setdefault((one.found.inputs, one.found.outputs, sizes), []).append(one)
    return list(groups.values())


def _result(alike: Sequence[MuGraph], name: str, catalogs: tuple[Path, ...]) -> Result:
    """Make the kernel of the first of muGraphs with the same dims that has one."""
    first = alike[0]
    recipe = replace(recipe_of(first.spec), name=name, summary=f"{name}, recorded with mi")
    graphs, gate = [_with_own_names(one.found.graph) for one in alike], first.gate
    (rows,) = recipe.dynamic or ("",)
    subjects = (Subject(name, _counting(g, rows), target(DEFAULT_ARCH)) for g in graphs)
    if any(map(_is_fast, subjects)):
        graphs = [_counting(graph, rows) for graph in graphs]
        gate = replace(gate, spec=_counting(gate.spec, rows))
        recipe = replace(recipe, dynamic={rows: ANY_ROWS})
    else:
        recipe = replace(recipe, dynamic={})
    candidates = Candidates(gate, [*_ranked(graphs)], first.counts, first.proved)
    storage = storage_of(first.spec)
    request = Request(recipe, _shape(recipe, first), storage, DEFAULT_ARCH, catalogs)
    return result_of(request, candidates, clock=Clock(), progress=lambda event: None)


def _is_fast(subject: Subject) -> bool:
    with suppress(PlanError):
        plan_for(replace(subject, graph=with_threads(subject.graph)), FAST)
        return True
    return False


def _ranked(graphs: Sequence[Graph]) -> Iterator[Ranked]:
    for i, graph in enumerate(graphs):
        yield Ranked(graph, estimate(graph, sizes_of(graph), target(DEFAULT_ARCH)), i)


def _shape(recipe: Recipe, found: MuGraph) -> Shape:
    sizes = sizes_of(found.spec.graph)
    return Shape("a graph recorded with mi", {d: sizes[d] for d in recipe.static_dims})


def _with_own_names(graph: Graph) -> Graph:
    """Return a graph whose results are called otherwise than what blocks compute: as in a file."""
    inner = {name for n in graph.blocks if n.body is not None for name in n.body.values}
    taken, names = inner | {*graph.values}, dict[str, str]()
    for name in inner.intersection(graph.outputs):
        own = (f"{name}_out{'_' * i}" for i in count())
        names[name] = next(n for n in own if n not in taken)
    nodes = (
        replace(
            node,
            args=tuple(names.get(a, a) for a in node.args),
            outs=tuple(replace(v, name=names.get(v.name, v.name)) for v in node.outs),
        )
        for node in graph.nodes
    )
    outputs = tuple(names.get(o, o) for o in graph.outputs)
    return replace(graph, nodes=tuple(nodes), outputs=outputs) if names else graph


def _counting(graph: Graph, rows: str) -> Graph:
    """Return a graph that takes any number of rows."""

    def retyped(node: Node, *, whole: bool) -> Node:
        outs = []
        for value in node.outs:
            dims = (replace(d, dynamic=d.dynamic or d.name == rows) for d in value.type.dims)
            if whole:
                dims = (replace(d, size=ANY_ROWS) if d.name == rows else d for d in dims)
            outs.append(Value(value.name, replace(value.type, dims=tuple(dims))))
        body = node.body
        if body is not None:  # its own extents follow from those of what it takes
            body = replace(body, nodes=tuple(retyped(n, whole=False) for n in body.nodes))
        return replace(node, outs=tuple(outs), body=body)

    nodes = tuple(retyped(node, whole=True) for node in graph.nodes)
    return retile(replace(graph, nodes=nodes), {})


def _document(result: Result, found: MuGraph, names: Sequence[str]) -> dict[str, Any]:
    """Return the document of the program: one kernel."""
    record, graph, lowered = result.record, found.found.graph, found.found
    program, sizes = found.program, sizes_of(graph)
    for name, layout in zip(graph.outputs, lowered.outputs, strict=True):
        assert graph.values[name].type.names == flat(layout), "results are stored row-major"
    results = [{"value": f"result_{i}"} for i in range(len(program.outputs))]
    step = {
        "kernel": f"{record.recipe}_{record.stem}",
        "inputs": [
            {"value": name, "one": False} | _placed(layout, node.out.type.names, sizes)
            for name, node, layout in zip(names, graph.inputs, lowered.inputs, strict=True)
        ],
        "results": [r | _tensor(t) for r, t in zip(results, program.outputs, strict=True)],
        "last": [],
    }
    inputs = [{"name": n} | _tensor(t) for n, t in zip(names, program.inputs, strict=True)]
    returns: dict[str, Any] = results[0] if len(results) == 1 else {"tuple": results}
    own, ways = (record.recipe, record.dtype, record.arch), [{"most": {}, "steps": [step]}]
    return asdict(Document(*own, inputs, returns, ways))


def _tensor(tensor: Tensor) -> dict[str, Any]:
    return {"shape": [*tensor.dims], "dtype": TORCH_NAMES[tensor.dtype]}


def _placed(layout: Layout, stored: Sequence[str], sizes: Mapping[str, int]) -> dict[str, Any]:
    """Return the shape that a program gives an input, and the order of its dims in the kernel."""
    given = flat(layout)
    placed: dict[str, Any] = {"shape": [sizes[d] for d in given]}
    if given != tuple(stored):
        placed["order"] = [given.index(d) for d in stored]
    return placed
