"""What tests share: golden files, the fused muGraph, small kernels; GPU tests skip themselves."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from mirage_kernels.generator.cli import main
from mirage_kernels.generator.ir import DType, Graph
from mirage_kernels.generator.jobs.job import few_collections
from mirage_kernels.generator.recipe import Recipe, Shape, load_recipe, output_type, trace
from mirage_kernels.generator.records.record import KernelRecord, load_record
from mirage_kernels.generator.search.lower import Goal, lower
from mirage_kernels.generator.search.sketch import (
    BlockSketch,
    Limits,
    ProgramSketch,
    Setting,
    Step,
    View,
)
from mirage_kernels.generator.settings import STORE_VARIABLE

if TYPE_CHECKING:
    from mirage_kernels.generator.pipeline import Result

sys.path.insert(0, str(Path(__file__).parent))  # for compilers, handmade_lines, scripts

GOLDEN = Path(__file__).parent / "golden"
TINY = Shape("a test", {"K": 72, "N": 40})
TINY_LIMITS = Limits(kernels=1, block_ops=9)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the `gpu` tests skipped with the reason; machines without one need not load torch."""
    gpu_items = [item for item in items if item.get_closest_marker("gpu")]
    if not gpu_items:
        return
    reason = _why_no_gpu()
    if reason:
        for item in gpu_items:
            item.add_marker(pytest.mark.skip(reason=reason))


def _why_no_gpu() -> str:
    import torch

    if not torch.cuda.is_available():
        return "no NVIDIA GPU"
    import mirage_kernels.ops  # noqa: F401  (registers the op asked below)

    major, minor = torch.cuda.get_device_capability()
    name = torch.cuda.get_device_name()
    return torch.ops.mirage_kernels._architecture_complaint(major, minor, name)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden", action="store_true", help="make what the tests make the golden files"
    )


@pytest.fixture(scope="session")
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """Compare a text with a golden file, or make it that file."""

    def compare(name: str, made: str) -> None:
        path = GOLDEN / name
        if request.config.getoption("--update-golden"):
            path.write_text(made)
        assert path.is_file(), f"{name} is missing: pytest --update-golden writes it"
        assert made == path.read_text(), f"{name} differs: pytest --update-golden accepts it"

    return compare


@pytest.fixture(scope="session", autouse=True)
def _few_collections() -> Iterator[None]:
    """What tests share stays: to look through it for garbage took a tenth of their time."""
    with few_collections():
        yield


@pytest.fixture(scope="session", autouse=True)
def _own_store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep results of searches away from the user's cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(STORE_VARIABLE, str(tmp_path_factory.mktemp("store")))
        yield


@pytest.fixture(scope="session")
def rms_norm_linear() -> Recipe:
    return load_recipe("rms_norm_linear")


@pytest.fixture(scope="session")
def generated(rms_norm_linear: Recipe) -> Callable[[DType], Result]:
    """The whole flow on a small shape with a small search, once per element type."""
    from mirage_kernels.generator import pipeline

    @cache
    def make(dtype: DType) -> Result:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(pipeline, "LIMITS", TINY_LIMITS)
            request = pipeline.Request(rms_norm_linear, TINY, dtype)
            return pipeline.generate(request, jobs=1, progress=lambda event: None)

    return make


@pytest.fixture(scope="session")
def golden_record(
    request: pytest.FixtureRequest, generated: Callable[[DType], Result]
) -> Callable[[DType], KernelRecord]:
    """The small kernel's record as it is committed in tests/golden, without a search."""

    @cache
    def load(dtype: DType) -> KernelRecord:
        path = GOLDEN / f"K72_N40_{dtype.value}.json"
        if request.config.getoption("--update-golden"):
            path.write_text(generated(dtype).record.text())
        return load_record(path)

    return load


Fused = Callable[..., Graph]


@pytest.fixture(scope="session")
def fused(rms_norm_linear: Recipe) -> Fused:
    """RMSNorm+Linear as one kernel, written by hand: the norm weight times `w` or times `x`."""

    def make(scales: str = "w", shape: Shape = TINY, dtype: DType = DType.FP16) -> Graph:
        spec = trace(rms_norm_linear, shape, dtype)
        result = output_type(rms_norm_linear, shape, dtype)
        tiles = {"M": 8, "K": 32, "N": 16}
        return lower(ProgramSketch((_fused_block(scales),)), Goal(spec, result, dtype, tiles))

    return make


def _fused_block(scales: str) -> BlockSketch:
    views = (
        View("x", (None, "M"), "K"),
        View("norm_weight", (None, None), "K"),
        View("weight", ("N", None), "K"),
        View("eps", (None, None), None),
    )
    x, norm_weight, weight, eps, size, scaled = range(6)
    kept, other = (x, weight) if scales == "w" else (weight, x)
    steps = (
        Step("mul", (norm_weight, other)),  # 5: scaled
        Step("contract", (kept, scaled), "K"),  # 6
        Step("accum", (6,)),
        Step("contract", (x, x), "K"),  # 8
        Step("accum", (8,)),
        Step("div", (9, size)),
        Step("add", (eps, 10)),
        Step("sqrt", (11,)),
        Step("div", (7, 12)),
    )
    results = ((len(views) + len(steps), ("M", "N")),)  # the last step's, after one constant
    return BlockSketch(Setting(("N", "M"), "K"), (*views, "size_K"), steps, results)


@pytest.fixture(scope="session")
def adapted() -> Fused:
    """A linear layer with an adapter as one kernel, written by hand."""
    return _with_adapter("lora_linear", _adapted_block())


def _with_adapter(recipe_name: str, block: BlockSketch) -> Fused:
    recipe = load_recipe(recipe_name)
    tiny = Shape("a test", {"K": 72, "N": 40, "R": 8})

    def make(shape: Shape = tiny, dtype: DType = DType.FP16) -> Graph:
        spec = trace(recipe, shape, dtype)
        tiles = {"M": 8, "K": 32, "N": 16}
        goal = Goal(spec, output_type(recipe, shape, dtype), dtype, tiles)
        return lower(ProgramSketch((block,)), goal)

    return make


def _adapted_block() -> BlockSketch:
    views = (
        View("x", (None, "M"), "K"),
        View("weight", ("N", None), "K"),
        View("lora_a", (None, None), "K"),
        View("lora_b", ("N", None), None),
        View("scale", (None, None), None),
    )
    steps = (
        Step("contract", (0, 2), "K"),  # 5: the adapter's first product
        Step("contract", (0, 1), "K"),
        Step("accum", (6,)),
        Step("accum", (5,)),
        Step("contract", (3, 8), "R"),
        Step("mul", (4, 9)),
        Step("add", (7, 10)),
    )
    results = ((len(views) + len(steps) - 1, ("M", "N")),)
    return BlockSketch(Setting(("N", "M"), "K"), views, steps, results)


@pytest.fixture(scope="session")
def normed_adapted() -> Fused:
    """The same behind a norm, whose weight scales both weights and whose root divides both sums."""
    return _with_adapter("rms_norm_lora", _normed_adapted_block())


def _normed_adapted_block() -> BlockSketch:
    views = (
        View("x", (None, "M"), "K"),
        View("norm_weight", (None, None), "K"),
        View("weight", ("N", None), "K"),
        View("lora_a", (None, None), "K"),
        View("lora_b", ("N", None), None),
        View("scale", (None, None), None),
        View("eps", (None, None), None),
    )
    x, norm_weight, weight, lora_a, lora_b, scale, eps, size = range(8)
    steps = (
        Step("contract", (x, x), "K"),  # 8
        Step("accum", (8,)),
        Step("div", (9, size)),
        Step("add", (eps, 10)),
        Step("sqrt", (11,)),  # 12: the root
        Step("mul", (norm_weight, weight)),
        Step("contract", (x, 13), "K"),
        Step("accum", (14,)),
        Step("div", (15, 12)),  # 16: the linear layer
        Step("mul", (norm_weight, lora_a)),
        Step("contract", (x, 17), "K"),
        Step("accum", (18,)),
        Step("div", (19, 12)),
        Step("contract", (lora_b, 20), "R"),
        Step("mul", (scale, 21)),
        Step("add", (16, 22)),
    )
    results = ((len(views) + len(steps), ("M", "N")),)
    return BlockSketch(Setting(("N", "M"), "K"), (*views, "size_K"), steps, results)


@pytest.fixture
def mirage_kernels(capsys: pytest.CaptureFixture[str]) -> Callable[..., SimpleNamespace]:
    """Run the command line in this process: what it prints, and the exit code."""

    def run(*words: str) -> SimpleNamespace:
        capsys.readouterr()
        code = main(words)
        printed = capsys.readouterr()
        return SimpleNamespace(code=code, out=printed.out, err=printed.err)

    return run
