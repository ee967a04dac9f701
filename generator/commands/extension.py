"""The compiled extension as the command line sees it: where it is, what it holds, does it load.

Loading happens in a fresh interpreter, which runs this module as a program: an extension that is
broken can end its process, and verbs that don't need torch should not wait for it.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from mirage_kernels.generator.build.compile import EXTENSION_NAME
from mirage_kernels.generator.build.selection import kernel_name
from mirage_kernels.generator.commands.arguments import package_kernels
from mirage_kernels.generator.errors import MirageError
from mirage_kernels.generator.records.record import KernelRecord
from mirage_kernels.generator.target import TARGETS

PROBE_SECONDS = 300


@dataclass
class Loaded:
    """What a fresh interpreter found when it imported torch and the extension."""

    torch: str = ""  # version; empty where torch is missing
    cuda: str = ""  # the CUDA that torch was built for; empty for a CPU build
    gpu: str = ""  # name; empty where torch sees none
    capability: tuple[int, ...] = ()
    kernels: tuple[str, ...] = ()  # names in the dispatch table
    arch: str = ""
    problem: str = ""  # why torch or the extension does not load; empty when both do
    complaint: str = ""  # why the extension does not run on the GPU; empty where it does
    # Of a call on CPU tensors, if one was asked for: both errors against float64, and seconds.
    call: tuple[float, float, float] | None = None


def extension_file() -> Path:
    """Return where the extension lies once it is compiled."""
    return package_kernels() / EXTENSION_NAME


def compiled_paths(records: Mapping[str, KernelRecord]) -> set[str]:
    """Return which committed kernels the extension contains, without loading it.

    The names of its dispatch table are C strings: each stands in the file between two NUL bytes.
    The table's architecture ends in one; no other text in the file names an architecture.
    """
    file = extension_file()
    content = file.read_bytes() if file.is_file() else b""
    arch = next((arch for arch in TARGETS if arch.encode() + b"\0" in content), "")
    own = {path: kernel_name(record) for path, record in records.items() if record.arch == arch}
    return {path for path, name in own.items() if b"\0" + name.encode() + b"\0" in content}


def load(*call: str) -> Loaded:
    """Import torch and the extension in a fresh interpreter and return what it found.

    `call` may name an op to call on CPU tensors: a recipe, a dtype, and sizes as JSON.
    """
    command = [sys.executable, "-m", "mirage_kernels.generator.commands.extension", *call]
    try:
        ran = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=PROBE_SECONDS
        )
    except subprocess.TimeoutExpired:
        return Loaded(problem=f"loading the extension took over {PROBE_SECONDS} s")
    lines = ran.stdout.splitlines()
    if ran.returncode == 0 and lines:
        return msgspec.json.decode(lines[-1], type=Loaded)
    said = [line for line in ran.stderr.splitlines() if line.strip()]
    how = f"signal {-ran.returncode}" if ran.returncode < 0 else f"exit code {ran.returncode}"
    silent = f"a fresh interpreter ends with {how} and says nothing; try `{' '.join(command)}`"
    return Loaded(problem=said[-1] if said else silent)


# -- in the fresh interpreter ----------------------------------------------------------------------


def _loaded(*call: str) -> Loaded:
    found = Loaded()
    try:
        import torch

        found.torch, found.cuda = str(torch.__version__), torch.version.cuda or ""
        if torch.cuda.is_available():
            found.gpu = torch.cuda.get_device_name()
            found.capability = torch.cuda.get_device_capability()
        from mirage_kernels import kernel_table

        found.kernels = tuple(entry.name for entry in kernel_table())
        found.arch = next((entry.arch for entry in kernel_table()), "")
        if found.gpu:
            gpu = (*found.capability, found.gpu)
            found.complaint = torch.ops.mirage_kernels._architecture_complaint(*gpu)
        elif call:
            found.call = _called(*call)
    except (ImportError, LookupError, MirageError) as failure:
        found.problem = str(failure)
    return found


def _called(name: str, dtype: str, sizes: str) -> tuple[float, float, float]:
    """Return the error of a compiled op, of PyTorch's unfused program, and the op's seconds."""
    from mirage_kernels.generator.bench.workload import largest_error
    from mirage_kernels.generator.bench.workloads.tensors import TensorWorkload
    from mirage_kernels.generator.ir.dtypes import DType

    work = TensorWorkload(name, json.loads(sizes), dtype=DType(dtype))
    inputs = work.draw(0, "cpu")
    exact, unfused = work.exact(inputs), work.eager()(inputs)
    started = time.monotonic()
    result = work.ours(inputs)
    seconds = time.monotonic() - started
    return largest_error(result, exact), largest_error(unfused, exact), seconds


if __name__ == "__main__":
    print(msgspec.json.encode(_loaded(*sys.argv[1:])).decode())
