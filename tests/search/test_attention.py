"""Safe softmax is proved: attention with arbitrary peaks, in one kernel and split; and mistakes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from attention import BEYOND_THE_MAXIMUM, FORMS, MISTAKES, attention
from differs import differs
from small import drawn

from mirage_kernels.generator.errors import VerifyError
from mirage_kernels.generator.ir import DType, Graph, dumps, from_json, retile, to_json
from mirage_kernels.generator.meaning.arrays import Array, array_reading
from mirage_kernels.generator.meaning.reals import FLOAT64, STORAGE, round_to
from mirage_kernels.generator.meaning.walk import results
from mirage_kernels.generator.recipe import Shape, catalog, trace
from mirage_kernels.generator.search.cases import Case, small_cases
from mirage_kernels.generator.search.verify import LOG2_WANTED, Prover

RECIPE = catalog()["gqa"]
SPEC = trace(RECIPE, Shape("a test", {"D": 64}), DType.FP16)
PROVER = Prover(SPEC, range_of=RECIPE.range_of)
WRONG = [(form, mistake) for form in FORMS for mistake in MISTAKES[form]]


@pytest.mark.parametrize("form", FORMS)
def test_it_is_proved_for_any_peaks(form: str) -> None:
    proof = PROVER.prove(attention(SPEC, form), small_cases(SPEC), seed=1)
    assert proof.log2_failure <= LOG2_WANTED


@pytest.mark.parametrize(("form", "mistake"), WRONG)
def test_a_mistake_is_rejected_and_shows_in_float64_unless_it_needs_other_peaks(
    form: str, mistake: str
) -> None:
    graph = attention(SPEC, form, MISTAKES[form][mistake])
    with pytest.raises(VerifyError):
        PROVER.prove(graph, small_cases(SPEC), seed=1)
    assert differs(SPEC, graph) == (mistake not in BEYOND_THE_MAXIMUM)


@pytest.mark.parametrize("length", range(1, 10))
@pytest.mark.parametrize("form", FORMS)
def test_it_is_right_for_every_number_of_keys(form: str, length: int) -> None:
    for step, part in ((1, 1), (1, 2), (2, 3), (3, 2), (4, 4), (9, 9)):
        tiles = {"B": 3, "Hkv": 1, "L": step, "L_parts": part}
        case = Case(tiles, {"B": 4, "Hkv": 2, "G": 2, "D": 3, "L": length})
        PROVER.compare(attention(SPEC, form), case, seed=length)


SIZES = {"B": 5, "Hkv": 2, "G": 3, "D": 64, "L": 50}
TILES = {"B": 2, "Hkv": 1, "L": 8, "L_parts": 20}  # three parts, three steps in each, uneven
DEVIATION = 30.0


def wide_inputs() -> list[Array]:
    """Return inputs whose scores have a standard deviation of 30; lengths of one key to all."""
    inputs = drawn(SPEC, SIZES, seq_lens=[1, 7, 21, 49, 50], scale=DEVIATION / 8)
    narrow = (DType.FP16 if a.dims else DType.FP32 for a in inputs)
    return [
        Array(a.dims, (round_to(a.parts[0].astype(np.float64), to),)) if a.real else a
        for a, to in zip(inputs, narrow, strict=True)
    ]


def largest_error(graph: Graph) -> float:
    inputs = wide_inputs()
    exact = [Array(a.dims, (np.asarray(a.parts[0], np.float64),)) if a.real else a for a in inputs]
    flash = retile(attention(SPEC, "flash"), TILES)  # the recipe overflows
    wanted = results(flash, exact, array_reading(FLOAT64, SIZES))[0]
    made = results(graph, inputs, array_reading(STORAGE, SIZES))[0].over(wanted.dims)
    return float(np.max(np.abs(made.parts[0] - wanted.parts[0])))


@pytest.mark.parametrize("form", FORMS)
def test_scores_of_any_size_overflow_nowhere(form: str) -> None:
    assert largest_error(retile(attention(SPEC, form), TILES)) < 0.01


def test_without_peaks_they_do() -> None:
    assert not largest_error(SPEC) < np.inf


@pytest.mark.parametrize("form", FORMS)
def test_it_is_a_golden_mugraph(golden: Callable[[str, str], None], form: str) -> None:
    graph, form = attention(SPEC, form), f"{form} by hand"
    record = {"recipe": "gqa", "form": form, "mugraph": to_json(graph)}
    golden(f"mugraphs/gqa-{form.replace(' ', '_')}.json", dumps(record))
    assert from_json(to_json(graph)) == graph
