"""The run loop of tile programs: copies run ahead; what they bring is there behind its barrier."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tiled_forms import programs

from mirage_kernels.generator.tiles.check import compare
from mirage_kernels.generator.tiles.machine import Machine, grid
from mirage_kernels.generator.tiles.memory import COPIES, Memory, TileError


class Noted(Machine[str, str]):
    """Notes what the loop does."""

    def __init__(self) -> None:
        self.noted: list[str] = []

    def copy(self, step: int) -> None:
        self.noted.append(f"copy {step}")

    def step(self, step: int) -> None:
        self.noted.append(f"step {step}")


@pytest.mark.parametrize(
    ("stages", "noted"),
    [
        (1, ["copy 0", "step 0", "copy 1", "step 1", "copy 2", "step 2"]),
        (2, ["copy 0", "copy 1", "step 0", "copy 2", "step 1", "step 2"]),
        (4, ["copy 0", "copy 1", "copy 2", "step 0", "step 1", "step 2"]),
    ],
)
def test_copies_run_one_step_less_ahead_than_there_are_stages(
    stages: int, noted: list[str]
) -> None:
    machine = Noted()
    machine.pipelined(range(3), stages)
    assert machine.noted == noted


def test_a_grid_has_every_place() -> None:
    assert [*grid({"x": range(2), "y": (0, 8)})][-1] == {"x": 1, "y": 8}


def test_a_barrier_brings_the_copies_that_it_waits_for_alone() -> None:
    memory, first, second = Memory(8), np.array([0, 2]), np.array([4, 6])
    memory.write("a", first, 2, np.ones(2), COPIES)
    memory.write("b", second, 2, np.ones(2), COPIES + 1)
    memory.barrier(COPIES + 1)
    assert memory.read("a", first, 2, -1).tolist() == [1.0, 1.0]
    with pytest.raises(TileError, match="b is read without a barrier"):
        memory.read("b", second, 2, -1)


def test_a_tile_with_fewer_stages_than_its_loop_is_a_race() -> None:
    graph, (program,), sizes = programs("gated_mlp")
    tiles = {name: replace(t, stages=min(t.stages, 2)) for name, t in program.tiles.items()}
    with pytest.raises(TileError, match="without a barrier"):
        compare(graph, [replace(program, tiles=tiles)], sizes)
