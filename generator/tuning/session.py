"""A tuning's measurements in order, each asked of the worker once and kept; then the choice."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from mirage_kernels.generator.errors import MirageError, ToolchainError
from mirage_kernels.generator.ir.text import Json
from mirage_kernels.generator.request import Event, Progress
from mirage_kernels.generator.tuning.catalog import Beyond, Bucket, Section, Tried, Tuned
from mirage_kernels.generator.tuning.choice import (
    fastest,
    most_tokens,
    predicted_and_measured,
    rank_correlation,
)
from mirage_kernels.generator.tuning.fields import text, texts
from mirage_kernels.generator.tuning.manifest import Built, Compiled, Manifest
from mirage_kernels.generator.tuning.process import Measurer
from mirage_kernels.generator.tuning.results import Outcome, Peers, Results, at

BEYOND = (128,)  # tokens above the last bucket at which ours and PyTorch are compared
CANDIDATE_SECONDS, PEERS_SECONDS = 60.0, 180.0


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
        kernels = self.manifest.kernels
        for done, kernel in enumerate(kernels):
            progress(Event("measure", done, len(kernels), kernel.key.name))
            for tokens, built in kernel.buckets.items():
                if any(not b.failed for b in built):
                    self._peers(kernel, tokens)
                for one in built:
                    self._candidate(kernel, one, tokens)
                self._by_default(kernel, tokens, (tokens,))
            self._by_default(kernel, max(kernel.buckets), BEYOND)
        progress(Event("measure", len(kernels), len(kernels), "done"))

    def section(self) -> Section:
        """Return the catalog's section of what was measured.

        Raises ToolchainError where no candidate of any kernel could be measured.
        """
        kernels = tuple(t for t in map(self._tuned, self.manifest.kernels) if t.buckets)
        if not kernels:
            raise ToolchainError(
                "no candidate could be measured", "measured.json and manifest.json say why of each"
            )
        buckets = [b for k in kernels for b in k.buckets]
        correlation = rank_correlation([p for b in buckets for p in _relative(b)])
        return Section(self.manifest.arch, self.results.environment, correlation, kernels)

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

    def _by_default(self, kernel: Compiled, bucket: int, at_tokens: Sequence[int]) -> None:
        """Measure a bucket's choice as calls are that promise nothing about the weights."""
        best = self._best(kernel, bucket)
        if best is None:
            return
        for tokens in at_tokens:
            self._peers(kernel, tokens)
            self._candidate(kernel, best, tokens, promised=False)

    def _best(self, kernel: Compiled, tokens: int) -> Built | None:
        tried = self._tried(kernel, tokens)
        found = fastest(tried)
        return None if found is None else kernel.buckets[tokens][tried.index(found)]

    def _tried(self, kernel: Compiled, tokens: int) -> tuple[Tried, ...]:
        return tuple(self._outcome(b, tokens) for b in kernel.buckets[tokens])

    def _outcome(self, built: Built, tokens: int) -> Tried:
        unmeasured = Tried(built.knobs, built.predicted_us, failed=built.failed or "not measured")
        outcome = self.results.outcomes.get(at(built.digest, tokens))
        if built.failed or outcome is None:
            return unmeasured
        return replace(unmeasured, us=outcome.us, failed=outcome.failed)

    def _tuned(self, kernel: Compiled) -> Tuned:
        buckets = tuple(filter(None, (self._bucket(kernel, m) for m in kernel.buckets)))
        beyond = tuple(self._beyond_rows(kernel))
        return Tuned(kernel.key, most_tokens(buckets, beyond), buckets, beyond)

    def _bucket(self, kernel: Compiled, tokens: int) -> Bucket | None:
        tried = self._tried(kernel, tokens)
        best = fastest(tried)
        if best is None or best.us is None:
            return None
        peers = self.results.peers[at(kernel.key.name, tokens)]
        return Bucket(
            tokens=tokens,
            knobs=best.knobs,
            us=best.us,
            default_us=self._default_us(kernel, tokens, tokens),
            floor_us=peers.floor_us,
            eager_us=peers.eager_us,
            correlation=rank_correlation(predicted_and_measured(tried)),
            tried=tried,
        )

    def _default_us(self, kernel: Compiled, bucket: int, tokens: int) -> float | None:
        best = self._best(kernel, bucket)
        name = best and at(best.digest, tokens, promised=False)
        outcome = self.results.outcomes.get(name or "")
        return outcome.us if outcome else None

    def _beyond_rows(self, kernel: Compiled) -> Iterator[Beyond]:
        last = max(kernel.buckets)
        for tokens in BEYOND:
            peers = self.results.peers.get(at(kernel.key.name, tokens))
            if peers is not None:
                yield Beyond(tokens, self._default_us(kernel, last, tokens), peers.eager_us)


def _relative(bucket: Bucket) -> list[tuple[float, float]]:
    """Return predictions and measurements over the bucket's least: comparable across buckets."""
    pairs = predicted_and_measured(bucket.tried)
    least = [min(p[side] for p in pairs) for side in (0, 1)]
    return [(p / least[0], us / least[1]) for p, us in pairs]
