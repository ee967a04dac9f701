"""What is measured of each kernel, everything once, and what follows; then the catalog's section.

Where a bucket has one call, all candidates are measured with weights assumed to be constant, the
best of them without; where it has several, all candidates both ways.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import geometric_mean
from typing import NoReturn

from mirage_kernels.generator.bench.workloads.cache import CacheWorkload
from mirage_kernels.generator.bench.workloads.tensors import TensorWorkload
from mirage_kernels.generator.errors import MirageError, ToolchainError
from mirage_kernels.generator.ir.text import Json
from mirage_kernels.generator.request import Event, Progress
from mirage_kernels.generator.schedules.row_wise import RowWise
from mirage_kernels.generator.tuning.catalog import (
    Beyond,
    Bucket,
    Chosen,
    Dense,
    Point,
    Section,
    Tried,
    TriedForm,
    Tuned,
    overall_correlation,
    rank_correlation,
    read,
)
from mirage_kernels.generator.tuning.choice import (
    DIGITS,
    behind,
    chosen,
    chosen_form,
    chosen_of,
    finalists,
    has_producers,
    most_tokens,
    with_producers,
)
from mirage_kernels.generator.tuning.measurements import (
    UNMEASURED,
    Call,
    Outcome,
    Peers,
    Results,
    answered,
    at,
    bucketed_calls,
    calls_above,
)
from mirage_kernels.generator.tuning.process import Measurer

CANDIDATE_SECONDS, PEERS_SECONDS = 30.0, 180.0
Ask = Callable[[dict[str, Json], float], dict[str, Json]]


class UnansweredError(Exception):
    """Something has not been measured."""


def _nobody(*_: object) -> NoReturn:
    raise UnansweredError


@dataclass
class KernelTuning:
    """One kernel's candidates, what has been measured of them, and who measures."""

    kernel: Tuned
    results: Results
    ask: Ask

    @cached_property
    def calls(self) -> dict[int, dict[str, Call]]:
        """The calls of each bucket."""
        return bucketed_calls(self.kernel)

    @cached_property
    def above(self) -> dict[str, Call]:
        """The calls at which the last bucket's choice is compared with what else may serve."""
        return calls_above(self.kernel)

    @property
    def others(self) -> list[KernelTuning]:
        """The tunings of the kernel's other muGraphs."""
        return [replace(self, kernel=other) for other in self.kernel.others]

    # -- measure -----------------------------------------------------------------------------------

    def measure(self) -> None:
        """Measure all that has not been: candidates by bucket, choices, muGraphs, calls above."""
        self.measure_candidates()
        for bucket in self.kernel.buckets:
            best = self._best(bucket)
            if best is not None and self._has_one_call(bucket):
                self._measure(next(iter(self.calls[bucket.size])), [best], assumed=False)
        best = self._best(self.kernel.buckets[-1])
        if best is None:
            return
        for other in self.others:
            other.measure_candidates()
        for call in self.above:
            if any(behind(row) for row in self._beyond()):
                break
            self._measure(call, [best], assumed=False)

    def measure_candidates(self) -> None:
        """Measure the candidates of every bucket that have not failed; of one call's both ways.

        Of one call's only the finalists are also measured with nothing assumed.
        """
        for bucket in self.kernel.buckets:
            for call in self.calls[bucket.size]:
                self._measure(call, self._left(self._tried(bucket)), assumed=True)
                tried = self._tried(bucket)
                final = finalists(tried) if self._has_one_call(bucket) else tried
                self._measure(call, self._left(final), assumed=False)

    def is_whole(self) -> bool:
        """Say whether enough was measured for the catalog.

        A bucket is enough of a program, and where buckets have several calls; else all, as it is
        the calls above the buckets that say how many tokens a kernel serves.
        """
        if not self.kernel.dim or self.kernel.symbol:
            return bool(self.tuned().buckets)
        try:
            replace(self, ask=_nobody).measure()
        except UnansweredError:
            return False
        return True

    def _has_one_call(self, bucket: Bucket) -> bool:
        return len(self.calls[bucket.size]) == 1

    def _left(self, tried: Iterable[Tried]) -> list[Tried]:
        return [t for t in tried if t.failed in ("", UNMEASURED)]

    def _measure(self, call: str, candidates: list[Tried], *, assumed: bool) -> None:
        """Measure candidates at a call that assumes nothing, or all that can be assumed.

        Before the first of them, what else serves the call, and its floor.
        """
        name, known = self.kernel.key.name, self.results.known
        question: dict[str, Json] = {"kernel": name, "at": call}
        if candidates and at(name, call) not in known.peers:
            answer = self.ask(question, PEERS_SECONDS)
            if "failed" in answer and self.kernel.symbol:
                return  # the rule's choice, which a program's others are compared with, fails
            if "failed" in answer:
                raise MirageError(
                    f"floor and PyTorch's own program cannot be measured for {name} at {call}: "
                    f"{answer['failed']}",
                    "what was measured is kept: the same command goes on",
                )
            known.peers[at(name, call)] = answered(Peers, answer)
            self.results.write()
        for digest in (c.digest for c in candidates):
            kept = at(digest, call, assumed=assumed)
            if kept not in known.outcomes:
                more: dict[str, Json] = {"library": f"{digest}.so", "assumed": assumed}
                answer = self.ask(question | more, CANDIDATE_SECONDS)
                if answer.get("failed") == UNMEASURED:
                    continue
                known.outcomes[kept] = answered(Outcome, answer)
                self.results.write()

    # -- what is known -----------------------------------------------------------------------------

    def _tried(self, bucket: Bucket) -> tuple[Tried, ...]:
        """Return what is known of a bucket's candidates, with their digests."""
        calls, known, made = self.calls[bucket.size], self.results.known.outcomes, []
        for candidate in bucket.tried:
            found = {
                assumed: [
                    known[name]
                    for name in (at(candidate.digest, call, assumed=assumed) for call in calls)
                    if name in known
                ]
                for assumed in (False, True)
            }
            why = (o.failed for outcomes in found.values() for o in outcomes if o.failed)
            failed = candidate.failed or next(why, "")
            needed = (True,) if self._has_one_call(bucket) else (False, True)
            if not failed and any(len(found[assumed]) < len(calls) for assumed in needed):
                failed = UNMEASURED
            us, assumed_us = (
                () if failed else tuple(o.us for o in found[assumed]) for assumed in (False, True)
            )
            one = replace(candidate, us=us, assumed_us=assumed_us, failed=failed, registers=0)
            made.append(one)
        return tuple(made)

    def _point(self, call: str, bucket: Bucket) -> Point:
        """Return a call with what else serves it, and whether the launch finds few work tiles.

        It is asked where calls of few work tiles may have a variant of their own.
        """
        known = self.results.known
        found = (known.outcomes.get(at(t.digest, call)) for t in bucket.tried)
        few = any(o.few_tiles for o in found if o is not None)
        few = few and bool(bucket.size or bucket.rule_of_few)
        peers = known.peers.get(at(self.kernel.key.name, call), Peers(0.0))
        return Point(call, peers.floor_us, peers.eager_us, peers.library_us, few)

    # -- what follows ------------------------------------------------------------------------------

    def tuned(self) -> Tuned:
        """Return what was chosen; without buckets where nothing could be measured."""
        kernel, form, forms = self.kernel, self.kernel.form, tuple[TriedForm, ...]()
        buckets = tuple(b for b in map(self._bucket, kernel.buckets) if b.chosen)
        if not buckets:
            return Tuned(kernel.key, (), form=form)
        if kernel.others:
            forms = tuple(TriedForm(t.kernel.form, t.ratio()) for t in (self, *self.others))
            form = chosen_form(forms)
        beyond, dense = tuple(self._beyond()), tuple(self._dense())
        # Where blocks have a token each, one variant serves any number.
        is_row_wise = isinstance(kernel.buckets[-1].tried[0].knobs, RowWise)
        counted = kernel.dim and not kernel.symbol
        most = most_tokens(buckets, beyond, any_number=is_row_wise) if counted else 0
        return Tuned(kernel.key, buckets, most, beyond, dense, form, forms)

    def _bucket(self, bucket: Bucket) -> Bucket:
        """Return what is known of a bucket, and what was chosen; nothing while it is not whole."""
        points = tuple(self._point(call, bucket) for call in self.calls[bucket.size])
        tried, picked = self._tried(bucket), tuple[Chosen, ...]()
        rule = bucket.tried[0].knobs
        if not self._has_one_call(bucket):
            if all(t.failed != UNMEASURED for t in tried):
                picked = chosen_of(points, tried, (rule, bucket.rule_of_few))
        elif (best := self._best(bucket)) is not None and points[0].floor_us:
            floor_us = points[0].floor_us
            times = {t.knobs: t.assumed_us[0] for t in tried if t.assumed_us}
            ratios = {knobs: round(us / floor_us, DIGITS) for knobs, us in times.items()}
            picked = (Chosen(best.knobs, ratios[best.knobs], ratios.get(rule)),)
        made = Bucket(bucket.size, picked, points, tuple(replace(t, digest="") for t in tried))
        return replace(made, correlation=rank_correlation(made.pairs))

    def _best(self, bucket: Bucket) -> Tried | None:
        """Return a bucket's choice, of one call one that may stand in a file with the others'.

        Of several calls, where there is no choice, the rule's.
        """
        tried = self._tried(bucket)
        if self._has_one_call(bucket):
            producers = with_producers({b.size: self._tried(b) for b in self.kernel.buckets})
            return chosen([t for t in tried if has_producers(t.knobs) is producers])
        choice = self._bucket(bucket).choice()
        knobs = choice.knobs if choice else tried[0].knobs
        return next((t for t in self._left(tried) if t.knobs == knobs), None)

    def ratio(self) -> float | None:
        """Return the geometric mean of time over floor at all calls, of the rule's variants."""
        ratios: list[float] = []
        for bucket in self.kernel.buckets:
            known = self._bucket(bucket)
            means = {t.knobs: t.means() for t in known.tried if not t.failed}
            for i, point in enumerate(known.points):
                rule = (point.few_tiles and bucket.rule_of_few) or bucket.tried[0].knobs
                if rule not in means:
                    return None
                ratios.append(means[rule][i] / point.floor_us)
        return round(geometric_mean(ratios), DIGITS) if ratios else None

    def _above(self) -> Iterator[tuple[Call, Outcome, Peers]]:
        """Yield what was measured of the last bucket's choice at the calls above, and beside it."""
        best = self._best(self.kernel.buckets[-1]) if self.above else None
        for call, workload in self.above.items() if best else ():
            assert best is not None
            found = self.results.known.outcomes.get(at(best.digest, call))
            peers = self.results.known.peers.get(at(self.kernel.key.name, call))
            if found is not None and peers is not None:
                yield workload, found, peers

    def _beyond(self) -> Iterator[Beyond]:
        for workload, found, peers in self._above():
            if isinstance(workload, TensorWorkload):
                us = None if found.failed else found.us
                yield Beyond(workload.rows, us, peers.eager_us or 0.0, peers.library_us)

    def _dense(self) -> Iterator[Dense]:
        for w, found, peers in self._above():
            if isinstance(w, CacheWorkload) and peers.library_us is not None and not found.failed:
                size = (w.sequences, w.tokens, w.heads[0], w.longest, w.is_causal)
                yield Dense(*size, found.us, peers.library_us, peers.peers)


@dataclass
class Tuning:
    """What is to be measured, what has been, and who measures."""

    manifest: Section
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

    def of(self, kernel: Tuned) -> KernelTuning:
        """Return the tuning of one kernel."""
        return KernelTuning(kernel, self.results, self._ask)

    def whole(self) -> Tuning:
        """Return the tuning of those kernels of which enough has been measured."""
        kernels = tuple(k for k in self.manifest.kernels if self.of(k).is_whole())
        return replace(self, manifest=replace(self.manifest, kernels=kernels))

    def section(self) -> Section:
        """Return the catalog's section of what was measured.

        Raises ToolchainError where no candidate of any kernel could be measured.
        """
        made = (self.of(kernel).tuned() for kernel in self.manifest.kernels)
        kernels = tuple(t for t in made if t.buckets)
        if not kernels:
            raise ToolchainError(
                "no candidate could be measured", "measured.json and manifest.json say why of each"
            )
        here = (self.manifest.arch, self.results.known.environment)
        return Section(*here, overall_correlation(kernels), kernels)

    def _ask(self, question: dict[str, Json], seconds: float) -> dict[str, Json]:
        """Ask the worker; the first question of a tuning is where it runs."""
        if not self.begun:
            here = self.measurer.ask({"environment": self.command}, seconds=PEERS_SECONDS)
            if "failed" in here:
                raise ToolchainError(str(here["failed"]), "`mirage-kernels doctor` says more")
            self.results.begin(read(dict[str, str], here["environment"]))
            self.begun = True
        return self.measurer.ask(question, seconds=seconds)
