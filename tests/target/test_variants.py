"""Variants on every architecture: within the shared memory and registers that it has."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from mirage_kernels.generator.ir import Graph
from mirage_kernels.generator.plan.lower import tile_program
from mirage_kernels.generator.recipe import Shape
from mirage_kernels.generator.schedules.choose import registers, shared_bytes, variants
from mirage_kernels.generator.schedules.loop import REGISTERS_LEFT
from mirage_kernels.generator.target import TARGETS, Target

Fused = Callable[..., Graph]
SHAPES = [(4096, 6144), (8192, 10240), (4104, 100), (28672, 8192)]

each = pytest.mark.parametrize("on", TARGETS.values(), ids=TARGETS)
each_shape = pytest.mark.parametrize(("k", "n"), SHAPES)


@each
@each_shape
def test_every_variant_fits_the_architecture(fused: Fused, on: Target, k: int, n: int) -> None:
    made = tile_program("mine", fused(shape=Shape("a test", {"K": k, "N": n})), on.arch)
    for variant in variants(made, on):
        assert shared_bytes(made, variant.knobs) <= on.shared_bytes
        assert registers(made, variant.knobs) <= REGISTERS_LEFT


@each
def test_one_wave_of_blocks_covers_all_rows_of_few_tokens(fused: Fused, on: Target) -> None:
    graph = fused(shape=Shape("a test", {"K": 4096, "N": 4096}))
    made = variants(tile_program("mine", graph, on.arch), on)
    assert -(-4096 // made[1].knobs.rows) <= on.multiprocessors
