"""Attention programs: roles and statements read off muGraphs, and what this plan refuses."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

import pytest
from attention_graphs import RECIPES, mugraph, rewritten

from mirage_kernels.generator.errors import PlanError
from mirage_kernels.generator.ir import Graph, dumps, from_json, to_json
from mirage_kernels.generator.plan.program import Roles
from mirage_kernels.generator.plan.threads import with_threads
from mirage_kernels.generator.records.sources import FAST, plan_for
from mirage_kernels.generator.schedules.attention.lower import attention_program
from mirage_kernels.generator.schedules.attention.program import (
    AttentionProgram,
    AttentionRoles,
    Do,
    Place,
)
from mirage_kernels.generator.schedules.general import GeneralRoles
from mirage_kernels.generator.schedules.schedule import Subject
from mirage_kernels.generator.target import target

H200 = target("sm_90a")
each_recipe = pytest.mark.parametrize("recipe", RECIPES)


SCALED_FIRST = "gqa-blocks_split_L_loop_over_L_combine"  # scales queries, not products


def program(recipe: str) -> AttentionProgram:
    return attention_program(recipe, mugraph(recipe))


def edited(recipe: str, *changes: tuple[str, str]) -> Graph:
    """Return a muGraph with pieces of its text replaced, each of which it must have."""
    text = dumps(to_json(mugraph(recipe)))
    for old, new in changes:
        assert old in text, old
        text = text.replace(old, new)
    return from_json(json.loads(text))


def made(steps: tuple) -> list[str]:
    return [s.op or s.do.value for s in steps]


def test_the_roles_of_decoding_follow_from_its_products() -> None:
    wanted = AttentionRoles(keys="L", depth="D", rows=("G",), heads="Hkv", sequences="B")
    assert program("gqa").roles == wanted


def test_query_tokens_are_rows_before_the_heads_of_a_group() -> None:
    roles = program("sliding_window_attention").roles
    assert (roles.rows, roles.tokens, roles.group) == (("T", "G"), "T", "G")


def test_roles_do_not_depend_on_names() -> None:
    text = dumps(to_json(mugraph("gqa")))
    for old, new in (("L", "N"), ("D", "E"), ("Hkv", "C"), ("G", "W"), ("B", "S")):
        text = re.sub(rf'(?<=[\[ "]){old}(?=[<=",])', new, text)
    renamed = attention_program("gqa", from_json(json.loads(text))).roles
    assert renamed == AttentionRoles(keys="N", depth="E", rows=("W",), heads="C", sequences="S")


def test_a_value_is_what_its_dims_make_it() -> None:
    gqa, places = program(SCALED_FIRST), {}
    for step in (*gqa.before, *gqa.loop):
        places[step.out] = gqa.roles.place(step.type)
    assert places["q_tile"] is places["scaled_q"] is Place.QUERIES
    assert places["k_tile"] is Place.KEYS
    assert places["mask"] is Place.KEY_VECTOR
    assert places["scaled_q_product"] is Place.SCORES
    assert places["seq_lens_tile"] is Place.SCALAR


def test_decoding_runs_node_by_node() -> None:
    gqa = program("gqa")
    assert made(gqa.before) == ["queries", "length"]
    assert made(gqa.loop) == [
        *("keys", "key positions", "less", "scores", "mul", "online softmax"),
    ]
    assert made(gqa.after) == ["div", "store"]


def test_what_needs_no_keys_runs_before_the_loop() -> None:
    gqa = program(SCALED_FIRST)
    assert made(gqa.before) == ["queries", "length", "mul"]
    assert "mul" not in made(gqa.loop)
    assert gqa.resident == "scaled_q"


def test_what_is_carried_is_known_inside_and_after_the_loop() -> None:
    gqa = program("gqa")
    assert (gqa.resident, gqa.peak) == ("q_tile", "peak")
    assert (gqa.sum.name, gqa.sum.whole) == ("sum_masked", "combine_sum_masked")
    assert (gqa.product.name, gqa.product.whole) == ("masked_product", "combine_masked_product")
    assert gqa.tensors == {"queries": "q", "keys": "k", "values": "v"}


def test_both_norms_sum_lines_in_their_phase() -> None:
    normed = program("qk_norm_attention")
    assert [s.out for s in normed.before if s.do is Do.LINE_SUM] == ["q_squared"]
    assert [s.out for s in normed.loop if s.do is Do.LINE_SUM] == ["k_squared"]
    assert normed.vectors == ("q_weight", "k_weight")
    assert normed.scalars == ("scale", "eps", "weight_offset")


def test_weights_per_head_are_read_by_rows_and_by_heads() -> None:
    normed = program("qk_layer_norm_attention")
    assert normed.vectors == ("q_weight", "q_bias", "k_weight", "k_bias")
    by_row = [s.args[0] for s in normed.before if s.do is Do.ROW_VECTORS]
    by_head = [s.args[0] for s in normed.before if s.do is Do.VECTOR]
    assert (by_row, by_head) == (["q_weight", "q_bias"], ["k_weight", "k_bias"])


def test_latents_are_keys_and_values_without_a_dim_of_heads() -> None:
    latent = program("mla_decode")
    wanted = AttentionRoles(keys="L", depth="C", rows=("Hq",), heads="", sequences="B", more="P")
    assert latent.roles == wanted
    assert latent.tensors == {
        "queries": "q_latent",
        "more queries": "q_rope",
        "keys": "latent",
        "more keys": "k_rope",
        "values": "latent",
    }
    assert (latent.depth, latent.more_depth) == (512, 64)
    assert (latent.resident, latent.more_resident) == ("q_latent_tile", "q_rope_tile")


def test_two_products_of_scores_are_planned_for_latents_only() -> None:
    change = ("masked_product", {"args": ("k_rope_tile", "masked")})
    with pytest.raises(PlanError):
        attention_program("mla_decode", rewritten("mla_decode", change))


def test_a_window_is_an_integer_and_query_tokens_are_counted() -> None:
    sliding = program("sliding_window_attention")
    assert sliding.integers == ("window",)
    assert {Do.ROW_TOKENS, Do.TOKEN_COUNT} <= {s.do for s in sliding.before}


def test_a_tile_stands_before_what_broadcasts_to_it() -> None:
    turned = rewritten(SCALED_FIRST, ("scaled_q", {"args": ("scale", "q_tile")}))
    (scaled,) = (s for s in attention_program("gqa", turned).before if s.op == "mul")
    assert scaled.args == ("q_tile", "scale")


@each_recipe
def test_thread_graphs_change_nothing(recipe: str) -> None:
    graph = with_threads(mugraph(recipe))
    assert attention_program(recipe, graph) == program(recipe)


@each_recipe
def test_attention_is_the_plan_that_carries_it(recipe: str) -> None:
    assert plan_for(Subject(recipe, mugraph(recipe), H200)).roles is AttentionRoles


def test_weights_are_still_streamed(fused: Callable[..., Graph]) -> None:
    assert plan_for(Subject("rms_norm_linear", with_threads(fused()), H200)).roles is Roles


OTHER_FORMS = {
    "gqa-loop_over_L": "blocks split nothing, this plan splits L",
    "gqa-blocks_split_L_loop_over_L_store_partial_sums_no_loop": "planned as one kernel, not as",
    "rms_norm_linear-loop_over_K_library_product": "planned as one kernel, not as",
    "rms_norm_linear-loop_over_K": "blocks split nothing, this plan splits K",
}


@pytest.mark.parametrize("name", OTHER_FORMS)
def test_a_mugraph_of_another_form_is_refused(name: str) -> None:
    with pytest.raises(PlanError, match=OTHER_FORMS[name]):
        attention_program("it", mugraph(name))


def test_what_attention_does_not_carry_gets_a_general_kernel() -> None:
    subject = Subject("gqa", mugraph("gqa-loop_over_L"), H200)
    with pytest.raises(PlanError, match="this plan splits L"):
        plan_for(subject, FAST)
    assert plan_for(subject).roles is GeneralRoles


Change = tuple[str, str, dict[str, object]]  # recipe, node, what of it becomes what
ONE_OF = "this plan has one"
REFUSED: dict[str, tuple[Change, str]] = {
    "a sum that is not rescaled": (
        ("gqa", "sum_masked_total", {"op": "accum", "args": ("sum_masked",)}),
        "sum_masked is carried by accum_rescaled only in this plan, not by sum_masked_total =",
    ),
    "blocks that do not rescale": (
        ("gqa", "combine_masked_product", {"op": "combine", "args": ("masked_product_total",)}),
        "masked_product_total is carried by combine_rescaled only",
    ),
    "a sum of its own": (
        ("gqa", "exp_scaled_k_product", {"op": "sum", "over": "L"}),
        f"{ONE_OF} sum over keys, the muGraph exp_scaled_k_product and sum_masked",
    ),
    "weights that are not masked": (
        ("gqa", "masked", {"op": "add", "args": ("exp_scaled_k_product", "const_0")}),
        "masked = add.* is not masked",
    ),
    "a mask of something else": (
        ("gqa", "masked", {"args": ("mask", "exp_scaled_k_product", "k_product")}),
        "masked = where.* is not masked",
    ),
    "a mask that shows too much": (
        ("gqa", "mask", {"args": ("const_0", "seq_lens_tile")}),
        "mask shows key 1 of a sequence of 1 keys",
    ),
    "a mask of scores": (
        ("gqa", "mask", {"op": "exp", "args": ("position_L_tile",)}),
        "mask = exp.* is no arithmetic of positions",
    ),
    "values that are computed": (
        ("gqa", "masked_product", {"args": ("k_tile", "masked")}),
        "k_tile, which masked_product multiplies, is used by k_product",
    ),
    "queries times queries": (
        ("gqa", "k_product", {"args": ("q_tile", "q_tile")}),
        f"{ONE_OF} product of keys and queries, the muGraph none",
    ),
    "a peak in a product": (
        ("gqa", "lowered_scaled_k_product", {"op": "mul"}),
        "lowered_scaled_k_product = mul.*: a peak is only subtracted",
    ),
    "a tile that broadcasts to a vector": (
        ("qk_norm_attention", "normed_scaled_q", {"args": ("root", "scaled_q")}),
        "normed_scaled_q = div.* broadcasts its first operand",
    ),
    "a sum that is multiplied": (
        ("gqa", "normed_combine_masked_product", {"op": "mul"}),
        "normed_combine_masked_product = mul.*: this plan only divides by combine_sum_masked",
    ),
    "rows after the blocks have combined": (
        (
            "qk_norm_attention",
            "normed_combine_masked_product",
            {"args": ("combine_masked_product", "root")},
        ),
        "normed_combine_masked_product needs root after the blocks have combined",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_the_plan_cannot_carry_is_refused_by_name(what: str) -> None:
    (recipe, *change), sentence = REFUSED[what]
    with pytest.raises(PlanError, match=sentence):
        attention_program("it", rewritten(recipe, tuple(change)))


def test_a_causal_mask_that_is_one_key_too_wide_is_refused() -> None:
    wider = rewritten("sliding_window_attention", ("int_1", {"value": 2.0}))
    with pytest.raises(PlanError, match="mask_3 shows key 0 of a sequence of 0 keys"):
        attention_program("it", wider)


DIMS, BY_HEAD = "B<=1, L<=128, Hkv<=1", "B<=1, Hkv<=1, L<=128"
STORED: dict[str, tuple[str, list[tuple[str, str]], str]] = {
    "static heads": ("gqa", [("Hkv<=256", "Hkv=8"), ("Hkv<=1", "Hkv=1")], "Hkv is static"),
    "a dynamic depth": ("gqa", [("D=128", "D<=128")], "D is dynamic"),
    "values in another order than keys": (
        "gqa",
        [('"v": "fp16[B<=256, L<=131072, Hkv<=256', '"v": "fp16[B<=256, Hkv<=256, L<=131072')],
        "v fp16.* is not stored as k is",
    ),
    "keys by head first": (
        "gqa",
        [(f'"k_tile": "fp16[{DIMS}', f'"k_tile": "fp16[{BY_HEAD}')],
        "keys are stored as .B, Hkv, L, D., not by sequence, L",
    ),
    "a weight per sequence": (
        "qk_norm_attention",
        [('"k_weight": "fp16[D=128]"', '"k_weight": "fp16[B<=256, D=128]"')],
        "k_weight fp16.*B.* is an input that",
    ),
}


@pytest.mark.parametrize("what", STORED)
def test_what_is_stored_in_another_way_is_refused(what: str) -> None:
    recipe, changes, sentence = STORED[what]
    with pytest.raises(PlanError, match=sentence):
        attention_program(recipe, edited(recipe, *changes))
