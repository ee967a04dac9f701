"""Which products are worth a kernel: those of fast schedules, and those that nobody does faster."""

from __future__ import annotations

from mirage_kernels.generator.frontend.editing import CASTS, is_view, upstream
from mirage_kernels.generator.frontend.export import operator_of
from mirage_kernels.generator.meaning.cost import CHEAP
from mirage_kernels.generator.partition.groups import Kind
from mirage_kernels.generator.partition.parts import Part
from mirage_kernels.generator.partition.products import (
    factors,
    has_few_columns,
    is_batched,
    is_quantized,
    is_wider,
    products_of,
)
from mirage_kernels.generator.pipeline import Result
from mirage_kernels.generator.plan.lower import tile_program
from mirage_kernels.generator.plan.program import Do, Layout
from mirage_kernels.generator.records.record import KernelRecord

OF_FEW_TOKENS, OF_MANY = "sliced_k", ("register_operand", "cluster_split_k")


def is_of_few(part: Part) -> bool:
    """Say whether only fast schedules serve a part: weights by rows of a static number."""
    return part.kind is Kind.PRODUCT and _is_fixed(part) and not _is_batched(part)


def _is_fixed(part: Part) -> bool:
    """Say whether all extents of a product are static: there is the general schedule only then."""
    return _of_weights(part) and not part.is_dynamic


def is_slow(result: Result, part: Part) -> bool:
    """Say whether another cut multiplies weights faster, or PyTorch does.

    So it is where there is the general schedule only, or behind what is computed of the rows, for
    64 of these, one that is made for few or that computes functions; not where PyTorch would write
    operands anew, in fp32. Products by several matrices are general in any case: those are slow
    that are more than one kernel.
    """
    if result.record.no_plan:
        return True
    variants = result.record.variants
    alone = part.siblings[0] if part.siblings else part
    last = variants[-1].schedule
    few = _computes_in_front(alone) and (
        last == OF_FEW_TOKENS or (last in OF_MANY and _takes_functions(result.record))
    )
    one = len(result.record.graph.blocks) == 1
    if part.kind is not Kind.PRODUCT or not _of_weights(part):
        return False
    return few or not (is_fast(result) or (one and _is_general(result, part)))


def _computes_in_front(part: Part) -> bool:
    """Say whether a product takes something that its kernel computes, not of weights alone."""
    own, trace, nodes = {*part.computing}, part.trace, part.nodes
    every = (a for n in products_of(nodes) for a in factors(n))
    taken = (a for a in every if not is_quantized(trace, a, nodes))
    return any(own & upstream(a, {*part.nodes}) for a in taken)


def _takes_functions(record: KernelRecord) -> bool:
    """Say whether every block of a fast schedule computes functions of all its tokens.

    64 rows of linear(silu(x)) took 9.3 us so, torch.compile's two kernels 6.9 (1024 -> 2048, H200).
    """
    loop = tile_program(record.recipe, record.graph, record.arch).loop
    maps = (s for s in loop if s.do is Do.MAP and s.layout is Layout.TOKENS)
    return any(s.op not in (*CHEAP, "div") for s in maps)


def _is_general(result: Result, part: Part) -> bool:
    """Say whether a general kernel is as fast as others that there could be."""
    return _is_batched(part) or has_few_columns(result.request.recipe)


def _is_batched(part: Part) -> bool:
    """Say whether all products of a part are by several matrices: only general kernels do that."""
    return all(map(is_batched, products_of(part.nodes)))


def is_fast(result: Result) -> bool:
    """Say whether a kernel is a fast schedule's."""
    variants = result.record.variants
    return not result.record.no_plan and all(v.schedule != "general" for v in variants)


def _of_weights(part: Part) -> bool:
    """Say whether products take inputs of static extents as they are, or casts that round them.

    Those of 8 bits they take converted and scaled.
    """
    taken = [a for n in products_of(part.nodes) for a in factors(n)]
    if any(is_quantized(part.trace, a, part.nodes) for a in taken):
        return True
    if any(a in part.nodes and operator_of(a) in CASTS and is_wider(part.trace, a) for a in taken):
        return False
    while views := [n for n in taken if n in part.nodes and is_view(n)]:
        taken = [n for n in taken if n not in views] + [n.all_input_nodes[0] for n in views]
    weights = [n for n in taken if n in part.trace.inputs]
    return any(all(isinstance(s, int) for s in part.trace.shape(n)) for n in weights)
