"""Enumeration of whole programs: one block graph, or two kernels with tensors between them.

Each kernel is a block graph found by search or the library's matrix product. The space is cut into
tasks, one per setting of the last kernel and tensor that a first kernel can make, that run in any
order in any process; results are merged in task order, so the outcome does not depend on `jobs`.
A first kernel has one result, unless its blocks split a sum: then the last kernel combines what
they store, and may need several of their partial sums.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

from mirage_kernels.generator.ir import OPS, Kind
from mirage_kernels.generator.meaning.arrays import Array
from mirage_kernels.generator.search.extract import Extraction, Program
from mirage_kernels.generator.search.fingerprints import digest, stored
from mirage_kernels.generator.search.problem import Problem
from mirage_kernels.generator.search.refine import Refined, refine
from mirage_kernels.generator.search.settings import Setting, TensorInfo, View
from mirage_kernels.generator.search.sketch import (
    Counts,
    Found,
    Kernel,
    Leaf,
    LibrarySketch,
    ProgramSketch,
    middle_name,
)
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
        """Cut the search space: first every program of one kernel, then those of two."""
        problem, every = self.problem, self.problem.settings()
        alone = [Task(setting) for setting in every]
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

        going_on, target = _going_on(found), self.problem.target
        storable = (v for v in self.problem.storable(found) if found.values[v].term != target)
        return [v for v in storable if sums(v) and v not in going_on]

    def partial(self, found: Saturation) -> list[int]:
        """Return the partial sums that the blocks of a split can store side by side."""
        going_on = _going_on(found)
        return [v for v in self.problem.storable(found, partial=True) if v not in going_on]

    def run(self, task: Task) -> Found:
        """Return the programs of one task, cheapest first."""
        if task.first is not None:
            return _TwoKernels(self, task.first).run(task.setting)
        assert task.setting is not None
        problem, found = self.problem, self.problem.saturated(task.setting)
        refined = refine(found, problem.goals(found), problem.fingerprints, problem.sources)
        extraction, looped = problem.extraction(refined.without_extra()), task.setting.loop
        if looped is not None:
            # Blocks that combine partial sums may make them without the loop: another setting's.
            leaves = refined.leaves.items()
            extraction.through = frozenset(i for i, leaf in leaves if getattr(leaf, "loop_cut", ""))
        if looped is not None and not extraction.through:
            return Found((), _counted(found, refined))
        programs = reaching(problem, refined, extraction, problem.limits.kept)
        if looped is not None:
            programs += self.beside(refined, extraction, programs)
        launch = problem.on.launch_us
        whole = (ProgramSketch((problem.sketch(refined, p),), p.cost + launch) for p in programs)
        return Found(tuple(whole), _counted(found, refined))

    def beside(
        self, refined: Refined, extraction: Extraction, programs: Sequence[Program]
    ) -> list[Program]:
        """Return what a task with a loop keeps whatever else is cheaper.

        The cheapest programs whose products are all the spec's own, those that read in the loop
        all that it cuts, and those that do both.
        """
        problem, limits = self.problem, self.problem.limits
        own = refined.with_spec_products(problem.fingerprints)
        kinds = [(refined.without_extra().with_loop_inputs(), limits.kept_loop_inputs)]
        if refined.setting.split is None:
            kinds.insert(0, (own, limits.kept_spec_products))
        else:
            kinds.append((own.with_loop_inputs(), limits.kept_spec_products))
        known = {frozenset(p.steps) for p in programs}
        more: list[Program] = []
        for kind, most in kinds:
            cheapest = problem.extraction(kind, extraction.through)
            found = reaching(problem, kind, cheapest, most)
            more += [p for p in found if frozenset(p.steps) not in known]
            known |= {frozenset(p.steps) for p in found}
        return more


def _counted(found: Saturation, refined: Refined) -> Counts:
    """Return the counts of a saturation and of its refinement together."""
    fingerprints = len(refined.values) - sum(map(bool, refined.fingerprints.values()))
    pruned = Counter(found.counts.pruned) + Counter(budget=refined.dropped)
    return Counts(found.counts.states + fingerprints, pruned)


def reaching(
    problem: Problem, refined: Refined, extraction: Extraction, kept: int | None
) -> list[Program]:
    """Return the programs whose result is the spec's."""
    return [
        program
        for value in problem.goals(refined)
        if digest(refined.arrays[value]) == problem.fingerprints.wanted
        for program in extraction.programs([value], kept)
    ]


def _going_on(found: Saturation) -> set[int]:
    """Return the values that an elementwise step takes further with constants and scalars alone."""
    going_on: set[int] = set()
    for step in (s for ways in found.derivations for s in ways if s.op != LOAD):
        others = {a for a in step.args if a not in found.leaves or found.values[a].dims}
        alone = len(others) == 1 and len({*step.args}) > 1
        going_on |= others if alone and OPS[step.op].kind is Kind.ELEMENTWISE else set()
    return going_on


class _TwoKernels:
    """Programs whose last kernel reads what a first one made.

    What a first kernel could store goes by its term until the last kernel shows what it must mean:
    then each fingerprint of it is a tensor of its own.
    """

    def __init__(self, search: Search, first: First) -> None:
        self.problem = problem = search.problem
        self.library: LibrarySketch | None = None
        if first.setting is None:
            self.library, term = problem.products(problem.tensors)[first.result or 0]
            self.middles = [TensorInfo(middle_name(0), self.library.dims, term)]
            self.owners = [middle_name(0)]
            self.stored = [self.product(self.library, problem.fingerprints.tensors)]
            return
        found = problem.saturated(first.setting)
        if first.result is None:
            values = search.partial(found)
        else:
            values = [search.worth_storing(found)[first.result]]
        self.middles = [
            TensorInfo(middle_name(i), found.dims_of(v, problem.order), found.values[v].term)
            for i, v in enumerate(values)
        ]
        self.refined = refined = refine(found, values, problem.fingerprints, problem.sources)
        meant = [(i, v) for i, value in enumerate(values) for v in refined.variants(value)]
        self.results = [v for _, v in meant]
        self.owners = [middle_name(i) for i, _ in meant]
        self.stored = [stored(refined.arrays[v], first.setting.split) for v in self.results]

    def product(self, kernel: LibrarySketch, tensors: Mapping[str, Array]) -> Array:
        """Return what a library product is on the draw."""
        factors = [tensors[name] for name in kernel.args]
        return self.problem.fingerprints.result("contract", factors, kernel.over)

    def sources(self, leaf: Leaf) -> Sequence[tuple[Leaf, Array]]:
        """Return what a leaf of the last kernel may be: every meaning of a stored tensor."""
        if isinstance(leaf, View) and leaf.tensor in self.owners:
            return [
                (replace(leaf, tensor=_fingerprint_name(i)), self.stored[i])
                for i, owner in enumerate(self.owners)
                if owner == leaf.tensor
            ]
        return self.problem.sources(leaf)

    def run(self, setting: Setting | None) -> Found:
        """Return the programs whose last kernel has a setting, or is a library product."""
        problem = self.problem
        if setting is None:
            return Found(tuple(self.then_product((*problem.tensors, *self.middles))))
        found = problem.saturated(setting).extended(self.middles, problem.roles)
        refined = refine(found, problem.goals(found), problem.fingerprints, self.sources)
        made = {_fingerprint_name(i) for i in range(len(self.stored))}
        read = [i for i, leaf in refined.leaves.items() if getattr(leaf, "tensor", "") in made]
        extraction = problem.extraction(refined.without_extra(), read)
        programs: list[Program] = []
        if read:
            programs = reaching(problem, refined, extraction, problem.limits.kept_of_two)
        joined = (self.joined(refined, program) for program in programs)
        return Found(tuple(filter(None, joined)), _counted(found, refined))

    def then_product(self, tensors: Sequence[TensorInfo]) -> Iterator[ProgramSketch]:
        """Yield the programs that end in a library product with the first kernel's result."""
        problem = self.problem
        for product, term in problem.products(tensors):
            right = term == problem.target and {*product.dims} == {*problem.roles.output}
            if self.middles[0].name not in product.args or not right:
                continue
            for i, array in enumerate(self.stored):
                arrays = {**problem.fingerprints.tensors, self.owners[i]: array}
                equal = digest(self.product(product, arrays)) == problem.fingerprints.wanted
                first = self.first_kernel([i], 1) if equal else None
                if first is not None:
                    cost = first[1] + self.product_cost(product, tensors)
                    cost += 2 * problem.on.launch_us
                    yield ProgramSketch((first[0], product), cost)

    def product_cost(self, product: LibrarySketch, tensors: Sequence[TensorInfo]) -> float:
        """Return the nominal time of reading what a library product multiplies."""
        return sum(self.problem.costs.tensor(t.dims) for t in tensors if t.name in product.args)

    def first_kernel(self, results: Sequence[int], ops: int) -> tuple[Kernel, float] | None:
        """Return the cheapest first kernel that makes some of its results, and its cost.

        None if there is none within the limit that leaves so many ops to the last kernel.
        """
        left = self.problem.limits.block_ops - ops
        if self.library is not None:
            cost = self.product_cost(self.library, self.problem.tensors)
            return (self.library, cost) if left > 0 else None
        extraction = self.problem.extraction(self.refined.without_extra())
        extraction.max_ops = left
        for program in extraction.programs([self.results[r] for r in results], 1):
            return self.problem.sketch(self.refined, program), program.cost
        return None

    def joined(self, refined: Refined, program: Program) -> ProgramSketch | None:
        """Return both kernels together; None beyond the limits."""
        read = {refined.leaves.get(a) for _, step in program.steps for a in step.args}
        used = {leaf.tensor for leaf in read if isinstance(leaf, View)}
        results = [i for i in range(len(self.stored)) if _fingerprint_name(i) in used]
        few = len(results) <= MOST_PARTIAL
        first = self.first_kernel(results, len(program.steps)) if few else None
        if first is None:
            return None
        names = {_fingerprint_name(r): middle_name(i) for i, r in enumerate(results)}
        last = self.problem.sketch(refined, program, names)
        cost = first[1] + program.cost + 2 * self.problem.on.launch_us
        return ProgramSketch((first[0], last), cost)


def _fingerprint_name(number: int) -> str:
    return f"fingerprint_{number}"
