"""Knobs in tuning's files: JSON. All that tuning knows of a schedule's own knobs."""

from __future__ import annotations

from mirage_kernels.generator.ir.codec import from_data, to_data
from mirage_kernels.generator.schedules import read_knobs
from mirage_kernels.generator.schedules.attention.knobs import AttentionKnobs
from mirage_kernels.generator.schedules.attention.variants import KNOBS as ATTENTION
from mirage_kernels.generator.schedules.attention.variants import read_knobs as read_attention
from mirage_kernels.generator.schedules.schedule import Knobs
from mirage_kernels.generator.schedules.sizes import producers_of

Values = dict[str, int | str | dict[str, int]]


def values_of(knobs: Knobs) -> Values:
    """Return knobs as a file holds them."""
    return from_data(Values, knobs.to_json())


def knobs_of(values: Values) -> Knobs:
    """Return the knobs of a kernel over tokens."""
    return read_knobs({name: to_data(value) for name, value in values.items()})


def attention_knobs(values: Values) -> AttentionKnobs:
    """Return the knobs of a kernel over query rows."""
    return read_attention({name: to_data(value) for name, value in values.items()})


def label(values: Values) -> str:
    """Name the schedule of knobs with what goes with it."""
    return (attention_knobs if values["schedule"] in ATTENTION else knobs_of)(values).label


def text(values: Values) -> str:
    """Write knobs for a table's cell: `tokens 8, rows 16, warps 4`."""
    return ", ".join(f"{name} {value}" for name, value in values.items() if name != "schedule")


def has_producers(values: Values) -> bool:
    """Say whether producer blocks compute something for all other blocks."""
    return values["schedule"] not in ATTENTION and producers_of(knobs_of(values)) is not None
