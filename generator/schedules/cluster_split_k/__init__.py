"""Cluster split-K: two blocks of a cluster share rows and split the depth, for many tokens."""

from __future__ import annotations

from mirage_kernels.generator.plan.program import TileProgram
from mirage_kernels.generator.schedules.cluster_split_k.block import SplitBlock, split
from mirage_kernels.generator.schedules.cluster_split_k.knobs import ClusterSplitK
from mirage_kernels.generator.schedules.cluster_split_k.latency import predict
from mirage_kernels.generator.schedules.cluster_split_k.rule import candidates, choose
from mirage_kernels.generator.schedules.loop import lowered
from mirage_kernels.generator.schedules.schedule import Knobs, Schedule
from mirage_kernels.generator.schedules.warpgroups import reasons_against
from mirage_kernels.generator.target import Target


def fits(program: TileProgram, on: Target) -> tuple[str, ...]:
    """Return why cluster split-K does not fit a program."""
    form = () if split(program) else ("its loop is more than products of rows with one operand",)
    return (*reasons_against(on), *form)


def registers(program: TileProgram, knobs: Knobs) -> int:
    """Return the registers of a thread that multiplies."""
    assert isinstance(knobs, ClusterSplitK)
    return SplitBlock.of(program).sized(knobs.rows, knobs.tokens).registers


def shared_bytes(program: TileProgram, knobs: Knobs) -> int:
    """Return the shared memory of one block."""
    assert isinstance(knobs, ClusterSplitK)
    return SplitBlock.of(program).sized(knobs.rows, knobs.tokens).shared_bytes(knobs.stages)


SCHEDULE = Schedule(
    name=ClusterSplitK.schedule,
    knobs=ClusterSplitK,
    lower=lowered,
    fits=fits,
    choose=choose,
    candidates=candidates,
    registers=registers,
    shared_bytes=shared_bytes,
    predict=predict,
)
