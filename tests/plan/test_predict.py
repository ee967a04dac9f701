"""Predicted plans: what a planner's absence costs, how shared memory and barriers come about."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from math import inf
from types import ModuleType

import pytest

from mirage_kernels.generator.plan.blocks import default_sizes
from mirage_kernels.generator.plan.implementations import Offered
from mirage_kernels.generator.plan.layouts import EVERYTHING, Layouts, Setup, layouts
from mirage_kernels.generator.plan.memory import least_peak
from mirage_kernels.generator.plan.predict import ALL, Planners, Predicted, carried_out, predict
from mirage_kernels.generator.plan.steps import PHASES, steps_of
from mirage_kernels.generator.target import target

ON = target("sm_90a")
NAMES = ["gated MLP, 8 tokens", "LoRA, 64 tokens", "GQA, a cluster per head"]
OFF = {
    "layouts": Planners(layouts=False),
    "schedule": Planners(schedule=False),
    "memory": Planners(memory=False),
}


@cache
def laid_out(mugraphs: ModuleType, name: str, offered: Offered) -> Layouts:
    graph = mugraphs.MUGRAPHS[name]()
    sizes = default_sizes(graph) | ({"B": 8} if name.startswith("GQA") else {})
    return layouts(graph, Setup(ON, sizes, offered=offered))


def made(mugraphs: ModuleType, name: str, planners: Planners = ALL) -> Predicted:
    offered = EVERYTHING if planners.layouts else planners.unplanned
    return carried_out(laid_out(mugraphs, name, offered), planners)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("off", OFF)
def test_a_plan_without_a_planner_is_no_faster(mugraphs: ModuleType, name: str, off: str) -> None:
    assert made(mugraphs, name, OFF[off]).microseconds >= made(mugraphs, name).microseconds


def test_planned_layouts_spare_lora_half_of_its_time(mugraphs: ModuleType) -> None:
    all_on = made(mugraphs, "LoRA, 64 tokens").microseconds
    assert made(mugraphs, "LoRA, 64 tokens", OFF["layouts"]).microseconds > 1.5 * all_on


def test_a_barrier_after_every_task_adds_up_over_the_passes(mugraphs: ModuleType) -> None:
    planned, off = (made(mugraphs, NAMES[0], p) for p in (Planners(), OFF["schedule"]))
    assert planned.kernels[0].barriers <= 2
    assert off.kernels[0].barriers > 8 * 10


def test_what_meets_after_the_loop_lies_where_the_ring_was(mugraphs: ModuleType) -> None:
    plan = made(mugraphs, "LoRA, 64 tokens")
    (kernel,) = plan.kernels
    buffers = steps_of(plan.layouts, kernel.block).buffers(kernel.schedule, kernel.stages)
    ring = max(kernel.arrangement.offsets[b.name] + b.bytes for b in buffers if 0 in b.live)
    assert kernel.arrangement.offsets["product_total"] < ring


def test_without_a_memory_plan_large_tiles_do_not_fit(mugraphs: ModuleType) -> None:
    assert made(mugraphs, "LoRA, 64 tokens", OFF["memory"]).microseconds == inf
    assert made(mugraphs, "LoRA, 64 tokens").microseconds < inf


@pytest.mark.parametrize("name", NAMES)
def test_all_fits_and_the_peak_is_no_higher_than_it_has_to_be(
    mugraphs: ModuleType, name: str
) -> None:
    for kernel in made(mugraphs, name).kernels:
        assert 0 < kernel.arrangement.peak <= ON.shared_bytes
        steps = steps_of(made(mugraphs, name).layouts, kernel.block)
        buffers = steps.buffers(kernel.schedule, kernel.stages)
        assert kernel.arrangement.peak == least_peak(buffers)


def test_a_slower_memory_makes_a_slower_plan(mugraphs: ModuleType) -> None:
    graph = mugraphs.gated_mlp()
    slow = replace(ON, memory_bytes_per_us=ON.memory_bytes_per_us / 2)
    assert predict(graph, Setup(slow)).microseconds > 1.5 * predict(graph, Setup(ON)).microseconds


def test_every_operator_is_a_task_of_its_phase(mugraphs: ModuleType) -> None:
    graph = mugraphs.gqa()
    found = layouts(graph, Setup(ON, default_sizes(graph) | {"B": 8}))
    (block,) = found.blocks
    steps = steps_of(found, block)
    for node in block.body.nodes:
        tasks = steps.tasks[block.phases[node.name]]
        assert node.name in tasks or {f"copy {node.name}", f"wait {node.name}"} <= set(tasks)
    assert len(PHASES) == len(steps.sections)
