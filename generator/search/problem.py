"""A spec as the search sees it: terms, dims, values of settings; and sketches of what is found."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from math import prod

from mirage_kernels.generator.ir import DType, Graph, Kind, Phase, ops_of_kind, parts_of
from mirage_kernels.generator.meaning.abstract import PARTS, abstract_reading, source, summed
from mirage_kernels.generator.meaning.terms import Terms
from mirage_kernels.generator.meaning.walk import walk
from mirage_kernels.generator.search.extract import Costs, Extraction, Program, nominal_sizes
from mirage_kernels.generator.search.fingerprints import Fingerprints
from mirage_kernels.generator.search.fold import beside, folded, shifted
from mirage_kernels.generator.search.sketch import (
    GRID,
    PART,
    BlockSketch,
    DimRoles,
    Leaf,
    LibrarySketch,
    Limits,
    Setting,
    Step,
    TensorInfo,
    View,
    in_order,
    settings,
)
from mirage_kernels.generator.search.values import Saturation, Values
from mirage_kernels.generator.search.vocabulary import Vocabulary
from mirage_kernels.generator.target import Target

LARGEST_TILE = 256  # elements of one dim that a block holds whole
LONGEST_SUMS = 100  # products of a term's sums, squared, that a search gets through


class Problem:
    """One spec with everything about it that the tasks of its search share.

    `terms` interns all terms. `tensors` are inputs and positions, `order` names their dims.
    `more_results` says that programs make others beside the output, whether or not the spec still
    has them. Everything else is computed when it is first needed.
    """

    def __init__(
        self, spec: Graph, limits: Limits, on: Target, *, more_results: bool = False
    ) -> None:
        self.spec, self.limits, self.on = spec, limits, on
        self.more_results = more_results or len(spec.outputs) > 1
        self.costs, self.terms = Costs(nominal_sizes(spec), on), Terms()
        inputs = [(n, self.terms.leaf("input", n.name)) for n in spec.inputs]
        iotas = [(n, source(self.terms, n)) for n in spec.of("iota")]
        self.tensors = tuple(
            TensorInfo(n.name, n.out.type.names, term, n.out.type.dtype)
            for n, term in (*inputs, *iotas)
        )
        self.order = tuple(dict.fromkeys(d for t in self.tensors for d in t.dims))
        self._saturations: dict[Setting, Saturation] = {}

    @cached_property
    def roles(self) -> DimRoles:
        """What the spec does with its dims: it sums along them, they come out, they are long.

        One that comes out is worth cutting, though it is summed along, only where it is longer
        than a tile. Clusters share rows that no block can hold.
        """
        reductions = self.spec.of(*ops_of_kind(Kind.REDUCE, Kind.CONTRACT))
        reduced = tuple(dict.fromkeys(n.over for n in reductions))
        output = self.spec.values[self.spec.outputs[0]].type.names
        sizes = self.costs.sizes.items()
        long = frozenset(d for d, size in sizes if size > LARGEST_TILE or d not in output)
        types = [v.type for v in self.spec.values.values()]
        most, beyond = self.on.shared_bytes // DType.FP16.bytes, set[str]()
        for type_ in types:
            row = [d for d in type_.dims if d.name in reduced and d.name in output]
            beyond |= {d.name for d in row if not d.dynamic and prod(r.size for r in row) > most}
        endless = frozenset(d.name for t in types for d in t.dims if d.size > most)
        shared = frozenset(beyond) if self.on.has_clusters else frozenset[str]()
        return DimRoles(reduced, output, long, endless, shared)

    @cached_property
    def vocabulary(self) -> Vocabulary:
        """The spec's ops and constants, and the terms that can be part of its own."""
        return Vocabulary(self.spec, self.terms, self.limits)

    @cached_property
    def sums(self) -> frozenset[int]:
        """The terms of the spec's own sums."""
        inputs = [self.terms.leaf("input", n.name) for n in self.spec.inputs]
        found = walk(self.spec, inputs, abstract_reading(self.terms))
        return frozenset(found[n.name] for n in self.spec.of("sum"))

    @cached_property
    def fingerprints(self) -> Fingerprints:
        """One draw that tells values of different meaning apart."""
        return Fingerprints(self.spec, self.roles.long)

    def shortened(self) -> Problem:
        """Return the problem with parts of its spec as inputs: see `search/fold.py`.

        These are results beside the output and sums of inputs, and more where it is long still.
        """
        problem = self
        for fold in (beside, shifted, folded):
            if fold is folded:
                places = problem.terms.positions(problem.vocabulary.target)
                products = sum(len(problem.terms.table[place]) ** 2 for place in places)
                if products <= LONGEST_SUMS:
                    break
            spec = fold(problem.spec, problem.roles.long)
            if spec != problem.spec:
                more = problem.more_results
                problem = Problem(spec, self.limits, self.on, more_results=more)
        return problem

    def settings(self, *, first: bool = False) -> list[Setting]:
        """Return where block graphs may run, or the first of two, other than to split a sum."""
        return list(settings(self.tensors, self.roles, first=first))

    def saturated(self, setting: Setting) -> Saturation:
        """Return the values of a setting over the spec's own tensors."""
        if setting not in self._saturations:
            found = Saturation(setting, vocabulary=self.vocabulary)
            found.add_inputs(self.tensors, self.roles)
            found.seed(self.spec)
            found.run()
            self._saturations[setting] = found
        return self._saturations[setting]

    def storable(self, found: Values, *, partial: bool = False) -> list[int]:
        """Return the values that a kernel could store: final, and different in every block.

        Or the `partial` sums of a split, which its blocks store side by side.
        """
        setting = found.setting
        last = Phase.AFTER if setting.loop else Phase.BEFORE
        if setting.split and not partial:
            last = Phase.JOINED
        part = (parts_of(setting.split or ""), PART)
        grid = {*setting.grid} - ({setting.split} if not setting.holding else set())
        return [
            i
            for i, value in enumerate(found.values)
            if i not in found.leaves
            and value.phase is last
            and value.dtype is DType.FP32
            and (part in value.dims or not partial)
            and {d for d, how in value.dims if how == GRID} == grid
        ]

    def goals(self, found: Values) -> list[int]:
        """Return the values of a saturation that have the term and the dims of the result."""
        wanted, values = (self.vocabulary.target, frozenset(self.roles.output)), found.values
        return [i for i in self.storable(found) if (values[i].term, values[i].names) == wanted]

    def extraction(self, found: Values, through: Collection[int] = ()) -> Extraction:
        """Return the enumeration of a saturation's programs that read one of some leaves."""
        return Extraction(
            found,
            lambda value, step: self.costs.step(found, value, step),
            self.limits.block_ops,
            frozenset(through),
        )

    def sketch(self, found: Values, program: Program, names: Mapping[str, str]) -> BlockSketch:
        """Return a found program as a block graph without tile sizes; `names` rename tensors."""
        used = {a for _, step in program.steps for a in step.args} | set(program.roots)
        made = [value for value, _ in program.steps]
        leaves: dict[Leaf, int] = {}
        for number in sorted(used.difference(made)):
            leaf = found.leaves[number]
            if isinstance(leaf, View):
                leaf = replace(leaf, tensor=names.get(leaf.tensor, leaf.tensor))
            leaves[leaf] = number
        ordered = in_order(leaves, [t.name for t in self.tensors])
        new = {old: number for number, old in enumerate((*map(leaves.get, ordered), *made))}
        return BlockSketch(
            found.setting,
            ordered,
            tuple(Step(s.op, tuple(new[a] for a in s.args), s.over) for _, s in program.steps),
            tuple((new[root], found.dims_of(root, self.order)) for root in program.roots),
        )

    def products(self, tensors: Sequence[TensorInfo]) -> list[tuple[LibrarySketch, int]]:
        """Return the products of two tensors that the spec may need, which the library can do.

        Each comes with its term.
        """
        found = []
        for a, b in ((a, b) for a in tensors for b in tensors if a.name < b.name):
            shared = {*a.dims} & {*b.dims}
            matrices = len(a.dims) == len(b.dims) == 2
            for over in self.vocabulary.contractions if matrices else ():
                dims = tuple(d for d in (*a.dims, *b.dims) if d != over)
                term = summed(self.terms, self.terms.mul(a.term, b.term), over, PARTS)
                if shared == {over} and self.terms.contains(self.vocabulary.target, term):
                    found.append((LibrarySketch((a.name, b.name), over, dims), term))
        return found
