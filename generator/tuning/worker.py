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
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cached_property
from multiprocessing.connection import Connection
from pathlib import Path

import torch
from torch import Tensor

from mirage_kernels.generator.bench.measure import Clock, environment, gpu_clock, peer_times
from mirage_kernels.generator.bench.workload import Args, Inputs, Results, largest_error, poisoned
from mirage_kernels.generator.bench.workloads.lists import Workload
from mirage_kernels.generator.bench.workloads.programs import ProgramBuffers, ProgramCall
from mirage_kernels.generator.ir.text import Json
from mirage_kernels.generator.target import target
from mirage_kernels.generator.tuning.candidates import ARGS_BYTES, FEW_TILES, LAUNCH, WORKSPACE
from mirage_kernels.generator.tuning.catalog import Section, Tuned, load_manifest
from mirage_kernels.generator.tuning.measurements import UNMEASURED, bucketed_calls, calls_above

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
        getattr(loaded, FEW_TILES).argtypes = getattr(loaded, WORKSPACE).argtypes = (pointer,)
        getattr(loaded, WORKSPACE).restype = ctypes.c_int64
        return Library(loaded, arguments, own)

    def call(self, name: str, args: Args, *more: object) -> int:
        """Call one of its functions."""
        return int(getattr(self.loaded, name)(ctypes.byref(args), *more))

    def args(self) -> Args:
        """Return arguments at a place that is aligned as the kernel's are, all zeros."""
        space = bytearray(self.args_bytes + ALIGNMENT)
        start = ctypes.addressof(ctypes.c_char.from_buffer(space))
        return self.arguments.from_buffer(space, -start % ALIGNMENT)

    def launch(self, args: Args, out: Tensor) -> Callable[[], None]:
        """Return a launch on fixed buffers, with a workspace of its own."""
        space = out.new_empty(self.call(WORKSPACE, args), dtype=torch.uint8)

        def launch() -> None:
            args.workspace, args.nonce = space.data_ptr(), secrets.randbits(64)
            stream = torch.cuda.current_stream().cuda_stream if out.is_cuda else None
            status = self.call(LAUNCH, args, stream)
            if status:
                raise RefusedError(f"the launch failed with CUDA error {status}")

        return launch


@dataclass
class Buffers:
    """The tensors of one workload, shared by all candidates."""

    workload: Workload
    clock: Clock

    @cached_property
    def sets(self) -> list[Inputs]:
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
            found[name] = clock.cold(program, self.sets)
        if not workload.needs_kernel:
            found["peers"] = {**peer_times(workload, (self.sets,) * 2, self.exact[0], clock)}
        return found

    def candidate(self, library: Library, *, assumed: bool) -> dict[str, Json]:
        """Compare a candidate's result with float64; where it is right, measure its time."""
        workload, made, timed = self.workload, [], []
        for given in self.sets:
            args, outs = library.args(), poisoned(workload.new_outs(given))
            workload.fill(args, given, outs)
            if assumed:
                workload.assume(args)
            made.append((args, outs))
            timed.append(library.launch(args, outs[0]))
        few = bool(library.call(FEW_TILES, made[0][0]))
        timed[0]()
        exact, allowed = self.exact
        error = largest_error(made[0][1], exact)
        if not error <= allowed:
            where = f"at {workload.name}, {allowed:.2e} is allowed"
            return {"failed": f"its error is {error:.2e} {where}"}
        return {"us": self.clock.per_call(timed), "error": error, "few_tiles": few}


@dataclass
class Worker:
    """Answers questions about a folder's libraries; one call's buffers are kept at a time."""

    folder: Path
    manifest: Section
    clock: Clock
    kept: tuple[tuple[str, str], Buffers | ProgramBuffers] | None = None

    def answer(self, question: dict[str, Json]) -> dict[str, Json]:
        """Answer one question."""
        if "environment" in question:
            here = asdict(environment(command=str(question["environment"]), commit=""))
            return {"environment": {name: value for name, value in here.items() if value}}
        buffers = self.buffers(str(question["kernel"]), str(question["at"]))
        if "library" not in question:
            return {**buffers.peers()}
        file = self.folder / str(question["library"])
        if not file.is_file():
            return {"failed": UNMEASURED}
        if isinstance(buffers, ProgramBuffers):
            return {**buffers.candidate(file)}
        library = Library.load(file, buffers.workload.arguments)
        return buffers.candidate(library, assumed=bool(question["assumed"]))

    def buffers(self, kernel: str, call: str) -> Buffers | ProgramBuffers:
        """Return a call's buffers, giving back those of the call before."""
        if self.kept is None or self.kept[0] != (kernel, call):
            self.kept = None
            torch.cuda.empty_cache()
            found = next(k for k in self.manifest.kernels if k.key.name == kernel)
            every = (calls_above(found), *bucketed_calls(found).values())
            one = next(calls[call] for calls in every if call in calls)
            if isinstance(one, ProgramCall):
                self.kept = (kernel, call), self._of_program(found, one)
            else:
                self.kept = (kernel, call), Buffers(one, self.clock)
        return self.kept[1]

    def _of_program(self, kernel: Tuned, call: ProgramCall) -> ProgramBuffers:
        bucket = next(b for b in kernel.buckets if b.sizes == call.sizes)
        rule = self.folder / f"{bucket.tried[0].digest}.so"
        rate = target(self.manifest.arch).memory_bytes_per_us
        return ProgramBuffers(call, rule, self.clock, rate)


def refusal(manifest: Section) -> dict[str, Json]:
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
    if all(kernel.symbol for kernel in manifest.kernels):
        return {}
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
    # Let candidates find the CUDA runtime that PyTorch has loaded, whatever its file's name.
    mapped = (line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines())
    runtime = next((f for f in mapped if Path(f).name.startswith("libcudart")), None)
    major = str(torch.version.cuda).partition(".")[0]
    ctypes.CDLL(runtime or f"libcudart.so.{major}", mode=ctypes.RTLD_GLOBAL)
    worker = Worker(folder, manifest, gpu_clock())
    pipe.send({"ready": True})
    while True:
        try:
            pipe.send(worker.answer(pipe.recv()))
        except (RefusedError, ImportError, RuntimeError) as error:  # CUDA's are RuntimeErrors
            first = str(error).strip().partition("\n")[0] or type(error).__name__
            if not (isinstance(error, RefusedError | ImportError) and _is_well()):
                return pipe.send({"failed": first, "leaving": True})
            pipe.send({"failed": first})


def _is_well() -> bool:
    """Say whether the GPU goes on after a launch that it refused."""
    try:
        torch.cuda.synchronize()
        return bool(torch.ones(1, device="cuda").sum().item() == 1)
    except RuntimeError:
        return False
