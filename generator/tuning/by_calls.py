"""Kernels whose buckets are measured at several calls each, with and without assumptions.

Other muGraphs of the recipe are compared by the rule's variants; dense calls of many query tokens
are measured beside PyTorch's attention.
"""

from __future__ import annotations

from dataclasses import replace

from mirage_kernels.generator.tuning.calls import (
    Named,
    bucket_of,
    dense_calls,
    is_causal,
    named_calls,
)
from mirage_kernels.generator.tuning.catalog import (
    Bucket,
    Dense,
    Point,
    Tried,
    TriedForm,
    Tuned,
    geometric_mean,
)
from mirage_kernels.generator.tuning.choice import DIGITS, chosen_form, chosen_of
from mirage_kernels.generator.tuning.manifest import Built, BuiltBucket
from mirage_kernels.generator.tuning.measurements import UNMEASURED, KernelTuning
from mirage_kernels.generator.tuning.results import Outcome, at


class CallsTuning(KernelTuning):
    """The tuning of a kernel by calls of several dynamic extents."""

    def measure(self) -> None:
        """Measure call by call; other muGraphs after the first; then dense calls."""
        self.candidates()
        last = self._best_of_any()
        if last is None:
            return
        for form in self._forms():
            form.candidates()
        for named in dense_calls(self.kernel.key):
            self.dense(last, named.name)

    def candidates(self) -> None:
        """Measure the candidates of every bucket."""
        for named in named_calls(self.kernel.key):
            bucket = self._bucket_of(named)
            left = [b for b in bucket.built if not self._failure(b, bucket)]
            if left:
                self.peers(named.name)
            for built in left:
                for assumed in (False, True):
                    if not self._failure(built, bucket):
                        self.candidate(built, named.name, assumed=assumed)

    def tuned(self) -> Tuned:
        """Return what was chosen."""
        rows = tuple(b for b in map(self._rows, self.kernel.buckets) if b.chosen)
        if not rows:
            return Tuned(self.kernel.key, (), form=self.kernel.form)
        forms = tuple(TriedForm(t.kernel.form, t._ratio()) for t in (self, *self._forms()))
        compared = forms if len(forms) > 1 else ()
        dense, form = tuple(self._dense_points()), chosen_form(forms)
        return Tuned(self.kernel.key, rows, dense=dense, form=form, forms=compared)

    def is_whole(self) -> bool:
        """Say whether a bucket has been measured: the others are left out of the catalog."""
        return bool(self.tuned().buckets)

    def _forms(self) -> list[CallsTuning]:
        """Return the tunings of the other muGraphs."""
        return [replace(self, kernel=form) for form in self.kernel.forms]

    def _ratio(self) -> float | None:
        """Return the geometric mean of time over floor at all calls, of the rule's variants."""
        ratios: list[float] = []
        for bucket in self.kernel.buckets:
            rows = self._rows(bucket)
            times = {t.knobs: t.means() for t in rows.tried if not t.failed}
            for i, point in enumerate(rows.points):
                few = point.few_tiles and bucket.rule_of_few
                means = times.get(few or bucket.rule)
                if means is None:
                    return None
                ratios.append(means[i] / point.floor_us)
        return round(geometric_mean(ratios), DIGITS) if ratios else None

    def _bucket_of(self, named: Named) -> BuiltBucket:
        """Return the bucket that serves a call."""
        wanted = bucket_of(named.rows, tuple(b.size for b in self.kernel.buckets if b.size))
        return next(b for b in self.kernel.buckets if b.size == wanted)

    def _own(self, bucket: BuiltBucket) -> list[Named]:
        """Return the calls that a bucket serves."""
        return [n for n in named_calls(self.kernel.key) if self._bucket_of(n) == bucket]

    def _outcomes(self, built: Built, bucket: BuiltBucket, *, assumed: bool) -> list[Outcome]:
        """Return what was measured of a candidate in a bucket."""
        found = (self.outcome(built, n.name, assumed=assumed) for n in self._own(bucket))
        return [outcome for outcome in found if outcome is not None]

    def _failure(self, built: Built, bucket: BuiltBucket) -> str:
        """Return why a candidate is not measured (any more)."""
        both = (self._outcomes(built, bucket, assumed=assumed) for assumed in (False, True))
        return built.failed or next((o.failed for found in both for o in found if o.failed), "")

    def _rows(self, bucket: BuiltBucket) -> Bucket:
        """Return what is known of a bucket, and what was chosen."""
        points = tuple(self._point(named, bucket) for named in self._own(bucket))
        tried = tuple(self._tried(built, bucket) for built in bucket.built)
        whole = all(t.failed != UNMEASURED for t in tried)
        chosen = chosen_of(points, tried, (bucket.rule, bucket.rule_of_few)) if whole else ()
        return Bucket(bucket.size, chosen, points, tried)

    def _point(self, named: Named, bucket: BuiltBucket) -> Point:
        """Return a call with its floor, and whether the launch finds few work tiles."""
        found = (self.outcome(b, named.name, assumed=False) for b in bucket.built)
        few = any(o.few_tiles for o in found if o is not None)
        peers = self.peers_at(named.name)
        floor_us = peers.floor_us if peers else 0.0
        return Point(named.name, floor_us, few_tiles=few and bucket.splits)

    def _tried(self, built: Built, bucket: BuiltBucket) -> Tried:
        """Return what is known of a candidate."""
        failed = self._failure(built, bucket)
        us, assumed_us = (
            tuple(o.us for o in self._outcomes(built, bucket, assumed=assumed))
            for assumed in (False, True)
        )
        if failed or min(len(us), len(assumed_us)) < len(self._own(bucket)):
            return Tried(built.knobs, failed=failed or UNMEASURED)
        return Tried(built.knobs, None, us, assumed_us)

    def _best_of_any(self) -> Built | None:
        """Return the choice of the last bucket, which serves any number of rows, or the rule's."""
        bucket = next(b for b in self.kernel.buckets if not b.size)
        choice = self._rows(bucket).choice()
        knobs = choice.knobs if choice else bucket.rule
        built = (b for b in bucket.built if b.knobs == knobs)
        return next((b for b in built if not self._failure(b, bucket)), None)

    def _dense_points(self) -> list[Dense]:
        """Return the dense calls that were measured."""
        last, points, known = self._best_of_any(), [], self.results.known.dense
        for named in dense_calls(self.kernel.key) if last else ():
            assert last is not None
            outcome = known.get(at(last.digest, named.name))
            if outcome is None or outcome.failed:
                continue
            call, causal = named.call, is_causal(self.kernel.key)
            size = (call.sequences, call.tokens, call.heads[0], call.longest, causal)
            points.append(Dense(*size, outcome.us, outcome.sdpa_us, outcome.peers))
        return points
