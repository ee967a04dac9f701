"""What `programs.choices` says of the model: its choice beside the fastest that was measured."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mirage_kernels.generator.frontend.from_torch import from_torch
from mirage_kernels.generator.ir import DType
from mirage_kernels.generator.pipeline import generate
from mirage_kernels.generator.records.record import KernelRecord
from mirage_kernels.generator.request import Request
from mirage_kernels.generator.schedules.general import GeneralKnobs, predict, sizes_for
from mirage_kernels.generator.schedules.general.options import THREADS
from mirage_kernels.generator.target import target
from mirage_kernels.generator.tuning.catalog import Bucket, Point, Tried
from tests.scripts import BENCHMARKS, module_of_programs

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(not BENCHMARKS.is_dir(), reason="not a checkout")
SIZE = 64


@pytest.fixture(scope="module")
def record() -> KernelRecord:
    """A general kernel: the sums of rows of 512."""
    given = {"x": torch.empty(4, 512, dtype=torch.bfloat16, device="meta")}
    recipe = from_torch(lambda x: x.sum(dim=1), given, dynamic={"x": {0: "M"}}, name="row_sums")
    request = Request(recipe, recipe.shapes[0], DType.BF16)
    return generate(request, jobs=1, progress=lambda event: None).record


def measured(record: KernelRecord, *times: float) -> Bucket:
    """A bucket whose candidates took these times, in the order in which the model has them."""
    knobs = record.variants[0].knobs
    assert isinstance(knobs, GeneralKnobs)
    sizes, on = sizes_for(record.graph, "M", SIZE), target(record.arch)
    varied = [replace(knobs, threads=threads) for threads in THREADS]
    ordered = sorted(varied, key=lambda one: predict(record.graph, one, sizes, on))
    tried = [Tried(k, assumed_us=(us,)) for k, us in zip(ordered, times, strict=False)]
    return Bucket(SIZE, tried=tuple(tried), points=(Point(f"M={SIZE}", floor_us=1.0),))


def test_the_first_by_prediction_is_compared_with_the_fastest(record: KernelRecord) -> None:
    with module_of_programs("choices") as choices:
        found = choices.choice_of(record, measured(record, 3.0, 4.0, 2.0, 5.0))
    assert found == {"us": 3.0, "least_us": 2.0, "ratio": 1.5}


def test_few_candidates_say_nothing(record: KernelRecord) -> None:
    with module_of_programs("choices") as choices:
        assert choices.choice_of(record, measured(record, 3.0, 4.0)) is None
