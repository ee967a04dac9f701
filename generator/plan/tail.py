"""What a loop computes past the end of the depth, which the last step of a warp may reach.

Whatever is loaded there is zero; what is computed from it need not be. A sum along the depth is
right only if it adds zeros there, a product only if its operands' product is zero: exp(x) is one,
and x / s, where s is loaded too, is no number at all, which the zeros of a weight do not mend. So
every value of the loop is computed for one such element. What is not loaded there (statistics,
scalars) stands for itself: a number that nothing else in the loop is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from mirage_kernels.generator.ir import OPS, Graph, Kind, Phase

# A depth that is a multiple of it ends with a step: one is 32 or 64 elements of a warp with slices,
# 128 where tokens are register operands.
EVEN_DEPTH = 128
LARGEST_EXPONENT = 88.0  # whose exponential is an fp32 number

# Exact where it matters: whether the result is zero for all numbers that operands stand for.
PAST: dict[str, Callable[..., float]] = {
    **dict.fromkeys(("neg", "silu", "gelu", "gelu_tanh", "tanh", "relu"), lambda a: a),
    **dict.fromkeys(("abs", "mish", "elu", "erf"), lambda a: a),
    "floor": math.floor,
    "round": round,
    "gt": lambda a, b: float(a > b),
    "ge": lambda a, b: float(a >= b),
    "masked": lambda c, a: a if c else 0.0,
    "sin": math.sin,
    "cos": math.cos,
    "softplus": lambda a: max(a, 0.0) + math.log1p(math.exp(-abs(a))),
    "square": lambda a: a * a,
    "sqrt": lambda a: math.sqrt(a) if a >= 0 else math.nan,
    "rsqrt": lambda a: 1 / math.sqrt(a) if a > 0 else math.nan,
    "log": lambda a: math.log(a) if a > 0 else math.nan,
    **dict.fromkeys(
        ("exp", "inner_exp"), lambda a: math.exp(a) if a < LARGEST_EXPONENT else math.nan
    ),
    "log1p": lambda a: math.log1p(a) if a > -1 else math.nan,
    "sigmoid": lambda a: 1 / (1 + math.exp(-min(max(a, -88.0), 88.0))),
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "div": lambda a, b: a / b if b else math.nan,
    "max": lambda a, b: abs(a) + abs(b),
}


def past_the_depth(body: Graph, phases: Mapping[str, Phase | None]) -> dict[str, float]:
    """Return what each value of a block graph is there; not a number: nothing can be said.

    Of values without the depth (statistics, scalars, sums) it is a number of their own.
    """
    found: dict[str, float] = {}
    for i, node in enumerate(body.nodes):
        made = 1 + math.pi * (i + 1)
        if node.op == "const" or (node.loop_cut is not None and node.op == "input"):
            made = float(node.value)  # of an input 0
        elif OPS[node.op].kind is Kind.ELEMENTWISE and phases[node.name] is Phase.LOOP:
            numbers = [found[a] for a in node.args]
            made = PAST[node.op](*numbers) if node.op in PAST else math.nan
        found |= {v.name: made for v in node.outs}
    return found
