"""The programs of a kernel: with producer blocks, and without."""

from __future__ import annotations

import pytest

from mirage_kernels.generator.build.compile import ROOT
from mirage_kernels.generator.plan.program import TileProgram
from mirage_kernels.generator.records.record import load_record
from mirage_kernels.generator.schedules.choose import member, programs_of


def programs(name: str) -> tuple[TileProgram, ...]:
    record = load_record(ROOT / "kernels" / "sm_90a" / f"{name}_fp16.json")
    return programs_of(record.recipe, record.graph, "sm_90a")


def test_where_nothing_can_be_apart_there_is_one_program() -> None:
    (alone,) = programs("rms_norm_linear/K4096_N6144")
    assert not alone.producer_blocks
    assert member((alone,), producers=True) is alone


@pytest.mark.parametrize("rank", [16, 64])
def test_what_can_be_apart_need_not_be(rank: int) -> None:
    apart, own = made = programs(f"lora_linear/K4096_N4096_R{rank}")
    assert apart.producer_blocks
    assert not own.producer_blocks
    assert (member(made, producers=True), member(made, producers=False)) == (apart, own)
