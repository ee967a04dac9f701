"""A spec as the search sees it: terms, dims, ops and values, computed when first needed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from mirage_kernels.generator.ir import OPS, DType, Graph, Kind, Phase
from mirage_kernels.generator.meaning.abstract import PARTS, source, summed, target_term
from mirage_kernels.generator.meaning.arrays import Array
from mirage_kernels.generator.meaning.oracle import keeps
from mirage_kernels.generator.meaning.terms import Terms
from mirage_kernels.generator.search.costs import Costs, nominal_sizes
from mirage_kernels.generator.search.extract import Extraction, Program
from mirage_kernels.generator.search.fingerprints import Fingerprints
from mirage_kernels.generator.search.fold import Parts, beside, folded, shifted
from mirage_kernels.generator.search.refine import Leaf, Refined
from mirage_kernels.generator.search.settings import (
    GRID,
    DimRoles,
    Setting,
    TensorInfo,
    View,
    first_settings,
    settings,
)
from mirage_kernels.generator.search.sketch import BlockSketch, LibrarySketch, block_sketch
from mirage_kernels.generator.search.termspace import TermSpace
from mirage_kernels.generator.search.values import Saturation, Vocabulary
from mirage_kernels.generator.target import Target

LARGEST_TILE = 256  # elements of one dim that a block holds whole
LONGEST_SUMS = 100  # products of a term's sums, squared, that a search gets through
# Values of a setting where the spec contracts nothing: nearly any two of them might be needed
# together then, and testing whether they are takes the time (nine products in the square of three).
VALUES_OF_SUMS = 250


@dataclass(frozen=True)
class Limits:
    """Bounds of the search and whether to prune by abstract expression."""

    block_ops: int = 32  # of all kernels together
    kernels: int = 2
    kept: int | None = 48  # programs kept of one task, cheapest first; None keeps all
    kept_spec_products: int | None = 4  # of those with a loop whose products are the spec's own
    kept_loop_inputs: int | None = 8  # of those with a loop that read in it all that it cuts
    kept_of_two: int | None = 6  # the same where there are two kernels
    firsts: int | None = 8  # results of first kernels that are tried, of those with the same dims
    verified: int = 400  # programs of the whole search, cheapest first
    values: int = 1000  # of one setting; what lies beyond is counted as pruned by budget
    prune_abstract: bool = True


@dataclass
class Problem:
    """One spec with everything about it that the tasks of its search share."""

    spec: Graph
    limits: Limits
    on: Target
    parts: tuple[Parts, ...] = ()  # of longer specs, inputs here; the longest spec's first
    _saturations: dict[Setting, Saturation] = field(default_factory=dict)

    def shortened(self) -> Problem:
        """Return the problem without results beside the output, without sums of inputs, and, if it
        is long still, without parts.

        What is found then reads parts, which `fold.unfolded` puts back.
        """
        shorter = self.without(beside).without(shifted)
        return self.without(folded) if shorter.is_long else shorter

    def without(self, fold: Callable[..., tuple[Graph, Parts | None]]) -> Problem:
        """Return the problem without what a fold makes parts of; itself where there is none."""
        spec, parts = fold(self.spec, self.long)
        return Problem(spec, self.limits, self.on, (*self.parts, parts)) if parts else self

    @property
    def is_long(self) -> bool:
        """Say whether the spec's sums are too long to search."""
        places = self.terms.positions(self.target)
        return sum(len(self.terms.table[place]) ** 2 for place in places) > LONGEST_SUMS

    @cached_property
    def terms(self) -> Terms:
        """The table that all terms are interned in; z3 is asked where it cannot decide."""
        return Terms(fallback=keeps)

    @cached_property
    def target(self) -> int:
        """The spec's term."""
        return target_term(self.terms, self.spec)

    @cached_property
    def most_values(self) -> int:
        """How many values a setting may have: fewer where the spec has sums and no products."""
        slow = self.limits.prune_abstract and not self.spec.of("contract")
        return min(self.limits.values, VALUES_OF_SUMS) if slow else self.limits.values

    @cached_property
    def space(self) -> TermSpace:
        """The terms that can be part of the spec's."""
        binary = self.vocabulary.of_arity(2)
        return TermSpace(self.terms, self.target, binary, self.limits.prune_abstract)

    @cached_property
    def fingerprints(self) -> Fingerprints:
        """One draw that tells values of different meaning apart."""
        return Fingerprints(self.spec, self.long)

    @cached_property
    def sizes(self) -> dict[str, int]:
        """Nominal extents."""
        return nominal_sizes(self.spec)

    @cached_property
    def tensors(self) -> tuple[TensorInfo, ...]:
        """The spec's inputs, and positions along dims."""
        inputs = [(n, self.terms.leaf("input", n.name)) for n in self.spec.inputs]
        iotas = [(n, source(self.terms, n)) for n in self.spec.of("iota")]
        return tuple(
            TensorInfo(n.name, n.out.type.names, term, n.out.type.dtype)
            for n, term in (*inputs, *iotas)
        )

    @cached_property
    def roles(self) -> DimRoles:
        """Which dims the spec sums along, which come out, which no shared memory holds."""
        reduced = tuple(dict.fromkeys(n.over for n in self.spec.of("sum", "contract")))
        most = self.on.shared_bytes // DType.FP16.bytes
        dims = (d for v in self.spec.values.values() for d in v.type.dims)
        output = self.spec.values[self.spec.outputs[0]].type.names
        return DimRoles(reduced, output, frozenset(d.name for d in dims if d.size > most))

    @cached_property
    def vocabulary(self) -> Vocabulary:
        """The ops, dims to sum along and constants that the spec has."""
        used = {n.op for n in self.spec.nodes}
        return Vocabulary(
            tuple(op for op in OPS if op in used and OPS[op].kind is Kind.ELEMENTWISE),
            tuple(dict.fromkeys(n.over for n in self.spec.of("sum"))),
            tuple(dict.fromkeys(n.over for n in self.spec.of("contract"))),
            tuple(
                (n.name, source(self.terms, n), n.out.type.dtype)
                for n in self.spec.of("const", "size")
            ),
        )

    @cached_property
    def order(self) -> tuple[str, ...]:
        """Names of all dims in order of appearance."""
        return tuple(dict.fromkeys(d for t in self.tensors for d in t.dims))

    def settings(self, *, first: bool = False) -> list[Setting]:
        """Return where block graphs may run, or the first of two, other than to split a sum."""
        found = first_settings if first else settings
        return list(found(self.tensors, self.roles, self.long))

    @cached_property
    def long(self) -> frozenset[str]:
        """The dims that may be cut though they are summed along.

        One that comes out of the program too is worth cutting only where it is longer than a tile.
        """
        return frozenset(
            dim
            for dim, size in self.sizes.items()
            if size > LARGEST_TILE or dim not in self.roles.output
        )

    def saturated(self, setting: Setting) -> Saturation:
        """Return the values of a setting over the spec's own tensors."""
        if setting not in self._saturations:
            found = Saturation(
                self.space,
                self.vocabulary,
                setting,
                max_depth=self.limits.block_ops,
                most_values=self.most_values,
            )
            found.add_constants()
            found.add_inputs(self.tensors, self.roles)
            found.seed(self.spec)
            found.run()
            self._saturations[setting] = found
        return self._saturations[setting]

    def sources(self, leaf: Leaf) -> list[tuple[Leaf, Array]]:
        """Return what an input or constant is on the draw."""
        name = leaf.tensor if isinstance(leaf, View) else leaf
        return [(leaf, self.fingerprints.tensors[name])]

    def goals(self, found: Saturation | Refined) -> list[int]:
        """Return the values of a saturation that have the term and the dims of the result."""
        wanted, values = (self.target, frozenset(self.roles.output)), found.values
        return [i for i in self.storable(found) if (values[i].term, values[i].names) == wanted]

    def extraction(self, found: Saturation | Refined, through: Sequence[str] = ()) -> Extraction:
        """Return the enumeration of a saturation's programs that read one of some tensors."""
        costs = Costs(found.setting, self.sizes, self.on)
        read = frozenset(
            number
            for number, leaf in found.leaves.items()
            if isinstance(leaf, View) and leaf.tensor in through
        )
        return Extraction(
            found, lambda value, step: costs.step(found, value, step), self.limits.block_ops, read
        )

    def storable(self, found: Saturation | Refined) -> list[int]:
        """Return the values that a kernel could store: final, and different in every block."""
        setting = found.setting
        last = Phase.JOINED if setting.split else Phase.AFTER if setting.loop else Phase.BEFORE
        grid = {*setting.grid} - {setting.split}
        return [
            i
            for i, value in enumerate(found.values)
            if i not in found.leaves
            and value.phase is last
            and value.dtype is DType.FP32
            and {d for d, how in value.dims if how == GRID} == grid
        ]

    def sketch(self, found: Saturation | Refined, program: Program) -> BlockSketch:
        """Return a found program as a block graph without tile sizes."""
        return block_sketch(found, program, self.order, tensors=[t.name for t in self.tensors])

    def products(self, tensors: Sequence[TensorInfo]) -> list[LibrarySketch]:
        """Return the matrix products the library can do on two tensors that the spec may need."""
        pairs = [(a, b) for a in tensors for b in tensors if a.name < b.name]
        found = [
            LibrarySketch((a.name, b.name), over, tuple(d for d in (*a.dims, *b.dims) if d != over))
            for a, b in pairs
            for over in self.vocabulary.contractions
            if len(a.dims) == len(b.dims) == 2 and {over} == {*a.dims} & {*b.dims}
        ]
        return [p for p in found if self.terms.contains(self.target, self.product_term(p, tensors))]

    def product_term(self, product: LibrarySketch, tensors: Sequence[TensorInfo]) -> int:
        """Return the term of a library product."""
        by_name = {t.name: t.term for t in tensors}
        a, b = (by_name[name] for name in product.args)
        return summed(self.terms, self.terms.mul(a, b), product.over, PARTS)
