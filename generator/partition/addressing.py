"""Runs a kernel that reads or writes rows by an index as its program does, beside PyTorch's own.

The kernel is its recipe's reference between the rows that a kernel reads and those that it writes,
found as emitted kernels find them. So what a step says of tensors, index tensors, dims and ranges
is compared with the operators that the kernel stands for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import prod
from typing import TYPE_CHECKING, Any

from mirage_kernels.generator.errors import VerifyError
from mirage_kernels.generator.frontend.editing import is_view
from mirage_kernels.generator.ir import index_tensors
from mirage_kernels.generator.ir.indexed import RESULT
from mirage_kernels.generator.partition.indices import Step, rows_step
from mirage_kernels.generator.partition.pieces import is_join
from mirage_kernels.generator.partition.siblings import by_parts
from mirage_kernels.generator.partition.trace import Node
from mirage_kernels.generator.recipe import Recipe
from mirage_kernels.generator.tiles.indices import gathered, scattered
from mirage_kernels.program_steps import call, launch, rows

if TYPE_CHECKING:
    import torch

    from mirage_kernels.generator.partition.parts import Part

MOST_ELEMENTS = 2**26  # of all tensors: programs with larger ones are not run
CLOSE = 0.02  # 16-bit results, once rounded


def require_rows(part: Part, recipe: Recipe) -> None:
    """Raise VerifyError where a kernel's step differs from the nodes that it stands for."""
    import torch

    trace, values = part.trace, dict[str, Any]()
    sources = [n for n in part.taken if n not in part.gathers]
    if sum(prod(map(int, n.meta["val"].shape)) for n in sources) > MOST_ELEMENTS:
        return
    generator = torch.Generator().manual_seed(0)
    sizes = {id(x.index): (int(x.table.meta["val"].shape[x.dim]), x) for x in part.indexed.values()}
    for node in sources:
        value = node.meta["val"]
        if id(node) in sizes:
            count, access = sizes[id(node)]
            values[trace.name(node)] = _numbers(value, count, generator, wraps=access.wraps)
        else:
            made = torch.randn(tuple(value.shape), generator=generator)
            values[trace.name(node)] = made.to(value.dtype)
    extents = {dim: own for dim, (own, _) in trace.extents.items()}
    mine, theirs = ({k: v.clone() for k, v in values.items()} for _ in range(2))
    for step in _steps(part, addressed=True):
        if "rows" in step:
            rows(step, mine)
        else:
            call(step, mine, extents)
    launch(
        part.step(recipe, "kernel"),
        mine,
        extents,
        lambda given, into, _: by_reference(recipe, given, into),
    )
    behind, others = _behind(part)
    theirs |= {trace.name(n): _unknown(n.meta["val"]) for n in others}
    for step in (*_steps(part, addressed=False), *map(trace.call, behind)):
        call(step, theirs, extents)
    whole = {trace.name(p.whole) for p in part.places.values() if p.write}
    own = {trace.name(n) for n in part.results if n not in part.places}
    for name in sorted(whole | own):
        found, wanted = (x[name].float() for x in (mine, theirs))
        known = ~wanted.isnan() if others else ...
        if not torch.allclose(found[known], wanted[known], atol=CLOSE, rtol=CLOSE):
            raise VerifyError(f"{recipe.name} differs from {trace.function.named} in {name}")


def _unknown(value: Any) -> torch.Tensor:
    """Return what stands for a value that another kernel computes: no numbers."""
    import torch

    fill = torch.nan if value.is_floating_point() else 0
    return torch.full(tuple(value.shape), fill, dtype=value.dtype)


def _numbers(value: Any, rows: int, generator: torch.Generator, *, wraps: bool) -> torch.Tensor:
    """Return an index tensor that says no row twice, if there are enough; some from the last."""
    import torch

    count = int(value.numel())
    drawn = torch.randperm(rows, generator=generator)[:count]
    drawn = drawn.repeat(-(-count // max(1, len(drawn))))[:count]
    if wraps:
        drawn[1::2] -= rows
    return drawn.reshape(tuple(value.shape)).to(value.dtype)


def by_reference(
    recipe: Recipe, given: Sequence[torch.Tensor], into: Sequence[torch.Tensor | None]
) -> list[torch.Tensor]:
    """Compute a kernel by its recipe's reference: of parts of rows, or of rows that indices say."""
    import torch

    if recipe.row_parts:
        pairs = zip(by_parts(recipe, given), into, strict=True)
        return [x if place is None else place.copy_(x) for x, place in pairs]
    names = list(recipe.inputs)
    tensors = dict(zip(names, given, strict=False))
    taken = [x.by for x in index_tensors(recipe.indexed)]
    index = dict(zip(taken, given[len(names) :], strict=True))
    sizes = _sizes(recipe, tensors, index)
    of = {x.tensor: x for x in recipe.indexed}
    for name in (n for n in names if n in of):
        own, dims = of[name], recipe.inputs[name].partition(":")[0].split()
        pair = tensors[name].double().numpy(), index[own.by].numpy()
        found = gathered(own, dims, pair, [sizes[d] for d in dims])
        tensors[name] = torch.from_numpy(found).to(tensors[name].dtype)
    made = list(recipe.reference_results(*(tensors[n] for n in names)))
    for i, (text, place) in enumerate(zip(recipe.results, into, strict=True)):
        name = f"{RESULT}{i}"
        if place is not None and name in of:
            pair = place.double().numpy(), index[of[name].by].numpy()
            done = scattered(of[name], text.split(), pair, made[i].double().numpy())
            made[i] = place.copy_(torch.from_numpy(done))
        elif place is not None:
            made[i] = place.copy_(made[i])
    return made


def _sizes(
    recipe: Recipe, tensors: Mapping[str, torch.Tensor], index: Mapping[str, torch.Tensor]
) -> dict[str, int]:
    """Return the extents of dims: of inputs that no index addresses, and of index tensors."""
    of, found = {x.tensor: x for x in recipe.indexed}, dict[str, int]()
    for name, tensor in tensors.items():
        dims = recipe.inputs[name].partition(":")[0].split()
        if name in of:
            dims = [d for d in dims if d not in of[name].dims]
            dims.insert(of[name].place, of[name].rows.name)
        found |= dict(zip(dims, tensor.shape, strict=True))
    for one in recipe.indexed:
        found |= dict(zip(one.dims, index[one.by].shape, strict=True))
    return found


def _steps(part: Part, *, addressed: bool) -> Iterator[Step]:
    """Yield the steps from tables to what a part takes of them, and to its results."""
    trace = part.trace
    for access in {x.node: x for x in part.gathers.values()}.values():
        yield rows_step(trace, access) if addressed else trace.call(access.node)
    for node in part.gathers:
        way = list[Node]()
        while is_view(node):
            way.insert(0, node)
            node = node.all_input_nodes[0]
        yield from (trace.call(n) for n in way)
    if not addressed:
        yield from (trace.call(n) for n in part.nodes)


def _behind(part: Part) -> tuple[list[Node], set[Node]]:
    """Return what is between results and the writes by an index that they go into: joins and views.

    The second are what other kernels compute that is joined with them.
    """
    trace, written = part.trace, [p for p in part.places.values() if p.write]
    wanted, others = {p.call for p in written}, set[Node]()
    todo, given = [*wanted], {*part.results, *part.taken}
    while todo:
        for node in (n for n in todo.pop().all_input_nodes if n not in given):
            if is_join(node) or is_view(node):
                wanted.add(node)
                todo.append(node)
            else:
                others.add(node)
    return [n for n in trace.nodes if n in wanted], others
