"""A spec as the search sees it: terms, dims, ops and values, computed when first needed."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from mirage_kernels.generator.ir import OPS, DType, Graph, Kind, Phase, parts_of
from mirage_kernels.generator.meaning.abstract import PARTS, source, summed, target_term
from mirage_kernels.generator.meaning.arrays import Array
from mirage_kernels.generator.meaning.terms import Terms
from mirage_kernels.generator.search.extract import Costs, Extraction, Program, nominal_sizes
from mirage_kernels.generator.search.fingerprints import Fingerprints
from mirage_kernels.generator.search.fold import beside, folded, shifted
from mirage_kernels.generator.search.settings import (
    GRID,
    PART,
    DimRoles,
    Setting,
    TensorInfo,
    View,
    settings,
)
from mirage_kernels.generator.search.sketch import (
    BlockSketch,
    Leaf,
    LibrarySketch,
    Step,
    in_order,
)
from mirage_kernels.generator.search.values import Saturation, TermSpace, Values, Vocabulary
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


class Problem:
    """One spec with everything about it that the tasks of its search share.

    `terms` interns all terms, `target` is the spec's, `space` holds what can be part of it.
    `tensors` are inputs and positions, `order` names their dims.
    """

    def __init__(self, spec: Graph, limits: Limits, on: Target) -> None:
        self.spec, self.limits, self.on = spec, limits, on
        self.costs, self.roles = Costs(nominal_sizes(spec), on), _roles(spec, on)
        self.terms = Terms()
        inputs = [(n, self.terms.leaf("input", n.name)) for n in spec.inputs]
        iotas = [(n, source(self.terms, n)) for n in spec.of("iota")]
        self.tensors = tuple(
            TensorInfo(n.name, n.out.type.names, term, n.out.type.dtype)
            for n, term in (*inputs, *iotas)
        )
        self.order = tuple(dict.fromkeys(d for t in self.tensors for d in t.dims))
        self._saturations: dict[Setting, Saturation] = {}

    def shortened(self) -> Problem:
        """Return the problem with parts of its spec as inputs: see `search/fold.py`.

        These are results beside the output and sums of inputs, and more where it is long still.
        """
        shorter = self.without(beside).without(shifted)
        places = shorter.terms.positions(shorter.target)
        products = sum(len(shorter.terms.table[place]) ** 2 for place in places)
        return shorter.without(folded) if products > LONGEST_SUMS else shorter

    def without(self, fold: Callable[[Graph, frozenset[str]], Graph]) -> Problem:
        """Return the problem without what a fold makes parts of; itself where there is none."""
        spec = fold(self.spec, self.roles.long)
        return Problem(spec, self.limits, self.on) if spec != self.spec else self

    @cached_property
    def target(self) -> int:
        """The spec's term."""
        return target_term(self.terms, self.spec)

    @cached_property
    def space(self) -> TermSpace:
        """The terms that can be part of the spec's."""
        binary = self.vocabulary.of_arity(2)
        return TermSpace(self.terms, self.target, binary, self.limits.prune_abstract)

    @cached_property
    def fingerprints(self) -> Fingerprints:
        """One draw that tells values of different meaning apart."""
        return Fingerprints(self.spec, self.roles.long)

    @cached_property
    def vocabulary(self) -> Vocabulary:
        """The ops, dims to sum along and constants that the spec has.

        There are fewer values where the spec has sums and no products.
        """
        limits, spec, used = self.limits, self.spec, {n.op for n in self.spec.nodes}
        slow = limits.prune_abstract and "contract" not in used
        return Vocabulary(
            tuple(op for op in OPS if op in used and OPS[op].kind is Kind.ELEMENTWISE),
            tuple(dict.fromkeys(n.over for n in spec.of("sum"))),
            tuple(dict.fromkeys(n.over for n in spec.of("contract"))),
            tuple(
                TensorInfo(n.name, (), source(self.terms, n), n.out.type.dtype)
                for n in spec.of("const", "size")
            ),
            limits.block_ops,
            min(limits.values, VALUES_OF_SUMS) if slow else limits.values,
        )

    def settings(self, *, first: bool = False) -> list[Setting]:
        """Return where block graphs may run, or the first of two, other than to split a sum."""
        return list(settings(self.tensors, self.roles, first=first))

    def saturated(self, setting: Setting) -> Saturation:
        """Return the values of a setting over the spec's own tensors."""
        if setting not in self._saturations:
            found = Saturation(setting, space=self.space, vocabulary=self.vocabulary)
            found.add_inputs(self.tensors, self.roles)
            found.seed(self.spec)
            found.run()
            self._saturations[setting] = found
        return self._saturations[setting]

    def sources(self, leaf: Leaf) -> list[tuple[Leaf, Array]]:
        """Return what an input or constant is on the draw."""
        name = leaf.tensor if isinstance(leaf, View) else leaf
        return [(leaf, self.fingerprints.tensors[name])]

    def storable(self, found: Values, *, partial: bool = False) -> list[int]:
        """Return the values that a kernel could store: final, and different in every block.

        Or the `partial` sums of a split, which its blocks store side by side.
        """
        setting = found.setting
        last = Phase.AFTER if setting.loop else Phase.BEFORE
        if setting.split and not partial:
            last = Phase.JOINED
        part = (parts_of(setting.split or ""), PART)
        grid = {*setting.grid} - {setting.split}
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
        wanted, values = (self.target, frozenset(self.roles.output)), found.values
        return [i for i in self.storable(found) if (values[i].term, values[i].names) == wanted]

    def extraction(self, found: Values, through: Collection[int] = ()) -> Extraction:
        """Return the enumeration of a saturation's programs that read one of some leaves."""
        return Extraction(
            found,
            lambda value, step: self.costs.step(found, value, step),
            self.limits.block_ops,
            frozenset(through),
        )

    def sketch(
        self, found: Values, program: Program, names: Mapping[str, str] | None = None
    ) -> BlockSketch:
        """Return a found program as a block graph without tile sizes; `names` rename tensors."""
        used = {a for _, step in program.steps for a in step.args} | set(program.roots)
        made = [value for value, _ in program.steps]
        leaves: dict[Leaf, int] = {}
        for number in sorted(used.difference(made)):
            leaf = found.leaves[number]
            if isinstance(leaf, View):
                leaf = replace(leaf, tensor=(names or {}).get(leaf.tensor, leaf.tensor))
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
                product = LibrarySketch((a.name, b.name), over, dims)
                term = summed(self.terms, self.terms.mul(a.term, b.term), over, PARTS)
                if shared == {over} and self.terms.contains(self.target, term):
                    found.append((product, term))
        return found


def _roles(spec: Graph, on: Target) -> DimRoles:
    """Return what a spec does with its dims: it sums along them, they come out, they are long.

    One that comes out is worth cutting, though it is summed along, only where it is longer than a
    tile.
    """
    reduced = tuple(dict.fromkeys(n.over for n in spec.of("sum", "contract")))
    output = spec.values[spec.outputs[0]].type.names
    sizes = nominal_sizes(spec).items()
    long = frozenset(d for d, size in sizes if size > LARGEST_TILE or d not in output)
    dims = (d for v in spec.values.values() for d in v.type.dims)
    most = on.shared_bytes // DType.FP16.bytes
    return DimRoles(reduced, output, long, frozenset(d.name for d in dims if d.size > most))
