"""The online-softmax step: formed where nobody sees what lies in between, refused by statement."""

from __future__ import annotations

from dataclasses import replace

import pytest
from attention_graphs import RECIPES, mugraph, rewritten

from mirage_kernels.generator.errors import PlanError
from mirage_kernels.generator.ir import Graph
from mirage_kernels.generator.schedules.attention.lower import attention_program
from mirage_kernels.generator.schedules.attention.program import AttentionProgram, Do
from mirage_kernels.generator.schedules.attention.softmax import softmax_step
from mirage_kernels.generator.schedules.attention.variants import attention_variants
from mirage_kernels.generator.schedules.wgmma_attention import WgmmaAttention, takes_many_rows
from mirage_kernels.generator.target import target


def undone(program: AttentionProgram) -> AttentionProgram:
    """Return a program with its nodes one by one."""
    *others, step = program.loop
    return replace(program, loop=(*others, *step.covers))


@pytest.mark.parametrize("recipe", RECIPES)
def test_scores_end_in_one_step(recipe: str) -> None:
    program = attention_program(recipe, mugraph(recipe))
    step = program.loop[-1]
    assert step.do is Do.SOFTMAX
    assert [s.op or s.do.value for s in step.covers] == [
        *("where", "raise", "sub", "exp", "where", "sum", "product")
    ]
    assert softmax_step(undone(program)) == step


SEEN, LOWERED = "seen_scaled_k_product", "lowered_scaled_k_product"
SCALED, EXP = "scaled_k_product", "exp_scaled_k_product"
OTHER_MASK = ("mask_2", {"args": ("position_L_tile", "seq_lens_tile")})
TWICE = ("twice", {"op": "add", "args": ("k_product", "k_product")})
BROKEN: dict[str, tuple[Graph, str]] = {
    "a maximum of all scores": (
        rewritten("gqa", ("peak", {"args": (SCALED,)})),
        f"{SCALED} is not computed by where",
    ),
    "a maximum of other scores": (
        rewritten("gqa", (SEEN, {"args": ("mask", "k_product", "minus_infinity")})),
        f"{LOWERED} is not k_product - peak",
    ),
    "a maximum that hidden keys take part in": (
        rewritten("gqa", (SEEN, {"args": ("mask", SCALED, "const_0")})),
        f"{SEEN} is not -inf under its mask",
    ),
    "a maximum under another mask": (
        rewritten(
            "gqa", (SEEN, {"args": ("mask_2", SCALED, "minus_infinity")}), OTHER_MASK, after="mask"
        ),
        f"masked has another mask than {SEEN}",
    ),
    "other scores are lowered": (
        rewritten("gqa", (LOWERED, {"args": ("k_product", "peak")})),
        f"{LOWERED} is not {SCALED} - peak",
    ),
    "lowered scores that a weight reads beside their exponential": (
        rewritten(
            "gqa",
            ("masked", {"args": ("mask", "more", "const_0")}),
            ("more", {"op": "mul", "args": (EXP, LOWERED)}),
            after=EXP,
        ),
        "more is not computed by exp",
    ),
    "an exponential of something else": (
        rewritten("gqa", (EXP, {"op": "tanh"})),
        f"{EXP} is not computed by exp",
    ),
}


@pytest.mark.parametrize("what", BROKEN)
def test_a_mugraph_that_breaks_the_precondition_has_tiles_of_few_rows_only(what: str) -> None:
    graph, sentence = BROKEN[what]
    program = attention_program("gqa", graph)
    with pytest.raises(PlanError, match=sentence):
        softmax_step(program)
    assert program.loop[-1].do is not Do.SOFTMAX
    assert not takes_many_rows(program)
    assert not any(
        isinstance(v.knobs, WgmmaAttention) for v in attention_variants(program, target("sm_90a"))
    )


@pytest.mark.parametrize("read", ["peak", LOWERED, EXP, SEEN, "masked"])
def test_nobody_else_reads_what_lies_in_between(read: str) -> None:
    program = undone(attention_program("gqa", mugraph("gqa")))
    scaled = next(s for s in program.loop if s.out == SCALED)
    reader = replace(scaled, out="reader", args=("scale", read))
    with pytest.raises(PlanError, match=f"reader reads {read}, too"):
        softmax_step(replace(program, loop=(*program.loop, reader)))


def test_the_order_of_statements_is_looked_at() -> None:
    program = undone(attention_program("gqa", mugraph("gqa")))
    *others, raised, lowered, exponential, masked, summed, product = program.loop
    turned = (*others, lowered, raised, exponential, masked, summed, product)
    with pytest.raises(PlanError, match="its statements stand in another order"):
        softmax_step(replace(program, loop=turned))


def test_the_sum_is_of_the_weights_that_are_multiplied() -> None:
    program = undone(attention_program("gqa", mugraph("gqa")))
    steps = tuple(replace(s, args=("other",)) if s.do is Do.SUM else s for s in program.loop)
    with pytest.raises(PlanError, match="sum_masked sums other weights than masked"):
        softmax_step(replace(program, loop=steps))


def test_a_mask_that_does_not_compare_positions_has_tiles_of_few_rows_only() -> None:
    program = attention_program("gqa_full", mugraph("gqa_full"))
    assert takes_many_rows(program)
    moved = tuple(replace(s, op="mul") if s.op == "add" else s for s in program.loop)
    assert not takes_many_rows(replace(program, loop=moved))
