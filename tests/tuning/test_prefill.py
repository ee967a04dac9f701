"""The library's rule for dense calls is what the committed catalog's measurements give."""

from __future__ import annotations

from mirage_kernels import prefill
from mirage_kernels.generator.tuning.catalog import committed_path, load_catalog
from mirage_kernels.generator.tuning.choice import prefill_rules

LOSS = 1.1  # times slower than the other one: what a call may take for the sake of a short rule


def test_the_rule_is_the_catalogs() -> None:
    rules = prefill_rules(load_catalog(committed_path()), "sm_90a")
    assert {at: (rule.tokens, rule.lines) for at, rule in rules.items()} == prefill.MEASURED


def test_no_measured_call_goes_to_what_is_much_slower() -> None:
    catalog = load_catalog(committed_path())
    rules = prefill_rules(catalog, "sm_90a")
    for kernel in (k for s in catalog.sections for k in s.kernels):
        for call in kernel.dense:
            kind = prefill.kind_of(call.tokens, call.keys, causal=call.causal)
            served = rules[kind, kernel.key.shape["D"]].serves(call)
            taken, other = (call.us, call.sdpa_us) if not served else (call.sdpa_us, call.us)
            assert taken <= LOSS * other, f"{kernel.key.name} {call}"
