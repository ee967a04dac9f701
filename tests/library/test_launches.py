"""What kernels are launched with, and which calls launch none: the bindings, compiled to pretend.

The CPU counts as the GPU, and the kernels of the table print their arguments.
"""

from __future__ import annotations

import pytest

STACKED = "stacked M=3 | 3c00/64 4200/64 4880/64 4900/8"
SPACE = "space 1, nonce 1"

# kernel and tokens | inputs: first element and row stride | scalars | how many outputs
LAUNCHES = {
    "plain": "rms M=3 | 3c00/64 4000/64 4200/64 - - | 1e-06 0 | 1",
    "strided": "rms M=3 | 3c00/80 4000/64 4200/64 - - | 1e-06 0 | 1",
    "bias": "rms_full M=3 | 3c00/64 4000/64 4200/64 4400/96 - | 1e-06 0 | 1",
    "offset": "rms_full M=3 | 3c00/64 4000/64 4200/64 - - | 1e-06 1 | 1",
    "residual": "rms M=3 | 4600/64 4000/64 4200/64 - - | 1e-06 0 | 1",
    "residual of few tokens": "sum M=2 | 3c00/64 4000/64 4200/64 - 4500/64 | 1e-06 0 | 2",
    "few tokens and options": "sum M=2 | 3c00/80 4000/64 4200/64 4400/96 4500/128 | 1e-06 1 | 2",
    "residual and bias": "rms_full M=3 | 4600/64 4000/64 4200/64 4400/96 - | 1e-06 0 | 1",
    "all options": "rms_all M=3 | 3f80/64 4000/64 4040/64 4080/96 40a0/64 | 1e-06 1 | 2",
    "options left out": "rms_all M=3 | 3f80/64 4000/64 4040/64 - - | 1e-06 0 | 1",
    "many tokens": "",
    "no tokens": "",
    "norm_bias": "layer_full M=3 | 3c00/64 4000/64 4600/64 4200/64 - | 1e-05 0 | 1",
    "no norm_bias": "layer_full M=3 | 3c00/64 4000/64 - 4200/64 - | 1e-05 0 | 1",
    "zeros for norm_bias": "layer M=3 | 3f80/64 4000/64 0000/64 4040/64 - | 1e-05 0 | 1",
    "lora": "lora M=3 | 3c00/64 4200/64 4880/64 4900/8 - | 0.5 0 | 1 | space 1, nonce 1",
    "lora and bias": "lora M=3 | 3c00/64 4200/64 4880/64 4900/8 - | 0.5 0 | 1 | space 1, nonce 1",
    "batched": f"{STACKED} - | 0.5 0 | 1 | slices 0 -1 of 1, wide 1 | {SPACE}",
    "batched and bias": f"{STACKED} 4400/96 | 0.5 0 | 1 | slices 0 -1 of 1, wide 0 | {SPACE}",
    "batched with ids apart": f"{STACKED} - | 0.5 0 | 1 | slices 0 -1 of 1, wide 1 | {SPACE}",
    "batched, many tokens": "",
    "batched of another rank": "",
    "gate and up": "gated M=3 | 3c00/64 4700/64 4800/64 - - | 0 0 | 1",
    "packed": "gated M=3 | 3c00/64 4700/64 4800/64 - - | 0 0 | 1",
    "packed and offset": "rms_geglu M=3 | 3c00/64 4200/64 4700/64 4800/64 - | 1e-06 0 | 1",
    "ntrans": "ntrans M=3 | 4500/64 3c00/80 4000/64 - - | 0 0 | 1",
    "ntrans of many tokens": "ntrans M=99 | 4500/64 3c00/64 4000/64 - - | 0 0 | 1",
    "norm": "norm M=3 | 3c00/64 4000/64 - - - | 1e-06 0 | 1",
    "norm of another size": "",
    "norm and residual": "norm_sum M=3 | 3c00/80 4000/64 4500/64 - - | 1e-06 1 | 2",
    "layer norm": "norm_of_layers M=3 | 3c00/64 4000/64 4600/64 - - | 1e-05 0 | 1",
    "layer norm without bias": "norm_of_layers M=3 | 3c00/64 4000/64 - - - | 1e-05 0 | 1",
    "two halves": "silu M=3 | 4700/96 4800/96 - - - | 0 0 | 1",
    "packed halves": "silu M=6 | 4700/192 4700/192 - - - | 0 0 | 1",
    "halves of another activation": "",
}


@pytest.mark.parametrize("call", LAUNCHES)
def test_a_call_launches_what_serves_it(told: dict[str, str], call: str) -> None:
    assert told[call] == LAUNCHES[call]


def test_an_uncovered_shape_is_refused(told: dict[str, str]) -> None:
    assert told["uncovered"].startswith(
        "mirage_kernels::rms_norm_linear: no kernel covers K=64,N=88 in fp16; the nearest covered "
        "are K=64,N=96 fp16, K=64,N=96 bf16; `mirage-kernels generate rms_norm_linear"
    )


def test_an_activation_without_kernels_is_refused_with_its_recipe(told: dict[str, str]) -> None:
    assert "gated_mlp: no kernel of gated_mlp_relu covers K=64,N=96" in told["no such activation"]
    assert "`mirage-kernels generate gated_mlp_relu --dtype fp16" in told["no such activation"]
