"""The measurements of attention kernels in order, each asked of the worker once; the choice."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from mirage_kernels.generator.errors import MirageError
from mirage_kernels.generator.ir.text import Json
from mirage_kernels.generator.tuning.attention_catalog import (
    At,
    Dense,
    TriedAttention,
    TriedForm,
    TunedAttention,
    TunedRows,
    geometric_mean,
)
from mirage_kernels.generator.tuning.attention_choice import chosen_form, chosen_of
from mirage_kernels.generator.tuning.attention_manifest import (
    BuiltAttention,
    BuiltRows,
    CompiledAttention,
)
from mirage_kernels.generator.tuning.attention_results import (
    DIGITS,
    AttentionOutcome,
    DenseOutcome,
)
from mirage_kernels.generator.tuning.attention_workloads import (
    DENSE_RECIPES,
    Named,
    bucket_of,
    dense_calls,
    workloads_of,
)
from mirage_kernels.generator.tuning.fields import number, text
from mirage_kernels.generator.tuning.results import Results

UNMEASURED = "not measured"
CANDIDATE_SECONDS, FLOOR_SECONDS, DENSE_SECONDS = 30.0, 180.0, 60.0
Ask = Callable[[dict[str, Json], float], dict[str, Json]]


@dataclass
class AttentionTuning:
    """One kernel's candidates, what has been measured of them, and who measures."""

    kernel: CompiledAttention
    results: Results
    ask: Ask

    def measure(self) -> None:
        """Measure all that has not been, workload by workload; other muGraphs after the first."""
        self.candidates()
        last = self.best_of_many()
        if last is None:
            return
        for form in self.forms():
            form.candidates()
        for named in dense_calls(self.kernel.key):
            self.dense(last, named)

    def forms(self) -> list[AttentionTuning]:
        """Return the tunings of the other muGraphs."""
        return [replace(self, kernel=form) for form in self.kernel.forms]

    def tuned(self) -> TunedAttention:
        """Return what was chosen."""
        key, own = self.kernel.key, self.kernel.form
        found = (self.rows(bucket) for bucket in self.kernel.buckets)
        rows = tuple(b for b in found if b.chosen)
        if not rows:
            return TunedAttention(key, own, ())
        forms = tuple(TriedForm(t.kernel.form, t.ratio()) for t in (self, *self.forms()))
        chosen = chosen_form(forms)
        dense = tuple(self.dense_points())
        return TunedAttention(key, chosen, rows, dense, forms if len(forms) > 1 else ())

    def candidates(self) -> None:
        """Measure the candidates of every bucket."""
        for named in workloads_of(self.kernel.key):
            bucket = self.bucket(named)
            if all(self.failure(b, bucket) for b in bucket.built):
                continue
            self.floor(named)
            for built in bucket.built:
                if not self.failure(built, bucket):
                    self.candidate(built, named)

    def ratio(self) -> float | None:
        """Return the geometric mean of time over floor at all workloads, of the rule's variants."""
        ratios: list[float] = []
        for bucket in self.kernel.buckets:
            rows = self.rows(bucket)
            times = {t.knobs: t.means() for t in rows.tried if not t.failed}
            for i, at in enumerate(rows.workloads):
                few = at.few_tiles and bucket.rule_of_few
                means = times.get(few or bucket.rule)
                if means is None:
                    return None
                ratios.append(means[i] / at.floor_us)
        return round(geometric_mean(tuple(ratios)), DIGITS) if ratios else None

    def floor(self, named: Named) -> None:
        """Measure the floor of a workload."""
        name = self.of_kernel(named)
        if name in self.results.attention.floors:
            return
        question: dict[str, Json] = {"attention": self.kernel.key.name, "at": named.name}
        answer = self.ask(question, FLOOR_SECONDS)
        if "failed" in answer:
            raise MirageError(
                f"the floor cannot be measured for {name}: {text(answer, 'failed')}",
                "what was measured is kept: the same command goes on",
            )
        self.results.attention.floors[name] = round(number(answer, "floor_us"), DIGITS)
        self.results.write()

    def candidate(self, built: BuiltAttention, named: Named) -> None:
        """Measure a candidate at a workload."""
        name = f"{built.digest}@{named.name}"
        if name in self.results.attention.outcomes:
            return
        question: dict[str, Json] = {"attention": self.kernel.key.name, "at": named.name}
        answer = self.ask(question | {"library": built.library}, CANDIDATE_SECONDS)
        self.results.attention.outcomes[name] = AttentionOutcome.read(answer)
        self.results.write()

    def dense(self, built: BuiltAttention, named: Named) -> None:
        """Measure a dense call of many query tokens beside PyTorch's attention."""
        name = f"{built.digest}@{named.name}"
        if name in self.results.attention.dense:
            return
        question: dict[str, Json] = {"attention": self.kernel.key.name, "dense": named.name}
        answer = self.ask(question | {"library": built.library}, DENSE_SECONDS)
        self.results.attention.dense[name] = DenseOutcome.read(answer)
        self.results.write()

    def of_kernel(self, named: Named) -> str:
        """Return under which name something is kept that depends on the workload only."""
        return f"{self.kernel.key.name}@{named.name}"

    def bucket(self, named: Named) -> BuiltRows:
        """Return the bucket that serves a workload."""
        wanted = bucket_of(named.rows, tuple(b.rows for b in self.kernel.buckets if b.rows))
        return next(b for b in self.kernel.buckets if b.rows == wanted)

    def own(self, bucket: BuiltRows) -> list[Named]:
        """Return the workloads that a bucket serves."""
        return [n for n in workloads_of(self.kernel.key) if self.bucket(n) == bucket]

    def outcomes(self, built: BuiltAttention, bucket: BuiltRows) -> list[AttentionOutcome]:
        """Return what was measured of a candidate in a bucket."""
        known = self.results.attention.outcomes
        names = (f"{built.digest}@{n.name}" for n in self.own(bucket))
        return [known[name] for name in names if name in known]

    def failure(self, built: BuiltAttention, bucket: BuiltRows) -> str:
        """Return why a candidate is not measured (any more)."""
        found = (o.failed for o in self.outcomes(built, bucket) if o.failed)
        return built.failed or next(found, "")

    def rows(self, bucket: BuiltRows) -> TunedRows:
        """Return what is known of a bucket, and what was chosen."""
        workloads = tuple(self.at(named, bucket) for named in self.own(bucket))
        tried = tuple(self.tried(built, bucket) for built in bucket.built)
        rules = (bucket.rule, bucket.rule_of_few)
        whole = all(t.failed != UNMEASURED for t in tried)
        chosen = chosen_of(workloads, tried, rules) if whole else ()
        return TunedRows(bucket.rows, chosen, workloads, tried)

    def at(self, named: Named, bucket: BuiltRows) -> At:
        """Return a workload with its floor, and whether the launch finds few work tiles."""
        known = self.results.attention.outcomes
        found = (known.get(f"{b.digest}@{named.name}") for b in bucket.built)
        few = any(o.few_tiles for o in found if o is not None)
        floor = self.results.attention.floors.get(self.of_kernel(named), 0.0)
        return At(named.name, few and bucket.splits, floor)

    def tried(self, built: BuiltAttention, bucket: BuiltRows) -> TriedAttention:
        """Return what is known of a candidate."""
        failed, found = self.failure(built, bucket), self.outcomes(built, bucket)
        if failed or len(found) < len(self.own(bucket)):
            return TriedAttention(built.knobs, failed=failed or UNMEASURED)
        times = (tuple(o.us for o in found), tuple(o.promised_us for o in found))
        return TriedAttention(built.knobs, *times)

    def best_of_many(self) -> BuiltAttention | None:
        """Return the choice of the last bucket, which serves any number of rows, or the rule's."""
        bucket = next(b for b in self.kernel.buckets if not b.rows)
        choice = self.rows(bucket).choice(few=False)
        knobs = choice.knobs if choice else bucket.rule
        built = (b for b in bucket.built if b.knobs == knobs)
        return next((b for b in built if not self.failure(b, bucket)), None)

    def dense_points(self) -> list[Dense]:
        """Return the dense calls that were measured."""
        last, points = self.best_of_many(), []
        for named in dense_calls(self.kernel.key) if last else ():
            assert last is not None
            outcome = self.results.attention.dense.get(f"{last.digest}@{named.name}")
            if outcome is None or outcome.failed:
                continue
            call, causal = named.call, DENSE_RECIPES[self.kernel.key.recipe]
            size = (call.sequences, call.tokens, call.heads[0], call.longest, causal)
            points.append(Dense(*size, outcome.us, outcome.sdpa_us, outcome.peers))
        return points
