"""Emitted kernels of the split plan: formatted, and as large as planned."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from compilers import compiled, formatted

from mirage_kernels.generator.emit.cuda import Kernel, emit_cuda
from mirage_kernels.generator.emit.header import Header
from mirage_kernels.generator.ir import DType, Graph
from mirage_kernels.generator.plan.lower import tile_program
from mirage_kernels.generator.recipe import Shape
from mirage_kernels.generator.schedules.choose import shared_bytes, variants
from mirage_kernels.generator.schedules.cluster_split_k import ClusterSplitK
from mirage_kernels.generator.target import target

Fused = Callable[..., Graph]
FORMS = [("w", DType.FP16, 6144), ("x", DType.BF16, 6144), ("w", DType.FP16, 4096)]
each_form = pytest.mark.parametrize(("scales", "dtype", "n"), FORMS)


def kernel(fused: Fused, scales: str, dtype: DType, n: int) -> Kernel:
    graph = fused(scales, shape=Shape("a test", {"K": 4096, "N": n}), dtype=dtype)
    made = tile_program("mine", graph)
    chosen = variants(made, target("sm_90a"))
    if scales == "x":  # whose tokens the rule holds in registers
        last = replace(chosen[-1], knobs=ClusterSplitK(64, 96, 6))
        chosen = (*chosen[:-1], last)
    return Kernel(made, chosen, dtype, Header("command", "stem", [("Formula", "none")]))


@each_form
def test_a_split_is_formatted_as_clang_format_would(
    fused: Fused, scales: str, dtype: DType, n: int
) -> None:
    text = emit_cuda(kernel(fused, scales, dtype, n))
    assert formatted(text) == text


@each_form
def test_many_tokens_are_launched_as_a_split(
    fused: Fused, scales: str, dtype: DType, n: int
) -> None:
    configs = re.findall(
        r"using (\w+M) =\s+(\w+)<Shape", emit_cuda(kernel(fused, scales, dtype, n))
    )
    assert configs == [
        ("UpTo8M", "SlicedK"),
        ("UpTo16M", "SlicedK"),
        ("UpTo32M", "ClusterSplitK" if n == 4096 else "SlicedK"),
        ("AnyM", "ClusterSplitK"),
    ]


@each_form
def test_who_finishes_nothing_leaves_before_sums_are_added(
    fused: Fused, scales: str, dtype: DType, n: int
) -> None:
    text = emit_cuda(kernel(fused, scales, dtype, n))
    parts = (
        "wait_for_partials(block);",
        "if (!block.finishes(M - first_token)) return;",
        "add_partials(block",
    )
    places = [text.index(part) for part in parts]
    assert places == sorted(places)


@each_form
def test_a_split_takes_the_shared_memory_that_was_planned(
    fused: Fused, tmp_path: Path, scales: str, dtype: DType, n: int
) -> None:
    made = kernel(fused, scales, dtype, n)
    planned = shared_bytes(made.program, made.variants[-1].knobs)
    block = "mirage::generated::ClusterSplitKBlock<mirage::generated::AnyM>"
    text = f"{emit_cuda(made)}static_assert({block}::kBytes == {planned});\n"
    ran = compiled(text, tmp_path, "-ptx", "-arch=sm_90a")
    assert ran.returncode == 0, ran.stderr
