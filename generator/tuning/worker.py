"""The process that measures: reads a question per line, answers on a line; needs PyTorch and a GPU.

    {"environment": COMMAND}           -> {"environment": {...}}
    {"kernel": NAME, "at": CALL}       -> {"floor_us": ..., "eager_us": ..., "library_us": ...}
    {"kernel": NAME, "at": CALL, "library": FILE, "assumed": BOOL}
                                       -> {"us": ..., "error": ..., "few_tiles": ...}
    {"kernel": NAME, "dense": CALL, "library": FILE} -> {"us": ..., "sdpa_us": ..., "peers": {}}

or {"failed": REASON}. What is assumed: that no kernel before a launch writes its weights or the
cached tokens. With "leaving" the process says that the GPU's state cannot be trusted any more, and
ends.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch

from mirage_kernels.generator.bench.measure import (
    FloorReader,
    environment,
    floor_microseconds,
    library_floor,
)
from mirage_kernels.generator.ir.text import Json
from mirage_kernels.generator.target import target
from mirage_kernels.generator.tuning.calls_bench import CallsBench
from mirage_kernels.generator.tuning.library import Library, RefusedError
from mirage_kernels.generator.tuning.manifest import Manifest, load_manifest
from mirage_kernels.generator.tuning.tokens_bench import TokensBench


@dataclass
class Worker:
    """Answers questions about a folder's libraries; one kernel's buffers are kept at a time."""

    folder: Path
    manifest: Manifest
    reader: FloorReader
    benches: dict[str, TokensBench | CallsBench] = field(default_factory=dict)
    floors: dict[int, float] = field(default_factory=dict)

    def answer(self, question: dict[str, Json]) -> dict[str, Json]:
        """Answer one question."""
        if "environment" in question:
            here = asdict(environment(command=str(question["environment"]), commit=""))
            return {"environment": {name: value for name, value in here.items() if value}}
        bench = self.bench(str(question["kernel"]))
        if "library" not in question:
            call = str(question["at"])
            return {"floor_us": self.floor_of(bench.bytes_read(call))} | bench.peers(call)
        file = self.folder / str(question["library"])
        if isinstance(bench, TokensBench):
            library = Library.load(file, bench.arguments)
            call, assumed = str(question["at"]), bool(question["assumed"])
            return bench.candidate(call, library, assumed=assumed)
        loaded = Library.load(file, bench.arguments)
        if "dense" in question:
            return bench.dense(str(question["dense"]), loaded)
        return bench.candidate(str(question["at"]), loaded, assumed=bool(question["assumed"]))

    def floor_of(self, size: int) -> float:
        """Measure the floor of so many bytes once."""
        if size not in self.floors:
            self.floors[size] = floor_microseconds(self.reader, size)
        return self.floors[size]

    def bench(self, name: str) -> TokensBench | CallsBench:
        """Return a kernel's buffers, giving back those of the kernel before."""
        if name not in self.benches:
            self.benches.clear()
            torch.cuda.empty_cache()
            kernel = next(k for k in self.manifest.kernels if k.key.name == name)
            self.benches[name] = (TokensBench if kernel.dim else CallsBench)(kernel)
        return self.benches[name]


def refusal(manifest: Manifest) -> dict[str, Json]:
    """Return why nothing can be measured here; nothing where it can."""
    wanted = target(manifest.arch)
    doctor = "`mirage-kernels doctor` says what was found"
    if not torch.cuda.is_available():
        return {"refused": "tuning needs an NVIDIA GPU, and torch sees none", "hint": doctor}
    found = torch.cuda.get_device_capability()
    if found != wanted.capability:
        name = torch.cuda.get_device_name()
        sentence = f"the candidates are for {manifest.arch}, this {name} has capability {found}"
        return {"refused": sentence, "hint": "`mirage-kernels tune --arch` names another"}
    try:
        import mirage_kernels.ops  # noqa: F401  (registers the floor's kernels)
    except ImportError as failure:
        return {"refused": str(failure), "hint": doctor}
    return {}


def serve(folder: Path) -> None:
    """Answer the questions of stdin until it ends; what others print goes to stderr."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def say(answer: dict[str, Json]) -> None:
        print(json.dumps(answer), file=answers, flush=True)

    manifest = load_manifest(folder)
    refused = refusal(manifest)
    if refused:
        return say(refused)
    _publish_runtime()
    worker = Worker(folder, manifest, library_floor())
    say({"ready": True})
    for line in sys.stdin:
        try:
            say(worker.answer(json.loads(line)))
        except (RefusedError, RuntimeError) as error:  # CUDA's errors are RuntimeErrors
            first = str(error).strip().partition("\n")[0] or type(error).__name__
            if not (isinstance(error, RefusedError) and _is_well()):
                return say({"failed": first, "leaving": True})
            say({"failed": first})
    return None


def _is_well() -> bool:
    """Say whether the GPU goes on after a launch that it refused."""
    try:
        torch.cuda.synchronize()
        return bool(torch.ones(1, device="cuda").sum().item() == 1)
    except RuntimeError:
        return False


def _publish_runtime() -> None:
    """Let candidates find the CUDA runtime that PyTorch has loaded, whatever its file's name."""
    mapped = (line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines())
    runtime = next((f for f in mapped if Path(f).name.startswith("libcudart")), None)
    major = str(torch.version.cuda).partition(".")[0]
    ctypes.CDLL(runtime or f"libcudart.so.{major}", mode=ctypes.RTLD_GLOBAL)


if __name__ == "__main__":
    serve(Path(sys.argv[1]))
