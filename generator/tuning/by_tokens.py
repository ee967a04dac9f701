"""Kernels whose buckets are measured at one number of tokens each, and then above the buckets.

Every candidate is measured with constant weights assumed, the finalists without.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NoReturn

from mirage_kernels.generator.tuning.catalog import Beyond, Bucket, Chosen, Point, Tried, Tuned
from mirage_kernels.generator.tuning.choice import (
    DIGITS,
    behind,
    chosen,
    finalists,
    has_producers,
    most_tokens,
    with_producers,
)
from mirage_kernels.generator.tuning.correlation import rank_correlation
from mirage_kernels.generator.tuning.manifest import Built, BuiltBucket
from mirage_kernels.generator.tuning.measurements import (
    UNMEASURED,
    KernelTuning,
    UnansweredError,
)
from mirage_kernels.generator.tuning.results import tokens_call


def _nobody(*_: object) -> NoReturn:
    raise UnansweredError


class TokensTuning(KernelTuning):
    """The tuning of a kernel by its number of tokens."""

    def measure(self) -> None:
        """Measure bucket by bucket, then the choices with nothing assumed, then beyond."""
        for bucket in self.kernel.buckets:
            self._candidates(bucket)
        for bucket in self.kernel.buckets:
            self._choice_at(bucket, bucket.size)
        for tokens in self.kernel.beyond:
            if any(behind(row) for row in self._beyond()):
                break
            self._choice_at(self.kernel.buckets[-1], tokens)

    def tuned(self) -> Tuned:
        """Return what was chosen."""
        buckets = tuple(filter(None, map(self._bucket, self.kernel.buckets)))
        beyond = tuple(self._beyond())
        most = most_tokens(buckets, beyond, any_number=self.kernel.is_row_wise)
        return Tuned(self.kernel.key, buckets, most, beyond)

    def is_whole(self) -> bool:
        """Say whether everything has been measured."""
        try:
            replace(self, ask=_nobody).measure()
        except UnansweredError:
            return False
        return True

    def _call(self, tokens: int) -> str:
        return tokens_call(self.kernel.dim, tokens)

    def _candidates(self, bucket: BuiltBucket) -> None:
        """Measure all candidates, then the best of every schedule with nothing assumed."""
        call = self._call(bucket.size)
        if any(not b.failed for b in bucket.built):
            self.peers(call)
        for built in bucket.built:
            self.candidate(built, call, assumed=True)
        tried = self._tried(bucket)
        for one in finalists(tried):
            self.candidate(bucket.built[tried.index(one)], call, assumed=False)

    def _choice_at(self, bucket: BuiltBucket, tokens: int) -> None:
        """Measure a bucket's choice as calls are that assume nothing, and what else serves."""
        best = self._best(bucket)
        if best is not None:
            self.peers(self._call(tokens))
            self.candidate(best, self._call(tokens), assumed=False)

    def _best(self, bucket: BuiltBucket) -> Built | None:
        """Return the choice of a bucket, one that may stand in a file with the others'."""
        producers = with_producers({b.size: self._tried(b) for b in self.kernel.buckets})
        tried = self._tried(bucket)
        found = chosen([t for t in tried if has_producers(t.knobs) is producers])
        return None if found is None else bucket.built[tried.index(found)]

    def _tried(self, bucket: BuiltBucket) -> tuple[Tried, ...]:
        return tuple(self._outcome(b, bucket.size) for b in bucket.built)

    def _outcome(self, built: Built, tokens: int) -> Tried:
        unmeasured = Tried(built.knobs, built.predicted_us, failed=built.failed or UNMEASURED)
        found = self.outcome(built, self._call(tokens), assumed=True)
        if built.failed or found is None:
            return unmeasured
        if found.failed:
            return replace(unmeasured, failed=found.failed)
        default = self.outcome(built, self._call(tokens), assumed=False)
        us = () if default is None or default.failed else (default.us,)
        return replace(unmeasured, us=us, assumed_us=(found.us,), failed="")

    def _bucket(self, bucket: BuiltBucket) -> Bucket | None:
        built, peers = self._best(bucket), self.peers_at(self._call(bucket.size))
        if built is None or peers is None:
            return None
        tried = self._tried(bucket)
        floor_us = peers.floor_us
        point = Point(self._call(bucket.size), floor_us, peers.eager_us, peers.library_us)
        ratios = {t.knobs: round(t.assumed_us[0] / floor_us, DIGITS) for t in tried if t.assumed_us}
        choice = Chosen(built.knobs, ratios[built.knobs], ratios.get(bucket.rule))
        made = Bucket(bucket.size, (choice,), (point,), tried)
        return replace(made, correlation=rank_correlation(made.pairs))

    def _beyond(self) -> Iterator[Beyond]:
        best = self._best(self.kernel.buckets[-1])
        for tokens in self.kernel.beyond if best is not None else ():
            assert best is not None
            peers = self.peers_at(self._call(tokens))
            found = self.outcome(best, self._call(tokens), assumed=False)
            if peers is not None and found is not None:
                us = None if found.failed else found.us
                yield Beyond(tokens, us, peers.eager_us or 0.0, peers.library_us)
