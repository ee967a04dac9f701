"""What the numeric gate draws activations from."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Distribution:
    """How activations are drawn: normal, with a share of outliers of fixed magnitude.

    Lengths are drawn from the lower `length_share` of their range.
    """

    name: str
    scale: float
    outlier: float = 0.0
    outlier_share: float = 0.0
    garbage: float = 0.0  # magnitude of elements that masks hide; 0 leaves them as they are drawn
    length_share: float = 1.0


DISTRIBUTIONS = (
    Distribution("unit", 1.0),
    Distribution("tiny", 2.0**-10),
    Distribution("outliers", 1.0, outlier=3e4, outlier_share=0.03),
    Distribution("wide", 30.0),
)
STALE = Distribution("stale", 1.0, garbage=1e4, length_share=1 / 8)
