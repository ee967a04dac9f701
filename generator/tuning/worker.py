"""What the process that measures answers to a question; needs PyTorch and a GPU.

    {"environment": COMMAND}           -> {"environment": {...}}
    {"kernel": NAME, "at": CALL}       -> {"floor_us": ..., "eager_us": ..., "library_us": ...}
    {"kernel": NAME, "at": CALL, "library": FILE, "assumed": BOOL}
                                       -> {"us": ..., "error": ..., "few_tiles": ...}

or {"failed": REASON}. What is assumed: that no kernel before a launch writes its weights or the
cached tokens. With "leaving" the process says that the GPU's state cannot be trusted any more, and
ends.
"""

from __future__ import annotations

import ctypes
import secrets
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property, partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Generic

import torch
from torch import Tensor

from mirage_kernels.generator.bench.launch_args import Args
from mirage_kernels.generator.bench.measure import (
    Clock,
    Results,
    environment,
    gpu_clock,
    largest_error,
)
from mirage_kernels.generator.bench.rows import peer_times
from mirage_kernels.generator.bench.workload import I, Workload, poisoned
from mirage_kernels.generator.ir.text import Json
from mirage_kernels.generator.target import target
from mirage_kernels.generator.tuning.calls import calls_of
from mirage_kernels.generator.tuning.manifest import Manifest, load_manifest
from mirage_kernels.generator.tuning.sources import ARGS_BYTES, FEW_TILES, LAUNCH, WORKSPACE

ALIGNMENT = 64  # of the launch's arguments, which may hold maps of tensors


class RefusedError(Exception):
    """A library that cannot be loaded, or a launch that was refused."""


@dataclass(frozen=True)
class Library:
    """One candidate's library; its arguments are those known here, then others, all zeros."""

    loaded: ctypes.CDLL
    arguments: type[Args]
    args_bytes: int

    @staticmethod
    def load(path: Path, arguments: type[Args]) -> Library:
        """Load a library; its CUDA runtime is the one that PyTorch has loaded."""
        try:
            loaded = ctypes.CDLL(str(path))
        except OSError as error:
            raise RefusedError(f"the library does not load: {error}") from error
        expected, own = ctypes.sizeof(arguments), int(getattr(loaded, ARGS_BYTES)())
        if own < expected:
            name = arguments.__name__
            raise RefusedError(f"its {name} have {own} bytes, the worker's {expected}")
        pointer = ctypes.POINTER(arguments)
        getattr(loaded, LAUNCH).argtypes = (pointer, ctypes.c_void_p)
        getattr(loaded, FEW_TILES).argtypes = (pointer,)
        workspace = getattr(loaded, WORKSPACE)
        workspace.argtypes, workspace.restype = (pointer,), ctypes.c_int64
        return Library(loaded, arguments, own)

    def asked(self, name: str, args: Args, *more: object) -> int:
        """Call one of its functions."""
        return int(getattr(self.loaded, name)(ctypes.byref(args), *more))

    def args(self) -> Args:
        """Return arguments at a place that is aligned as the kernel's are, all zeros."""
        space = bytearray(self.args_bytes + ALIGNMENT)
        start = ctypes.addressof(ctypes.c_char.from_buffer(space))
        return self.arguments.from_buffer(space, -start % ALIGNMENT)

    def launch(self, args: Args, out: Tensor) -> Callable[[], None]:
        """Return a launch on fixed buffers, with a workspace of its own."""
        space = out.new_empty(self.asked(WORKSPACE, args), dtype=torch.uint8)

        def launch() -> None:
            args.workspace, args.nonce = space.data_ptr(), secrets.randbits(64)
            stream = torch.cuda.current_stream().cuda_stream if out.is_cuda else None
            status = self.asked(LAUNCH, args, stream)
            if status:
                raise RefusedError(f"the launch failed with CUDA error {status}")

        return launch


@dataclass
class Buffers(Generic[I]):
    """The tensors of one workload, shared by all candidates."""

    workload: Workload[I]
    clock: Clock

    @cached_property
    def sets(self) -> list[I]:
        """Input sets that together exceed the cache often enough."""
        count = self.clock.sets(self.workload.bytes_read)
        return [self.workload.draw(seed, self.clock.device) for seed in range(count)]

    @cached_property
    def exact(self) -> tuple[Results, float]:
        """The first set's results in float64, and the error that a right result may have."""
        dense = self.workload.dense(self.sets[0])
        exact = self.workload.exact(dense)
        return exact, self.workload.error_allowed(dense, exact)

    def peers(self) -> dict[str, Json]:
        """Measure the floor, and what would run in a kernel's place."""
        workload, clock = self.workload, self.clock
        found: dict[str, Json] = {"floor_us": clock.floor(workload.bytes_read)}
        for name, program in workload.in_place().items():
            found[name] = clock.per_call([partial(program, given) for given in self.sets])
        if not workload.needs_kernel:
            found["peers"] = {**peer_times(workload, (self.sets,) * 2, self.exact[0], clock)}
        return found

    def candidate(self, library: Library, *, assumed: bool) -> dict[str, Json]:
        """Compare a candidate's result with float64; where it is right, measure its time."""
        outs = [poisoned(self.workload.new_outs(given)) for given in self.sets]
        pairs = zip(self.sets, outs, strict=True)
        args = [self._args(library, *pair, assumed=assumed) for pair in pairs]
        timed = [library.launch(one, out[0]) for one, out in zip(args, outs, strict=True)]
        few = library.asked(FEW_TILES, args[0])
        timed[0]()
        exact, allowed = self.exact
        error = largest_error(outs[0], exact)
        if not error <= allowed:
            where = f"at {self.workload.name}, {allowed:.2e} is allowed"
            return {"failed": f"its error is {error:.2e} {where}"}
        return {"us": self.clock.per_call(timed), "error": error, "few_tiles": bool(few)}

    def _args(self, library: Library, given: I, outs: Sequence[Tensor], *, assumed: bool) -> Args:
        args = library.args()
        self.workload.fill(args, given, outs)
        if assumed:
            self.workload.assume(args)
        return args


@dataclass
class Worker:
    """Answers questions about a folder's libraries; one call's buffers are kept at a time."""

    folder: Path
    manifest: Manifest
    clock: Clock
    kept: tuple[tuple[str, str], Buffers[Any]] | None = None

    def answer(self, question: dict[str, Json]) -> dict[str, Json]:
        """Answer one question."""
        if "environment" in question:
            here = asdict(environment(command=str(question["environment"]), commit=""))
            return {"environment": {name: value for name, value in here.items() if value}}
        buffers = self.buffers(str(question["kernel"]), str(question["at"]))
        if "library" not in question:
            return buffers.peers()
        file = self.folder / str(question["library"])
        library = Library.load(file, buffers.workload.arguments)
        return buffers.candidate(library, assumed=bool(question["assumed"]))

    def buffers(self, kernel: str, call: str) -> Buffers[Any]:
        """Return a call's buffers, giving back those of the call before."""
        if self.kept is None or self.kept[0] != (kernel, call):
            self.kept = None
            torch.cuda.empty_cache()
            found = next(k for k in self.manifest.kernels if k.key.name == kernel)
            self.kept = (kernel, call), Buffers(calls_of(found)[call], self.clock)
        return self.kept[1]


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


def serve(folder: Path, pipe: Connection) -> None:
    """Greet, then answer questions; ends where the GPU's state cannot be trusted any more."""
    manifest = load_manifest(folder)
    refused = refusal(manifest)
    if refused:
        return pipe.send(refused)
    _publish_runtime()
    worker = Worker(folder, manifest, gpu_clock())
    pipe.send({"ready": True})
    while True:
        try:
            pipe.send(worker.answer(pipe.recv()))
        except (RefusedError, RuntimeError) as error:  # CUDA's errors are RuntimeErrors
            first = str(error).strip().partition("\n")[0] or type(error).__name__
            if not (isinstance(error, RefusedError) and _is_well()):
                return pipe.send({"failed": first, "leaving": True})
            pipe.send({"failed": first})


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
