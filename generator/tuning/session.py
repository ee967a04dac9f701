"""What is measured of each kernel, everything once, and what follows; then the catalog's section.

Where a bucket has one call, all candidates are measured with weights assumed to be constant, the
best of them without; where it has several, all candidates both ways.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import geometric_mean
from typing import Any, NoReturn

from mirage_kernels.generator.bench.workload import Workload
from mirage_kernels.generator.bench.workloads.cache import CacheWorkload
from mirage_kernels.generator.bench.workloads.tensors import TensorWorkload
from mirage_kernels.generator.errors import MirageError, ToolchainError
from mirage_kernels.generator.ir.text import Json
from mirage_kernels.generator.request import Event, Progress
from mirage_kernels.generator.tuning.calls import Calls, bucketed_calls, calls_above
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
from mirage_kernels.generator.tuning.files import read
from mirage_kernels.generator.tuning.manifest import Built, BuiltBucket, Compiled, Manifest
from mirage_kernels.generator.tuning.process import Measurer
from mirage_kernels.generator.tuning.results import Outcome, Peers, Results, answered, at

UNMEASURED = "not measured"
CANDIDATE_SECONDS, PEERS_SECONDS = 30.0, 180.0
Ask = Callable[[dict[str, Json], float], dict[str, Json]]


class UnansweredError(Exception):
    """Something has not been measured."""


def _nobody(*_: object) -> NoReturn:
    raise UnansweredError


@dataclass
class KernelTuning:
    """One kernel's candidates, what has been measured of them, and who measures."""

    kernel: Compiled
    results: Results
    ask: Ask

    @cached_property
    def calls(self) -> dict[int, Calls]:
        """The calls of each bucket."""
        return bucketed_calls(self.kernel)

    @cached_property
    def above(self) -> Calls:
        """The calls at which the last bucket's choice is compared with what else may serve."""
        return calls_above(self.kernel)

    @property
    def forms(self) -> list[KernelTuning]:
        """The tunings of the kernel's other muGraphs."""
        return [KernelTuning(form, self.results, self.ask) for form in self.kernel.forms]

    # -- measure -----------------------------------------------------------------------------------

    def measure(self) -> None:
        """Measure all that has not been: candidates by bucket, choices, muGraphs, calls above."""
        self.candidates()
        for bucket in self.kernel.buckets:
            best = self._best(bucket)
            if best is not None and self._has_one_call(bucket):
                self._measure(next(iter(self.calls[bucket.size])), [best], assumed=False)
        best = self._best(self.kernel.buckets[-1])
        if best is None:
            return
        for form in self.forms:
            form.candidates()
        for call in self.above:
            if any(behind(row) for row in self._beyond()):
                break
            self._measure(call, [best], assumed=False)

    def candidates(self) -> None:
        """Measure the candidates of every bucket."""
        for bucket in self.kernel.buckets:
            for call in self.calls[bucket.size]:
                self._measure(call, self._left(bucket), assumed=True)
                self._measure(call, self._left(bucket, best=True), assumed=False)

    def is_whole(self) -> bool:
        """Say whether enough was measured for the catalog.

        A bucket is enough where buckets have several calls; else all, as it is the calls above the
        buckets that say how many tokens a kernel serves.
        """
        if not self.kernel.dim:
            return bool(self.tuned().buckets)
        try:
            replace(self, ask=_nobody).measure()
        except UnansweredError:
            return False
        return True

    def _has_one_call(self, bucket: BuiltBucket) -> bool:
        return len(self.calls[bucket.size]) == 1

    def _left(self, bucket: BuiltBucket, *, best: bool = False) -> Iterable[Built]:
        """Yield the candidates that have not failed; of one call's only the finalists (`best`)."""
        tried = self._tried(bucket)
        final = finalists(tried) if best and self._has_one_call(bucket) else tried
        for built, one in zip(bucket.built, tried, strict=True):
            if one in final and not self._failure(built, bucket):
                yield built

    def _measure(self, call: str, candidates: Iterable[Built], *, assumed: bool) -> None:
        """Measure candidates at a call that assumes nothing, or all that can be assumed."""
        left = list(candidates)
        if left:
            self._measure_peers(call)
        known = self.results.known.outcomes
        for built in left:
            name = at(built.digest, call, assumed=assumed)
            if name in known:
                continue
            question: dict[str, Json] = {"kernel": self.kernel.key.name, "at": call}
            question |= {"library": built.library, "assumed": assumed}
            known[name] = answered(Outcome, self.ask(question, CANDIDATE_SECONDS))
            self.results.write()

    def _measure_peers(self, call: str) -> None:
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

    # -- what is known -----------------------------------------------------------------------------

    def _outcomes(self, built: Built, bucket: BuiltBucket, *, assumed: bool) -> list[Outcome]:
        """Return what was measured of a candidate at a bucket's calls."""
        known = self.results.known.outcomes
        names = (at(built.digest, call, assumed=assumed) for call in self.calls[bucket.size])
        return [known[name] for name in names if name in known]

    def _failure(self, built: Built, bucket: BuiltBucket) -> str:
        """Return why a candidate is not measured (any more)."""
        both = (self._outcomes(built, bucket, assumed=assumed) for assumed in (False, True))
        return built.failed or next((o.failed for found in both for o in found if o.failed), "")

    def _tried(self, bucket: BuiltBucket) -> tuple[Tried, ...]:
        """Return what is known of a bucket's candidates."""
        return tuple(self._one(built, bucket) for built in bucket.built)

    def _one(self, built: Built, bucket: BuiltBucket) -> Tried:
        us, assumed_us = (
            tuple(o.us for o in self._outcomes(built, bucket, assumed=assumed))
            for assumed in (False, True)
        )
        needed = (assumed_us,) if self._has_one_call(bucket) else (us, assumed_us)
        failed = self._failure(built, bucket)
        if not failed and any(len(times) < len(self.calls[bucket.size]) for times in needed):
            failed = UNMEASURED
        if failed:
            return Tried(built.knobs, built.predicted_us, failed=failed)
        return Tried(built.knobs, built.predicted_us, us, assumed_us)

    def _peers_at(self, call: str) -> Peers | None:
        return self.results.known.peers.get(at(self.kernel.key.name, call))

    def _point(self, call: str, bucket: BuiltBucket) -> Point:
        """Return a call with what else serves it, and whether the launch finds few work tiles."""
        found = (self.results.known.outcomes.get(at(b.digest, call)) for b in bucket.built)
        few = any(o.few_tiles for o in found if o is not None)
        peers = self._peers_at(call) or Peers(0.0)
        times = (peers.floor_us, peers.eager_us, peers.library_us)
        return Point(call, *times, few_tiles=few and bucket.splits)

    # -- what follows ------------------------------------------------------------------------------

    def tuned(self) -> Tuned:
        """Return what was chosen; without buckets where nothing could be measured."""
        kernel, form, forms = self.kernel, self.kernel.form, tuple[TriedForm, ...]()
        buckets = tuple(b for b in map(self._bucket, kernel.buckets) if b.chosen)
        if not buckets:
            return Tuned(kernel.key, (), form=form)
        if kernel.forms:
            forms = tuple(TriedForm(t.kernel.form, t.ratio()) for t in (self, *self.forms))
            form = chosen_form(forms)
        beyond, dense = tuple(self._beyond()), tuple(self._dense())
        most = 0
        if kernel.dim:
            most = most_tokens(buckets, beyond, any_number=kernel.is_row_wise)
        return Tuned(kernel.key, buckets, most, beyond, dense, form, forms)

    def _bucket(self, bucket: BuiltBucket) -> Bucket:
        """Return what is known of a bucket, and what was chosen; nothing while it is not whole."""
        points = tuple(self._point(call, bucket) for call in self.calls[bucket.size])
        tried, picked = self._tried(bucket), tuple[Chosen, ...]()
        if self._has_one_call(bucket):
            picked = self._chosen_at(points[0], bucket)
        elif all(t.failed != UNMEASURED for t in tried):
            picked = chosen_of(points, tried, (bucket.rule, bucket.rule_of_few))
        made = Bucket(bucket.size, picked, points, tried)
        return replace(made, correlation=rank_correlation(made.pairs))

    def _chosen_at(self, point: Point, bucket: BuiltBucket) -> tuple[Chosen, ...]:
        """Return the choice of a bucket with one call."""
        best = self._best(bucket)
        if best is None or not point.floor_us:
            return ()
        times = {t.knobs: t.assumed_us[0] for t in self._tried(bucket) if t.assumed_us}
        ratios = {knobs: round(us / point.floor_us, DIGITS) for knobs, us in times.items()}
        return (Chosen(best.knobs, ratios[best.knobs], ratios.get(bucket.rule)),)

    def _best(self, bucket: BuiltBucket) -> Built | None:
        """Return a bucket's choice, of one call one that may stand in a file with the others'.

        Of several calls, where there is no choice, the rule's.
        """
        if self._has_one_call(bucket):
            producers = with_producers({b.size: self._tried(b) for b in self.kernel.buckets})
            family = [t for t in self._tried(bucket) if has_producers(t.knobs) is producers]
            found = chosen(family)
            knobs = found.knobs if found else None
        else:
            choice = self._bucket(bucket).choice()
            knobs = choice.knobs if choice else bucket.rule
        left = (b for b in bucket.built if b.knobs == knobs and not self._failure(b, bucket))
        return next(left, None)

    def ratio(self) -> float | None:
        """Return the geometric mean of time over floor at all calls, of the rule's variants."""
        ratios: list[float] = []
        for bucket in self.kernel.buckets:
            known = self._bucket(bucket)
            means = {t.knobs: t.means() for t in known.tried if not t.failed}
            for i, point in enumerate(known.points):
                rule = (point.few_tiles and bucket.rule_of_few) or bucket.rule
                if rule not in means:
                    return None
                ratios.append(means[rule][i] / point.floor_us)
        return round(geometric_mean(ratios), DIGITS) if ratios else None

    def _above(self) -> Iterator[tuple[Workload[Any], Outcome, Peers]]:
        """Yield what was measured of the last bucket's choice at the calls above, and beside it."""
        best = self._best(self.kernel.buckets[-1]) if self.above else None
        for call, workload in self.above.items() if best else ():
            assert best is not None
            found, peers = (
                self.results.known.outcomes.get(at(best.digest, call)),
                self._peers_at(call),
            )
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
