"""Facts about architectures: complete, consistent, and honest about what has been run."""

from __future__ import annotations

import dataclasses

import pytest

from mirage_kernels.generator.build.compile import carries_ptx
from mirage_kernels.generator.commands.arguments import package_kernels
from mirage_kernels.generator.errors import TargetError
from mirage_kernels.generator.plan.hardware import hardware
from mirage_kernels.generator.plan.program import Roles
from mirage_kernels.generator.records.folder import emitted
from mirage_kernels.generator.target import TARGETS, Evidence, Target, target

each = pytest.mark.parametrize("on", TARGETS.values(), ids=TARGETS)
EVIDENCE = ("name", "gpu", "arch", "evidence", "carries_ptx", "capability")


@each
def test_numbers_are_there_and_consistent(on: Target) -> None:
    numbers = [getattr(on, f.name) for f in dataclasses.fields(on) if f.name not in EVIDENCE]
    assert min(numbers) > 0
    assert on.l2_bytes_per_us > on.memory_bytes_per_us
    major, minor = on.capability
    assert on.arch.rstrip("a") == f"sm_{major}{minor}"


@each
def test_a_multiprocessor_has_facts_and_its_clock_makes_the_arithmetic_rate(on: Target) -> None:
    clock = hardware(on).cycles_per_us
    lanes = on.alu_ops_per_us / on.multiprocessors / clock
    assert lanes == pytest.approx(32 / hardware(on).simple_cycles, rel=0.02)


def test_only_what_was_measured_or_run_through_ptx_is_called_so() -> None:
    assert [a for a, t in TARGETS.items() if t.evidence is Evidence.MEASURED] == ["sm_90a"]
    through = {a for a, t in TARGETS.items() if t.evidence is Evidence.THROUGH_PTX}
    assert through <= {a for a in TARGETS if carries_ptx(a)}


def test_an_architecture_without_facts_is_refused_with_those_that_have_some() -> None:
    with pytest.raises(TargetError, match="no facts about architecture 'sm_99'") as caught:
        target("sm_99")
    assert all(arch in caught.value.hint for arch in TARGETS)


@each
def test_every_architecture_has_kernels_in_both_types(on: Target) -> None:
    found = emitted(package_kernels(), on.arch).values()
    made = {(r.recipe, r.dtype) for r in found}
    assert {("rms_norm_linear", "fp16"), ("rms_norm_linear", "bf16")} <= made


@each
def test_every_kernel_fits_its_architectures_shared_memory(on: Target) -> None:
    from mirage_kernels.generator.schedules.choose import shared_bytes
    from mirage_kernels.generator.schedules.streaming import kernel_of

    found = emitted(package_kernels(), on.arch).values()
    for record in (r for r in found if isinstance(r.roles, Roles)):
        made = kernel_of(record).program
        assert max(shared_bytes(made, v.knobs) for v in record.variants) <= on.shared_bytes
