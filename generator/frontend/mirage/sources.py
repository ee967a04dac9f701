"""Sources of a muGraph: its Triton program, its CUDA kernel, as far as the planner goes.

The planner streams weights `[N, K]` past rows of tokens. Inputs that lie otherwise are transposed
by the program's host function `execute_mugraph`, which takes tensors as `new_input` declared them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from mirage_kernels.generator.build.compile import DEFAULT_ARCH
from mirage_kernels.generator.emit.cuda import Kernel, emit_cuda
from mirage_kernels.generator.emit.part import Header
from mirage_kernels.generator.emit.triton import emit_triton
from mirage_kernels.generator.errors import MirageError, PlanError
from mirage_kernels.generator.frontend.mirage.running import Runnable
from mirage_kernels.generator.frontend.positional.lower import Lowered
from mirage_kernels.generator.ir import (
    Graph,
    Node,
    TensorType,
    Value,
    check,
)
from mirage_kernels.generator.plan.lower import tile_program
from mirage_kernels.generator.plan.threads import with_threads
from mirage_kernels.generator.records.headers import mugraph_words
from mirage_kernels.generator.schedules.choose import variants
from mirage_kernels.generator.target import target

NAME = "mugraph"  # of the emitted functions


def generate_triton_program(graph: Runnable, target_cc: int | None = None) -> dict[str, str]:
    """Return {"code": the Triton program}; `target_cc` is taken and not needed."""
    return {"code": triton_text(graph)}


def generate_cuda_program(
    graph: Runnable,
    target_cc: int | None = None,
    input_strides: Sequence[Sequence[int]] | None = None,
    **others: object,
) -> dict[str, str]:
    """Return {"code": the CUDA source} of the default architecture's kernel.

    The kernel is made for csrc/tile and called through the library's dispatch; Mirage's other
    options are taken and decided by the planner.
    """
    kernel, _ = planned(graph)
    return {"code": emit_cuda(kernel)}


def triton_text(graph: Runnable) -> str:
    """Return a Triton program; its function `execute_mugraph` takes tensors as declared."""
    kernel, lowered = planned(graph)
    arguments, lines = [], []
    inputs = zip(lowered.graph.inputs, lowered.inputs, kernel.program.inputs, strict=True)
    for node, layout, operand in inputs:
        arguments.append(node.name)
        theirs = [name for row in layout for name in row]
        extents = ", ".join(str(node.out.type.dim(name).size) for name in theirs)
        order = tuple(theirs.index(name) for name in operand.type.names)
        turned = "" if list(order) == sorted(order) else f".permute{order}.contiguous()"
        lines.append(f"    {node.name} = {node.name}.reshape({extents}){turned}")
    return emit_triton(kernel) + "\n".join(
        [
            "",
            "",
            f"def execute_mugraph({', '.join(arguments)}):",
            '    """Return the results for tensors as `new_input` declared them."""',
            *lines,
            f"    return [{NAME}({', '.join(arguments)})]",
            "",
        ]
    )


def planned(graph: Runnable) -> tuple[Kernel, Lowered]:
    """Return the first kernel that can be planned: of the graph, or of the muGraphs found.

    Raises PlanError with the reason for the best one when there is none.
    """
    first: MirageError | None = None
    for choice in graph.choices():
        lowered = choice.lowered()
        try:
            program = tile_program(NAME, with_threads(streamed(lowered)))
            schedules = variants(program, target(DEFAULT_ARCH))
        except PlanError as error:
            first = first or error
            continue
        dims = "_".join(f"{d.name}{d.size}" for d in program.output.type.dims)
        paragraphs = [("muGraph", mugraph_words(lowered.graph))]
        header = Header("mirage_kernels.generator: superoptimize", dims, paragraphs)
        storage = lowered.graph.inputs[0].out.type.dtype
        return Kernel(program, schedules, storage, header), lowered
    assert first is not None
    raise PlanError(
        f"no kernel can be planned yet: {first.sentence}",
        "the planner takes one kernel that streams a weight in a loop; run it on CPU tensors",
    ) from first


def streamed(lowered: Lowered) -> Graph:
    """Return the graph as the planner wants it: tokens dynamic, the loop's dim last in memory."""
    graph = lowered.graph
    loops = {
        n.body.space.loop.dim for n in graph.blocks if n.body and n.body.space and n.body.space.loop
    }
    others = {d for n in graph.inputs[1:] for d in n.out.type.names}
    tokens = set(graph.inputs[0].out.type.names) - others - loops

    def type_of(type_: TensorType, *, ordered: bool) -> TensorType:
        dims = [replace(d, dynamic=d.name in tokens) for d in type_.dims]
        if ordered:
            dims.sort(key=lambda d: (d.name in loops, not d.dynamic))
        return TensorType(tuple(dims), type_.dtype)

    def node_of(node: Node, *, top: bool) -> Node:
        ordered = node.op in ("input", "output") or (top and node.op == "block")
        outs = tuple(Value(v.name, type_of(v.type, ordered=ordered)) for v in node.outs)
        body = node.body
        if body is not None:
            body = replace(body, nodes=tuple(node_of(n, top=False) for n in body.nodes))
        return replace(node, outs=outs, body=body)

    return check(replace(graph, nodes=tuple(node_of(n, top=True) for n in graph.nodes)))
