"""A tuning's measurements in order, each asked of the worker once and kept; then the choice."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from mirage_kernels.generator.errors import MirageError, ToolchainError
from mirage_kernels.generator.ir.text import Json
from mirage_kernels.generator.request import Event, Progress
from mirage_kernels.generator.tuning.attention_manifest import CompiledAttention
from mirage_kernels.generator.tuning.attention_session import AttentionTuning
from mirage_kernels.generator.tuning.catalog import (
    Beyond,
    Bucket,
    Section,
    Tried,
    Tuned,
    has_producers,
    overall_correlation,
)
from mirage_kernels.generator.tuning.choice import (
    apart_or_not,
    behind,
    chosen,
    finalists,
    most_tokens,
)
from mirage_kernels.generator.tuning.correlation import rank_correlation
from mirage_kernels.generator.tuning.fields import text, texts
from mirage_kernels.generator.tuning.manifest import Built, Compiled, Manifest
from mirage_kernels.generator.tuning.process import Measurer, Question
from mirage_kernels.generator.tuning.results import Outcome, Peers, Results, at

CANDIDATE_SECONDS, PEERS_SECONDS = 30.0, 180.0


class UnansweredError(Exception):
    """Something has not been measured."""


class Nobody:
    """In place of a measurer: answers nothing."""

    def ask(self, question: Question, *, seconds: float) -> dict[str, Json]:
        """Raise UnansweredError."""
        raise UnansweredError

    def close(self) -> None:
        """Do nothing."""


@dataclass
class Tuning:
    """What is to be measured, what has been, and who measures."""

    manifest: Manifest
    results: Results
    measurer: Measurer
    command: str
    begun: bool = False  # whether the measurer has said where it runs

    def measure(self, progress: Progress) -> None:
        """Measure all that has not been; needs no GPU when everything has."""
        kernels, attention = self.manifest.kernels, self.manifest.attention
        all_ = len(kernels) + len(attention)
        for done, kernel in enumerate(kernels):
            progress(Event("measure", done, all_, kernel.key.name))
            for tokens, built in kernel.buckets.items():
                if any(not b.failed for b in built):
                    self._peers(kernel, tokens)
                for one in built:
                    self._candidate(kernel, one, tokens)
                self._finalists(kernel, tokens)
            for tokens in kernel.buckets:
                self._by_default(kernel, tokens, tokens)
            for tokens in kernel.beyond:
                if any(behind(row) for row in self._beyond_rows(kernel)):
                    break
                self._by_default(kernel, max(kernel.buckets), tokens)
        for done, other in enumerate(attention, len(kernels)):
            progress(Event("measure", done, all_, other.key.name))
            self._attention(other).measure()
        progress(Event("measure", all_, all_, "done"))

    def _attention(self, kernel: CompiledAttention) -> AttentionTuning:
        return AttentionTuning(kernel, self.results, self._ask)

    def whole(self) -> Tuning:
        """Return the tuning of those kernels of which everything has been measured.

        Of attention a bucket of query rows suffices: the others are left out of the catalog.
        """

        def has_all(alone: Manifest) -> bool:
            try:
                replace(self, manifest=alone, measurer=Nobody()).measure(lambda event: None)
            except UnansweredError:
                return False
            return True

        none = replace(self.manifest, kernels=(), attention=())
        kernels = tuple(k for k in self.manifest.kernels if has_all(replace(none, kernels=(k,))))
        made = ((k, self._attention(k).tuned()) for k in self.manifest.attention)
        attention = tuple(k for k, tuned in made if tuned.buckets)
        return replace(self, manifest=replace(none, kernels=kernels, attention=attention))

    def section(self) -> Section:
        """Return the catalog's section of what was measured.

        Raises ToolchainError where no candidate of any kernel could be measured.
        """
        kernels = tuple(t for t in map(self._tuned, self.manifest.kernels) if t.buckets)
        made = (self._attention(k).tuned() for k in self.manifest.attention)
        attention = tuple(t for t in made if t.buckets)
        if not (kernels or attention):
            raise ToolchainError(
                "no candidate could be measured", "measured.json and manifest.json say why of each"
            )
        here = (self.manifest.arch, self.results.environment)
        return Section(*here, overall_correlation(kernels), kernels, attention)

    def _ask(self, question: dict[str, Json], seconds: float) -> dict[str, Json]:
        """Ask the worker; the first question of a tuning is where it runs."""
        if not self.begun:
            here = self.measurer.ask({"environment": self.command}, seconds=PEERS_SECONDS)
            if "failed" in here:
                raise ToolchainError(text(here, "failed"), "`mirage-kernels doctor` says more")
            self.results.begin(texts(here, "environment"))
            self.begun = True
        return self.measurer.ask(question, seconds=seconds)

    def _peers(self, kernel: Compiled, tokens: int) -> None:
        name = at(kernel.key.name, tokens)
        if name in self.results.peers:
            return
        question: dict[str, Json] = {"kernel": kernel.key.name, "tokens": tokens}
        answer = self._ask(question, PEERS_SECONDS)
        if "failed" in answer:
            raise MirageError(
                f"PyTorch's own program cannot be measured for {kernel.key.name} "
                f"at {tokens} tokens: {text(answer, 'failed')}",
                "what was measured is kept: the same command goes on",
            )
        self.results.peers[name] = Peers.read(answer)
        self.results.write()

    def _candidate(
        self, kernel: Compiled, built: Built, tokens: int, *, promised: bool = True
    ) -> None:
        name = at(built.digest, tokens, promised=promised)
        if built.failed or name in self.results.outcomes:
            return
        question: dict[str, Json] = {"kernel": kernel.key.name, "tokens": tokens}
        question |= {"library": built.library, "promised": promised}
        answer = self._ask(question, CANDIDATE_SECONDS)
        self.results.outcomes[name] = Outcome.read(answer)
        self.results.write()

    def _finalists(self, kernel: Compiled, tokens: int) -> None:
        """Measure the best of every plan as calls are that promise nothing about the weights."""
        tried = self._tried(kernel, tokens)
        for one in finalists(tried):
            built = kernel.buckets[tokens][tried.index(one)]
            self._candidate(kernel, built, tokens, promised=False)

    def _by_default(self, kernel: Compiled, bucket: int, tokens: int) -> None:
        """Measure a bucket's choice as calls are that promise nothing, and PyTorch."""
        best = self._best(kernel, bucket)
        if best is not None:
            self._peers(kernel, tokens)
            self._candidate(kernel, best, tokens, promised=False)

    def _best(self, kernel: Compiled, tokens: int) -> Built | None:
        """Return the choice of a bucket, one that may stand in a file with the others'."""
        apart = apart_or_not({m: self._tried(kernel, m) for m in kernel.buckets})
        tried = self._tried(kernel, tokens)
        found = chosen([t for t in tried if has_producers(t.knobs) is apart])
        return None if found is None else kernel.buckets[tokens][tried.index(found)]

    def _tried(self, kernel: Compiled, tokens: int) -> tuple[Tried, ...]:
        return tuple(self._outcome(b, tokens) for b in kernel.buckets[tokens])

    def _outcome(self, built: Built, tokens: int) -> Tried:
        unmeasured = Tried(built.knobs, built.predicted_us, failed=built.failed or "not measured")
        outcome = self.results.outcomes.get(at(built.digest, tokens))
        if built.failed or outcome is None:
            return unmeasured
        default = self.results.outcomes.get(at(built.digest, tokens, promised=False))
        default_us = default.us if default else None
        return replace(unmeasured, us=outcome.us, failed=outcome.failed, default_us=default_us)

    def _tuned(self, kernel: Compiled) -> Tuned:
        buckets = tuple(filter(None, (self._bucket(kernel, m) for m in kernel.buckets)))
        beyond = tuple(self._beyond_rows(kernel))
        most = most_tokens(buckets, beyond, any_number=kernel.of_lines)
        return Tuned(kernel.key, most, buckets, beyond)

    def _bucket(self, kernel: Compiled, tokens: int) -> Bucket | None:
        tried = self._tried(kernel, tokens)
        built = self._best(kernel, tokens)
        if built is None:
            return None
        best = self._outcome(built, tokens)
        assert best.us is not None
        peers = self.results.peers[at(kernel.key.name, tokens)]
        made = Bucket(
            tokens=tokens,
            knobs=best.knobs,
            us=best.us,
            default_us=best.default_us,
            floor_us=peers.floor_us,
            eager_us=peers.eager_us,
            correlation=None,
            tried=tried,
            library_us=peers.library_us,
        )
        return replace(made, correlation=rank_correlation(made.pairs))

    def _beyond_rows(self, kernel: Compiled) -> Iterator[Beyond]:
        best = self._best(kernel, max(kernel.buckets))
        if best is None:
            return
        for tokens in kernel.beyond:
            peers = self.results.peers.get(at(kernel.key.name, tokens))
            outcome = self.results.outcomes.get(at(best.digest, tokens, promised=False))
            if peers is not None and outcome is not None:
                yield Beyond(tokens, outcome.us, peers.eager_us, peers.library_us)
