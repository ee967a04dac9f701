"""Safe softmax is proved: attention with arbitrary peaks, in one kernel and split; and mistakes."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
import pytest
from attention import BEYOND_THE_MAXIMUM, FORMS, MISTAKES, SCORES, attention
from differs import differs

from mirage_kernels.generator.errors import VerifyError
from mirage_kernels.generator.ir import DType, Graph, dumps, from_json, retile, to_json
from mirage_kernels.generator.meaning.arrays import Array, array_reading
from mirage_kernels.generator.meaning.reals import FLOAT64, STORAGE, round_to
from mirage_kernels.generator.meaning.walk import results
from mirage_kernels.generator.recipe import Shape, catalog, trace
from mirage_kernels.generator.search.cases import Case, small_cases
from mirage_kernels.generator.search.verify import LOG2_WANTED, Prover

SHAPE = Shape("a test", {"D": 64})
RIGHT = [(recipe, form) for recipe in SCORES for form in FORMS]
WRONG = [(recipe, form, m) for recipe, form in RIGHT for m in MISTAKES[form]]


@cache
def spec_of(recipe: str) -> Graph:
    return trace(catalog()[recipe], SHAPE, DType.FP16)


@cache
def prover_of(recipe: str) -> Prover:
    return Prover(spec_of(recipe), range_of=catalog()[recipe].range_of)


@pytest.mark.parametrize(("recipe", "form"), RIGHT)
def test_it_is_proved_for_any_peaks(recipe: str, form: str) -> None:
    graph = attention(spec_of(recipe), recipe, form)
    proof = prover_of(recipe).prove(graph, small_cases(spec_of(recipe)), seed=1)
    assert proof.log2_failure <= LOG2_WANTED


@pytest.mark.parametrize(("recipe", "form", "mistake"), WRONG)
def test_a_mistake_is_rejected(recipe: str, form: str, mistake: str) -> None:
    spec = spec_of(recipe)
    graph = attention(spec, recipe, form, MISTAKES[form][mistake])
    with pytest.raises(VerifyError):
        prover_of(recipe).prove(graph, small_cases(spec), seed=1)


@pytest.mark.parametrize(("recipe", "form", "mistake"), WRONG)
def test_a_mistake_shows_in_float64_unless_it_needs_other_peaks(
    recipe: str, form: str, mistake: str
) -> None:
    spec = spec_of(recipe)
    wrong = differs(spec, attention(spec, recipe, form, MISTAKES[form][mistake]))
    assert wrong == (mistake not in BEYOND_THE_MAXIMUM)


@pytest.mark.parametrize("length", range(1, 10))
@pytest.mark.parametrize("form", FORMS)
def test_it_is_right_for_every_number_of_keys(form: str, length: int) -> None:
    graph = attention(spec_of("gqa"), "gqa", form)
    for step, part in ((1, 1), (1, 2), (2, 3), (3, 2), (4, 4), (9, 9)):
        tiles = {"B": 3, "Hkv": 1, "L": step, "L_parts": part}
        case = Case(tiles, {"B": 4, "Hkv": 2, "G": 2, "D": 3, "L": length})
        prover_of("gqa").compare(graph, case, seed=length)


SIZES = {"B": 5, "Hkv": 2, "G": 3, "D": 64, "L": 50}
TILES = {"B": 2, "Hkv": 1, "L": 8, "L_parts": 20}  # three parts, three steps in each, uneven
DEVIATION = 30.0


def wide_inputs(recipe: str) -> list[Array]:
    """Return inputs whose scores have a standard deviation of 30; lengths of one key to all."""
    rng = np.random.default_rng(0)
    made = []
    for node in spec_of(recipe).inputs:
        names, shape = node.out.type.names, [SIZES[d] for d in node.out.type.names]
        if node.out.type.dtype is DType.INT32:
            made.append(Array(names, (np.array([1, 7, 21, 49, 50]),), real=False))
        elif shape:
            drawn = rng.standard_normal(shape) if len(shape) > 1 else np.ones(shape)
            made.append(Array(names, (round_to(drawn, DType.FP16),)))
        else:
            value = DEVIATION / 8 if node.name == "scale" else 1e-6
            made.append(Array(names, (np.asarray(value, np.float32),)))
    return made


def largest_error(recipe: str, graph: Graph) -> float:
    inputs = wide_inputs(recipe)
    exact = [Array(a.dims, (np.asarray(a.parts[0], np.float64),)) if a.real else a for a in inputs]
    flash = retile(attention(spec_of(recipe), recipe, "flash"), TILES)  # recipes overflow
    wanted = results(flash, exact, array_reading(FLOAT64, SIZES))[0]
    made = results(graph, inputs, array_reading(STORAGE, SIZES))[0].over(wanted.dims)
    return float(np.max(np.abs(made.parts[0] - wanted.parts[0])))


@pytest.mark.parametrize(("recipe", "form"), RIGHT)
def test_scores_of_any_size_overflow_nowhere(recipe: str, form: str) -> None:
    graph = retile(attention(spec_of(recipe), recipe, form), TILES)
    assert largest_error(recipe, graph) < 0.01


@pytest.mark.parametrize("recipe", SCORES)
def test_without_peaks_they_do(recipe: str) -> None:
    assert not largest_error(recipe, spec_of(recipe)) < np.inf


@pytest.mark.parametrize(("recipe", "form"), RIGHT)
def test_it_is_a_golden_mugraph(golden: Callable[[str, str], None], recipe: str, form: str) -> None:
    graph = attention(spec_of(recipe), recipe, form)
    form = f"{form} by hand"
    record = {"recipe": recipe, "form": form, "mugraph": to_json(graph)}
    golden(f"mugraphs/{recipe}-{form.replace(' ', '_')}.json", dumps(record))
    assert from_json(to_json(graph)) == graph
