"""Positional programs written an operator at a time, with dims that broadcast as in PyTorch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from mirage_kernels.generator.frontend.chosen import Counted, Elements, Whole
from mirage_kernels.generator.frontend.positional.positions import Condition
from mirage_kernels.generator.frontend.positional.program import Program, Step, Tensor

Operand = Tensor | float
# Elements of a row that are centred before they are squared: what a block holds in any case, and of
# rows behind the first dim, whose extent may be known at run time only, what a cluster does.
MOST_CENTRED, MOST_CENTRED_BEHIND = 2**16, 2**18


class Steps:
    """A positional program that grows by an operator at a time; dims broadcast as in PyTorch."""

    def __init__(self, program: Program) -> None:
        self.program = program

    def step(self, step: Step, *args: Tensor) -> Tensor:
        """Add an operator and return its result."""
        return self.program.apply(step, args)[0]

    def number(self, value: float, rank: int) -> Tensor:
        """Return a constant with so many dims."""
        return self.program.add(Step("number", numbers=(value,)), [(1,) * rank], self.dtype)[0]

    @property
    def dtype(self) -> Any:
        """Element type of the program's first tensor."""
        return self.program.tensors[0].dtype

    def __call__(self, op: str, *operands: Operand) -> Tensor:
        """Apply an elementwise operator; missing leading dims and numbers broadcast."""
        tensors = [x for x in operands if isinstance(x, Tensor)]
        rank = max(t.num_dims for t in tensors)
        made = [
            self.ranked(x, rank) if isinstance(x, Tensor) else self.number(float(x), rank)
            for x in operands
        ]
        return self.step(Step(op), *made)

    def where(self, conditions: Sequence[Whole], a: Operand, b: Operand) -> Tensor:
        """Return `a` where all conditions hold, `b` elsewhere."""
        rank = max(x.num_dims for x in (a, b) if isinstance(x, Tensor))
        own, other = (
            self.ranked(x, rank) if isinstance(x, Tensor) else self.number(float(x), rank)
            for x in (a, b)
        )
        elements = dict.fromkeys(x for c in conditions for x, _ in c.elements)
        fixed = [c for c in conditions if not (any(c.factors) or c.elements)]
        some = [c for c in conditions if c not in fixed]
        never = any(c.number < 0 for c in fixed)
        if never or not some:
            return self("add", self("mul", own, 0.0), other) if never else own
        tests = tuple(Condition(c.factors, c.number, c.factors_of(elements)) for c in some)
        return self.step(Step("where", conditions=tests), own, other, *map(self.seen, elements))

    def real(self, x: Counted) -> Tensor:
        """Return whole numbers as real ones."""
        one = self.expand(self.number(1.0, len(x.dims)), x.dims)
        own, elements = x.value, [e for e, _ in x.value.elements]
        counted = Condition(own.factors, own.number, own.factors_of(elements))
        step = Step("counted", conditions=(counted,))
        return self.step(step, one, *map(self.seen, elements))

    def seen(self, own: Elements) -> Tensor:
        """Return a tensor with the dims of what it chooses, some of one element."""
        x, kept = own.tensor, [d for d in own.at if d >= 0]
        short = self.reshape(x, [x.dims[d] for d in sorted(kept)] or [1])
        order = [sorted(kept).index(d) for d in kept]
        turned = self.permute(short, order) if order != sorted(order) else short
        return self.reshape(turned, [x.dims[d] if d >= 0 else 1 for d in own.at])

    def minimum(self, a: Operand, b: Operand) -> Tensor:
        """Return -max(-a, -b)."""
        low = [self("neg", x) if isinstance(x, Tensor) else -x for x in (a, b)]
        return self("neg", self("max", *low))

    def operand_of(self, op: str, x: Tensor) -> Tensor | None:
        """Return what a value is the `op` of, a logarithm say; None for another one."""
        step = next((p for p in self.program.steps if x in p.outs), None)
        return self.program.tensors[step.args[0]] if step and step.op == op else None

    def ranked(self, x: Tensor, rank: int) -> Tensor:
        """Return a tensor with leading dims of extent 1."""
        missing = rank - x.num_dims
        return self.reshape(x, (*(1,) * missing, *x.dims)) if missing else x

    def reshape(self, x: Tensor, shape: Sequence[int]) -> Tensor:
        """Return a tensor with its elements in another shape; one extent may be -1."""
        known = math.prod(n for n in shape if n >= 0)
        whole = [n if n >= 0 else math.prod(x.dims) // known for n in shape]
        return x if x.dims == (*whole,) else self.step(Step("reshape", shape=(*whole,)), x)

    def expand(self, x: Tensor, sizes: Sequence[int]) -> Tensor:
        """Return a tensor repeated along dims of one element; -1 leaves a dim as it is."""
        own = self.ranked(x, len(sizes))
        whole = tuple(n if m < 0 else m for n, m in zip(own.dims, sizes, strict=True))
        return own if own.dims == whole else self.step(Step("expand", shape=whole), own)

    def permute(self, x: Tensor, order: Sequence[int]) -> Tensor:
        """Return a tensor with its dims in another order."""
        return self.step(Step("permute", shape=tuple(x.position(d) for d in order)), x)

    def reduce(self, op: str, x: Tensor, dims: Sequence[int], *, keep: bool = True) -> Tensor:
        """Reduce along dims (none: all), which stay with one element or go."""
        over = sorted(x.position(d) for d in dims) or [*range(x.num_dims)]
        longer = [d for d in over if x.dims[d] > 1]
        made, several = x, op == "mean" and len(longer) > 1
        for d in reversed(longer):
            made = self.step(Step("reduction" if several else op, dim=d), made)
        if several:
            made = self("div", made, math.prod(x.dims[d] for d in longer))
        left = [n for i, n in enumerate(made.dims) if i not in over]
        return made if keep else self.reshape(made, left or [1])

    def matmul(self, a: Tensor, b: Tensor) -> Tensor:
        """Multiply matrices as torch.matmul does."""
        if b.num_dims == 1:
            made = self.matmul(a, self.reshape(b, (*b.dims, 1)))
            return self.reshape(made, made.dims[:-1])
        if a.num_dims > 2 and b.num_dims == 2:
            rows = self.reshape(a, (-1, a.dims[-1]))
            made = self.step(Step("matmul"), rows, b)
            return self.reshape(made, (*a.dims[:-1], b.dims[-1]))
        rank = max(a.num_dims, b.num_dims)
        return self.step(Step("matmul"), self.ranked(a, rank), self.ranked(b, rank))

    def normalized(self, x: Tensor, dims: Sequence[int], eps: float) -> Tensor:
        """Return (x - mean) / sqrt(variance + eps) along dims."""
        _, centred, variance = self.moments(x, dims)
        return self("div", centred, self("sqrt", self("add", variance, eps)))

    def moments(self, x: Tensor, dims: Sequence[int]) -> tuple[Tensor, Tensor, Tensor]:
        """Return mean, x - mean and variance along dims, which stay with one element.

        The variance is mean(x^2) - mean(x)^2, not below 0, where no cluster holds a row: both sums
        are of one pass then.
        """
        mean = self.reduce("mean", x, dims)
        centred = self("sub", x, mean)
        behind = all(x.position(d) > 0 for d in dims)
        most = MOST_CENTRED_BEHIND if behind else MOST_CENTRED
        if math.prod(x.dims[d] for d in dims) <= most:
            variance = self.reduce("mean", self("square", centred), dims)
        else:
            squares = self.reduce("mean", self("square", x), dims)
            variance = self("max", self("sub", squares, self("square", mean)), 0.0)
        return mean, centred, variance

    def shortened(self, x: Tensor, dims: Sequence[int]) -> Tensor:
        """Return a tensor without dims of one element."""
        gone = [x.position(d) for d in dims] or range(x.num_dims)
        return self.reshape(x, [n for i, n in enumerate(x.dims) if i not in gone] or [1])
