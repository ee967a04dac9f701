"""Triton programs of every form of the catalog, executed by Triton's interpreter.

Triton reads TRITON_INTERPRET when it is imported: this file runs itself in a process of its own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from tiled_forms import FORMS, programs

from mirage_kernels.generator.ir import DType
from mirage_kernels.generator.meaning.arrays import Array, array_reading
from mirage_kernels.generator.meaning.reals import FLOAT64
from mirage_kernels.generator.meaning.walk import results
from mirage_kernels.generator.tiles.check import drawn
from mirage_kernels.generator.tiles.triton import emit_triton

FEW = {"B": 2, "Hkv": 1, "G": 3, "Hq": 3, "T": 3}  # blocks: the interpreter is slow
TESTS = str(Path(__file__).parents[1])
CLOSE = 2e-3  # of the greatest result: fp16


def difference(form: str, folder: Path) -> float:
    """Run a form's Triton program; return its greatest error, relative to the greatest result."""
    import torch

    graph, _, sizes = programs(form)
    sizes |= {d: n for d, n in FEW.items() if d in sizes}
    path = folder / f"{form}.py"
    path.write_text(emit_triton(graph, form))
    spec = spec_from_file_location(form, path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    inputs, given = drawn(graph, sizes, np.random.default_rng(0)), []
    for node in graph.inputs:
        (data,) = inputs[node.name].parts
        if not node.out.type.dims:
            given.append(float(data))
        elif node.out.type.dtype is DType.INT32:
            given.append(torch.tensor(data).int())
        else:
            rows = torch.tensor(data).half()
            wide = torch.cat([rows, rows * torch.nan], dim=-1)  # rows with a stride of their own
            given.append(wide[..., : rows.shape[-1]])
            inputs[node.name] = Array(node.out.type.names, (given[-1].double().numpy(),))
    with np.errstate(all="ignore"):
        values = [inputs[n.name] for n in graph.inputs]
        wanted = results(graph, values, array_reading(FLOAT64, sizes))
    found = getattr(module, form)(*given)
    worst = 0.0
    for name, tensor, exact in zip(
        graph.outputs, found if isinstance(found, tuple) else (found,), wanted, strict=True
    ):
        right = np.asarray(exact.over(graph.values[name].type.names).parts[0], np.float64)
        got = tensor.double().numpy()
        if not np.array_equal(np.isnan(got), np.isnan(right)):
            return float("inf")
        worst = max(worst, float(np.nanmax(np.abs(got - right)) / np.nanmax(np.abs(right))))
    return worst


@pytest.fixture(scope="module")
def differences() -> dict[str, float]:
    """Errors of all forms, by name."""
    command = [sys.executable, __file__, *FORMS]
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": TESTS}
    made = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return dict(json.loads(made.stdout))


@pytest.mark.parametrize("form", FORMS)
def test_triton_computes_what_the_mugraph_does(form: str, differences: dict[str, float]) -> None:
    assert differences[form] < CLOSE


if __name__ == "__main__":
    with TemporaryDirectory() as made_in:
        print(json.dumps({form: difference(form, Path(made_in)) for form in sys.argv[1:]}))
