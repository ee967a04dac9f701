"""What an op runs above `max_tokens`, as a tuning calls it: it computes the recipe."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("mirage_kernels.ops", reason="needs the compiled extension")
from mirage_kernels.generator.bench.workloads.tokens import Workload  # noqa: E402
from mirage_kernels.generator.ir import DType  # noqa: E402
from mirage_kernels.generator.recipe import load_recipe  # noqa: E402
from mirage_kernels.generator.tuning.library_program import (  # noqa: E402
    calls_of,
    library_program,
)

SIZES = {"M": 70, "K": 256, "N": 64, "R": 16}


@pytest.mark.parametrize(
    "name",
    [
        *("rms_norm_linear", "rms_norm_linear_full"),
        *("layer_norm_linear", "layer_norm_linear_full"),
        *("lora_linear", "lora_linear_full", "gated_mlp", "geglu_mlp", "rms_norm_gated_mlp"),
        *("ntrans", "rms_norm", "layer_norm", "silu_and_mul"),
    ],
)
def test_the_library_s_program_computes_the_recipe(name: str) -> None:
    recipe = load_recipe(name)
    workload = Workload(recipe, DType.FP16, SIZES, "cpu")
    sets = [workload.inputs(seed) for seed in (1, 2)]
    wanted = [workload.reference(*(t.float() for t in tensors)) for tensors in sets]
    outs = [torch.full_like(w, float("nan"), dtype=torch.float16) for w in wanted]
    program = library_program(recipe)
    assert program is not None
    for call in calls_of(program, sets, outs):
        call()
    for made, exact in zip(outs, wanted, strict=True):
        torch.testing.assert_close(made.float(), exact, rtol=5e-3, atol=5e-3)


@pytest.mark.parametrize("name", ["relu2_mlp", "rms_norm_linear_residual"])
def test_what_has_another_kernel_or_none_above_has_no_program(name: str) -> None:
    assert library_program(load_recipe(name)) is None
