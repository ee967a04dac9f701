"""Names of computed values, made by rule from the op and its operands' names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mirage_kernels.generator.ir import TensorType

_LONG = 20  # characters: a longer operand name is not repeated in a result's name
_NOUNS = {"sqrt": "root", "rsqrt": "inverse_root", "neg": "minus", "amax": "largest"}
_MASKS = {"less": "mask", "both": "mask", "where": "masked", "gt": "above", "ge": "at_least"}


def stem(name: str) -> str:
    """Return a value's name without what says where it lives."""
    return name.removesuffix("_tile").removesuffix("_total")


def name_of(op: str, args: Sequence[str], types: Mapping[str, TensorType]) -> str:
    """Return a short name for the result of `op`, such as `x_squared`, `scaled_weight`.

    A name tells what the value is, not how it came about: long chains don't make long names.
    """
    stems = [stem(a) for a in args]
    first = stems[0]
    if op in ("mul", "div", "contract"):
        return _product_name(op, args, types)
    if op in _MASKS:
        return _MASKS[op]
    if op in ("sum", "accum"):
        return f"sum_{first}" if op == "sum" else f"{first}_total"
    if op == "accum_max":
        return f"{first}_of_steps"
    if op in ("add", "sub"):
        word = "plus" if op == "add" else "minus"
        first, second = sorted(stems, key=len, reverse=True) if op == "add" else stems
        return f"{first}_{word}_{second}" if max(map(len, stems)) < _LONG else f"{first}_{word}"
    noun = _NOUNS.get(op, op)
    return f"{noun}_{first}" if len(first) < _LONG else noun


def _product_name(op: str, args: Sequence[str], types: Mapping[str, TensorType]) -> str:
    """Name products after what is scaled: the operand with more elements."""
    stems = [stem(a) for a in args]
    if len(set(args)) == 1:
        return f"{stems[0]}_squared"
    ranks = [len(types[a].dims) for a in args]
    larger = stems[ranks.index(max(ranks))]
    if op == "contract":
        return f"{stems[1].removesuffix('_weight')}_product"
    if op == "div":
        if stems[1].startswith("size_"):
            return f"mean_{stems[0].removeprefix('sum_')}"
        return f"normed_{larger}"
    return f"{stems[0]}_times_{stems[1]}" if ranks[0] == ranks[1] else f"scaled_{larger}"
