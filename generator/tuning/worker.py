"""The process that measures: reads a question per line, answers on a line; needs PyTorch and a GPU.

    {"environment": COMMAND}                            -> {"environment": {...}}
    {"kernel": NAME, "call": NAME}                      -> {"floor_us": ..., "library_us": ..., ...}
    {"kernel": NAME, "call": NAME, "library": FILE, "promised": BOOL} -> {"us": ..., "error": ...}

or {"failed": REASON}. Promised are all assumption flags or none: that no kernel before a launch
writes its weights, or the history of its cache. With "leaving" the process says that the GPU's
state cannot be trusted any more, and ends.
"""

from __future__ import annotations

import ctypes
import json
import os
import secrets
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path

import torch

from mirage_kernels.generator.bench.measure import (
    FloorReader,
    Inputs,
    as_tuple,
    cold_microseconds,
    environment,
    floor_microseconds,
    graph_microseconds,
    largest_error,
    library_floor,
    rotation_count,
    total_bytes,
)
from mirage_kernels.generator.commands.workload import Workload
from mirage_kernels.generator.ir.dtypes import DType
from mirage_kernels.generator.ir.text import Json
from mirage_kernels.generator.recipe import Recipe, load_recipe
from mirage_kernels.generator.target import target
from mirage_kernels.generator.tuning.calls import Named, dense_calls, workloads_of
from mirage_kernels.generator.tuning.entries import (
    LAUNCH,
    WORKSPACE,
    RefusedError,
    opened,
)
from mirage_kernels.generator.tuning.library_program import calls_of, library_program
from mirage_kernels.generator.tuning.manifest import Compiled, Manifest, load_manifest
from mirage_kernels.generator.tuning.paged_worker import PagedBench, PagedLibrary

SHARED_BYTES = 16 << 30  # of input sets that serve all numbers of tokens
SEED = 20260


class LaunchArgs(ctypes.Structure):
    """`mirage::LaunchArgs` of csrc/launch.h, as far as candidates need it: zeros may follow."""

    _fields_ = (
        ("inputs", ctypes.c_void_p * 8),
        ("outputs", ctypes.c_void_p * 4),
        ("row_strides", ctypes.c_int64 * 8),
        ("dims", ctypes.c_int64 * 4),
        ("scalars", ctypes.c_float * 4),
        ("constant_weights", ctypes.c_bool),
        ("workspace", ctypes.c_void_p),
        ("nonce", ctypes.c_uint64),
    )


@dataclass(frozen=True)
class Library:
    """One candidate's library."""

    launch: Callable[[ctypes.Structure, int | None], int]
    workspace: Callable[[ctypes.Structure], int]  # its bytes
    args_bytes: int

    @staticmethod
    def load(path: Path) -> Library:
        """Load a library; its CUDA runtime is the one that PyTorch has loaded."""
        loaded, own = opened(path, LaunchArgs)
        function, workspace = getattr(loaded, LAUNCH), getattr(loaded, WORKSPACE)
        return Library(
            lambda args, stream: int(function(ctypes.byref(args), stream)),
            lambda args: int(workspace(ctypes.byref(args))),
            own,
        )

    def call(self, outs: Inputs, tensors: Inputs, how: How) -> Callable[[], None]:
        """Return a launch on fixed buffers."""
        args = LaunchArgs.from_buffer(bytearray(self.args_bytes))
        args.constant_weights = how.promised
        for i, tensor in enumerate(tensors):
            args.inputs[i] = tensor.data_ptr()
            args.row_strides[i] = tensor.stride(0) if tensor.dim() > 1 else tensor.shape[-1]
        for i, scalar in enumerate(how.scalars):
            args.scalars[i] = scalar
        for i, out in enumerate(outs):
            args.outputs[i] = out.data_ptr()
        args.dims[0] = how.tokens
        space = outs[0].new_empty(self.workspace(args), dtype=torch.uint8)
        args.nonce = secrets.randbits(64)

        def launch() -> None:
            args.workspace = space.data_ptr()
            status = self.launch(args, _stream(outs[0]))
            if status:
                raise RefusedError(f"the launch failed with CUDA error {status}")

        return launch


@dataclass(frozen=True)
class How:
    """What a launch needs beside its buffers."""

    tokens: int
    scalars: tuple[float, ...]
    promised: bool = True  # the weights are constant


def _stream(out: torch.Tensor) -> int | None:
    return int(torch.cuda.current_stream().cuda_stream) if out.is_cuda else None


@dataclass(frozen=True)
class Sets:
    """Input sets that together exceed the cache often enough; the first's results in float64."""

    inputs: list[Inputs]
    oracle: Inputs


@dataclass
class Bench:
    """One kernel's buffers, shared by all its candidates, and what they are compared with."""

    kernel: Compiled
    device: str = "cuda"

    made: dict[int, Sets] = field(default_factory=dict)

    def workload(self, tokens: int) -> Workload:
        """Return the recipe at the kernel's shape with so many tokens."""
        key = self.kernel.key
        sizes = {**key.shape, self.kernel.tokens: tokens}
        return Workload(load_recipe(key.recipe), DType(key.dtype), sizes, self.device)

    @cached_property
    def recipe(self) -> Recipe:
        """The kernel's recipe."""
        return self.workload(1).recipe

    @cached_property
    def shared(self) -> bool:
        """Say whether one lot of input sets serves all numbers of tokens, cut.

        It does where weights are what there is to read. Else enough sets for few tokens would be
        too large for many.
        """
        first = self.workload(max(self.kernel.sizes)).inputs(SEED)
        count = rotation_count(total_bytes(self._cut(first, min(self.kernel.sizes))))
        return count * total_bytes(first) <= SHARED_BYTES

    def sets(self, tokens: int) -> Sets:
        """Return input sets with at least so many tokens; those of the last question are kept."""
        drawn = max(self.kernel.sizes) if self.shared else tokens
        if drawn not in self.made:
            self.made.clear()
            first = self.workload(drawn).inputs(SEED)
            fewest = min(self.kernel.sizes) if self.shared else tokens
            count = rotation_count(total_bytes(self._cut(first, fewest)))
            self.made[drawn] = self._made(drawn, first, count)
        return self.made[drawn]

    def _made(self, tokens: int, first: Inputs, count: int) -> Sets:
        workload = self.workload(tokens)
        wide = (t.double() if t.is_floating_point() else t for t in first)
        oracle = as_tuple(workload.reference(*wide))
        return Sets([first, *(workload.inputs(SEED + n) for n in range(1, count))], oracle)

    def inputs(self, tokens: int) -> list[Inputs]:
        """Return the input sets cut to so many tokens; nothing is copied."""
        return [self._cut(tensors, tokens) for tensors in self.sets(tokens).inputs]

    def _cut(self, tensors: Inputs, tokens: int) -> Inputs:
        dims = [text.partition(":")[0].split() for text in self.recipe.inputs.values()]
        kept = zip((d for d in dims if d), tensors, strict=True)
        axis = self.kernel.tokens
        return tuple(t.narrow(d.index(axis), 0, tokens) if axis in d else t for d, t in kept)

    def new_outs(self, tokens: int) -> Inputs:
        """Return results full of NaN: elements that nobody writes show."""
        sizes = self.workload(tokens).sizes
        like = self.sets(tokens).inputs[0][0]
        shapes = [[sizes[d] for d in dims.split()] for dims in self.recipe.results]
        return tuple(like.new_full(shape, float("nan")) for shape in shapes)

    def bytes(self, tokens: int) -> int:
        """Return the bytes of the inputs: what the floor reads."""
        return total_bytes(self.inputs(tokens)[0])

    def eager_us(self, tokens: int) -> float:
        """Measure PyTorch eager."""
        return cold_microseconds(self.workload(tokens).reference, self.inputs(tokens))

    def library_us(self, tokens: int) -> dict[str, Json]:
        """Measure what the library runs where no kernel serves; nothing where it has no program."""
        program = library_program(self.recipe)
        if program is None:
            return {}
        inputs = self.inputs(tokens)
        outs = [self.new_outs(tokens)[0] for _ in inputs]
        return {"library_us": self.time(calls_of(program, inputs, outs))}

    def candidate(self, tokens: int, library: Library, *, promised: bool = True) -> dict[str, Json]:
        """Compare a candidate's result with float64; where it is right, measure its time."""
        recipe = self.recipe
        names = [name for name, dims in recipe.inputs.items() if not dims.partition(":")[0]]
        how = How(tokens, tuple(recipe.scalars[name] for name in names), promised)
        inputs = self.inputs(tokens)
        made = self.new_outs(tokens)
        library.call(made, inputs[0], how)()
        error, eager = self.errors(made, inputs[0], tokens)
        if not error <= recipe.tolerance * eager:
            return {"failed": f"its error is {error:.2e}, PyTorch's {eager:.2e}"}
        outs = [made, *(tuple(map(torch.empty_like, made)) for _ in inputs[1:])]
        pairs = zip(outs, inputs, strict=True)
        return {"us": self.time([library.call(o, i, how) for o, i in pairs]), "error": error}

    def time(self, calls: Sequence[Callable[[], None]]) -> float:
        """Return the time of a call, rotating over them."""
        return graph_microseconds(calls)

    def errors(self, made: Inputs, inputs: Inputs, tokens: int) -> tuple[float, float]:
        """Return the largest relative errors of results and of eager's."""
        whole = self.sets(tokens).oracle
        oracle = tuple(o[: m.shape[0]] for o, m in zip(whole, made, strict=True))
        eager = self.workload(tokens).reference(*inputs)
        return largest_error(made, oracle), largest_error(eager, oracle)


@dataclass
class Worker:
    """Answers questions about a folder's libraries; one kernel's or call's tensors are kept."""

    folder: Path
    manifest: Manifest
    reader: FloorReader
    benches: dict[str, Bench | PagedBench] = field(default_factory=dict)
    floors: dict[int, float] = field(default_factory=dict)

    def answer(self, question: dict[str, Json]) -> dict[str, Json]:
        """Answer one question."""
        if "environment" in question:
            here = asdict(environment(command=str(question["environment"]), commit=""))
            return {"environment": {name: value for name, value in here.items() if value}}
        name, call = str(question["kernel"]), str(question["call"])
        kernel = next(k for k in self.manifest.kernels if k.key.name == name)
        library = self.folder / str(question["library"]) if "library" in question else None
        if not kernel.tokens:
            return self.of_paged(kernel, call, (library, bool(question.get("promised"))))
        bench, tokens = self.bench(kernel), int(call)
        if library is None:
            floor, eager = self.floor_us(bench, tokens), bench.eager_us(tokens)
            return {"floor_us": floor, "eager_us": eager} | bench.library_us(tokens)
        promised = bool(question["promised"])
        return bench.candidate(tokens, Library.load(library), promised=promised)

    def of_paged(
        self, kernel: Compiled, call: str, what: tuple[Path | None, bool]
    ) -> dict[str, Json]:
        """Answer a question about a call over a cache; `what` = a candidate, and its flags."""
        library, promised = what
        among = (*workloads_of(kernel.key), *dense_calls(kernel.key))
        bench = self.paged(kernel.key.name, next(n for n in among if n.name == call))
        if library is None:
            return bench.peers(self.floor_of)
        return bench.candidate(PagedLibrary.load(library), promised=promised)

    def floor_us(self, bench: Bench, tokens: int) -> float:
        """Measure the floor; as many bytes of another kernel have the same."""
        return self.floor_of(bench.bytes(tokens))

    def floor_of(self, size: int) -> float:
        """Measure the floor of so many bytes once."""
        if size not in self.floors:
            self.floors[size] = floor_microseconds(self.reader, size)
        return self.floors[size]

    def bench(self, kernel: Compiled) -> Bench:
        """Return a kernel's buffers."""
        made = self.kept(kernel.key.name, lambda: Bench(kernel))
        assert isinstance(made, Bench)
        return made

    def paged(self, kernel: str, named: Named) -> PagedBench:
        """Return a call's tensors."""
        made = self.kept(f"{kernel} {named.name}", lambda: PagedBench(named.call, named.causal))
        assert isinstance(made, PagedBench)
        return made

    def kept(self, name: str, make: Callable[[], Bench | PagedBench]) -> Bench | PagedBench:
        """Return tensors by name, giving back those that were asked for before."""
        if name not in self.benches:
            self.benches.clear()
            torch.cuda.empty_cache()
            self.benches[name] = make()
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
