"""Programs recorded with `mi` compute what the PyTorch functions beside them do."""

from __future__ import annotations

import importlib
from collections.abc import Iterator

import pytest

from tests.scripts import BENCHMARKS, module_of_programs

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(not BENCHMARKS.is_dir(), reason="not a checkout")
NAMES = ["rms_norm_linear", "layer_norm_linear", "gated_mlp", "lora", "ntrans", "softmax"]
NAMES += ["gqa", "qk_norm_gqa"]


@pytest.fixture(scope="module")
def programs() -> Iterator[dict]:
    """The programs by name."""
    with module_of_programs("recorded") as recorded:
        yield recorded.PROGRAMS


@pytest.mark.parametrize("name", NAMES)
def test_a_recorded_program_computes_its_function(programs: dict, name: str) -> None:
    program = programs[f"mirage/{name}"]
    drawn = program.inputs(program.rows[0], torch.float32)
    inputs = {n: (0.3 * x).half() for n, x in drawn.items()}  # exp of scores fits into fp16
    (made,) = program.graph(program.rows[0])(inputs=[*inputs.values()])
    exact = program.run(**{n: x.double() for n, x in inputs.items()})
    assert (made.double() - exact).norm() < 1e-2 * exact.norm()


def test_a_checkpoint_is_of_the_program_beside_it(programs: dict) -> None:
    files = {one.checkpoint: one for one in programs.values() if one.checkpoint}
    assert len(files) == 4
    for one in files.values():
        beside = programs[one.name.removesuffix("_checkpoint")]
        assert (one.record, one.shapes) == (beside.record, beside.shapes)


def test_the_page_has_a_line_of_each_program_and_batch_size(programs: dict) -> None:
    table = importlib.import_module("programs.table")
    made = [
        {
            "program": "mirage/gqa",
            "rows": rows,
            "muGraphs": 70,
            "kernels": {"mirage_gqa": {"proved": -41.9, "schedules": ["general"]}},
            "seconds": 3.0,
        }
        for rows in (1, 8)
    ]
    about = {"device": "a GPU", "tb_s": 4.4, "torch": "2.11"}
    about["command"] = "python -m programs.measure DIR"
    text = [*table.recorded_lines(made, {**about, "rows": []})]
    assert [line for line in text if line.startswith("| mirage/gqa")] == [
        "| mirage/gqa | 1 | 70 | 2^-41.9 | general | 3.0 |",
        "| mirage/gqa | 8 | 70 | 2^-41.9 | general | 3.0 |",
    ]
