"""The one run loop of tile programs: statements in order over tensors and shared memory.

A machine is a block at work, or a warp of it. It knows the parts of a program, which kinds of
statements may stand in each and what they do; a loop whose copies run some stages ahead; and what
is read and written of tensors. Each kind of program brings a table of its statements: general ones
(`interpret.py`), those of fast schedules (`plan/interpret.py`), and attention
(`schedules/attention/interpret.py`). Shared memory is flat, and knows races (`memory.py`).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from mirage_kernels.generator.meaning.reals import FLOAT64
from mirage_kernels.generator.tiles.memory import Array, Places

S = TypeVar("S")  # statements
V = TypeVar("V")  # values
Inside = npt.NDArray[np.bool_]
Meanings = Mapping[Hashable, Callable[..., Any]]


class Machine(Generic[S, V]):
    """What runs the statements of a program, part by part."""

    meanings: ClassVar[Meanings]  # of each kind of statement

    def kind(self, s: S) -> Hashable:
        """Return what decides what a statement does."""
        raise NotImplementedError

    def made(self, s: S, value: V) -> None:
        """Keep what a statement made."""
        raise NotImplementedError

    def perform(self, said: Sequence[S], part: str) -> None:
        """Run statements in order; raises TileError for one that stands where it cannot run."""
        for s in said:
            self.require(s, part)
            value = self.meanings[self.kind(s)](self, s)
            if value is not None:
                self.made(s, value)

    def require(self, s: S, part: str) -> None:
        """Raise TileError for a statement that stands where it cannot run."""

    # -- loops ---------------------------------------------------------------------------------

    def pipelined(self, steps: range, stages: int) -> None:
        """Run a loop whose copies run one step less ahead than there are stages."""
        ahead = stages - 1
        for step in steps[:ahead]:
            self.copy(step)
        for step in steps:
            self.enter(step)
            if step + ahead in steps:
                self.copy(step + ahead)
            self.step(step)

    def copy(self, step: int) -> None:
        """Copy what a step takes."""
        raise NotImplementedError

    def enter(self, step: int) -> None:
        """Begin a step, before copies for later ones."""

    def step(self, step: int) -> None:
        """Run the other statements of a step."""
        raise NotImplementedError


def grid(counts: Mapping[str, Sequence[int]]) -> Iterator[dict[str, int]]:
    """Yield every block's place along the dims or axes that a grid cuts."""
    for at in itertools.product(*counts.values()):
        yield dict(zip(counts, at, strict=True))


# -- tensors ---------------------------------------------------------------------------------------


def within(places: Mapping[str, Places], ends: Mapping[str, int]) -> Inside:
    """Say which places lie before the ends of dims."""
    tests = (places[d] < end for d, end in ends.items())
    return np.asarray(np.logical_and.reduce(np.broadcast_arrays(True, *tests)))


def masked_load(tensor: Array, places: Sequence[Places], inside: Inside) -> Array:
    """Return what a tensor has at places: zeros where these do not lie inside."""
    near = np.broadcast_arrays(*(np.where(inside, place, 0) for place in places))
    return np.where(inside, tensor[tuple(near)], 0.0)


def masked_store(tensor: Array, places: Sequence[Places], inside: Inside, values: Array) -> None:
    """Write values to the places of a tensor that lie inside."""
    own = tuple(np.broadcast_to(place, inside.shape)[inside] for place in places)
    tensor[own] = np.broadcast_to(values, inside.shape)[inside]


def elementwise(op: str, args: Sequence[Array]) -> Array:
    """Compute an elementwise operation; truth values are 1 and 0."""
    if op == "last":
        return args[0]
    if op == "less":
        return np.asarray((args[0] < args[1]).astype(np.float64))
    if op == "both":
        return np.asarray(((args[0] != 0) & (args[1] != 0)).astype(np.float64))
    if op == "where":
        return np.asarray(np.where(args[0] != 0, args[1], args[2]))
    (made,) = FLOAT64.elementwise[op](*((a,) for a in args))
    return np.asarray(made)
