"""The compiled extension as the command line sees it: where it is, what it holds, does it load.

Loading happens in a fresh interpreter: an extension that is broken can end its process, and verbs
that don't need torch should not wait for it.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from mirage_kernels.generator.build.compile import EXTENSION_NAME
from mirage_kernels.generator.commands.arguments import package_kernels
from mirage_kernels.generator.errors import ToolchainError
from mirage_kernels.generator.target import TARGETS

PROBE_SECONDS = 300
_PROBE = "mirage_kernels.generator.commands.probe"


@dataclass(frozen=True)
class Loaded:
    """What a fresh interpreter found when it imported torch and the extension."""

    torch: str  # version; empty where torch is missing
    cuda: str  # the CUDA that torch was built for; empty for a CPU build
    gpu: str  # name; empty where torch sees none
    capability: tuple[int, int] | None
    kernels: tuple[str, ...]  # names in the dispatch table
    arch: str
    problem: str  # why torch or the extension does not load; empty when both do
    complaint: str = ""  # why the extension does not run on the GPU; empty where it does


@dataclass(frozen=True)
class Call:
    """A compiled op called on CPU tensors: relative errors against float64, and the time."""

    error: float
    error_eager: float
    seconds: float


def extension_file() -> Path:
    """Return where the extension lies once it is compiled."""
    return package_kernels() / EXTENSION_NAME


def compiled_names(names: Iterable[str]) -> set[str]:
    """Return which of these kernels the extension's dispatch table holds, without loading it.

    The table's names are C strings: each stands in the file between two NUL bytes.
    """
    file = extension_file()
    content = file.read_bytes() if file.is_file() else b""
    return {name for name in names if b"\0" + name.encode() + b"\0" in content}


def compiled_arch() -> str:
    """Return the architecture that the extension is for, without loading it; empty if none is.

    The table's `kArch` ends in a NUL byte; no other text in the file names an architecture.
    """
    file = extension_file()
    content = file.read_bytes() if file.is_file() else b""
    return next((arch for arch in TARGETS if arch.encode() + b"\0" in content), "")


def load() -> Loaded:
    """Import torch and the extension in a fresh interpreter and return what it found."""
    try:
        data = json.loads(_probe(["describe"]))
    except ToolchainError as failure:
        return Loaded("", "", "", None, (), "", problem=failure.hint or failure.sentence)
    capability = data.pop("capability")
    kernels = tuple(data.pop("kernels"))
    return Loaded(capability=capability and tuple(capability), kernels=kernels, **data)


def call_on_cpu(recipe: str, dtype: str, sizes: Mapping[str, int]) -> Call:
    """Call a recipe's compiled op on CPU tensors in a fresh interpreter.

    Raises ToolchainError when the extension does not load or has no such op.
    """
    return Call(**json.loads(_probe(["call", recipe, dtype, json.dumps(dict(sizes))])))


def _probe(words: Sequence[str]) -> str:
    """Run the probe and return its last line; raises ToolchainError with what it said instead."""
    command = [sys.executable, "-m", _PROBE, *words]
    try:
        ran = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=PROBE_SECONDS
        )
    except subprocess.TimeoutExpired as expired:
        raise ToolchainError(f"loading the extension took over {PROBE_SECONDS} s") from expired
    lines = ran.stdout.splitlines()
    if ran.returncode == 0 and lines:
        return lines[-1]
    said = [line for line in ran.stderr.splitlines() if line.strip()]
    how = f"signal {-ran.returncode}" if ran.returncode < 0 else f"exit code {ran.returncode}"
    raise ToolchainError(
        f"a fresh interpreter that loads the extension ends with {how}",
        said[-1] if said else f"it says nothing; try `{' '.join(command)}`",
    )
