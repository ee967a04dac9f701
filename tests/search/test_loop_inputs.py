"""Of every attention, a program that reads all keys and values tile by tile is kept, and accurate.

It is one kernel whose blocks split the keys, loop over their parts and combine.
"""

from __future__ import annotations

import pytest
from small import ONE_KERNEL, found, search_of, spec_of

from mirage_kernels.generator.errors import VerifyError
from mirage_kernels.generator.ir import DType, Graph
from mirage_kernels.generator.recipe import load_recipe, output_type, trace
from mirage_kernels.generator.search.gate import Gate
from mirage_kernels.generator.search.lower import Goal, lower
from mirage_kernels.generator.search.problem import Problem
from mirage_kernels.generator.search.refine import refine
from mirage_kernels.generator.search.settings import View
from mirage_kernels.generator.search.sketch import BlockSketch
from mirage_kernels.generator.search.stabilise import stabilise

ATTENTION = [
    "gqa",
    "causal_attention",
    "sliding_window_attention",
    "soft_cap_attention",
    "gqa_full",
    "qk_norm_attention",
    "qk_layer_norm_attention",
]


def reads_all_in_the_loop(kernel: BlockSketch) -> bool:
    """Return whether blocks split the keys, and read every key and value in the loop over them."""
    setting = kernel.setting
    return (setting.split, setting.loop) == ("L", "L") and all(
        view.loop_cut == "L" for view in kernel.views if "L" in view.cuts
    )


def streaming(recipe: str, dtype: DType) -> list[Graph]:
    """Return the proved muGraphs of that form, exponentials made safe."""
    source = load_recipe(recipe)
    spec = trace(source, source.shapes[0], dtype)
    goal = Goal(spec, output_type(source, source.shapes[0], dtype), dtype, {})
    kernels = [(p, p.kernels[0]) for p in found(recipe).programs]
    kept = [p for p, k in kernels if isinstance(k, BlockSketch) and reads_all_in_the_loop(k)]
    return [stabilise(lower(p, goal), dtype) for p in kept]


@pytest.mark.parametrize("dtype", [DType.FP16, DType.BF16], ids=lambda d: d.value)
@pytest.mark.parametrize("recipe", ATTENTION)
def test_one_that_streams_keys_and_values_is_accurate(recipe: str, dtype: DType) -> None:
    source = load_recipe(recipe)
    gate = Gate(trace(source, source.shapes[0], dtype), source, dtype)

    def is_accurate(graph: Graph) -> bool:
        try:
            return bool(gate.measure(graph))
        except VerifyError:
            return False

    dearest_first = reversed(streaming(recipe, dtype))  # with the spec's own products
    assert any(map(is_accurate, dearest_first))


def looped(recipe: str) -> tuple[Problem, str]:
    return search_of(spec_of(recipe), ONE_KERNEL).problem, "L"


def test_nothing_with_the_loops_dim_is_read_before_it() -> None:
    problem, loop = looped("gqa")
    for setting in problem.settings():
        if setting.loop == loop:
            values = problem.saturated(setting)
            refined = refine(values, problem.goals(values), problem.fingerprints, problem.sources)
            kept = refined.with_loop_inputs()
            views = {i: v for i, v in refined.leaves.items() if isinstance(v, View)}
            dropped = {i for i in views if not kept.derivations[i]}
            assert dropped == {
                i
                for i, view in views.items()
                if loop in refined.values[i].names and view.loop_cut is None
            }


def test_no_program_is_kept_twice() -> None:
    kernels = [p.kernels for p in found("gqa").programs]
    assert len(set(kernels)) == len(kernels)
