"""Enumeration of whole programs: one block graph, or two kernels with a tensor between them.

Each kernel is a block graph found by search or the library's matrix product. The space is cut
into tasks, one per setting of the last kernel, that run in any order in any number of processes;
results are merged in task order, so the outcome does not depend on `jobs`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field

from mirage_kernels.generator.ir import OPS, Graph, Kind
from mirage_kernels.generator.meaning.abstract import source, summed, target_term
from mirage_kernels.generator.meaning.terms import Terms
from mirage_kernels.generator.search.blocks import (
    BlockSearch,
    BlockSketch,
    Goal,
    Vocabulary,
)
from mirage_kernels.generator.search.settings import DimRoles, Setting, TensorInfo, settings

MIDDLE = "middle"  # the tensor between two kernels


@dataclass(frozen=True)
class LibrarySketch:
    """A library operator as a kernel: the matrix product of two tensors over a dim."""

    args: tuple[str, str]
    over: str
    dims: tuple[str, ...]


Kernel = BlockSketch | LibrarySketch


@dataclass(frozen=True)
class ProgramSketch:
    """A kernel graph without tile sizes: kernels in order, each but the last making `middle`."""

    kernels: tuple[Kernel, ...]


@dataclass(frozen=True)
class Limits:
    """Bounds of the search and whether to prune by abstract expression."""

    block_ops: int = 11  # of all kernels together
    first_ops: int = 7  # of the first of two kernels
    kernels: int = 2
    states: int = 200_000  # prefixes kept before the search gives up; a task may use an eighth
    prune_abstract: bool = True


@dataclass(frozen=True)
class Counts:
    """What a search did: prefixes kept, prefixes pruned by reason, graphs that reach the goal."""

    states: int = 0
    pruned: Counter[str] = field(default_factory=Counter)
    candidates: int = 0

    def plus(self, other: Counts) -> Counts:
        """Return the counts of both searches."""
        return Counts(
            self.states + other.states,
            self.pruned + other.pruned,
            self.candidates + other.candidates,
        )


@dataclass(frozen=True)
class _Program:
    """A spec as the search sees it; terms are interned anew in each process."""

    terms: Terms
    target: int
    tensors: tuple[TensorInfo, ...]
    vocabulary: Vocabulary
    roles: DimRoles
    dims: frozenset[str]


def _read(spec: Graph) -> _Program:
    terms = Terms()
    target = target_term(terms, spec)
    tensors = tuple(
        TensorInfo(n.name, n.out.type.names, terms.leaf("input", n.name)) for n in spec.inputs
    )
    sources = spec.of("const", "size", "iota")
    reduced = tuple(dict.fromkeys(n.over for n in spec.of("sum", "contract")))
    used = {n.op for n in spec.nodes}
    vocabulary = Vocabulary(
        tuple(op for op in OPS if op in used and OPS[op].kind is Kind.ELEMENTWISE),
        tuple(dict.fromkeys(n.over for n in spec.of("sum"))),
        tuple(dict.fromkeys(n.over for n in spec.of("contract"))),
        tuple((n.name, source(terms, n)) for n in sources if not n.out.type.dims),
    )
    tensors += tuple(
        TensorInfo(n.name, n.out.type.names, source(terms, n)) for n in sources if n.out.type.dims
    )
    dims = spec.values[spec.outputs[0]].type.names
    return _Program(terms, target, tensors, vocabulary, DimRoles(reduced, dims), frozenset(dims))


def search(
    spec: Graph, limits: Limits, *, jobs: int, progress: Callable[[int, int, Counts], None]
) -> tuple[list[ProgramSketch], Counts]:
    """Return every program within the limits whose term is the spec's, in canonical order.

    `progress(done, tasks, counts)` is called as tasks finish; before the tasks are known, with
    none. What the budget of states cut off is counted in `pruned["budget"]`; the outcome is the
    same for any `jobs` even then, because tasks are counted in order.
    """
    total = Counts()
    tasks = _tasks(spec, limits, lambda counts: progress(0, 0, counts))
    found: list[ProgramSketch] = []
    for done, (sketches, counts) in enumerate(_run_all(spec, limits, tasks, jobs), start=1):
        found += sketches
        total = total.plus(counts)
        progress(done, len(tasks), total)
        if total.states >= limits.states and done < len(tasks):
            total = total.plus(Counts(pruned=Counter(budget=len(tasks) - done)))
            break
    return list(dict.fromkeys(found)), total


Task = tuple[Kernel | None, Setting | None]  # first kernel (if two), setting of the last one


def _run_all(
    spec: Graph, limits: Limits, tasks: Sequence[Task], jobs: int
) -> Iterator[tuple[list[ProgramSketch], Counts]]:
    if jobs == 1:
        program = _read(spec)
        yield from (_run(program, limits, task) for task in tasks)
        return
    with ProcessPoolExecutor(jobs, initializer=_start_worker, initargs=(spec, limits)) as pool:
        yield from pool.map(_work, tasks, chunksize=4)


_worker: list[tuple[_Program, Limits]] = []


def _start_worker(spec: Graph, limits: Limits) -> None:
    _worker[:] = [(_read(spec), limits)]


def _work(task: Task) -> tuple[list[ProgramSketch], Counts]:
    program, limits = _worker[0]
    return _run(program, limits, task)


def _tasks(spec: Graph, limits: Limits, progress: Callable[[Counts], None]) -> list[Task]:
    """Cut the search space: first every program of one kernel, then those of two."""
    program = _read(spec)
    needed = frozenset(t.name for t in program.tensors)
    tasks: list[Task] = [(None, s) for s in settings(program.tensors, program.roles, needed)]
    if limits.kernels < 2:
        return tasks
    for first in _first_kernels(program, limits, progress):
        middle = _middle(program, first)
        tensors = (*program.tensors, middle)
        tasks.append((first, None))
        left = _still_needed(program, first)
        tasks += [(first, s) for s in settings(tensors, program.roles, left | {MIDDLE})]
    return tasks


def _first_kernels(
    program: _Program, limits: Limits, progress: Callable[[Counts], None]
) -> list[Kernel]:
    """Return one kernel for every distinct tensor that a first kernel can make."""
    shortest: dict[tuple[int, tuple[str, ...]], Kernel] = {}
    found: list[Kernel] = []
    found += _library_products(program, program.tensors, program.target, exact=False)
    block_search = BlockSearch(
        program.terms, program.vocabulary, program.tensors, most_states=limits.states // 2
    )
    goal = Goal(program.target, frozenset(), exact=False, max_steps=limits.first_ops)
    for setting in settings(program.tensors, program.roles, frozenset()):
        found += block_search.run(setting, goal)
        progress(Counts(block_search.states, block_search.pruned, len(found)))
    for kernel in sorted(found, key=_length):
        middle = _middle(program, kernel)
        shortest.setdefault((middle.term, middle.dims), kernel)
    return list(shortest.values())


def _length(kernel: Kernel) -> int:
    return len(kernel.steps) if isinstance(kernel, BlockSketch) else 1


def _library_products(
    program: _Program, tensors: Sequence[TensorInfo], target: int, *, exact: bool
) -> Iterator[LibrarySketch]:
    """Yield the matrix products the library can do on two tensors (row-major, one shared dim)."""
    for a in tensors:
        for b in tensors:
            for over in program.vocabulary.contractions:
                if a.name >= b.name or {over} != set(a.dims) & set(b.dims):
                    continue
                if len(a.dims) != 2 or len(b.dims) != 2:
                    continue
                term = _product_term(program, a, b, over)
                dims = tuple(d for d in (*a.dims, *b.dims) if d != over)
                good = term == target if exact else program.terms.contains(target, term)
                if good and (not exact or set(dims) == program.dims):
                    yield LibrarySketch((a.name, b.name), over, dims)


def _product_term(program: _Program, a: TensorInfo, b: TensorInfo, over: str) -> int:
    return summed(program.terms, program.terms.mul(a.term, b.term), over)


def _middle(program: _Program, kernel: Kernel) -> TensorInfo:
    """Return the tensor a first kernel makes: its dims in the program's order and its term."""
    by_name = {t.name: t for t in program.tensors}
    if isinstance(kernel, LibrarySketch):
        a, b = (by_name[n] for n in kernel.args)
        return TensorInfo(MIDDLE, kernel.dims, _product_term(program, a, b, kernel.over))
    order = list(dict.fromkeys(d for t in program.tensors for d in t.dims))
    dims = tuple(sorted(kernel.dims, key=order.index))
    block_search = BlockSearch(program.terms, program.vocabulary, program.tensors)
    return TensorInfo(MIDDLE, dims, block_search.term_of(kernel, program.target))


def _still_needed(program: _Program, first: Kernel) -> frozenset[str]:
    """Return the inputs the last kernel must read: those the first did not."""
    if isinstance(first, LibrarySketch):
        read = set(first.args)
    else:
        read = {v.tensor for v in first.setting.views}
    return frozenset(t.name for t in program.tensors) - read


def _run(program: _Program, limits: Limits, task: Task) -> tuple[list[ProgramSketch], Counts]:
    first, setting = task
    before = () if first is None else (first,)
    tensors = program.tensors
    if first is not None:
        tensors = (*tensors, _middle(program, first))
    if setting is None:
        products = _library_products(program, tensors, program.target, exact=True)
        whole = [ProgramSketch((*before, p)) for p in products if MIDDLE in p.args]
        return whole, Counts(candidates=len(whole))
    block_search = BlockSearch(
        program.terms, program.vocabulary, tensors, most_states=limits.states // 8
    )
    steps_left = limits.block_ops - (0 if first is None else _length(first))
    goal = Goal(program.target, program.dims, True, steps_left, limits.prune_abstract)
    blocks = list(block_search.run(setting, goal))
    counts = Counts(block_search.states, block_search.pruned, len(blocks))
    return [ProgramSketch((*before, b)) for b in blocks], counts
