"""What each planner brings, measured: a kernel emitted with one of them left out at a time.

python benchmarks/ablation_gpu.py build                     # here: needs nvcc, no GPU
python benchmarks/ablation_gpu.py measure --json FILE       # on a GPU, from what `build` made

`build` writes sources, libraries and what the assembler says of them below build/ablation; these
files and a checkout are all that `measure` needs beside PyTorch: the package need not be installed.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import re
import statistics
import subprocess
import sys
import types
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

ROOT = Path(__file__).resolve().parents[1]
if TYPE_CHECKING:
    import torch
else:
    try:
        import mirage_kernels  # noqa: F401
    except ImportError:  # not installed: the folders of the checkout are the package
        package = types.ModuleType("mirage_kernels")
        package.__path__ = [str(ROOT / "kernels"), str(ROOT)]
        sys.modules["mirage_kernels"] = package

OUT = ROOT / "build" / "ablation"
ARCH = "sm_90a"
RECORD = "sm_90a/rms_norm_linear/K4096_N6144_fp16.json"
TOKENS = (1, 8, 16, 32, 64)
ROUNDS = 3  # of all plans, one after the other: a drift of the clock meets all alike
EPS = 1e-6


def main(arguments: Sequence[str]) -> int:
    """Build or measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("verb", choices=("build", "measure"))
    parser.add_argument("--json", type=Path, metavar="FILE", help="where `measure` writes")
    parser.add_argument("--commit", default="", help="what to record as measured")
    chosen = parser.parse_args(arguments)
    if chosen.verb == "build":
        build()
        return 0
    if not (OUT / "manifest.json").is_file():
        build()
    document = measure(chosen.commit)
    text = json.dumps(document, indent=1)
    if chosen.json:
        chosen.json.write_text(text + "\n")
    print(text)
    return 0


# -- build ---------------------------------------------------------------------------------------


def build() -> None:
    """Emit and compile the kernel once per plan."""
    from mirage_kernels.generator.emit.cuda import Kernel, emit_cuda
    from mirage_kernels.generator.emit.header import Header
    from mirage_kernels.generator.emit.table import Entry, emit_table
    from mirage_kernels.generator.plan.lower import tile_program
    from mirage_kernels.generator.plan.tiles import Planning
    from mirage_kernels.generator.records.record import load_record
    from mirage_kernels.generator.schedules.choose import variants
    from mirage_kernels.generator.target import target

    plans = {
        "all": Planning(),
        "no schedule": Planning(schedule=False),
        "no memory": Planning(memory=False),
    }
    record = load_record(ROOT / "kernels" / RECORD)
    table = emit_table(ARCH, [Entry(record.recipe, record.dtype, record.shape, record.stem)])
    manifest = {}
    for name, planning in plans.items():
        program = tile_program(record.recipe, record.graph, planning)
        chosen = variants(program, target(ARCH))
        header = Header("python benchmarks/ablation_gpu.py build", record.stem, [("Plan", name)])
        folder = OUT / name.replace(" ", "_")
        folder.mkdir(parents=True, exist_ok=True)
        source = emit_cuda(Kernel(program, chosen, record.storage, header))
        (folder / "kernel.cu").write_text(source)
        (folder / "table.cpp").write_text(table)
        knobs = [v.to_json() for v in chosen]
        manifest[name] = {"library": f"{folder.name}.so", "variants": knobs}
        manifest[name] |= {"assembler": compiled(folder)}
        print(name, *manifest[name]["assembler"], sep="\n  ")
    (OUT / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n")


def compiled(folder: Path) -> list[str]:
    """Compile a folder's sources into a library beside it; return registers and spills."""
    from mirage_kernels.generator.build.toolchain import find_nvcc

    nvcc = find_nvcc()
    if nvcc is None:
        raise SystemExit("nvcc is missing: `pip install --group nvcc` brings one")
    sources = [folder / "kernel.cu", folder / "table.cpp", ROOT / "csrc" / "bench" / "calls.cpp"]
    command = [str(nvcc), "-O3", "-std=c++17", f"-I{ROOT / 'csrc'}", "-shared", "-Xptxas", "-v"]
    command += [f"-gencode=arch=compute_{ARCH[3:]},code={ARCH}"]
    command += ["-Xcompiler=-fPIC,-fvisibility=hidden", "-o", f"{folder}.so", *map(str, sources)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    if ran.returncode:
        raise SystemExit(f"{' '.join(command)}\n{ran.stdout}{ran.stderr}")
    said = re.findall(r"Used \d+ registers|\d+ bytes spill stores", ran.stderr)
    return [
        f"{registers}, {spills}" for spills, registers in zip(said[::2], said[1::2], strict=True)
    ]


# -- measure -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Plan:
    """A library that holds the kernel as one plan has it."""

    name: str
    library: ctypes.CDLL

    def run(self, out: torch.Tensor, *tensors: torch.Tensor) -> torch.Tensor:
        """Launch the kernel on the current stream."""
        import torch

        from mirage_kernels.generator.bench.launch_args import LaunchArgs

        args = LaunchArgs.from_buffer(bytearray(self.library.mirage_launch_bytes()))
        for i, tensor in enumerate(tensors):
            args.inputs[i] = tensor.data_ptr()
            args.row_strides[i] = tensor.stride(0)
        args.outputs[0] = out.data_ptr()
        args.dims[0] = tensors[0].shape[0]
        args.scalars[0] = EPS
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        status = self.library.mirage_launch(0, ctypes.byref(args), stream)
        if status:
            raise SystemExit(f"{self.name}: the launch failed with CUDA error {status}")
        return out


def measure(commit: str) -> dict[str, object]:
    """Return cold and warm times and errors of every plan, at every number of tokens."""
    from mirage_kernels.generator.bench.measure import environment

    manifest = json.loads((OUT / "manifest.json").read_text())
    plans = [Plan(n, ctypes.CDLL(str(OUT / made["library"]))) for n, made in manifest.items()]
    command = "python benchmarks/ablation_gpu.py measure"
    rows = [measured(plans, m) for m in TOKENS]
    return {
        "environment": asdict(environment(command=command, commit=commit)),
        "plans": manifest,
        "rows": rows,
    }


def measured(plans: Sequence[Plan], m: int) -> dict[str, object]:
    """Return one row: every plan on the same inputs."""
    import torch

    from mirage_kernels.generator.bench.measure import (
        cold_microseconds,
        relative_error,
        rotation_count,
        total_bytes,
    )

    k, n = (int(size) for size in re.findall(r"\d+", Path(RECORD).stem)[:2])
    first = inputs(m, (k, n), seed=0)
    sets = [
        first,
        *(inputs(m, (k, n), seed=s) for s in range(1, rotation_count(total_bytes(first)))),
    ]
    outs = [torch.empty(m, n, dtype=torch.float16, device="cuda") for _ in sets]
    oracle = reference(*first)
    cold: dict[str, list[float]] = {p.name: [] for p in plans}
    warm: dict[str, list[float]] = {p.name: [] for p in plans}
    errors, same = {}, {}
    made: dict[str, torch.Tensor] = {}
    for plan in plans:
        made[plan.name] = plan.run(torch.full_like(outs[0], float("nan")), *first)
        errors[plan.name] = relative_error(made[plan.name], oracle)
        same[plan.name] = bool(torch.equal(made[plan.name], made["all"]))
    for _ in range(ROUNDS):
        for plan in plans:
            launch = launcher(plan)
            pairs = [(out, *tensors) for out, tensors in zip(outs, sets, strict=True)]
            cold[plan.name].append(cold_microseconds(launch, pairs))
            warm[plan.name].append(cold_microseconds(launch, pairs[:1]))
    row: dict[str, object] = {"kernel": RECORD, "M": m, "errors": errors, "same_bits": same}
    row["cold_us"] = {name: round(statistics.median(us), 3) for name, us in cold.items()}
    row["warm_us"] = {name: round(statistics.median(us), 3) for name, us in warm.items()}
    print(m, row["cold_us"], errors, file=sys.stderr)
    return row


def launcher(plan: Plan) -> Callable[..., torch.Tensor]:
    """Return the plan's launch as a function of output and inputs."""
    return lambda out, *tensors: plan.run(out, *tensors)


def inputs(m: int, extents: tuple[int, int], *, seed: int) -> tuple[torch.Tensor, ...]:
    """Return random x [M, K], norm_weight [K], weight [N, K]."""
    import torch

    k, n = extents
    rng = torch.Generator(device="cuda").manual_seed(seed)
    half = {"dtype": torch.float16, "device": "cuda", "generator": rng}
    x = torch.randn(m, k, **half)
    norm_weight = torch.randn(k, **half) * 0.1 + 1
    return x, norm_weight, torch.randn(n, k, **half) * k**-0.5


def reference(x: torch.Tensor, norm_weight: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Return the result in float64."""
    x, norm_weight, weight = x.double(), norm_weight.double(), weight.double()
    normed = x / (x.square().mean(-1, keepdim=True) + EPS).sqrt() * norm_weight
    return normed @ weight.T


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
