"""Programs recorded with `mi` compute what the PyTorch functions beside them do."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator

import pytest

from tests.scripts import BENCHMARKS

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(not BENCHMARKS.is_dir(), reason="not a checkout")
NAMES = ["rms_norm_linear", "layer_norm_linear", "gated_mlp", "lora", "ntrans", "softmax"]
NAMES += ["gqa", "qk_norm_gqa"]


@pytest.fixture(scope="module")
def programs() -> Iterator[dict]:
    """The programs by name; the tests have a module of the name of their package."""
    apart = {n: sys.modules.pop(n) for n in [*sys.modules] if n.partition(".")[0] == "programs"}
    sys.path.insert(0, str(BENCHMARKS))
    yield importlib.import_module("programs.recorded").PROGRAMS
    sys.path.remove(str(BENCHMARKS))
    for name in [n for n in sys.modules if n.partition(".")[0] == "programs"]:
        del sys.modules[name]
    sys.modules.update(apart)


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
