"""A search as a job: what it must offer, the key that its result is kept under, its messages."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import NamedTuple

import msgspec

from mirage_kernels.generator.errors import MirageError
from mirage_kernels.generator.ir.text import Json
from mirage_kernels.generator.search.sketch import Found

# What a search's outcome depends on, below the generator's folder.
SEARCH_CODE = ("ir", "meaning", "search", "target.py")
Task = Callable[[], Found]  # finds the same whenever and wherever it runs


class Round(NamedTuple):
    """Tasks that run in any order and in any process, with a word for what they do."""

    name: str
    tasks: Sequence[Task]


@dataclass(frozen=True)
class TaskDone:
    """A finished task: its round, its place in it, what it found, and the seconds it took."""

    round: int
    index: int
    found: Found
    seconds: float


class Progressed(NamedTuple):
    """How far a round is: the word for it, its tasks, those that are done, and the last of them."""

    name: str
    tasks: int
    done: int
    last: TaskDone | None = None  # none where the round begins


Message = Progressed | Found | MirageError  # the last two end the work


@dataclass(frozen=True)
class Job(ABC):
    """One search to make or to look up, by the name that a person knows it by; can be pickled."""

    name: str

    @abstractmethod
    def identity(self) -> dict[str, Json]:
        """Return everything that the outcome depends on, the version of the code included."""

    @abstractmethod
    def next_round(self, earlier: Sequence[Sequence[Found]]) -> Round | None:
        """Return the round after those whose results are known; None after the last."""

    @abstractmethod
    def merge(self, rounds: Sequence[Sequence[Found]]) -> Found:
        """Return the outcome from the results of all rounds, in the order of their tasks."""

    @cached_property
    def key(self) -> str:
        """The name of the result; a worker gets the job with the key that was asked for."""
        return key_of(self)


def key_of(job: Job) -> str:
    """Return the digest of all that the outcome of a job depends on here."""
    return hashlib.sha256(msgspec.json.encode(job.identity())).hexdigest()


@cache
def code_digest(root: Path = Path(__file__).parents[1]) -> str:
    """Return the digest of the sources that a search depends on, wherever their folder lies."""
    total = hashlib.sha256()
    paths = (p for name in SEARCH_CODE for p in (root / name, *root.glob(f"{name}/*.py")))
    for path in sorted(p for p in paths if p.is_file()):
        total.update(f"{path.relative_to(root)}\n".encode() + path.read_bytes())
    return total.hexdigest()
