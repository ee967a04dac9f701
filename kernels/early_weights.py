"""Which kernels of a program read their weights while the kernel before them still runs.

A weight is an input of the program without a kernel's rows, which the program does not write, or a
view of one, as half of a packed weight is. The `_early` entry of a fast schedule's kernel reads it
before `griddepcontrol.wait`, so that what wrote it must have ended by then. Callers may promise
that (`constant_weights()`), or it follows:

* A kernel lets the next one start *after its wait* where each of its threads that executes
  `launch_dependents` has returned from `griddepcontrol.wait`, which is when all earlier kernels of
  the stream have ended and their writes are visible.
* The next kernel starts when all blocks have executed `launch_dependents` or ended. One block at
  least has read tokens, so it has waited. What was on the stream before the program has ended then.
* So it has for all kernels behind, which start later, and the program's own do not write weights.

Only kernels whose signature says `"lets_next_start": "after_wait"` count: general ones, and fast
ones that are compiled so because a program begins with them. Operators that PyTorch runs do not:
the libraries behind them may use programmatic launches as well, in an order that they keep to
themselves.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

LETS_NEXT_START, AFTER_WAIT = "lets_next_start", "after_wait"  # of a kernel's signature
_VIEWS = """
slice.Tensor select.int transpose.int permute.default t.default mT.default unsqueeze.default
expand.default view.default
"""
VIEWS = frozenset(f"aten.{name}" for name in _VIEWS.split())  # in which nothing is copied
WRITING = ("_", "batch_norm", "instance_norm")  # what operators end in: copy_, running statistics


@dataclass(frozen=True)
class Early:
    """What a way of a program can read early, and what it writes over."""

    steps: frozenset[int]  # places of kernels all of whose weights are inputs that the way keeps
    weights: frozenset[str]  # inputs that they take as weights
    written: frozenset[str]  # inputs

    @classmethod
    def of(cls, document: Mapping[str, Any], way: Mapping[str, Any]) -> Early:
        """Read it from the steps.

        A kernel with a weight that an earlier step makes or writes has no place here, whatever
        callers promise about their own kernels.
        """
        written, seen = frozenset(_written(document, way)), _seen(document, way)
        kept = {name for name, base in seen.items() if base not in written}
        steps = {
            i: frozenset(seen[name] for name in weights_of(step))
            for i, step in enumerate(way["steps"])
            if "kernel" in step and weights_of(step) <= kept
        }
        return cls(frozenset(steps), frozenset().union(*steps.values()), written)

    def can_settle(self, given: Mapping[str, Tensor], extents: Mapping[str, int]) -> bool:
        """Say whether a call's kernels can be known to begin when what came before has ended.

        They are on one stream, each has blocks, and none writes a weight under another name.
        """
        if not all(extents.values()) or len({tensor.device for tensor in given.values()}) != 1:
            return False
        written = [_span(given[name]) for name in self.written]
        weights = [_span(given[name]) for name in self.weights] if written else []
        return not any(a < d and c < b for a, b in written for c, d in weights)


def weights_of(step: Mapping[str, Any]) -> frozenset[str]:
    """Return the values that a kernel may read early: those that have none of its rows."""
    return frozenset(w["value"] for w in step["inputs"] if not has_rows(w))


def has_rows(wanted: Mapping[str, Any]) -> bool:
    """Say whether an input has a kernel's rows: of a dynamic number, or marked, of a static one."""
    return wanted.get("by_row", False) or any(isinstance(e, dict) for e in wanted["shape"])


def lies_as_wanted(tensor: Tensor, shape: list[int]) -> bool:
    """Say whether a tensor is known to be seen in a shape without a copy, which is a kernel."""
    return [*tensor.shape] == shape or tensor.is_contiguous()


def first_kernels(document: Mapping[str, Any], general: Container[str]) -> Iterator[str]:
    """Yield the keys of kernels that should let the next one start after their wait.

    `general` has the keys of those that do so anyhow, `sm_90a/name`. A way's first kernel should,
    where one behind it has weights to read early before a general one has run.
    """
    for way in document["ways"]:
        kernels = {
            i: f"{document['arch']}/{step['kernel']}"
            for i, step in enumerate(way["steps"])
            if "kernel" in step
        }
        first = min(kernels, default=0)
        last = min((i for i, key in kernels.items() if key in general), default=len(way["steps"]))
        early = Early.of(document, way).steps
        if any(first < i < last and weights_of(way["steps"][i]) for i in early):
            yield kernels[first]


def _seen(document: Mapping[str, Any], way: Mapping[str, Any]) -> dict[str, str]:
    """Return inputs and views of them by name: the input that each is or looks at."""
    found = {one["name"]: one["name"] for one in document["inputs"]}
    for step in way["steps"]:
        base = found.get(step["args"][0]["value"]) if step.get("call") in VIEWS else None
        found |= {step["result"]: base} if base else {}
    return found


def _written(document: Mapping[str, Any], way: Mapping[str, Any]) -> Iterator[str]:
    """Yield the inputs that steps write over."""
    of = {one["name"]: {one["name"]} for one in document["inputs"]}  # inputs that values may be
    for step in way["steps"]:
        if "rows" in step:
            of[step["result"]] = of.get(step["rows"], set())
        elif "call" in step:
            seen = set().union(*(of.get(name, set()) for name in _values_in(step["args"])))
            of[step["result"]] = seen
            op = step["call"].rpartition(".")[0]
            if op.endswith(WRITING):
                yield from seen
        places = [r["into"]["value"] for r in step.get("results", ()) if "into" in r]
        for name in (*places, *filter(None, [step.get("join")])):
            yield from of.get(name, set())


def _values_in(argument: Any) -> list[str]:
    if isinstance(argument, list):
        return [name for one in argument for name in _values_in(one)]
    return [argument["value"]] if isinstance(argument, dict) and "value" in argument else []


def _span(tensor: Tensor) -> tuple[int, int]:
    """Return where a tensor begins and ends in memory."""
    pairs = zip(tensor.shape, tensor.stride(), strict=True)
    last = sum((size - 1) * stride for size, stride in pairs)
    begin = tensor.data_ptr()
    return begin, begin + (last + 1) * tensor.element_size()
