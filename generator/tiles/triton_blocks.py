"""How large the tensors of a Triton kernel are: powers of two that the host computes from extents.

Products want operands of 16 x 16 at least and sums that registers hold; row-wise kernels want a few
thousand elements of a row.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mirage_kernels.generator.ir import MOST_PARTS
from mirage_kernels.generator.tiles.program import BlockProgram
from mirage_kernels.generator.tiles.statements import Contract
from mirage_kernels.generator.tiles.triton_text import enclosed

if TYPE_CHECKING:
    from mirage_kernels.generator.tiles.triton_formulas import Formulas

LEAST = 16  # rows, columns and depth of a product
MOST_DYNAMIC, MOST_STATIC, MOST_DEPTH = 128, 64, 128  # elements along a dim of a product
MOST_SUMS = 16384  # elements of a product
MOST_COPIED = 8192  # elements of a tensor that a step of a loop loads
MOST_OF_ROW, ROW_ELEMENTS = 1024, 4096  # along a dim, and in all, where there is no product
PARTS = 1024  # least elements of a part of a sum that loops


class Blocks:
    """The extents of the tensors of a block program, as texts of Python over whole extents."""

    def __init__(self, program: BlockProgram) -> None:
        self.program = program
        said = (s for phase in program.statements.values() for s in phase)
        products = [s for s in said if isinstance(s, Contract)]
        self.depths = {s.over for s in products}
        self.groups = list[tuple[str, ...]]()  # rows of products, and columns
        for s in products:
            a, b = (program.type(v).names for v in (s.a, s.b))
            self.groups += [tuple(d for d in x if d not in y) for x, y in ((a, b), (b, a))]
        cut = {a.dim for a in program.space.grid if not a.reduced}
        self.single = frozenset(cut - {d for g in self.groups for d in g} - {self.vector})

    @property
    def vector(self) -> str:
        """The dim whose neighbours lie side by side, where there is no product; else none."""
        types = [n.out.type.names for n in self.program.body.inputs if n.out.type.dims]
        return max(types, key=len)[-1] if types and not self.groups else ""

    def lines(self, kernel: Formulas) -> list[str]:
        """Return assignments to every name of an extent."""
        self.kernel = kernel
        found = []
        for kind, size in (
            ("ALL", self.whole),
            ("PART", self.part),
            ("BLOCK", self.cut),
            ("STEP", self.step),
        ):
            dims = [d for k, d in kernel.kinds if k == kind]
            # The last dim of a group first: the others have what it leaves.
            found += [f"{kind}_{d} = {size(d)}" for d in sorted(dims, key=self.from_last)]
        return found

    def elements(self, kernel: Formulas) -> str:
        """Return the elements of the largest tensor that registers hold."""
        computed = [v for v in self.values if self.program.node(v).args or not self.groups]
        return self.largest([kernel.shape(v) for v in computed])

    @property
    def values(self) -> list[str]:
        """Values that are tensors of Triton."""
        return [v for v in self.program.body.values if v not in self.program.body.outputs]

    def from_last(self, dim: str) -> tuple[int, str]:
        """Return how many dims of its group stand behind a dim."""
        return len(self.behind(dim)), dim

    def behind(self, dim: str) -> tuple[str, ...]:
        """Return the dims that stand behind a dim in the first group that has it."""
        group = next((g for g in self.groups if dim in g), (dim,))
        return group[group.index(dim) + 1 :]

    def inner(self, dim: str) -> str:
        """Return what divides the elements along a dim: those of the dims behind it."""
        known = {d: f"{kind}_{d}" for kind, d in self.kernel.kinds if kind in ("ALL", "BLOCK")}
        terms = [known[d] for d in self.behind(dim) if d in known]
        return divisor(terms)

    def least(self, dim: str) -> str:
        """Return the least elements along a dim, nothing for 1."""
        if dim in self.depths:
            return str(LEAST)
        first = any(g[0] == dim for g in self.groups if g)
        return f"{LEAST}{self.inner(dim)}" if first else ""

    def whole(self, dim: str) -> str:
        """Return the elements along a dim that nothing cuts."""
        return at_least(self.least(dim), f"triton.next_power_of_2({dim})")

    def part(self, dim: str) -> str:
        """Return the elements of a part of a sum."""
        axis = next(a for a in self.kernel.parted if a.dim == dim)
        tile = 1 << (axis.tile - 1).bit_length()
        if not self.program.space.loops_over(axis):
            return str(tile)
        least = str(max(tile, PARTS))
        if axis not in self.program.splits:
            return least
        return at_least(least, f"triton.next_power_of_2(triton.cdiv({dim}, {MOST_PARTS}))")

    def cut(self, dim: str) -> str:
        """Return the elements along a dim that the grid cuts."""
        others = self.others("BLOCK", dim, ("ALL",))
        rest = f"{{}}{divisor([others] if others else [])}"
        if not self.groups:
            most = MOST_STATIC if self.program.space.loop else MOST_OF_ROW
            limits = [str(most), *([f"max(1, {rest.format(ROW_ELEMENTS)})"] if others else [])]
            return f"min({', '.join(limits)}, triton.next_power_of_2({dim}))"
        inner = self.inner(dim)
        most = MOST_DYNAMIC if self.program.extents[dim].dynamic else MOST_STATIC
        limits = [f"{most}{inner}", *([f"{rest.format(MOST_SUMS)}{inner}"] if others else [])]
        made = f"min({', '.join(limits)}, triton.next_power_of_2({dim}))"
        return at_least(self.least(dim) or "1", made)

    def step(self, dim: str) -> str:
        """Return the elements of a step of the loop."""
        others = self.others("STEP", dim, ("ALL", "BLOCK", "PART"))
        most, all_ = (MOST_DEPTH, MOST_COPIED) if self.groups else (MOST_OF_ROW, ROW_ELEMENTS)
        limits = [str(most), *([f"{all_}{divisor([others])}"] if others else [])]
        limits += [f"PART_{a.dim}" for a in self.kernel.parted if a.dim == dim]
        made = f"min({', '.join(limits)}, triton.next_power_of_2({dim}))"
        return at_least(str(LEAST) if self.groups else "1" if others else "", made)

    def others(self, kind: str, dim: str, kinds: tuple[str, ...]) -> str:
        """Return the most elements that values with a dim have along dims of some kinds."""
        kernel = self.kernel
        shapes = []
        for value in self.values:
            own = kernel.dims(value)
            if dim in own and kernel.kind(value, dim) == kind:
                wanted = (d for d in own if d != dim and kernel.kind(value, d) in kinds)
                shapes.append(tuple(kernel.block(value, d) for d in wanted))
        return self.largest(shapes, none="")

    def largest(self, shapes: list[tuple[str, ...]], none: str = "1") -> str:
        """Return the most elements that any of some shapes has."""
        sets = {frozenset(s) for s in shapes if s}
        most = sorted(" * ".join(sorted(s)) for s in sets if not any(s < other for other in sets))
        return f"max({', '.join(most)})" if len(most) > 1 else most[0] if most else none


def divisor(terms: list[str]) -> str:
    """Return a division by a product of terms, nothing if there are none."""
    text = " * ".join(terms)
    return f" // {enclosed(text)}" if terms else ""


def at_least(least: str, text: str) -> str:
    """Return the greater of a least number, if there is one, and what a text says."""
    if text.startswith("min(") and least == "1" and "//" not in text:
        return text
    return f"max({least}, {text})" if least else text
