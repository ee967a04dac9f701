"""The measurements of one kernel, each asked of the worker once and kept."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from mirage_kernels.generator.errors import MirageError
from mirage_kernels.generator.ir.text import Json
from mirage_kernels.generator.tuning.catalog import Tuned
from mirage_kernels.generator.tuning.manifest import Built, Compiled
from mirage_kernels.generator.tuning.results import (
    DenseOutcome,
    Outcome,
    Peers,
    Results,
    answered,
    at,
)

UNMEASURED = "not measured"
CANDIDATE_SECONDS, PEERS_SECONDS, DENSE_SECONDS = 30.0, 180.0, 60.0
Ask = Callable[[dict[str, Json], float], dict[str, Json]]


class UnansweredError(Exception):
    """Something has not been measured."""


@dataclass
class KernelTuning:
    """One kernel's candidates, what has been measured of them, and who measures."""

    kernel: Compiled
    results: Results
    ask: Ask

    def measure(self) -> None:
        """Measure all that has not been."""
        raise NotImplementedError

    def tuned(self) -> Tuned:
        """Return what was chosen; without buckets where nothing could be measured."""
        raise NotImplementedError

    def is_whole(self) -> bool:
        """Say whether enough was measured for the catalog."""
        raise NotImplementedError

    def peers(self, call: str) -> None:
        """Measure what else serves a call, and its floor."""
        name, known = at(self.kernel.key.name, call), self.results.known.peers
        if name in known:
            return
        answer = self.ask({"kernel": self.kernel.key.name, "at": call}, PEERS_SECONDS)
        if "failed" in answer:
            raise MirageError(
                f"floor and PyTorch's own program cannot be measured for {self.kernel.key.name} "
                f"at {call}: {answer['failed']}",
                "what was measured is kept: the same command goes on",
            )
        known[name] = answered(Peers, answer)
        self.results.write()

    def candidate(self, built: Built, call: str, *, assumed: bool) -> None:
        """Measure a candidate at a call that assumes nothing, or all that can be assumed."""
        name, known = at(built.digest, call, assumed=assumed), self.results.known.outcomes
        if built.failed or name in known:
            return
        question: dict[str, Json] = {"kernel": self.kernel.key.name, "at": call}
        question |= {"library": built.library, "assumed": assumed}
        known[name] = answered(Outcome, self.ask(question, CANDIDATE_SECONDS))
        self.results.write()

    def dense(self, built: Built, call: str) -> None:
        """Measure a dense call of many query tokens beside PyTorch's attention."""
        name, known = at(built.digest, call), self.results.known.dense
        if name in known:
            return
        question: dict[str, Json] = {"kernel": self.kernel.key.name, "dense": call}
        answer = self.ask(question | {"library": built.library}, DENSE_SECONDS)
        known[name] = answered(DenseOutcome, answer)
        self.results.write()

    def outcome(self, built: Built, call: str, *, assumed: bool) -> Outcome | None:
        """Return what was measured of a candidate at a call."""
        return self.results.known.outcomes.get(at(built.digest, call, assumed=assumed))

    def peers_at(self, call: str) -> Peers | None:
        """Return what was measured beside the candidates at a call."""
        return self.results.known.peers.get(at(self.kernel.key.name, call))
