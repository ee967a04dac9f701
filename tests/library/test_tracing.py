"""What torch.compile, torch.export and opcheck ask of an op."""

from __future__ import annotations

import pytest
import torch
from exact import results, same
from torch import Tensor
from torch._dynamo.testing import CompileCounter
from torch._subclasses.fake_tensor import FakeTensorMode

from mirage_kernels import rms_norm_linear
from mirage_kernels.signatures import signatures

OPS = torch.ops.mirage_kernels
pytestmark = pytest.mark.usefixtures("fresh_compiler")


def test_compiles_without_a_graph_break(case) -> None:
    arguments = case.arguments(5)
    compiled = torch.compile(case.call, fullgraph=True, backend="aot_eager")
    assert same(compiled(**arguments), case.call(**arguments))


def test_compiles_once_for_every_number_of_tokens(case) -> None:
    counter = CompileCounter()
    compiled = torch.compile(case.call, fullgraph=True, backend=counter, dynamic=True)
    for tokens in (3, 5, 8):
        arguments = case.arguments(tokens)
        assert same(compiled(**arguments), case.call(**arguments))
    assert counter.frame_count == 1


def test_out_compiles_as_a_mutation(case) -> None:
    def write(**arguments: object) -> Tensor:
        outs = tuple(torch.empty_like(t) for t in poisoned)
        return torch.cat([t + 1 for t in case.into(outs, arguments)], -1)

    arguments, poisoned = case.arguments(5), case.poisoned(5)
    compiled = torch.compile(write, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(**arguments), write(**arguments))


def test_exports(case) -> None:
    class Projection(torch.nn.Module):
        def forward(self, **arguments: object) -> object:
            return case.call(**arguments)

    program = torch.export.export(Projection(), (), case.arguments(5))
    ours = [n for n in program.graph.nodes if str(n.target).startswith(f"mirage_kernels.{case.op}")]
    assert len(ours) == 1


# Names and sizes of one call per overload, in the order of its parameters.
VALUES = {"eps": 1e-6, "scale": 0.5, "activation": "gelu", "weight_offset": 1.0}
SMALL = {"K": 64, "N": 96, "R": 8, "A": 5}
SIGNATURES = {s.name().partition("::")[2]: s for s in signatures() if s.has_named_dims}


def drawn(axes, sizes: dict[str, int], tokens: int, device: str) -> Tensor:
    shape = [tokens if a.letter == "M" else a.factor * sizes[a.letter] for a in axes]
    return torch.randn(shape, device=device).half()


def argument(parameter, sizes: dict[str, int], device: str = "cpu") -> object:
    if parameter.kind == "indices":
        return torch.randint(-1, sizes["A"], (5,), device=device)
    if parameter.axes:
        return drawn(parameter.axes, sizes, 5, device)
    return VALUES[parameter.name]


@pytest.mark.parametrize("name", SIGNATURES)
@pytest.mark.parametrize("with_out", [False, True])
def test_passes_opcheck(name: str, with_out: bool) -> None:
    signature = SIGNATURES[name]
    args = tuple(argument(p, SMALL) for p in signature.parameters)
    outs = {r.name: drawn(r.axes, SMALL, 5, "cpu") for r in signature.results}
    overload = "_".join(filter(None, (signature.overload, "out" if with_out else "")))
    op = getattr(getattr(OPS, signature.op), overload or "default")
    torch.library.opcheck(op, args, outs if with_out else {})


@pytest.mark.gpu
@pytest.mark.parametrize("with_out", [False, True])
def test_passes_opcheck_on_a_gpu(with_out: bool) -> None:
    sizes = {"K": 4096, "N": 6144}
    parameters = SIGNATURES["rms_norm_linear"].parameters
    args = tuple(argument(p, sizes, "cuda") for p in parameters)
    out = {"out": torch.empty(5, sizes["N"], device="cuda").half()} if with_out else {}
    op = OPS.rms_norm_linear.out if with_out else OPS.rms_norm_linear.default
    torch.library.opcheck(op, args, out)


def test_shapes_are_known_without_data(case) -> None:
    arguments = case.arguments(2, 3)
    real = results(case.call(**arguments))
    with FakeTensorMode() as mode:
        for name, value in arguments.items():
            if isinstance(value, Tensor):
                arguments[name] = mode.from_tensor(value)
        fake = results(case.call(**arguments))
    assert [(t.shape, t.dtype) for t in fake] == [(t.shape, t.dtype) for t in real]


WRONG_WHILE_TRACING = {
    "x has dtype torch.float32; float16 and bfloat16 work": {"x": torch.empty(2, 64)},
    r"weight has shape \[96, 65\], but \[96, 64\] is needed": {
        "weight": torch.empty(96, 65).half()
    },
    "weight has 1 dims, but 2 are needed": {"weight": torch.empty(64).half()},
    "norm_weight has dtype torch.float64; float16 works": {"norm_weight": torch.empty(64).double()},
    "weight is None; a tensor works": {"weight": None},
    r"bias has shape \[95\], but \[96\] is needed": {"bias": torch.empty(95).half()},
}


@pytest.mark.parametrize("sentence", WRONG_WHILE_TRACING)
def test_wrong_argument_is_refused_while_tracing(cases, sentence: str) -> None:
    arguments = cases["rms_norm_linear bias"].arguments(2) | WRONG_WHILE_TRACING[sentence]
    with FakeTensorMode() as mode:
        fakes = {
            name: None if value is None else mode.from_tensor(value)
            for name, value in arguments.items()
        }
        with pytest.raises(RuntimeError, match=f"mirage_kernels::rms_norm_linear: {sentence}"):
            rms_norm_linear(**fakes)
