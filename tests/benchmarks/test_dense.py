"""`NARROW` of kernels/prefill.py is what the committed measurements give."""

from __future__ import annotations

import json

import pytest

from mirage_kernels.generator.tuning.catalog import Dense
from mirage_kernels.generator.tuning.choice import prefill_from
from mirage_kernels.prefill import NARROW
from tests.scripts import BENCHMARKS, script

RESULTS = BENCHMARKS / "results" / "dense.json"
pytestmark = pytest.mark.skipif(not RESULTS.is_file(), reason="not a checkout")


def calls(causal: bool, depth: int) -> list[Dense]:
    dense = script("dense")
    return [
        Dense(
            row["sequences"],
            row["tokens"],
            dense.HEADS,
            dense.KEYS,
            causal,
            row["ours_us"],
            row["pytorch_us"],
            {},
        )
        for row in json.loads(RESULTS.read_text())["rows"]
        if (row["causal"], row["D"]) == (causal, depth)
    ]


@pytest.mark.parametrize(("causal", "depth"), NARROW)
def test_the_rule_is_that_of_the_measurements_and_loses_next_to_nothing(
    causal: bool, depth: int
) -> None:
    rule = prefill_from(calls(causal, depth))
    assert rule is not None
    assert (rule.tokens, rule.lines) == NARROW[causal, depth]
    for call in calls(causal, depth):
        taken = call.sdpa_us if rule.serves(call) else call.us
        assert taken < 1.05 * min(call.us, call.sdpa_us)
