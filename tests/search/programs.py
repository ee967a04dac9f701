"""Programs small enough to try every block graph for: written by hand, and generated."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from small import Small

from mirage_kernels.generator.errors import MirageError
from mirage_kernels.generator.ir import OPS, Graph, Kind
from mirage_kernels.generator.language import (
    Tensor,
    contract,
    exp,
    maximum,
    mean,
    positions,
    relu,
    rsqrt,
    softmax,
    sqrt,
    sum,
    where,
)


@dataclass(frozen=True)
class Tried:
    """A program, and the most ops of the block graphs that are tried for it."""

    small: Small
    ops: int


def k(x: Tensor, y: Tensor) -> Tensor:
    return contract(x, y, over="K")


X, XW, XY = {"x": "MK"}, {"x": "MK", "w": "NK"}, {"x": "MK", "y": "MK"}
COLUMNS = {"a": "M", "b": "M", "c": "M"}
WRITTEN = {
    "scaled sum": Tried(Small(X | {"s": "M"}, lambda x, s: sum(x * s, "K")), 4),
    "linear": Tried(Small(XW, k), 4),
    "mean": Tried(Small(X, lambda x: mean(x, "K")), 4),
    "scaled linear": Tried(Small(XW | {"g": "K"}, lambda x, w, g: k(x * g, w)), 4),
    "divided linear": Tried(Small(XW | {"d": "M"}, lambda x, w, d: k(x / d, w)), 4),
    "linear with bias": Tried(Small(XW | {"b": "N"}, lambda x, w, b: k(x, w) + b), 4),
    "sum of ratios": Tried(Small(X | {"c": "M"}, lambda x, c: sum(x / c + x, "K")), 4),
    "norm": Tried(Small(X, lambda x: x / sqrt(sum(x * x, "K"))), 4),
    "two linears": Tried(Small(XW | {"v": "NK"}, lambda x, w, v: k(x, w) * k(x, v)), 5),
    "a ratio of sums": Tried(Small(XY, lambda x, y: sum(x * y, "K") / sum(y, "K")), 4),
    "softmax along a short dim": Tried(Small({"x": "MJ"}, lambda x: softmax(x, "J")), 4),
    "late softmax": Tried(Small(X | {"v": "K"}, lambda x, v: k(exp(x), v) / sum(exp(x), "K")), 4),
    "exponentials": Tried(Small(XY, lambda x, y: sum(exp(x) * exp(y), "K")), 4),
    "roots": Tried(Small(COLUMNS, lambda a, b, c: sqrt(a) * sqrt(b) + c), 4),
    "a common denominator": Tried(Small(COLUMNS, lambda a, b, c: a / c + b / c), 4),
    "a masked sum": Tried(
        Small(X | {"n": "M:int"}, lambda x, n: sum(where(positions(x, "K") < n, x, 0), "K")), 4
    ),
    "a masked product": Tried(
        Small(
            X | {"v": "K", "n": "M:int"},
            lambda x, v, n: k(where(positions(x, "K") < n, exp(x), 0), v),
        ),
        4,
    ),
    "centred": Tried(Small(X | {"c": "M"}, lambda x, c: sum(x - c, "K")), 4),
    "the larger of two sums": Tried(Small(XY, lambda x, y: maximum(sum(x, "K"), sum(y, "K"))), 5),
    "a root in a denominator": Tried(Small(X | {"c": "M"}, lambda x, c: rsqrt(sum(x, "K")) * c), 4),
    "a product of sums": Tried(Small(X | {"v": "K"}, lambda x, v: sum(x, "K") * sum(v, "K")), 5),
}

Line = tuple[str, ...]  # an op, then its operands: inputs by name, earlier lines by number
SHAPES = {"x": "MK", "y": "MK", "v": "K", "s": "M"}
_ONE: Mapping[str, Callable[[Tensor], Tensor]] = {
    "exp": exp,
    "rsqrt": rsqrt,
    "relu": relu,
    "sum": lambda x: sum(x, "K"),
    "mask": lambda x: where(positions(x, "K") < 5, x, 0),
}
_TWO: Mapping[str, Callable[[Tensor, Tensor], Tensor]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "div": lambda a, b: a / b,
    "max": maximum,
}
MOST_WORDS = 6  # inputs and ops of a generated program: with more there are too many graphs
CHOICES = (*_ONE, "sum", "sum", *_TWO, "mul", "mul", "div")  # what is usual comes more often


def random_program(seed: int) -> tuple[str, Tried]:
    """Return a program of two to four ops, all needed for its result, and its text."""
    rng = random.Random(seed)
    while True:
        lines = _random_lines(rng, rng.randint(2, 4))
        used = {word for _, *words in lines for word in words}
        inputs = {name: dims for name, dims in SHAPES.items() if name in used}
        small = Small(inputs, _program_of(lines, tuple(inputs)))
        few = len(inputs) + len({op for op, *_ in lines}) <= MOST_WORDS
        if few and all(str(n) in used for n in range(len(lines) - 1)) and _is_fair(small):
            text = "; ".join(f"{n} = {' '.join(line)}" for n, line in enumerate(lines))
            return text, Tried(small, min(_ops(small.spec()) + 1, 4))


def _random_lines(rng: random.Random, count: int) -> list[Line]:
    lines: list[Line] = []
    for number in range(count):
        op = rng.choice(CHOICES)
        latest = str(number - 1) if number else "x"
        if op in _ONE:
            lines.append((op, latest))
        else:
            pair = [latest, rng.choice((*map(str, range(number)), *SHAPES))]
            rng.shuffle(pair)
            lines.append((op, *pair))
    return lines


def _program_of(lines: Sequence[Line], names: Sequence[str]) -> Callable[..., Tensor]:
    def program(*inputs: Tensor) -> Tensor:
        made = dict(zip(names, inputs, strict=True))
        for number, (op, *operands) in enumerate(lines):
            rule = _ONE.get(op) or _TWO[op]
            made[str(number)] = rule(*(made[o] for o in operands))
        return made[str(len(lines) - 1)]

    return program


def _is_fair(small: Small) -> bool:
    """Return whether a program has a type, a result of rows, and something that can differ."""
    try:
        spec = small.spec()
    except MirageError:
        return False
    if "M" not in spec.values[spec.outputs[0]].type.names:
        return False
    depth: dict[str, int] = {}
    for node in spec.nodes:
        args = [spec.values[a].type for a in node.args]
        real = OPS[node.op].kind is Kind.ELEMENTWISE and node.op not in ("less", "where")
        outer = real and not any({*a.names} == {*node.out.type.names} for a in args)
        alike = node.op in ("sub", "div", "max") and len(set(node.args)) == 1
        if outer or alike:
            return False
        depth[node.name] = max((depth[a] for a in node.args), default=0) + (node.op == "exp")
    return max(depth.values()) < 2 and bool(spec.of("sum")) and _ops(spec) <= 4


def _ops(spec: Graph) -> int:
    return len([node for node in spec.nodes if node.args])


GENERATED = dict(random_program(seed) for seed in range(20))
PROGRAMS = WRITTEN | GENERATED
