"""The bindings with stand-ins: the CPU counts as the GPU, and kernels print their arguments."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from mirage_kernels.generator.build import compile as compiler
from mirage_kernels.generator.build.toolchain import find_toolchain

ROOT = compiler.ROOT
HERE = Path(__file__).parent / "pretended"
STAND_INS = {"device.cpp", "floor.cpp"}
LOADED = HERE / "loaded.cpp"  # no part of the extension


def has_sources() -> bool:
    """Say whether there is something to compile; an installed wheel holds no sources."""
    return (ROOT / "csrc").is_dir()


def what_calls_print(package: Path) -> dict[str, str]:
    """Compile into a folder `mirage_kernels` and return what each call of calls.py prints."""
    package.mkdir()
    for path in [*(ROOT / "kernels").glob("*.py"), ROOT / "generator", ROOT / "recipes"]:
        (package / path.name).symlink_to(path)
    compile_into(package / "_C.abi3.so")
    environment = os.environ | {"PYTHONPATH": str(package.parent)}
    compile_loaded(package.parent / "loaded" / "kernels.so")
    program = [sys.executable, str(HERE / "calls.py"), str(package.parent / "loaded")]
    ran = subprocess.run(program, env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    parts = (part.partition("\n") for part in ran.stdout.split("# ")[1:])
    return {name: said.strip() for name, _, said in parts}


def compile_into(out: Path) -> None:
    """Compile the extension."""
    toolchain = find_toolchain()
    sources = [p for p in sorted((ROOT / "csrc/torch").glob("*.cpp")) if p.name not in STAND_INS]
    command = [
        *(str(toolchain.cxx), "-O0", "-std=c++17", "-shared", "-fPIC", "-fvisibility=hidden"),
        *(f"-I{ROOT / 'csrc'}", f"-I{ROOT / 'csrc/torch'}"),
        *("-isystem", str(toolchain.cuda_include_dir)),
        *("-isystem", f"{toolchain.torch_dir}/include"),
        *(f"-DTORCH_TARGET_VERSION={compiler.TORCH_TARGET_VERSION}", "-DTORCH_STABLE_ONLY"),
        *map(str, [*sources, *(p for p in sorted(HERE.glob("*.cpp")) if p != LOADED)]),
        *("-o", str(out), f"-L{toolchain.torch_dir}/lib", "-Wl,--no-as-needed"),
        *("-ltorch", "-ltorch_cpu"),
    ]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr


def compile_loaded(out: Path, *options: str, csrc: Path = ROOT / "csrc") -> None:
    """Compile kernels that an installed library loads."""
    toolchain = find_toolchain()
    out.parent.mkdir(parents=True, exist_ok=True)
    command = [
        *(str(toolchain.cxx), "-O0", "-std=c++17", "-shared", "-fPIC", "-Wl,-Bsymbolic"),
        *(f"-I{csrc}", "-isystem", str(toolchain.cuda_include_dir), *options),
        *("-o", str(out), str(LOADED)),
    ]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
