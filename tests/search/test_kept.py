"""Programs that are kept whatever is cheaper: with the spec's products, with inputs in the loop."""

from __future__ import annotations

import pytest
from small import ONE_KERNEL, found, graphs, search_of, spec_of, views_of

from mirage_kernels.generator.errors import VerifyError
from mirage_kernels.generator.ir import DType, Graph
from mirage_kernels.generator.recipe import load_recipe, output_type, trace
from mirage_kernels.generator.search import fingerprints as refining
from mirage_kernels.generator.search.fingerprints import Fingerprints, Refined, refine
from mirage_kernels.generator.search.gate import Gate
from mirage_kernels.generator.search.lower import Goal, lower
from mirage_kernels.generator.search.sketch import BlockSketch, Setting, View
from mirage_kernels.generator.search.stabilise import stabilise

OVER_K = Setting(("N", "M"), "K")


def is_accurate(gate: Gate, graph: Graph) -> bool:
    try:
        return bool(gate.measure(graph))
    except VerifyError:
        return False


def has_raw_weights(graph: Graph) -> bool:
    """Return whether every product in the loop is with a weight as it is stored."""
    body = graph.blocks[0].body
    assert body is not None
    weights = {n.name for n in body.inputs if len(n.out.type.dims) == 2}
    return all(weights & {*node.args} for node in body.of("contract") if node.over == "K")


NORMED = ["rms_norm_linear", "rms_norm_gated_mlp", "layer_norm_linear", "rms_norm_linear_full"]


@pytest.mark.parametrize("recipe", NORMED)
def test_a_norm_and_products_have_a_program_with_raw_weights_that_is_accurate_in_fp16(
    recipe: str,
) -> None:
    gate = Gate(spec_of(recipe), load_recipe(recipe), DType.FP16)
    programs = zip(found(recipe).programs, graphs(recipe), strict=True)
    looped = [g for p, g in programs if getattr(p.kernels[0], "setting", None) == OVER_K]
    assert any(is_accurate(gate, g) for g in looped if has_raw_weights(g))


def refined(recipe: str) -> Refined:
    problem = search_of(spec_of(recipe), ONE_KERNEL).problem
    found = problem.saturated(OVER_K)
    return refine(found, problem.goals(found), problem.fingerprints, {})


def contractions(values: Refined) -> set[tuple[int, ...]]:
    return {s.args for ways in values.derivations for s in ways if s.op == "contract"}


def test_only_the_contractions_of_the_spec_are_its_own() -> None:
    problem = search_of(spec_of("rms_norm_linear"), ONE_KERNEL).problem
    every = refined("rms_norm_linear")
    own = every.with_spec_products(problem.fingerprints)
    assert contractions(own) < contractions(every)
    for args in contractions(own):
        known = [
            problem.fingerprints.spec_values(every.values[a].dims, None)[
                refining.digest(every.arrays[a])
            ]
            for a in args
        ]
        assert {"weight"} in known


def test_meanings_of_the_spec_itself_are_kept_beyond_the_most(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(refining, "MOST_FINGERPRINTS", 1)
    few = refined("layer_norm_linear")
    assert few.extra
    known = search_of(spec_of("layer_norm_linear"), ONE_KERNEL).problem.fingerprints
    assert all(
        refining.digest(few.arrays[i]) in known.spec_values(few.values[i].dims, None)
        for i in few.extra
    )


def test_what_is_kept_beyond_the_most_changes_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    few = refined("layer_norm_linear").without_extra()
    monkeypatch.setattr(Fingerprints, "_spec_values", lambda *_: {})
    without = refined("layer_norm_linear")
    kept = {refining.digest(few.arrays[i]) for i, ways in enumerate(few.derivations) if ways}
    assert kept >= {refining.digest(a) for a in without.arrays}


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
        view.loop_cut == "L" for view in views_of(kernel) if "L" in view.cuts
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
    dearest_first = reversed(streaming(recipe, dtype))  # with the spec's own products
    assert any(is_accurate(gate, graph) for graph in dearest_first)


def test_nothing_with_the_loops_dim_is_read_before_it() -> None:
    problem, loop = search_of(spec_of("gqa"), ONE_KERNEL).problem, "L"
    for setting in problem.settings():
        if setting.loop == loop:
            values = problem.saturated(setting)
            refined = refine(values, problem.goals(values), problem.fingerprints, {})
            kept = refined.with_loop_inputs()
            views = {i: v for i, v in refined.leaves.items() if isinstance(v, View)}
            dropped = {i for i in views if not kept.derivations[i]}
            assert dropped == {
                i
                for i, view in views.items()
                if loop in refined.values[i].names and view.loop_cut is None
            }
