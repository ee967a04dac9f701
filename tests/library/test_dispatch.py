"""The compiled table, and what is said of shapes and GPUs that it does not cover."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from mirage_kernels import kernel_table

ROOT = Path(__file__).resolve().parents[2]
OPS = torch.ops.mirage_kernels
SHAPES = [(4096, 6144), (4096, 4096), (8192, 10240)]


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
@pytest.mark.parametrize(("k", "n"), SHAPES)
def test_the_shapes_of_the_catalog_are_listed(k: int, n: int, dtype: str) -> None:
    folder = ROOT / "kernels/sm_90a"
    if not folder.is_dir():
        pytest.skip("an installed wheel holds no sources")
    stem = f"K{k}_N{n}_{dtype}"
    assert (folder / f"rms_norm_linear/{stem}.cu").is_file()
    row = re.compile(rf"rms_norm_linear\W.*\W{stem}\W|rms_norm_linear_{stem}\W")
    assert row.search((folder / "table.cpp").read_text())


def test_no_kernel_is_listed_twice() -> None:
    rows = [(e.recipe, e.dtype, tuple(e.dims.items())) for e in kernel_table()]
    assert len(rows) == len(set(rows))


def test_uncovered_shape_names_the_nearest_and_the_command() -> None:
    op = "rms_norm_linear"
    sentence = OPS._not_covered(op, op, "fp16", ["K", "N"], [4096, 6000])
    assert sentence.startswith("mirage_kernels::rms_norm_linear: no kernel covers K=4096,N=6000 in")
    assert "the nearest covered are K=4096,N=6144 fp16, K=4096,N=6144 bf16" in sentence
    assert sentence.endswith(
        "`mirage-kernels generate rms_norm_linear --arch sm_90a --dtype fp16 --shape K=4096,N=6000 "
        '--out DIR` and `mirage-kernels compile DIR` make it, mirage_kernels.load("DIR") adds it'
    )


def test_recipe_without_kernels_is_named() -> None:
    sentence = OPS._not_covered("gated_mlp", "no_such_recipe", "bf16", ["K"], [8])
    assert "mirage_kernels::gated_mlp: no kernel of no_such_recipe covers K=8 in bf16" in sentence
    assert "this build contains none of that recipe" in sentence


def test_gpu_of_this_builds_architecture_is_taken() -> None:
    assert kernel_table()[0].arch == "sm_90a"
    assert OPS._architecture_complaint(9, 0, "NVIDIA H200") == ""


@pytest.mark.parametrize(("capability", "here"), [((8, 0), "sm_80"), ((10, 0), "sm_100a")])
def test_other_gpu_is_told_what_to_install(capability: tuple[int, int], here: str) -> None:
    sentence = OPS._architecture_complaint(*capability, "NVIDIA Other")
    assert "kernels for sm_90a only, but the GPU (NVIDIA Other) is sm_" in sentence
    assert f"make wheel ARCH={here}`" in sentence
