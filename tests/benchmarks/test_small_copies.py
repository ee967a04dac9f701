"""Small copies of emitted kernels differ from them in K and N alone."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest.importorskip("torch")
from mirage_kernels import KernelEntry, kernel_table
from mirage_kernels.generator.attention_workloads import ATTENTION
from tests.scripts import script

ROOT = Path(__file__).parents[2]
KERNELS = [k for k in kernel_table() if k.recipe not in ATTENTION]
pytestmark = pytest.mark.skipif(
    not (ROOT / "kernels" / "sm_90a").is_dir() or not KERNELS, reason="not a checkout with kernels"
)
each_kernel = pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)


@each_kernel
def test_nothing_but_sizes_differs(kernel: KernelEntry) -> None:
    small = script("small_copies")
    folder = (ROOT / "kernels" / "sm_90a" / kernel.name).parent
    changed = []
    for name, copy in small.texts_of(kernel).items():
        pairs = zip((folder / name).read_text().splitlines(), copy.splitlines(), strict=True)
        changed += [line for was, line in pairs if was != line]
    sizes = {name: size for name, size in small.small(kernel).items() if size != kernel.dims[name]}
    assert [re.match(r"constexpr int (\w) = (\d+);", line).groups() for line in changed] == [
        (name, str(size)) for name, size in sizes.items()
    ]


@each_kernel
def test_a_copy_gets_every_tensor(kernel: KernelEntry) -> None:
    small = script("small_copies")
    declared, row = small.case(kernel)
    name = kernel.name.replace("/", "_")
    assert f"cudaError_t {name}(" in declared
    *_, whole = small.texts_of(kernel).values()
    assert (f"{name}_workspace" in row) == (f"{name}_workspace" in whole)
    assert row.count("{true, ") + row.count("{false, ") == len(
        [shape for shape in small.recipe_of(kernel).inputs.values() if shape]
    )
