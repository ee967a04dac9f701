"""Knobs in tuning's files: numbers by name. All that tuning knows of a schedule's own knobs."""

from __future__ import annotations

from mirage_kernels.generator.ir.codec import from_data
from mirage_kernels.generator.plan.attention_variants import AttentionKnobs
from mirage_kernels.generator.plan.variants import Knobs

Values = dict[str, int]


def values_of(knobs: Knobs | AttentionKnobs) -> Values:
    """Return knobs as a file holds them."""
    return {name: int(str(value)) for name, value in knobs.to_json().items()}


def knobs_of(values: Values) -> Knobs:
    """Return the knobs of a kernel over tokens."""
    return from_data(Knobs, dict(values))


def attention_knobs(values: Values) -> AttentionKnobs:
    """Return the knobs of a kernel over query rows."""
    return from_data(AttentionKnobs, dict(values))


def label(values: Values) -> str:
    """Name the schedule of knobs, "" for those of query rows."""
    return knobs_of(values).plan_name if "tokens" in values else ""


def text(values: Values) -> str:
    """Write knobs for a table's cell: `8/16/4/3/2`."""
    return "/".join(map(str, values.values()))


def has_producers(values: Values) -> bool:
    """Say whether some blocks compute an intermediate for all others."""
    return "tokens" in values and knobs_of(values).apart
