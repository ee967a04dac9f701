"""Every reading and both writers cover every op of the op table."""

from __future__ import annotations

import pytest

from mirage_kernels.generator.emit import statements
from mirage_kernels.generator.errors import PlanError
from mirage_kernels.generator.ir import OPS, Dim, DType, Kind, TensorType, ops_of_kind
from mirage_kernels.generator.meaning.abstract import abstract_reading
from mirage_kernels.generator.meaning.arrays import Arithmetic, array_reading
from mirage_kernels.generator.meaning.cost import cost_reading
from mirage_kernels.generator.meaning.degree import degree_reading
from mirage_kernels.generator.meaning.field import draw_field, field_arithmetic
from mirage_kernels.generator.meaning.reals import FLOAT64, STORAGE
from mirage_kernels.generator.meaning.terms import Terms
from mirage_kernels.generator.plan.program import Do, Layout, Statement
from mirage_kernels.generator.schedules.attention import writer as attention

READINGS = {
    "float64": array_reading(FLOAT64, {}),
    "storage": array_reading(STORAGE, {}),
    "field": array_reading(field_arithmetic(draw_field(0, exponents=False)), {}),
    "field with exponents": array_reading(field_arithmetic(draw_field(0, exponents=True)), {}),
    "abstract": abstract_reading(Terms()),
    "cost": cost_reading({}),
    "degree": degree_reading({}),
}
POSITIONS = ("less", "both", "where")  # masks: attention alone has them
ARITHMETIC = [op for op in ops_of_kind(Kind.ELEMENTWISE) if op not in POSITIONS]
TILE = TensorType((Dim("N", 16), Dim("K", 32)), DType.FP32)


@pytest.mark.parametrize("name", READINGS)
def test_a_reading_says_what_every_op_means(name: str) -> None:
    assert set(READINGS[name]) == set(OPS) - {"input"}


@pytest.mark.parametrize("arithmetic", [FLOAT64, STORAGE], ids=lambda a: a.name)
def test_real_numbers_have_every_elementwise_op(arithmetic: Arithmetic) -> None:
    assert set(arithmetic.elementwise) == set(ARITHMETIC)


@pytest.mark.parametrize("op", ARITHMETIC)
def test_the_writers_have_a_word_for_every_elementwise_op(op: str) -> None:
    own = {"max": "maximum", "abs": "magnitude", "sin": "sine", "cos": "cosine"}  # CUDA's own
    own |= {
        "gt": "greater",
        "ge": "greater_equal",
        "floor": "whole_below",
        "round": "nearest_whole",
        "inner_exp": "exp",
    }
    assert statements.vocabulary(op) == attention.word_of(op) == own.get(op, op)
    operands = [f"operand_{i}" for i in range(OPS[op].arity)]
    assert all(o in statements.ELEMENTWISE[op].format(*operands) for o in operands)


@pytest.mark.parametrize("op", POSITIONS)
def test_only_the_attention_writer_has_a_word_for_masks(op: str) -> None:
    assert attention.word_of(op) == op
    with pytest.raises(PlanError, match=f"no op '{op}' yet"):
        statements.vocabulary(op)


def test_the_writers_claim_no_op_that_the_table_lacks() -> None:
    assert set(statements.ELEMENTWISE) <= set(ARITHMETIC)


@pytest.mark.parametrize("do", [d for d in Do if d not in (Do.LOAD, Do.FETCH, Do.REDUCE)])
def test_the_cuda_writer_has_a_line_for_every_statement(do: Do) -> None:
    assert do in statements.IN_LOOP or do in statements.PER_ELEMENT


def test_every_place_in_the_loop_has_a_fragment_or_an_accumulator() -> None:
    elsewhere = {Layout.SCALAR, Layout.FACTORS, Layout.LINE, Layout.LINE_VECTOR}
    assert set(statements.FRAGMENTS) | set(statements.ACCUMULATORS) | elsewhere == set(Layout)


def test_everything_kept_has_a_place_in_shared_memory() -> None:
    assert set(statements.KEPT) == {Do.FETCH, Do.KEEP, Do.CONTRACT}


def test_every_accumulator_meets_the_other_warps_somewhere() -> None:
    assert set(statements.REDUCTIONS) == set(statements.ACCUMULATORS)


def test_a_statement_has_the_element_type_of_its_value() -> None:
    assert Statement(Do.MAP, "y", ("x",), TILE, Layout.ROWS, "neg").dtype is DType.FP32
