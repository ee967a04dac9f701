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


def test_scaling_down_keeps_tiles_even_and_their_ratios(programs: dict[str, Build]) -> None:
    graph = programs["two_kernels"](32, 64, rows=64, depth=4096, columns=96)
    small, sizes = scaled(graph.lowered().graph, Small(2, 3, whole=(2,)))
    first, second = (n.body.space for n in small.blocks)
    assert sizes["K"] < 100
    assert first.grid[0].tile == 2 * second.loop.tile
    assert all(sizes[a.dim] % a.tile == 0 for s in (first, second) for a in s.axes)


PRODUCT_OF_SQUARES = """
from mirage_kernels.generator.language import contract, square
from mirage_kernels.generator.recipe import recipe

@recipe(inputs={"x": "M K", "w": "K N"}, output="M N", dynamic={}, reference=None)
def product_of_squares(x, w):
    return contract(square(x), square(w), over="K")
"""


@pytest.mark.parametrize("right", [True, False])
def test_dims_that_one_axis_cuts_scale_alike_and_the_verdict_is_the_same(
    tmp_path: Path, *, right: bool
) -> None:
    graph = mi.new_kernel_graph()
    x, w = graph.new_input(dims=(256, 4096)), graph.new_input(dims=(4096, 96))
    block = mi.new_threadblock_graph((64, 1, 1), (128, 1, 1), 1, 64)
    bx = block.new_input(x, (0, -1, -1), -1)
    bw = block.new_input(w, (0, -1, -1), -1)  # the axis cuts other dims of x and of w
    block.new_output(block.square(bx), (0, -1, -1))
    block.new_output(block.square(bw) if right else block.exp(bw), (0, -1, -1))
    graph.mark_output(graph.matmul(*graph.customized([x, w], block)))
    _, sizes = scaled(graph.lowered().graph, Small(2, 3, whole=(2,)))
    assert max(sizes.values()) <= 6
    (tmp_path / "squares.py").write_text(PRODUCT_OF_SQUARES)
    terms = Terms(load_recipe(str(tmp_path / "squares.py")), {})
    (verdict,) = verified(terms, [parsed(0, graph.program)], lambda done, total: None)
    assert (verdict.proof is not None) == right
    assert bool(verdict.reason) != right


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


# `mirage-kernels import-mirage`: what it prints, its document, its exit codes.

GATED_MLP = f"{Path(__file__).parents[2]}/recipes/gated_mlp.py:gated_mlp"  # a recipe file
Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def file(
    programs: dict[str, Callable[..., KernelGraph]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> str:
    """A checkpoint in the current folder: two RMSNorm kernels and a gated MLP."""
    monkeypatch.chdir(tmp_path)
    graphs = [programs["rms_norm"](), programs["rms_norm"](steps=2), programs["gated_mlp"]()]
    Path("some.json").write_text(checkpoint_text([g.program for g in graphs]))
    return "some.json"


def test_every_graph_gets_a_line_and_the_counts_come_last(command: Command, file: str) -> None:
    code, out, _ = command("import-mirage", file)
    assert code == 0
    assert out.count("1 kernel  parsed") == 3
    assert out.endswith("3 graphs: 3 parsed\n")


def test_verdicts_name_the_binding_and_the_reasons(command: Command, file: str) -> None:
    hold = ("--hold", "norm_weight=1,eps=0")
    code, out, _ = command("import-mirage", file, "--verify", "rms_norm_linear", *hold)
    assert code == 1
    assert out.count("verified, 2^-") == 2
    assert "refused: rms_norm_linear takes x[M K], weight[N K]" in out
    assert "where the graphs' tensors are x[M K], weight[K N]" in out
    assert out.endswith("3 graphs: 3 parsed, 2 verified, 1 refused\n")


def test_the_document_holds_graphs_proofs_and_counts(command: Command, file: str) -> None:
    code, out, _ = command("import-mirage", file, "--verify", GATED_MLP, "--json")
    document = json.loads(out)
    assert code == 1
    assert document["counts"] == {"graphs": 3, "parsed": 3, "verified": 1, "refused": 2}
    first, _, last = document["graphs"]
    assert last["verified"]
    assert last["proof"]["log2_failure"] < -40
    assert last["graph"]["level"] == "kernel"
    assert not first["verified"]
    assert first["reason"]


def test_a_graph_is_shown(command: Command, file: str) -> None:
    code, out, _ = command("import-mirage", file, "--show", "1")
    assert code == 0
    assert "loop cuts K by 16" in out


def test_the_answer_is_yes_only_where_every_graph_is_taken(command: Command, file: str) -> None:
    hold = ("--verify", "rms_norm_linear", "--hold", "norm_weight=1,eps=0")
    shown = [command("import-mirage", file, *hold, "--show", str(i))[0] for i in range(3)]
    assert shown == [0, 0, 1]
    Path(file).write_text(json.dumps(json.loads(Path(file).read_text())[:2]))
    code, out, _ = command("import-mirage", file, *hold)
    assert code == 0
    assert out.endswith("2 graphs: 2 parsed, 2 verified, 0 refused\n")


def test_a_graph_that_is_not_parsed_is_the_answer_no(command: Command, file: str) -> None:
    Path(file).write_text(Path(file).read_text().replace("tb_silu_op", "tb_pow_op"))
    code, out, _ = command("import-mirage", file)
    assert code == 1
    assert "not parsed: there is no operator 'tb_pow_op' here" in out
    assert out.endswith("3 graphs: 2 parsed\n")


BAD = [
    (("absent.json",), "absent.json"),
    (("broken.json",), "broken.json is no JSON"),
    ((".",), "Is a directory"),
    ((), "required: FILE.json"),
    (("some.json", "--show", "3"), "there is no graph 3 to show"),
    (("some.json", "--show", "-1"), "there is no graph -1 to show"),
    (("some.json", "--show", "x"), "'x'"),
    (("some.json", "--hold", "eps=0"), "--hold needs a recipe"),
    (("some.json", "--verify", "batch_norm"), "no recipe called 'batch_norm'"),
    (("some.json", "--verify", "rms_norm_linear", "--hold", "eps"), "NAME=VALUE"),
    (("some.json", "--verify", "rms_norm_linear", "--hold", "eps=0,eps=1"), "NAME=VALUE"),
    (("some.json", "--verify", "rms_norm_linear", "--hold", "eps=1.2.3"), "no number"),
    (("some.json", "--verify", "rms_norm_linear", "--hold", "x1=0"), "no input 'x1'"),
    (("some.json", "--verify", "rms_norm_linear", "--hold", "eps=Q"), "no dim"),
]


@pytest.mark.parametrize(("words", "sentence"), BAD, ids=[" ".join(w) for w, _ in BAD])
def test_bad_input_gets_a_sentence(
    words: tuple[str, ...], sentence: str, command: Command, file: str
) -> None:
    Path("broken.json").write_text("[[{]")
    code, out, err = command("import-mirage", *words)
    assert code == 2
    assert out == ""
    assert sentence in err
    assert "Traceback" not in err
