"""Committed kernels through nvcc for their architecture, without a GPU: none may spill."""

from __future__ import annotations

from pathlib import Path

import pytest
from compilers import ROOT, assembled, illegal_copies

from mirage_kernels.generator.build.ptxas import Assembled, parse
from mirage_kernels.generator.commands.arguments import package_kernels
from mirage_kernels.generator.plan.program import Roles
from mirage_kernels.generator.records.folder import emitted
from mirage_kernels.generator.records.record import KernelRecord

needs_sources = pytest.mark.skipif(
    not (ROOT / "csrc").is_dir(), reason="an installed wheel holds no sources"
)

REPORT = """\
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function '_Z3oneiPf' for 'sm_86'
ptxas info    : Function properties for _Z3oneiPf
    136 bytes stack frame, 128 bytes spill stores, 120 bytes spill loads
ptxas info    : Used 255 registers, used 1 barriers, 560 bytes cmem[0]
ptxas info    : Compiling entry function '_Z3twoiPf' for 'sm_86'
ptxas info    : Function properties for _Z3twoiPf
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 96 registers, used 1 barriers, 560 bytes cmem[0]
"""


def hardest() -> dict[str, KernelRecord]:
    """Return a kernel for every architecture and schedule: bf16 needs most registers, many inputs
    and long rows need more.
    """
    found = [record for record in emitted(package_kernels()).values() if record.dtype == "bf16"]
    found = [record for record in found if isinstance(record.roles, Roles)]
    found.sort(key=lambda record: (len(record.graph.inputs), sum(record.shape.values())))
    of_schedule = {(r.arch, v.knobs.label): r for r in found for v in r.variants}
    return {record.path: record for record in of_schedule.values()}


def test_registers_and_spills_are_read_from_the_assemblers_report() -> None:
    one, two = parse(REPORT)
    assert one == Assembled("_Z3oneiPf", "sm_86", registers=255, spill_bytes=248)
    assert (two.registers, two.spill_bytes) == (96, 0)


@needs_sources
@pytest.mark.parametrize("record", hardest().values(), ids=hardest())
def test_no_variant_of_a_committed_kernel_spills(record: KernelRecord, tmp_path: Path) -> None:
    source = package_kernels() / Path(record.path).with_suffix(".cu")
    made = assembled(source, record.arch, tmp_path)
    assert len(made) >= len(record.variants)
    assert {k.arch for k in made} == {record.arch}
    assert [k for k in made if k.spill_bytes] == []
    assert illegal_copies(tmp_path / "kernels.cubin") == []
