"""Compiles small copies of the emitted weight-streaming kernels, for compute-sanitizer to watch.

    python benchmarks/small_copies.py build/small
    compute-sanitizer --tool racecheck build/small/run [TEXT ...]

Where two blocks wait for one another racecheck takes minutes for a call of the real size. A copy
differs in `constexpr int K` and `N` alone: plan, tiles and text are those of the kernel. `run TEXT`
calls those that have TEXT in their names, with 1 to 100 tokens. benchmarks/sanitize.py starts it.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from mirage_kernels import KernelEntry, kernel_table
from mirage_kernels.generator.attention_workloads import ATTENTION
from mirage_kernels.generator.compile import ROOT, gencode
from mirage_kernels.generator.recipe import Recipe, catalog
from mirage_kernels.generator.toolchain import find_nvcc

ARCH = "sm_90a"
DEPTH, NARROWER = 512, 16
SLICES = 3  # of stacked weights
UNLIMITED = 1 << 20


def is_copied(kernel: KernelEntry) -> bool:
    """Say whether a kernel streams weights."""
    return kernel.recipe not in ATTENTION and {"K", "N"} <= set(kernel.dims)


def small(kernel: KernelEntry) -> dict[str, int]:
    """Return a copy's dims; without a K, N is that of whole lines, which stay as they are."""
    if not is_copied(kernel):
        return dict(kernel.dims)
    return kernel.dims | {"K": min(DEPTH, kernel.dims["K"]), "N": kernel.dims["N"] // NARROWER}


def texts_of(kernel: KernelEntry) -> dict[str, str]:
    """Return the emitted sources with the copy's dims, by name, that which dispatches last."""
    whole = ROOT / "kernels" / ARCH / f"{kernel.name}.cu"
    files = [*sorted(whole.parent.glob(f"{whole.stem}.*.cuh")), whole]
    return {file.name: _sized(kernel, file.read_text()) for file in files}


def _sized(kernel: KernelEntry, text: str) -> str:
    for name, size in small(kernel).items():
        before = rf"^constexpr int {name} = {kernel.dims[name]};"
        text = re.sub(before, f"constexpr int {name} = {size};", text, flags=re.MULTILINE)
    return text


def recipe_of(kernel: KernelEntry) -> Recipe:
    """Return a kernel's recipe; one for stacks has that of its single slices, with all options."""
    return (
        catalog().get(kernel.recipe) or catalog()[f"{kernel.recipe.removesuffix('_batched')}_full"]
    )


def inputs_of(recipe: Recipe, dims: Mapping[str, int], stacked: bool) -> Iterator[str]:
    """Yield the tensors in recipe order, as benchmarks/small_copies.cu takes them."""
    for name, shape in recipe.inputs.items():
        if not shape:
            continue
        *outer, last = shape.split()
        slices = SLICES if stacked and name in recipe.stacked else 1
        rows = slices * (dims[outer[0]] if outer and outer[0] != "M" else 1)
        each = "true" if outer == ["M"] else "false"
        yield f"{{{each}, {rows}, {dims[last]}}}"


def case(kernel: KernelEntry) -> tuple[str, str]:
    """Return a kernel's declarations and its row of the list."""
    name, dims = kernel.name.replace("/", "_"), small(kernel)
    recipe = recipe_of(kernel)
    *_, whole = texts_of(kernel).values()
    space = f"{name}_workspace" if f"{name}_workspace" in whole else ""
    declared = f"cudaError_t {name}(const LaunchArgs&, cudaStream_t);\n"
    if space:
        declared += f"int64_t {space}(const LaunchArgs&);\n"
    inputs = ", ".join(inputs_of(recipe, dims, kernel.recipe not in catalog()))
    columns = max(dims.values())  # of any result at most
    called = f"mirage::generated::{name}"
    workspace = f"mirage::generated::{space}" if space else "nullptr"
    most = kernel.max_tokens or UNLIMITED
    row = f'{{"{kernel.name}", {called}, {workspace}, {most}, {{{inputs}}}, {columns}, '
    return declared, row + f"{len(recipe.results)}}},\n"


def written(kernel: KernelEntry, folder: Path) -> Path:
    """Write the copy of a kernel into a folder of its own; return the source to compile."""
    folder.mkdir(exist_ok=True)
    for name, text in texts_of(kernel).items():
        (folder / name).write_text(text)
    return folder / name


def compiled(nvcc: Path, source: Path, out: Path, *flags: str) -> None:
    """Run nvcc once."""
    include = [f"-I{ROOT / 'csrc'}", f"-I{out.parent}"]
    command = [str(nvcc), "-O3", "-std=c++17", "-lineinfo", gencode(ARCH), *include, *flags]
    subprocess.run([*command, str(source), "-o", str(out)], check=True)


def main() -> int:
    """Write the copies and the list, compile them, link."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", default="", metavar="TEXT")
    parser.add_argument("--jobs", type=int, default=2)
    arguments = parser.parse_args()
    nvcc = find_nvcc()
    if nvcc is None:
        print("needs nvcc: install nvidia-cuda-nvcc or set CUDA_HOME", file=sys.stderr)
        return 2
    folder: Path = arguments.folder
    folder.mkdir(parents=True, exist_ok=True)
    chosen = [k for k in kernel_table() if is_copied(k) and arguments.only in k.name]
    sources = [written(kernel, folder / kernel.name.replace("/", "_")) for kernel in chosen]
    declared, rows = zip(*map(case, chosen), strict=True)
    (folder / "cases.h").write_text(
        "namespace mirage::generated {\n" + "".join(declared) + "}\n"
        "static std::vector<Case> cases() {\n  return {\n" + "".join(rows) + "  };\n}\n"
    )
    objects = [source.with_suffix(".o") for source in sources]
    with ThreadPoolExecutor(arguments.jobs) as pool:
        list(pool.map(lambda of: compiled(nvcc, *of, "-c"), zip(sources, objects, strict=True)))
    compiled(
        nvcc,
        Path(__file__).with_suffix(".cu"),
        folder / "run",
        f"-DSLICES={SLICES}",
        *map(str, objects),
    )
    print(f"{len(chosen)} kernels in {folder / 'run'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
