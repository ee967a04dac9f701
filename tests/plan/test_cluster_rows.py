"""Cluster rows: which programs and how many tokens they serve."""

from __future__ import annotations

import pytest

from mirage_kernels.generator.build.compile import ROOT
from mirage_kernels.generator.plan.lower import tile_program
from mirage_kernels.generator.plan.program import TileProgram
from mirage_kernels.generator.records.record import load_record
from mirage_kernels.generator.schedules.choose import all_candidates, by_size
from mirage_kernels.generator.schedules.cluster_rows import MOST_TOKENS, ClusterRows, fits
from mirage_kernels.generator.schedules.row_wise import COMPARED_AT, RowWise
from mirage_kernels.generator.target import target

ON = target("sm_90a")


def program(kernel: str) -> TileProgram:
    record = load_record(ROOT / f"kernels/sm_90a/{kernel}_fp16.json")
    return tile_program(record.recipe, record.graph)


def test_long_rows_of_few_tokens_are_held_by_clusters() -> None:
    few, many = by_size(program("rms_norm_residual/K8192"), ON).values()
    assert (few.bucket, few.knobs) == (MOST_TOKENS, ClusterRows(warps=2, blocks=8))
    assert (many.bucket, many.schedule) == (0, RowWise.schedule)


def test_candidates_for_few_tokens_are_of_both_schedules() -> None:
    def schedules(tokens: int) -> set[str]:
        return {
            c.knobs.schedule for c in all_candidates(program("rms_norm_residual/K8192"), tokens, ON)
        }

    assert schedules(MOST_TOKENS) == {"cluster_rows", "row_wise"}
    assert schedules(COMPARED_AT) == {"row_wise"}


@pytest.mark.parametrize(
    ("kernel", "arch", "reason"),
    [
        ("rms_norm_residual/K4096", "sm_90a", "its rows have 4096 elements, fewer than 8192"),
        ("rms_norm/K8192", "sm_90a", "it reads 1 row per token, which one block does as fast"),
        ("rms_norm_residual/K8192", "sm_80", "sm_80 has no clusters"),
        ("silu_and_mul/N14336", "sm_90a", "nothing is summed along a row"),
        ("rms_norm_linear/K4096_N4096", "sm_90a", "it has a loop"),
    ],
)
def test_other_programs_are_refused(kernel: str, arch: str, reason: str) -> None:
    assert fits(program(kernel), target(arch)) == (reason,)
