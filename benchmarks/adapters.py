"""Measures stacked adapters: lora_linear with a number per token, beside PyTorch's programs.

    python benchmarks/adapters.py --json benchmarks/results/adapters.json

Cold, under CUDA graphs, as `mirage-kernels bench` measures; the floor is the time to read the
weight, the tokens and the adapters in use. Peers: the library's own PyTorch program, which runs
where no kernel serves a call, and a loop over the adapters in use, which the host has to know.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import torch

from mirage_kernels import constant_weights, lora_linear
from mirage_kernels.generator.bench.measure import (
    floor_microseconds,
    graph_microseconds,
    rotation_count,
)
from mirage_kernels.generator.bench.workload import TORCH_DTYPES, relative_error
from mirage_kernels.generator.commands.bench import document_of, measured_here
from mirage_kernels.generator.records.files import write_whole

K, N, STACK, SCALE = 4096, 4096, 64, 2.0
DTYPES = {dtype.value: kind for dtype, kind in TORCH_DTYPES.items()}
Inputs = tuple[torch.Tensor, ...]


@dataclass(frozen=True)
class Calls:
    """One workload: so many tokens that have so many of the adapters, in turns."""

    dtype: str
    rank: int
    tokens: int
    used: int

    @property
    def ids(self) -> torch.Tensor:
        """Return the tokens' numbers; the adapters in use are spread over the stack."""
        if self.used == 0:
            return torch.full((self.tokens,), -1, dtype=torch.int32, device="cuda")
        order = torch.arange(self.tokens, dtype=torch.int32, device="cuda")
        return order % self.used * (STACK // self.used)

    @property
    def bytes_read(self) -> int:
        """Return the bytes that a call must read."""
        return 2 * (N * K + self.tokens * K + self.used * self.rank * (K + N))

    def inputs(self, seed: int) -> Inputs:
        """Draw x, weight, both stacks, and the numbers."""
        draw = torch.Generator("cuda").manual_seed(seed)

        def drawn(*shape: int, scale: float = 1.0) -> torch.Tensor:
            data = torch.randn(shape, generator=draw, device="cuda", dtype=DTYPES[self.dtype])
            return data.mul_(scale)

        stack_a = drawn(STACK, self.rank, K, scale=K**-0.5)
        stack_b = drawn(STACK, N, self.rank, scale=self.rank**-0.5)
        return drawn(self.tokens, K), drawn(N, K, scale=K**-0.5), stack_a, stack_b, self.ids

    def by_adapter(self, *inputs: torch.Tensor) -> torch.Tensor:
        """Compute it adapter by adapter; the host knows which tokens have which."""
        x, weight, lora_a, lora_b, _ = inputs
        y = x @ weight.t()
        for number in range(self.used):
            rows = slice(number, None, self.used)
            adapter = number * (STACK // self.used)
            y[rows] += SCALE * (x[rows] @ lora_a[adapter].t() @ lora_b[adapter].t())
        return y


def ours(*inputs: torch.Tensor) -> torch.Tensor:
    """Call the op."""
    x, weight, lora_a, lora_b, ids = inputs
    return lora_linear(x, weight, lora_a, lora_b, SCALE, adapter_ids=ids)


def library(*inputs: torch.Tensor) -> torch.Tensor:
    """Call PyTorch's program."""
    x, weight, lora_a, lora_b, ids = inputs
    out = x.new_empty(x.shape[0], N)
    program = torch.ops.mirage_kernels._lora_linear_library.batched
    program(x, weight, lora_a, lora_b, ids, SCALE, None, out=out)
    return out


def cold(launch: Callable[..., torch.Tensor], sets: Sequence[Inputs]) -> float:
    """Time a launch while rotating over input sets."""
    return graph_microseconds([partial(launch, *inputs) for inputs in sets])


def exact(calls: Calls, inputs: Inputs) -> torch.Tensor:
    """Return the result in float64."""
    return calls.by_adapter(*(t.double() if t.is_floating_point() else t for t in inputs))


def measured(calls: Calls) -> dict[str, object]:
    """Measure one workload."""
    sets = [calls.inputs(n) for n in range(rotation_count(calls.bytes_read))]
    oracle = exact(calls, sets[0])
    times = {
        "floor_us": floor_microseconds(calls.bytes_read),
        "ours_us": cold(ours, sets),
    }
    constant_weights()
    times["promised_us"] = cold(ours, sets)
    constant_weights(False)
    times["library_us"] = cold(library, sets)
    times["by_adapter_us"] = cold(calls.by_adapter, sets)
    errors = {
        "error_ours": relative_error(ours(*sets[0]), oracle),
        "error_library": relative_error(library(*sets[0]), oracle),
    }
    return {**asdict(calls), "K": K, "N": N, "stack": STACK, **times, **errors}


def workloads(arguments: argparse.Namespace) -> Iterator[Calls]:
    """Yield what was asked for."""
    for dtype in arguments.dtype:
        for rank in arguments.rank:
            for tokens in arguments.m:
                for used in (u for u in arguments.used if u <= tokens):
                    yield Calls(dtype, rank, tokens, used)


def main() -> int:
    """Measure, print, and write JSON where asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--dtype", nargs="+", default=[*DTYPES], choices=[*DTYPES])
    parser.add_argument("--rank", nargs="+", type=int, default=[16, 64])
    parser.add_argument("-m", nargs="+", type=int, default=[1, 8, 16, 32, 64])
    parser.add_argument("--used", nargs="+", type=int, default=[0, 1, 4, 16, 64])
    arguments = parser.parse_args()
    rows = []
    for calls in workloads(arguments):
        row = measured(calls)
        rows.append(row)
        words = (f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in row.items())
        print(", ".join(words), flush=True)
    if arguments.json is not None:
        here = measured_here("python benchmarks/adapters.py")
        write_whole(arguments.json, document_of(here, rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
