"""A tuning's measurements in order, each asked of the worker once and kept; then the choice."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from mirage_kernels.generator.errors import MirageError, ToolchainError
from mirage_kernels.generator.ir.codec import from_data
from mirage_kernels.generator.ir.text import Json
from mirage_kernels.generator.request import Event, Progress
from mirage_kernels.generator.tuning.calls import Call, beyond_of, calls_of
from mirage_kernels.generator.tuning.catalog import (
    At,
    Beyond,
    Bucket,
    Chosen,
    Section,
    Tried,
    TriedGraph,
    Tuned,
    overall_correlation,
)
from mirage_kernels.generator.tuning.choice import (
    DIGITS,
    behind,
    chosen,
    chosen_graph,
    chosen_of,
    finalists,
    geometric_mean,
    most_tokens,
    with_producers,
)
from mirage_kernels.generator.tuning.correlation import rank_correlation
from mirage_kernels.generator.tuning.knobs import has_producers
from mirage_kernels.generator.tuning.manifest import Built, Candidates, Compiled, Manifest
from mirage_kernels.generator.tuning.process import Measurer, Question
from mirage_kernels.generator.tuning.results import (
    Outcome,
    Peers,
    Results,
    at,
    outcome_of,
    peers_of,
)

CANDIDATE_SECONDS, PEERS_SECONDS = 60.0, 180.0
UNMEASURED = "not measured"


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
        kernels = self.manifest.kernels
        for done, kernel in enumerate(kernels):
            progress(Event("measure", done, len(kernels), kernel.key.name))
            self.of(kernel).measure()
        progress(Event("measure", len(kernels), len(kernels), "done"))

    def of(self, kernel: Compiled) -> KernelTuning:
        """Return what tunes a kernel: by the rules of kernels over tokens, or of several calls."""
        return (KernelTuning if kernel.tokens else CallsTuning)(kernel, self)

    def whole(self) -> Tuning:
        """Return the tuning of those kernels of which everything has been measured.

        Where buckets have several calls, a bucket suffices: the others are left out of the catalog.
        """
        alone = replace(self, measurer=Nobody())
        kernels = tuple(k for k in self.manifest.kernels if alone.of(k).is_whole())
        return replace(self, manifest=replace(self.manifest, kernels=kernels))

    def section(self) -> Section:
        """Return the catalog's section of what was measured.

        Raises ToolchainError where no candidate of any kernel could be measured.
        """
        made = (self.of(k).tuned() for k in self.manifest.kernels)
        kernels = tuple(t for t in made if t.buckets)
        if not kernels:
            raise ToolchainError(
                "no candidate could be measured", "measured.json and manifest.json say why of each"
            )
        here = (self.manifest.arch, self.results.measured.environment)
        return Section(*here, kernels, overall_correlation(kernels))

    def ask(self, question: dict[str, Json], seconds: float) -> dict[str, Json]:
        """Ask the worker; the first question of a tuning is where it runs."""
        if not self.begun:
            here = self.measurer.ask({"environment": self.command}, seconds=PEERS_SECONDS)
            if "failed" in here:
                raise ToolchainError(str(here["failed"]), "`mirage-kernels doctor` says more")
            self.results.begin(from_data(dict[str, str], here["environment"]))
            self.begun = True
        return self.measurer.ask(question, seconds=seconds)


@dataclass(frozen=True)
class KernelTuning:
    """One kernel's candidates, what has been measured of them, and who measures.

    Every bucket has one call. Its candidates are measured with all assumption flags, and those that
    may be chosen without flags too.
    """

    kernel: Compiled
    tuning: Tuning

    def measure(self) -> None:
        """Measure all that has not been; beyond the buckets as far as ours is not behind."""
        for bucket in self.kernel.buckets:
            self.candidates(bucket)
        for bucket in self.kernel.buckets:
            self.by_default(bucket, self.calls(bucket)[0])
        for call in beyond_of(self.kernel):
            if any(behind(row) for row in self.beyond()):
                break
            self.by_default(self.kernel.buckets[-1], call)

    def is_whole(self) -> bool:
        """Say whether everything has been measured."""
        try:
            self.measure()
        except UnansweredError:
            return False
        return True

    def tuned(self) -> Tuned:
        """Return what was chosen."""
        buckets = tuple(b for b in map(self.bucket, self.kernel.buckets) if b.chosen)
        beyond, any_number = tuple(self.beyond()), self.kernel.is_row_wise
        most = most_tokens(buckets, beyond, any_number=any_number)
        return Tuned(self.kernel.key, buckets, beyond, most)

    # -- measurements ------------------------------------------------------------------------------

    def candidates(self, bucket: Candidates) -> None:
        """Measure the candidates of a bucket."""
        (call,) = self.calls(bucket)
        if any(not b.failed for b in bucket.built):
            self.peers(call)
        for built in bucket.built:
            self.candidate(built, call)
        tried = self.tried(bucket)
        for one in finalists(tried):
            self.candidate(bucket.built[tried.index(one)], call, promised=False)

    def by_default(self, bucket: Candidates, call: Call) -> None:
        """Measure a bucket's choice without flags, and PyTorch."""
        best = self.best(bucket)
        if best is not None:
            self.peers(call)
            self.candidate(best, call, promised=False)

    def peers(self, call: Call) -> None:
        """Measure what a call is compared with."""
        name, measured = self.at(call), self.tuning.results.measured
        if name in measured.peers:
            return
        answer = self.tuning.ask(self.question(call), PEERS_SECONDS)
        if "failed" in answer:
            where = f"at {call.name} tokens" if self.kernel.tokens else f"at {call.name}"
            raise MirageError(
                f"PyTorch's own program or the floor cannot be measured for "
                f"{self.kernel.key.name} {where}: {answer['failed']}",
                "what was measured is kept: the same command goes on",
            )
        measured.peers[name] = peers_of(answer)
        self.tuning.results.write()

    def candidate(self, built: Built, call: Call, *, promised: bool = True) -> None:
        """Measure a candidate at a call, with all assumption flags or none."""
        name = at(built.digest, call.name, promised=promised)
        outcomes = self.tuning.results.measured.outcomes
        if built.failed or name in outcomes:
            return
        question = self.question(call) | {"library": built.library, "promised": promised}
        outcomes[name] = outcome_of(self.tuning.ask(question, CANDIDATE_SECONDS))
        self.tuning.results.write()

    # -- what is known -----------------------------------------------------------------------------

    def question(self, call: Call) -> dict[str, Json]:
        """Return what to ask about a call."""
        return {"kernel": self.kernel.key.name, "call": call.name}

    def at(self, call: Call) -> str:
        """Return under which name something is kept that depends on the call only."""
        return at(self.kernel.key.name, call.name)

    def calls(self, bucket: Candidates) -> list[Call]:
        """Return the calls that a bucket serves."""
        return [c for c in calls_of(self.kernel) if c.bucket == bucket.size]

    def known_peers(self, call: Call) -> Peers:
        """Return what a call is compared with, nothing where that was not measured."""
        return self.tuning.results.measured.peers.get(self.at(call), Peers())

    def outcome(self, built: Built, call: Call, *, promised: bool = True) -> Outcome | None:
        """Return what was measured of a candidate at a call."""
        name = at(built.digest, call.name, promised=promised)
        return self.tuning.results.measured.outcomes.get(name)

    def tried(self, bucket: Candidates) -> tuple[Tried, ...]:
        """Return what is known of a bucket's candidates."""
        return tuple(self.of_candidate(built, bucket) for built in bucket.built)

    def of_candidate(self, built: Built, bucket: Candidates) -> Tried:
        """Return what is known of a candidate."""
        made = Tried(built.knobs, built.schedule, built.predicted_us)
        outcomes = self.outcomes(built, bucket)
        failed = built.failed or next((o.failed for o in outcomes if o and o.failed), "")
        us = tuple(o.us for o in outcomes if o and o.us is not None)
        if failed or len(us) < len(outcomes):
            return replace(made, failed=failed or UNMEASURED)
        return replace(made, us=us, default_us=self.default_us(built, bucket))

    def outcomes(self, built: Built, bucket: Candidates) -> list[Outcome | None]:
        """Return what says whether a candidate failed: its calls with flags."""
        return [self.outcome(built, call) for call in self.calls(bucket)]

    def default_us(self, built: Built, bucket: Candidates) -> tuple[float, ...]:
        """Return a candidate's times without flags, as far as they are known."""
        found = (self.outcome(built, call, promised=False) for call in self.calls(bucket))
        return tuple(o.us for o in found if o is not None and o.us is not None)

    def best(self, bucket: Candidates) -> Built | None:
        """Return the choice of a bucket, one that may stand in a file with the others'."""
        among = with_producers({b.size: self.tried(b) for b in self.kernel.buckets})
        tried = self.tried(bucket)
        found = chosen([t for t in tried if has_producers(t.knobs) is among])
        return None if found is None else bucket.built[tried.index(found)]

    def bucket(self, candidates: Candidates) -> Bucket:
        """Return what is known of a bucket, and what was chosen."""
        built, tried = self.best(candidates), self.tried(candidates)
        (call,) = self.calls(candidates)
        where = self.measured_at(call)
        found = [] if built is None else [tried[candidates.built.index(built)]]
        picked = tuple(Chosen(t.knobs, round(t.us[0] / where.floor_us, DIGITS)) for t in found)
        made = Bucket(candidates.size, picked, (where,), tried)
        return replace(made, correlation=rank_correlation(made.pairs))

    def measured_at(self, call: Call) -> At:
        """Return a call with what it is compared with."""
        p = self.known_peers(call)
        return At(call.name, p.floor_us, p.eager_us, p.library_us)

    def beyond(self) -> Iterator[Beyond]:
        """Yield the calls beyond the buckets that were measured."""
        best = self.best(self.kernel.buckets[-1])
        for call in beyond_of(self.kernel) if best else ():
            assert best is not None
            peers, outcome = self.known_peers(call), self.outcome(best, call, promised=False)
            if outcome is not None and (peers.eager_us or peers.library_us):
                times = (outcome.us, peers.eager_us, peers.library_us)
                yield Beyond(call.sizes, *times, call.causal, peers.peers)


@dataclass(frozen=True)
class CallsTuning(KernelTuning):
    """A kernel whose buckets have several calls, of which some may have a variant of their own.

    Everything is measured with and without flags, and several muGraphs are compared.
    """

    def measure(self) -> None:
        """Measure all that has not been, bucket by bucket; other muGraphs after the first."""
        for bucket in self.kernel.buckets:
            self.candidates(bucket)
        last = self.best(self.kernel.buckets[-1])
        if last is None:
            return
        for other in self.others():
            for bucket in other.kernel.buckets:
                other.candidates(bucket)
        for call in beyond_of(self.kernel):
            self.peers(call)
            self.candidate(last, call, promised=False)

    def is_whole(self) -> bool:
        """Say whether a bucket has been measured."""
        return bool(self.tuned().buckets)

    def others(self) -> list[CallsTuning]:
        """Return the tunings of the other muGraphs."""
        return [replace(self, kernel=other) for other in self.kernel.mugraphs]

    def tuned(self) -> Tuned:
        """Return what was chosen."""
        buckets = tuple(b for b in map(self.bucket, self.kernel.buckets) if b.chosen)
        if not buckets:
            return Tuned(self.kernel.key, ())
        graphs = tuple(TriedGraph(t.kernel.mugraph, t.ratio()) for t in (self, *self.others()))
        beyond = tuple(b for b in self.beyond() if b.default_us is not None)
        made = Tuned(self.kernel.key, buckets, beyond, mugraph=chosen_graph(graphs))
        return replace(made, mugraphs=graphs) if len(graphs) > 1 else made

    def candidates(self, bucket: Candidates) -> None:
        """Measure the candidates of a bucket; one that fails is not measured again."""
        for call in self.calls(bucket):
            if all(self.failure(b, bucket) for b in bucket.built):
                return
            self.peers(call)
            for built in bucket.built:
                for promised in (False, True):
                    if not self.failure(built, bucket):
                        self.candidate(built, call, promised=promised)

    def failure(self, built: Built, bucket: Candidates) -> str:
        """Return why a candidate is not measured (any more)."""
        found = (o.failed for o in self.outcomes(built, bucket) if o and o.failed)
        return built.failed or next(found, "")

    def outcomes(self, built: Built, bucket: Candidates) -> list[Outcome | None]:
        """Return what says whether a candidate failed: its calls without flags and with them."""
        both = (super().outcomes(built, bucket), self.without_flags(built, bucket))
        return [
            a if (a and a.failed) or not (b and b.failed) else b for a, b in zip(*both, strict=True)
        ]

    def without_flags(self, built: Built, bucket: Candidates) -> list[Outcome | None]:
        """Return what was measured of a candidate without flags."""
        return [self.outcome(built, call, promised=False) for call in self.calls(bucket)]

    def best(self, bucket: Candidates) -> Built | None:
        """Return the choice of a bucket for usual calls, or the rule's."""
        choice = self.bucket(bucket).choice()
        knobs = choice.knobs if choice else bucket.rule
        built = (b for b in bucket.built if b.knobs == knobs)
        return next((b for b in built if not self.failure(b, bucket)), None)

    def bucket(self, candidates: Candidates) -> Bucket:
        """Return what is known of a bucket, and what was chosen where all of it was measured."""
        calls = tuple(self.measured_in(call, candidates) for call in self.calls(candidates))
        tried = self.tried(candidates)
        whole = all(t.failed != UNMEASURED for t in tried)
        rules = (candidates.rule, candidates.rule_of_few)
        return Bucket(
            candidates.size, chosen_of(calls, tried, rules) if whole else (), calls, tried
        )

    def measured_in(self, call: Call, bucket: Candidates) -> At:
        """Return a call with its floor, and whether the launch finds few work tiles."""
        found = (self.outcome(b, call, promised=False) for b in bucket.built)
        few = any(o.few_tiles for o in found if o is not None)
        return replace(self.measured_at(call), few_tiles=few and bucket.splits)

    def ratio(self) -> float | None:
        """Return the geometric mean of time over floor at all calls, of the rule's variants."""
        ratios: list[float] = []
        for candidates in self.kernel.buckets:
            bucket = self.bucket(candidates)
            for i, call in enumerate(bucket.calls):
                rule = (call.few_tiles and candidates.rule_of_few) or candidates.rule
                found = (t for t in bucket.tried if t.knobs == rule and not t.failed)
                one = next(found, None)
                if one is None:
                    return None
                ratios.append(one.means[i] / call.floor_us)
        return round(geometric_mean(ratios), DIGITS) if ratios else None
