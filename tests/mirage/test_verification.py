"""Verdicts on graphs of a checkpoint: equal ones are proved, changed ones refused with a reason."""

from __future__ import annotations

import copy
import itertools
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import mirage_kernels.generator as mi
from mirage_kernels.generator.errors import MirageError
from mirage_kernels.generator.frontend.mirage.builder import KernelGraph
from mirage_kernels.generator.frontend.mirage.checkpoints import checkpoint_text, read_checkpoint
from mirage_kernels.generator.frontend.mirage.proofs import Small, Terms, scaled
from mirage_kernels.generator.frontend.mirage.verdicts import Verdict, parsed, verified
from mirage_kernels.generator.frontend.positional.lower import lower
from mirage_kernels.generator.frontend.positional.program import Program
from mirage_kernels.generator.recipe import load_recipe

Build = Callable[..., KernelGraph]
CATALOG = {  # in the catalog, with what its inputs beyond Mirage's are held at
    "rms_norm": ("rms_norm_linear", {"norm_weight": 1.0, "eps": 0.0}),
    "gqa": ("gqa", {"scale": 1.0, "seq_lens": "L"}),
    "gated_mlp": ("gated_mlp", {}),
    "lora": ("lora_linear", {"scale": 1.0}),
}
PUBLISHED = {"rmsnorm_bs1": "rms_norm", "gqa_bs1": "gqa", "gated_mlp": "gated_mlp", "lora": "lora"}


def judged(name: str, *programs: Program | str) -> list[Verdict]:
    recipe, held = CATALOG[name]
    verdicts = [parsed(i, program) for i, program in enumerate(programs)]
    return verified(Terms(load_recipe(recipe), held), verdicts, lambda done, total: None)


def test_hand_written_kernels_are_proved_and_a_wrong_one_would_hardly_pass(
    named_program: tuple[str, KernelGraph],
) -> None:
    name, graph = named_program
    (verdict,) = judged(name, graph.program)
    assert verdict.reason == ""
    assert verdict.proof is not None
    assert verdict.proof.log2_failure <= -40


def test_a_graph_of_another_recipe_is_refused(programs: dict[str, Build]) -> None:
    (verdict,) = judged("rms_norm", programs["gated_mlp"]().program)
    assert verdict.reason.startswith("rms_norm_linear takes x[M K], weight[N K]")
    (verdict,) = judged("gated_mlp", programs["gqa"]().program)
    assert verdict.reason.startswith("no input of gated_mlp fits")


def test_swapped_inputs_are_bound_by_trying(programs: dict[str, Build]) -> None:
    graph = mi.new_kernel_graph()
    w, x = graph.new_input(dims=(16, 12)), graph.new_input(dims=(4, 16))
    graph.mark_output(graph.matmul(graph.rms_norm(x), w))
    (verdict,) = judged("rms_norm", graph.program)
    assert str(verdict.choice) == "weight[K N], x[M K]"


def test_a_file_is_bound_alike_and_the_odd_one_out_is_refused(
    programs: dict[str, Build],
) -> None:
    turned = mi.new_kernel_graph()
    x, up, gate = (turned.new_input(dims=d) for d in ((4, 16), (16, 12), (16, 12)))
    turned.mark_output(turned.mul(turned.silu(turned.matmul(x, gate)), turned.matmul(x, up)))
    plain = [programs["gated_mlp"](), programs["gated_mlp"](steps=2)]
    verdicts = judged("gated_mlp", *(g.program for g in (turned, *plain)))
    assert [v.proof is not None for v in verdicts] == [False, True, True]
    assert verdicts[0].reason.startswith("equal only as x[M K], up_weight[K N], gate_weight[K N]")


def test_a_dim_of_one_element_that_the_recipe_lacks_is_no_obstacle() -> None:
    graph = mi.new_kernel_graph()
    x, w = graph.new_input(dims=(1, 4, 16)), graph.new_input(dims=(1, 16, 12))
    graph.mark_output(graph.matmul(graph.rms_norm(x), w))
    (verdict,) = judged("rms_norm", graph.program)
    assert verdict.reason == ""
    assert str(verdict.choice) == "x[1 M K], weight[1 K N]"


SUMS_OF_PRODUCTS = """
from mirage_kernels.generator.language import sum
from mirage_kernels.generator.recipe import recipe

@recipe(inputs={"x": "M K", "y": "N K"}, output="K", dynamic={}, reference=None)
def sum_of_products(x, y):
    return sum(x * y, over="M N")
"""


def test_two_dims_of_a_recipe_are_not_taken_for_one_of_the_graph(tmp_path: Path) -> None:
    (tmp_path / "sums.py").write_text(SUMS_OF_PRODUCTS)
    graph = mi.new_kernel_graph()
    x, y = graph.new_input(dims=(4, 8)), graph.new_input(dims=(4, 8))
    graph.mark_output(graph.reduction(graph.mul(x, y), 0))  # of M = N alone
    terms = Terms(load_recipe(str(tmp_path / "sums.py")), {})
    (verdict,) = verified(terms, [parsed(0, graph.program)], lambda done, total: None)
    assert verdict.proof is None
    assert verdict.reason


def test_scaling_down_keeps_tiles_even_and_their_ratios() -> None:
    graph = mi.new_kernel_graph()
    x, w = graph.new_input(dims=(64, 4096)), graph.new_input(dims=(4096, 96))
    block = mi.new_threadblock_graph((32, 1, 1), (128, 1, 1), 1, 4)
    block.new_output(block.exp(block.new_input(x, (1, -1, -1), -1)), (1, -1, -1))
    (y,) = graph.customized([x], block)
    block = mi.new_threadblock_graph((3, 1, 1), (128, 1, 1), 64, 4)
    by, bw = block.new_input(y, (-1, -1, -1), 1), block.new_input(w, (1, -1, -1), 0)
    block.new_output(block.forloop_accum(block.matmul(by, bw)), (1, -1, -1))
    graph.mark_output(graph.customized([y, w], block)[0])
    small, sizes = scaled(graph.lowered().graph, Small(2, 3, whole=(2,)))
    first, second = (n.body.space for n in small.blocks)
    assert sizes["K"] < 100
    assert first.grid[0].tile == 2 * second.loop.tile
    assert all(sizes[a.dim] % a.tile == 0 for s in (first, second) for a in s.axes)


SWAPS = [  # an operator for one that computes something else
    ("tb_silu_op", "tb_exp_op"),
    ("tb_silu_op", "tb_sigmoid_op"),
    ("tb_exp_op", "tb_silu_op"),
    ("tb_mul_op", "tb_add_op"),
    ("tb_mul_op", "tb_div_op"),
    ("tb_div_op", "tb_mul_op"),
    ("tb_div_op", "tb_sub_op"),
    ("_red_ld_rms_op", "_red_ld_sum_op"),
    ("_red_ld_rms_op", "_red_ld_mean_op"),
    ("_red_ld_sum_op", "_red_ld_rms_op"),
    ("_red_ld_sum_op", "_red_ld_mean_op"),
    ("_redtox_ld_sum_op", "_nored_op"),
]


def operators(data: list) -> Iterator[dict]:
    for operator in data:
        yield operator
        yield from operator.get("bgraph", {}).get("operators", [])


def mutants(data: list) -> Iterator[tuple[str, list]]:
    """Yield checkpoints' graphs that differ from one in a single place."""
    text = json.dumps(data)
    for old, new in SWAPS:
        if old in text:
            yield f"{old} -> {new}", json.loads(text.replace(old, new, 1))
    for number, operator in enumerate(operators(data)):
        tensors = operator["input_tensors"]
        if len(tensors) == 2 and operator["op_type"] not in ("tb_mul_op", "tb_add_op"):
            changed = copy.deepcopy(data)
            target = next(itertools.islice(operators(changed), number, None))
            target["input_tensors"].reverse()
            yield f"operands of {operator['op_type']} swapped", changed
        for key in ("input_map", "output_map"):
            maps = operator.get(key, {})
            if operator["op_type"].startswith("tb_") and {0, 1} & set(maps.values()):
                changed = copy.deepcopy(data)
                target = next(itertools.islice(operators(changed), number, None))
                turned = {0: 1, 1: 0}
                target[key] = {a: turned.get(d, d) for a, d in maps.items()}
                yield f"{key} turned", changed


def differs(wanted: KernelGraph, changed: Program, oracle: Callable) -> bool:
    """Say by float64 evaluation, by position, whether a mutant computes something else."""
    program = wanted.program
    rng = np.random.default_rng(5)
    inputs = [rng.standard_normal(t.dims) for t in program.inputs]
    if [t.dims for t in changed.inputs] != [t.dims for t in program.inputs]:
        return True
    with np.errstate(all="ignore"):
        (a,) = oracle(program, inputs)
        (b,) = oracle(changed, inputs)
    return a.shape != b.shape or not np.allclose(a, b, rtol=1e-6)


def test_every_mutant_that_differs_is_refused(
    named_program: tuple[str, KernelGraph], oracle: Callable, tmp_path: Path
) -> None:
    name, graph = named_program
    (data,) = json.loads(checkpoint_text([graph.program]))
    tried = 0
    for what, changed in mutants(data):
        path = tmp_path / "mutant.json"
        path.write_text(json.dumps([changed]))
        try:
            (found,) = read_checkpoint(path)
        except MirageError:  # dims don't fit any more
            continue
        if isinstance(found, str) or not differs(graph, found, oracle):
            continue
        tried += 1
        (verdict,) = judged(name, found)
        assert verdict.proof is None, what
        assert verdict.reason, what
    assert tried > 0


@pytest.mark.parametrize("file", PUBLISHED)
def test_published_graphs_are_proved_equal_to_the_catalogs_recipes(
    file: str, checkpoints: Path
) -> None:
    verdicts = judged(PUBLISHED[file], *read_checkpoint(checkpoints / f"{file}.json"))
    assert [(v.number, v.reason) for v in verdicts if v.proof is None] == []


def test_a_programs_graph_is_made_once(programs: dict[str, Build]) -> None:
    graph = programs["rms_norm"]()
    assert graph.lowered() is graph.lowered()
    assert lower(graph.program) == graph.lowered()
