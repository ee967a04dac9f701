"""Enumeration of whole programs: one block graph, or two kernels with tensors between them.

Each kernel is a block graph found by search or the library's matrix product. The space is cut into
tasks, one per setting of the last kernel and tensor that a first kernel can make, that run in any
order in any process; results are merged in task order, so the outcome does not depend on `jobs`.
A first kernel has one result, unless its blocks split a sum: then the last kernel combines what
they store, and may need several of their partial sums.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, partial

from mirage_kernels.generator.ir import OPS, Kind
from mirage_kernels.generator.meaning.abstract import COMBINE_PARTS, summed
from mirage_kernels.generator.meaning.arrays import Array
from mirage_kernels.generator.search.extract import Program
from mirage_kernels.generator.search.fingerprints import Refined, refine, stored
from mirage_kernels.generator.search.problem import Problem
from mirage_kernels.generator.search.sketch import (
    Counts,
    Found,
    Kernel,
    LibrarySketch,
    ProgramSketch,
    Setting,
    TensorInfo,
    View,
    middle_name,
)
from mirage_kernels.generator.search.stacks import digest
from mirage_kernels.generator.search.values import LOAD, Saturation

MOST_PARTIAL = 2  # results of a first kernel whose blocks split a sum


@dataclass(frozen=True)
class First:
    """What a first kernel makes: a result by its number, or all partial sums of a split."""

    setting: Setting | None  # None: a library product
    result: int | None


@dataclass(frozen=True)
class Task:
    """One piece of the search: the last kernel's setting (None: a library product)."""

    setting: Setting | None
    first: First | None = None


@dataclass(frozen=True)
class Search:
    """The search of one problem: its tasks, and what each of them finds."""

    problem: Problem

    def tasks(self) -> list[Task]:
        """Cut the search space: first every program of one kernel, then those of two.

        Blocks that split a dim without end, and have no loop, are too many to combine their sums,
        unless they hold what they sum: shorter rows of the same class fit in a cluster.
        """
        problem, every = self.problem, self.problem.settings()
        endless = problem.roles.endless
        fitting = (s for s in every if s.loop or s.holding or s.split not in endless)
        alone, every = [Task(s) for s in fitting], [s for s in every if not s.holding]
        if problem.limits.kernels < 2:
            return alone
        firsts, after = self.firsts(), [s for s in every if s.split is None]
        splits = [s for s in every if s.split is not None and self.partial(problem.saturated(s))]
        return [
            *alone,
            *(Task(last, first) for first in firsts for last in (None, *after)),
            *(Task(last, First(setting, None)) for setting in splits for last in after),
        ]

    def firsts(self) -> list[First]:
        """Return what first kernels can make: every tensor once, from the setting that is cheapest.

        A tensor that costs more to write and read than all the program's own is left out; of those
        with the same dims only the ones that are furthest on the way are taken.
        """
        problem = self.problem
        cheapest: dict[tuple[int, tuple[str, ...]], tuple[float, int, First]] = {}
        own = sum(problem.costs.tensor(t.dims) for t in problem.tensors)
        for number, (product, term) in enumerate(problem.products(problem.tensors)):
            cheapest[term, product.dims] = (0.0, 1, First(None, number))
        for setting in problem.settings(first=True):
            found = problem.saturated(setting)
            extraction = problem.extraction(found)
            for number, value in enumerate(self.worth_storing(found)):
                dims = found.dims_of(value, problem.order)
                key, cost = (found.values[value].term, dims), extraction.least((value, False))
                dear = 2 * problem.costs.tensor(dims) > own
                if not dear and (key not in cheapest or cost < cheapest[key][0]):
                    cheapest[key] = (cost, found.depths[value], First(setting, number))
        alike: dict[frozenset[str], list[tuple[int, First]]] = {}
        for (_, dims), (_, depth, first) in cheapest.items():
            alike.setdefault(frozenset(dims), []).append((-depth, first))
        furthest = (sorted(group, key=lambda item: item[0]) for group in alike.values())
        return [first for group in furthest for _, first in group[: problem.limits.firsts]]

    def worth_storing(self, found: Saturation) -> list[int]:
        """Return the values that a kernel of its own may pay for.

        Such a value sums something: what follows elementwise from the inputs is made again for
        less than it is stored. And no constant takes it further: its kernel would go on.
        """

        @cache
        def sums(value: int) -> bool:
            """Return whether making a value from the kernel's inputs sums anything."""
            steps = (s for s in found.derivations[value] if s.op != LOAD)
            return any(
                OPS[s.op].kind is not Kind.ELEMENTWISE or any(map(sums, s.args)) for s in steps
            )

        going_on, target = _going_on(found), self.problem.vocabulary.target
        storable = (v for v in self.problem.storable(found) if found.values[v].term != target)
        return [v for v in storable if sums(v) and v not in going_on]

    def partial(self, found: Saturation) -> list[int]:
        """Return the partial sums that the blocks of a split can store side by side.

        Of a program without products these are of its own sums, where there are any: their terms
        tell too little about how often a constant divides a sum.
        """
        going_on, problem = _going_on(found), self.problem
        partial, split = problem.storable(found, partial=True), found.setting.split or ""
        own = [
            v
            for v in partial
            if summed(problem.terms, found.values[v].term, split, COMBINE_PARTS) in problem.sums
        ]
        if own and not problem.vocabulary.contractions:
            return own
        return [v for v in partial if v not in going_on]

    @cached_property
    def first_kernel(self) -> Callable[[First], _FirstKernel]:
        """What finds what the last kernel can do with a first one's results; it is kept."""
        return cache(partial(_FirstKernel, self))

    def run(self, task: Task) -> Found:
        """Return the programs of one task, cheapest first."""
        problem, setting = self.problem, task.setting
        first = self.first_kernel(task.first) if task.first is not None else None
        if setting is None:
            return Found(tuple(first.then_product()) if first else ())
        found = problem.saturated(setting)
        if first is not None:
            found = found.extended(first.middles, problem.roles)
        stored = first.stored if first is not None else {}
        refined = refine(found, problem.goals(found), problem.fingerprints, stored)
        pruned = Counter(found.counts.pruned) + Counter(budget=refined.dropped)
        states = len(refined.values) - sum(map(bool, refined.fingerprints.values()))
        counts = Counts(found.counts.states + states, pruned)

        views = {i: leaf for i, leaf in refined.leaves.items() if isinstance(leaf, View)}
        if first is not None:
            through = [i for i, view in views.items() if view.tensor in first.results]
            programs = self.reaching(refined, through, problem.limits.kept_of_two)
            return Found(tuple(filter(None, (first.then(refined, p) for p in programs))), counts)
        if setting.loop is None:
            programs = self.unlooped(refined)
        else:
            # Blocks that combine partial sums may make them without the loop: another setting's.
            through = [i for i, view in views.items() if view.loop_cut]
            programs = self.looped(refined, through)
        sketches = ((problem.sketch(refined, p, {}), p.cost) for p in programs)
        launch = problem.on.launch_us
        return Found(tuple(ProgramSketch((kernel,), c + launch) for kernel, c in sketches), counts)

    def reaching(
        self, refined: Refined, through: Collection[int] | None, kept: int | None
    ) -> list[Program]:
        """Return the programs whose result is the spec's and that read one of some leaves."""
        if through is not None and not through:
            return []
        problem = self.problem
        extraction = problem.extraction(refined.without_extra(), through or ())
        return [
            program
            for value in problem.goals(refined)
            if problem.fingerprints.is_wanted(refined, value)
            for program in extraction.programs([value], kept)
        ]

    def unlooped(self, refined: Refined) -> list[Program]:
        """Return the cheapest programs of a task without a loop.

        Beside other results the spec's own program is one of them, for what it shares with those.
        """
        problem = self.problem
        programs = self.reaching(refined, None, problem.limits.kept)
        if not problem.more_results:
            return programs
        own = self.reaching(refined.with_spec_steps(problem.fingerprints), None, 1)
        known = {frozenset(p.steps) for p in programs}
        return programs + [p for p in own if frozenset(p.steps) not in known]

    def looped(self, refined: Refined, through: Collection[int]) -> list[Program]:
        """Return the programs of a task with a loop: the cheapest, and some whatever is cheaper.

        The cheapest programs whose products are all the spec's own, those that read in the loop
        all that it cuts, and those that do both.
        """
        problem, limits = self.problem, self.problem.limits
        programs = self.reaching(refined, through, limits.kept)
        own = refined.with_spec_products(problem.fingerprints)
        kinds = [(refined.without_extra().with_loop_inputs(), limits.kept_loop_inputs)]
        if refined.setting.split is None:
            kinds.insert(0, (own, limits.kept_spec_products))
        else:
            kinds.append((own.with_loop_inputs(), limits.kept_spec_products))
        known = {frozenset(p.steps) for p in programs}
        for kind, most in kinds:
            found = self.reaching(kind, through, most)
            programs += [p for p in found if frozenset(p.steps) not in known]
            known |= {frozenset(p.steps) for p in found}
        return programs


def _going_on(found: Saturation) -> set[int]:
    """Return the values that an elementwise step takes further with constants and scalars alone."""
    going_on: set[int] = set()
    for step in (s for ways in found.derivations for s in ways if s.op != LOAD):
        others = {a for a in step.args if a not in found.leaves or found.values[a].dims}
        alone = len(others) == 1 and len({*step.args}) > 1
        going_on |= others if alone and OPS[step.op].kind is Kind.ELEMENTWISE else set()
    return going_on


class _FirstKernel:
    """The first of two kernels, and what the last one can do with its results.

    What a first kernel could store goes by its term until the last kernel shows what it must mean:
    then each fingerprint of it is a tensor of its own. `stored` has these by name for each of the
    `middles`; of a block graph `results` are their numbers by name.
    """

    def __init__(self, search: Search, first: First) -> None:
        self.problem = problem = search.problem
        self.library: LibrarySketch | None = None
        self.middles: list[TensorInfo] = []
        self.stored: dict[str, dict[str, Array]] = {}
        self.results: dict[str, int] = {}
        if first.setting is None:
            self.library, term = problem.products(problem.tensors)[first.result or 0]
            array = self.product(self.library, problem.fingerprints.tensors)
            self.store(TensorInfo(middle_name(0), self.library.dims, term), {0: array})
            return
        found = problem.saturated(first.setting)
        values = search.partial(found)
        if first.result is not None:
            values = [search.worth_storing(found)[first.result]]
        self.refined = refined = refine(found, values, problem.fingerprints, {})
        for i, value in enumerate(values):
            dims, term = found.dims_of(value, problem.order), found.values[value].term
            variants = {
                v: stored(refined.arrays[v], first.setting.split) for v in refined.variants(value)
            }
            self.store(TensorInfo(middle_name(i), dims, term), variants)

    def store(self, tensor: TensorInfo, variants: Mapping[int, Array]) -> None:
        """Let the last kernel read what a tensor may mean."""
        names = {f"fingerprint_{len(self.results) + i}": v for i, v in enumerate(variants)}
        self.middles.append(tensor)
        self.stored[tensor.name] = {name: variants[v] for name, v in names.items()}
        self.results |= names

    def product(self, kernel: LibrarySketch, tensors: Mapping[str, Array]) -> Array:
        """Return what a library product is on the draw."""
        factors = [tensors[name] for name in kernel.args]
        return self.problem.fingerprints.result("contract", factors, kernel.over)

    def product_cost(self, kernel: LibrarySketch) -> float:
        """Return the nominal time of reading what a library product multiplies."""
        tensors = (*self.problem.tensors, *self.middles)
        return sum(self.problem.costs.tensor(t.dims) for t in tensors if t.name in kernel.args)

    def cheapest(self, names: Sequence[str], ops: int) -> tuple[Kernel, float] | None:
        """Return the cheapest first kernel that makes some of its results, and its cost.

        None if there is none within the limit that leaves so many ops to the last kernel.
        """
        left = self.problem.limits.block_ops - ops
        if self.library is not None:
            return (self.library, self.product_cost(self.library)) if left > 0 else None
        extraction = self.problem.extraction(self.refined.without_extra())
        extraction.max_ops = left
        for program in extraction.programs([self.results[name] for name in names], 1):
            return self.problem.sketch(self.refined, program, {}), program.cost
        return None

    def then_product(self) -> Iterator[ProgramSketch]:
        """Yield the programs that end in a library product with the first kernel's result."""
        problem, prints, middle = self.problem, self.problem.fingerprints, self.middles[0]
        result = (problem.vocabulary.target, {*problem.roles.output})
        for last, term in problem.products((*problem.tensors, middle)):
            if middle.name not in last.args or (term, {*last.dims}) != result:
                continue
            for name, array in self.stored[middle.name].items():
                made = self.product(last, {**prints.tensors, middle.name: array})
                first = self.cheapest([name], 1) if digest(made) == prints.wanted else None
                if first is not None:
                    cost = first[1] + self.product_cost(last) + 2 * problem.on.launch_us
                    yield ProgramSketch((first[0], last), cost)

    def then(self, refined: Refined, program: Program) -> ProgramSketch | None:
        """Return both kernels together; None beyond the limits."""
        read = {refined.leaves.get(a) for _, step in program.steps for a in step.args}
        used = {leaf.tensor for leaf in read if isinstance(leaf, View)}
        names = [name for name in self.results if name in used]
        few = len(names) <= MOST_PARTIAL
        first = self.cheapest(names, len(program.steps)) if few else None
        if first is None:
            return None
        middles = {name: middle_name(i) for i, name in enumerate(names)}
        last = self.problem.sketch(refined, program, middles)
        return ProgramSketch(
            (first[0], last), first[1] + program.cost + 2 * self.problem.on.launch_us
        )
