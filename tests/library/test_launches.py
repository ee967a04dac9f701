"""What kernels are launched with, and which calls launch none: the bindings, compiled to pretend.

The CPU counts as the GPU, and the kernels of the table print their arguments.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from mirage_kernels.generator import compile as compiler
from mirage_kernels.generator.toolchain import find_toolchain

ROOT = compiler.ROOT
HERE = Path(__file__).parent / "pretended"
STAND_INS = {"device.cpp", "floor.cpp"}

pytestmark = pytest.mark.skipif(
    not (ROOT / "csrc").is_dir(), reason="an installed wheel holds no sources"
)

# kernel and tokens | inputs: first element and row stride | scalars | how many outputs
LAUNCHES = {
    "plain": "rms M=3 | 3c00/64 4000/64 4200/64 - - | 1e-06 0 | 1",
    "strided": "rms M=3 | 3c00/80 4000/64 4200/64 - - | 1e-06 0 | 1",
    "bias": "rms_full M=3 | 3c00/64 4000/64 4200/64 4400/96 - | 1e-06 0 | 1",
    "offset": "rms_full M=3 | 3c00/64 4000/64 4200/64 - - | 1e-06 1 | 1",
    "residual": "rms M=3 | 4600/64 4000/64 4200/64 - - | 1e-06 0 | 1",
    "residual and bias": "rms_full M=3 | 4600/64 4000/64 4200/64 4400/96 - | 1e-06 0 | 1",
    "all options": "rms_all M=3 | 3f80/64 4000/64 4040/64 4080/96 40a0/64 | 1e-06 1 | 2",
    "options left out": "rms_all M=3 | 3f80/64 4000/64 4040/64 - - | 1e-06 0 | 1",
    "many tokens": "",
    "no tokens": "",
    "norm_bias": "layer_full M=3 | 3c00/64 4000/64 4600/64 4200/64 - | 1e-05 0 | 1",
    "no norm_bias": "layer_full M=3 | 3c00/64 4000/64 - 4200/64 - | 1e-05 0 | 1",
    "zeros for norm_bias": "layer M=3 | 3f80/64 4000/64 0000/64 4040/64 - | 1e-05 0 | 1",
    "lora": "lora M=3 | 3c00/64 4200/64 4880/64 4900/8 - | 0.5 0 | 1",
    "lora and bias": "lora M=3 | 3c00/64 4200/64 4880/64 4900/8 - | 0.5 0 | 1",
    "batched": "",
    "gate and up": "gated M=3 | 3c00/64 4700/64 4800/64 - - | 0 0 | 1",
    "packed": "gated M=3 | 3c00/64 4700/64 4800/64 - - | 0 0 | 1",
    "packed and offset": "rms_geglu M=3 | 3c00/64 4200/64 4700/64 4800/64 - | 1e-06 0 | 1",
}


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Compile the bindings with the stand-ins and return what each call printed."""
    package = tmp_path_factory.mktemp("pretended") / "mirage_kernels"
    package.mkdir()
    for path in [*(ROOT / "kernels").glob("*.py"), ROOT / "generator", ROOT / "recipes"]:
        (package / path.name).symlink_to(path)
    compile_into(package / "_C.abi3.so")
    environment = os.environ | {"PYTHONPATH": str(package.parent)}
    program = [sys.executable, str(HERE / "calls.py")]
    ran = subprocess.run(program, env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    parts = (part.partition("\n") for part in ran.stdout.split("# ")[1:])
    return {name: said.strip() for name, _, said in parts}


def compile_into(out: Path) -> None:
    toolchain = find_toolchain()
    sources = [p for p in sorted((ROOT / "csrc/torch").glob("*.cpp")) if p.name not in STAND_INS]
    command = [
        *(str(toolchain.cxx), "-O0", "-std=c++17", "-shared", "-fPIC", "-fvisibility=hidden"),
        *(f"-I{ROOT / 'csrc'}", f"-I{ROOT / 'csrc/torch'}"),
        *("-isystem", str(toolchain.cuda_include_dir)),
        *("-isystem", f"{toolchain.torch_dir}/include"),
        *(f"-DTORCH_TARGET_VERSION={compiler.TORCH_TARGET_VERSION}", "-DTORCH_STABLE_ONLY"),
        *map(str, [*sources, *sorted(HERE.glob("*.cpp"))]),
        *("-o", str(out), f"-L{toolchain.torch_dir}/lib", "-Wl,--no-as-needed"),
        *("-ltorch", "-ltorch_cpu"),
    ]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr


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
