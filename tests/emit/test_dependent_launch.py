"""When kernels let the next one of the stream start: at once, or behind their wait."""

from __future__ import annotations

import subprocess
from functools import cache

import pytest
from compilers import ROOT, nvcc

from mirage_kernels.generator.commands.arguments import is_checkout, package_kernels

pytestmark = pytest.mark.skipif(not is_checkout(), reason="an installed wheel holds no sources")

# Cluster split-K, register operands and sliced-K; producer blocks; rows; clusters of rows.
KERNELS = [
    "rms_norm_linear/K4096_N6144_fp16",
    "lora_linear/K4096_N4096_R16_fp16",
    "rms_norm/K4096_fp16",
]
WAIT, START = "griddepcontrol.wait;", "griddepcontrol.launch_dependents;"
DEFINED = "#define MIRAGE_NEXT_STARTS_AFTER_WAIT\n"


@cache
def kernels(name: str, before: str = "") -> list[list[str]]:
    """Return the instructions of each kernel of a source, as PTX."""
    text = f'{before}#include "{package_kernels()}/sm_90a/{name}.cu"\n'
    options = ("-std=c++17", "--expt-relaxed-constexpr", f"-I{ROOT / 'csrc'}", "-arch=sm_90a")
    command = [nvcc(), *options, "-ptx", "-x", "cu", "-", "-o", "-"]
    ran = subprocess.run(command, input=text, capture_output=True, text=True, check=True)
    lines = [line.strip() for line in ran.stdout.splitlines()]
    code = [line for line in lines if line and not line.startswith("//")]
    starts = [i for i, line in enumerate(code) if ".entry" in line]
    assert starts
    ends = [*starts[1:], len(code)]
    return [code[a:b] for a, b in zip(starts, ends, strict=True)]


@pytest.mark.parametrize("name", KERNELS)
def test_a_program_s_first_kernel_starts_the_next_right_behind_its_waits(name: str) -> None:
    for code in kernels(name, DEFINED):
        waits = [i for i, line in enumerate(code) if line == WAIT]
        assert waits
        assert [i for i, line in enumerate(code) if line == START] == [i + 1 for i in waits]


@pytest.mark.parametrize("name", KERNELS)
def test_other_kernels_start_the_next_at_once(name: str) -> None:
    for code in kernels(name):
        assert code.count(START) == 1
        assert code.index(START) < code.index(WAIT)


def test_where_a_kernel_of_rows_loads_from_is_found_before_its_wait() -> None:
    (code,) = kernels("rms_norm_residual/K4096_fp16")
    behind = len(code) - code[::-1].index(WAIT)
    loads = [line for line in code[behind:] if line.startswith("ld.global")]
    assert len(loads) == 2 * 4096 // (4 * 32 * 8)  # of two rows, by four warps
    found = {line.split()[1].rstrip(",") for line in code[behind:] if len(line.split()) > 2}
    assert not found & {line[line.index("[") + 1 :].split("]")[0].split("+")[0] for line in loads}
