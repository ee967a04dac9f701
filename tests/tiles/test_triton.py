"""Triton programs: executed by Triton's interpreter, and compiled for a GPU that is not there.

Triton reads TRITON_INTERPRET when it is imported: this file runs itself in processes of its own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType

import numpy as np
import pytest
from tiled_forms import FORMS, KERNELS, short

from mirage_kernels.generator.bench.demonstrate import loaded
from mirage_kernels.generator.ir import DType, Graph, from_json
from mirage_kernels.generator.meaning.arrays import Array, array_reading
from mirage_kernels.generator.meaning.reals import FLOAT64, round_to
from mirage_kernels.generator.meaning.walk import results
from mirage_kernels.generator.records.record import load_record
from mirage_kernels.generator.schedules.general.products import with_products
from mirage_kernels.generator.tiles import triton_blocks
from mirage_kernels.generator.tiles.check import drawn, shortened
from mirage_kernels.generator.tiles.triton import emit_triton

FEW = {"B": 2, "Hkv": 1, "G": 3, "Hq": 3, "T": 3}  # blocks: the interpreter is slow
TESTS = Path(__file__).parents[1]
CLOSE = {"fp16": 2e-3, "bf16": 2e-3}  # of the greatest result; bf16 runs as fp32
SEVERAL = (  # kernels: sums of parts in device memory, a product by a library
    "gqa-blocks_split_L_loop_over_L_store_partial_sums_no_loop",
    "rms_norm_linear-loop_over_K_library_product",
)
HELD = "layer_norm-blocks_of_a_cluster_hold_a_row"  # here a block does
RUN = [(form, dtype) for form in FORMS for dtype in CLOSE]
RUN += [(form, "fp16") for form in (*SEVERAL, HELD)]
COMPILED = ("gqa_full", "mla_decode", "layer_norm_linear", "rms_norm_gated_mlp", "rms_norm")
COMPILED += ("silu_and_mul", *SEVERAL)
CALLED = {"B": 2, "Hkv": 2, "G": 4, "Hq": 16, "T": 3, "L": 500, "M": 40}


def muGraph(name: str, dtype: str) -> Graph:  # noqa: N802
    """The muGraph of a form's first record, or a golden one."""
    if name in (*SEVERAL, HELD):
        return from_json(
            json.loads((TESTS / "golden" / "mugraphs" / f"{name}.json").read_text())["mugraph"]
        )
    return load_record(min((KERNELS / name).glob(f"*_{dtype}.json"))).graph


def written(graph: Graph, name: str, folder: Path) -> ModuleType:
    """The Triton program of a muGraph, imported."""
    path = folder / f"{name.replace('-', '_')}.py"
    path.write_text(emit_triton(with_products(graph), "program"))
    return loaded(path)


# -- in Triton's interpreter -----------------------------------------------------------------------


def difference(name: str, dtype: str, folder: Path) -> float:
    """Run a Triton program; return its greatest error, relative to the greatest result."""
    import torch

    storage = DType(dtype)
    graph, sizes = shortened(short(muGraph(name, dtype)))
    sizes |= {d: n for d, n in FEW.items() if d in sizes}
    module, (inputs, given) = written(graph, name, folder), (drawn_of(graph, sizes), [])
    for node in graph.inputs:
        (data,) = inputs[node.name].parts
        if not node.out.type.dims:
            given.append((float if node.out.type.dtype.is_real else int)(data))
        elif node.out.type.dtype is DType.INT32:
            given.append(torch.tensor(data).int())
        else:
            rows = torch.tensor(np.asarray(round_to(data, storage), np.float32))
            rows = rows.half() if dtype == "fp16" else rows
            wide = torch.cat([rows, rows * torch.nan], dim=-1)  # rows with a stride of their own
            given.append(wide[..., : rows.shape[-1]])
            inputs[node.name] = Array(node.out.type.names, (given[-1].double().numpy(),))
    with np.errstate(all="ignore"):
        values = [inputs[n.name] for n in graph.inputs]
        wanted = results(graph, values, array_reading(FLOAT64, sizes))
    found = module.program(*given)
    worst = 0.0
    for out, tensor, exact in zip(
        graph.outputs, found if isinstance(found, tuple) else (found,), wanted, strict=True
    ):
        right = np.asarray(exact.over(graph.values[out].type.names).parts[0], np.float64)
        got = tensor.double().numpy()
        if not np.array_equal(np.isnan(got), np.isnan(right)):
            return float("inf")
        worst = max(worst, float(np.nanmax(np.abs(got - right)) / np.nanmax(np.abs(right))))
    return worst


def drawn_of(graph: Graph, sizes: dict[str, int]) -> dict[str, Array]:
    return drawn(graph, sizes, np.random.default_rng(0))


# -- compiled --------------------------------------------------------------------------------------


class Compiling:
    """A kernel that is compiled instead of launched."""

    def __init__(self, kernel, seen: dict[str, int]) -> None:
        self.kernel, self.seen = kernel, seen

    def __getitem__(self, grid):
        def compile_(*given, **named) -> None:
            made = self.kernel.warmup(*given, grid=grid, **named)
            assert made.asm["cubin"]
            self.seen[self.kernel.__name__] = made.metadata.shared

        return compile_


def shared_bytes(name: str, folder: Path) -> dict[str, int]:
    """Compile the kernels of a form's record for sm_90; return their shared memory."""
    import torch

    graph, seen = muGraph(name, "bf16"), dict[str, int]()
    module = written(graph, name, folder)
    for symbol in [s for s in vars(module) if s.startswith("_program")]:
        setattr(module, symbol, Compiling(getattr(module, symbol), seen))
    dtypes = {DType.BF16: torch.bfloat16, DType.FP16: torch.float16, DType.INT32: torch.int32}
    given = []
    for type_ in (n.out.type for n in graph.inputs):
        shape = [CALLED[d.name] if d.dynamic else d.size for d in type_.dims]
        tensor = torch.empty(shape, dtype=dtypes.get(type_.dtype), device="meta")
        given.append(tensor if shape else 0.5 if type_.dtype.is_real else 5)
    module.program(*given)
    return seen


def compiles_for_a_gpu() -> None:
    """Make Triton compile for sm_90, whatever GPU there is."""
    import torch
    import triton
    from triton.backends.compiler import GPUTarget

    class Driver:
        def get_current_target(self) -> GPUTarget:
            return GPUTarget("cuda", 90, 32)

        def get_current_device(self) -> int:
            return 0

        def get_current_stream(self, device: int) -> int:
            return 0

        def get_active_torch_device(self) -> torch.device:
            return torch.device("meta")

    triton.runtime.driver.set_active(Driver())


# -- tests -----------------------------------------------------------------------------------------


def in_its_process(what: str, folder: Path) -> dict[str, object]:
    pytest.importorskip("triton")
    command = [sys.executable, __file__, what]
    environment = {**os.environ, "PYTHONPATH": str(TESTS), "TRITON_CACHE_DIR": str(folder)}
    environment |= {"TRITON_INTERPRET": "1"} if what == "run" else {}
    made = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stderr
    return dict(json.loads(made.stdout))


@pytest.fixture(scope="module")
def differences(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    """Errors of all programs, by name and dtype."""
    return in_its_process("run", tmp_path_factory.mktemp("cache"))


@pytest.mark.parametrize(("form", "dtype"), RUN)
def test_a_program_computes_what_its_mugraph_does(form: str, dtype: str, differences) -> None:
    assert differences[f"{form} {dtype}"] < CLOSE[dtype]


def test_programs_compile_for_a_gpu_within_its_shared_memory(tmp_path: Path) -> None:
    taken = in_its_process("compile", tmp_path)
    assert {*taken} == {*COMPILED}
    for form, kernels in taken.items():
        assert len(kernels) == 1 + (form in SEVERAL), form
        assert max(kernels.values()) <= 227 * 1024, form


def main(what: str) -> dict[str, object]:
    with TemporaryDirectory() as folder:
        if what == "run":
            triton_blocks.PARTS = 32  # so that short sums have several parts
            return {f"{form} {dtype}": difference(form, dtype, Path(folder)) for form, dtype in RUN}
        compiles_for_a_gpu()
        return {form: shared_bytes(form, Path(folder)) for form in COMPILED}


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1])))
