"""Several arrays of one form as one, which is computed with at once, and what tells arrays apart.

A stack has an axis more: its arrays lie along it. Of what is computed from two stacks there is one
for every pair, along two axes.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from math import prod
from typing import NamedTuple

import numpy as np

from mirage_kernels.generator.meaning.arrays import Array

AXES = ("@first", "@second", "@third")  # of the stacks of a step's operands


class Made(NamedTuple):
    """One of what a step makes of variants of its operands: which ones, its digest, itself."""

    chosen: tuple[int, ...]
    key: bytes
    stack: Array  # of the results of several, along its first axes
    place: int | None = None  # among them; None: it is alone

    def array(self) -> Array:
        """Return the result alone."""
        if self.place is None:
            return self.stack
        axes = len(self.chosen)
        parts = (p.reshape(-1, *p.shape[axes:])[self.place] for p in self.stack.parts)
        return Array(self.stack.dims[axes:], tuple(map(np.array, parts)), self.stack.real)


def stacked(arrays: Sequence[Array], axis: str, most: int) -> list[tuple[list[int], Array]]:
    """Return arrays of one form, `most` at once, as one with an axis more, and their numbers."""
    forms: dict[object, list[list[int]]] = {}
    for number, array in enumerate(arrays):
        dims = tuple(sorted(array.dims))
        shape = tuple(map(array.extent, dims))
        alike = forms.setdefault((dims, shape, len(array.parts), array.real), [[]])
        if len(alike[-1]) == most:
            alike.append([])
        alike[-1].append(number)
    found = []
    for numbers in (numbers for alike in forms.values() for numbers in alike):
        first = arrays[numbers[0]]
        dims = tuple(sorted(first.dims))
        parts = zip(*(arrays[i].over(dims).parts for i in numbers), strict=True)
        found.append((numbers, Array((axis, *dims), tuple(map(np.stack, parts)), first.real)))
    return found


def digest(value: Array) -> bytes:
    """Return what equal values have in common, whatever the order of their axes."""
    return digests(value.over(sorted(value.dims)), 0)[0]


def digests(stack: Array, axes: int) -> list[bytes]:
    """Return the digests of what lies along the first axes of a stack; the others are in order."""
    count, dims = prod(stack.parts[0].shape[:axes]), list(stack.dims[axes:])
    rows = [np.asarray(part, np.int64).reshape(count, -1) for part in stack.parts]
    content = np.concatenate(rows, 1).tobytes()
    size, person = len(content) // count, repr(dims).encode()[:16]
    pieces = (content[i * size : (i + 1) * size] for i in range(count))
    return [blake2b(piece, digest_size=8, person=person).digest() for piece in pieces]
