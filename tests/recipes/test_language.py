"""The language says what it means: functions against PyTorch, int32 positions, errors."""

from __future__ import annotations

import inspect
import operator
import re
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest
import torch
import torch.nn.functional as F  # noqa: N812

from mirage_kernels.generator.errors import GraphError, RecipeError
from mirage_kernels.generator.frontend.symbolic import operators, spec_of
from mirage_kernels.generator.ir import (
    Builder,
    Dim,
    DType,
    Graph,
    Level,
    TensorType,
    check,
)
from mirage_kernels.generator.language import (
    Tensor,
    absolute,
    amax,
    amin,
    apply,
    contract,
    cos,
    elu,
    erf,
    exp,
    extent,
    floor,
    gelu,
    gelu_tanh,
    greater,
    greater_equal,
    group_norm,
    l2_norm,
    layer_norm,
    log,
    log1p,
    masked,
    maximum,
    mean,
    mish,
    positions,
    relu,
    rms_norm,
    round_half_even,
    rsqrt,
    sigmoid,
    silu,
    sin,
    soft_cap,
    softmax,
    softplus,
    sqrt,
    square,
    sum,
    tanh,
    where,
)
from mirage_kernels.generator.meaning.arrays import Array, array_reading
from mirage_kernels.generator.meaning.reals import FLOAT64
from mirage_kernels.generator.meaning.walk import results

Program = Callable[..., Tensor]
SIZES = {"M": 3, "G": 2, "K": 5, "N": 4, "B": 4, "T": 3, "L": 7}
INPUTS = {  # by name: dims, type
    "x": ("M G K", DType.FP16),
    "y": ("N G K", DType.FP16),
    "w": ("K", DType.FP16),
    "q": ("B T", DType.FP16),
    "k": ("B L", DType.FP16),
    "s": ("", DType.FP32),
    "lens": ("B", DType.INT32),
    "n": ("", DType.INT32),
}


def spec(program: Program) -> Graph:
    """Trace a program whose parameters are named like the inputs above."""
    builder = Builder(Level.KERNEL)
    arguments = []
    for name in inspect.signature(program).parameters:
        names, dtype = INPUTS[name]
        type_ = TensorType(tuple(Dim(d, SIZES[d]) for d in names.split()), dtype)
        arguments.append(Tensor(builder, builder.input(name, type_)))
    return check(spec_of(program(*arguments)))


def value(name: str) -> npt.NDArray[np.generic]:
    """Return what an input is in these tests: positive numbers; lengths from T to L."""
    names, dtype = INPUTS[name]
    rng = np.random.default_rng(len(name) + ord(name[0]))
    shape = [SIZES[d] for d in names.split()]
    return rng.uniform(0.1, 2, shape) if dtype.is_real else rng.integers(3, 8, shape)


def computed(program: Program, dims: str) -> torch.Tensor:
    """Read a traced program in float64; the result's axes in the order `dims`."""
    graph = spec(program)
    arguments = [
        Array(n.out.type.names, (value(n.name),), n.out.type.dtype.is_real) for n in graph.inputs
    ]
    (result,) = results(graph, arguments, array_reading(FLOAT64, SIZES))
    return torch.from_numpy(np.array(result.over(dims.split()).parts[0]))


X, Y, W, S = (torch.from_numpy(np.asarray(value(n))) for n in "xyws")
LENS = torch.from_numpy(value("lens"))
LATE = torch.arange(5) >= 2

FUNCTIONS: dict[str, tuple[Program, torch.Tensor]] = {
    "contract": (lambda x, y: contract(x, y, "K"), torch.einsum("mgk,ngk->mgn", X, Y)),
    "sum": (lambda x: sum(x, "K"), X.sum(-1)),
    "mean": (lambda x: mean(x, "K"), X.mean(-1)),
    "amax": (lambda x: amax(x - 1, "K"), (X - 1).amax(-1)),
    "amin": (lambda x: amin(x, "G K"), X.amin((1, 2))),
    "where": (lambda x: where(positions(x, "K") < 2, 0, x), X * LATE),
    "maximum": (lambda x, w: maximum(x, w), torch.maximum(X, W)),
    "exp": (lambda x: exp(x), X.exp()),
    "log": (lambda x: log(x), X.log()),
    "sqrt": (lambda x: sqrt(x), X.sqrt()),
    "rsqrt": (lambda x: rsqrt(x), X.rsqrt()),
    "square": (lambda x: square(x), X.square()),
    "sigmoid": (lambda x: sigmoid(x - 1), (X - 1).sigmoid()),
    "silu": (lambda x: silu(x - 1), F.silu(X - 1)),
    "gelu": (lambda x: gelu(x - 1), F.gelu(X - 1)),
    "gelu_tanh": (lambda x: gelu_tanh(x - 1), F.gelu(X - 1, approximate="tanh")),
    "tanh": (lambda x: tanh(x), X.tanh()),
    "relu": (lambda x: relu(x - 1), F.relu(X - 1)),
    "absolute": (lambda x: absolute(x - 1), (X - 1).abs()),
    "softplus": (lambda x: softplus(x - 1), F.softplus(X - 1)),
    "sin": (lambda x: sin(x * 3), (X * 3).sin()),
    "cos": (lambda x: cos(x * 3), (X * 3).cos()),
    "mish": (lambda x: mish(x - 1), F.mish(X - 1)),
    "elu": (lambda x: elu(x - 1), F.elu(X - 1)),
    "erf": (lambda x: erf(x - 1), (X - 1).erf()),
    "floor": (lambda x: floor(x * 3 - 3), (X * 3 - 3).floor()),
    "log1p": (lambda x: log1p(x * 1e-4), torch.log1p(X * 1e-4)),
    "round_half_even": (lambda x: round_half_even(x * 3 - 3), (X * 3 - 3).round()),
    "greater": (lambda x, w: greater(x, w), (X > W).double()),
    "greater_equal": (lambda x: greater_equal(x, x), torch.ones_like(X)),
    "masked": (lambda x, w: masked(greater(x, w), log(x)), torch.where(X > W, X.log(), 0.0)),
    "soft_cap": (lambda x, s: soft_cap(x, s), S * (X / S).tanh()),
    "softmax": (lambda x: softmax(x, "K"), X.softmax(-1)),
    "rms_norm": (
        lambda x, w, s: rms_norm(x, w, s, "K"),
        F.rms_norm(X, (5,), W, S.item()),
    ),
    "layer_norm": (lambda x, s: layer_norm(x, s, "K"), F.layer_norm(X, (5,), eps=S.item())),
    "group_norm": (
        lambda x, s: group_norm(x, s, "K"),
        F.group_norm(X.flatten(1), 2, eps=S.item()).reshape(3, 2, 5),
    ),
    "l2_norm": (lambda x: l2_norm(x, "K"), F.normalize(X, dim=-1)),
    "extent": (lambda x: x * extent(x, "K"), X * 5),
    "positions": (lambda x: x * positions(x, "K"), X * torch.arange(5)),
}


def dims_of(program: Program) -> str:
    """Return the dims of a program's result, in the order of the inputs' letters here."""
    graph = spec(program)
    names = graph.values[graph.outputs[0]].type.names
    return " ".join(d for d in ("M", "G", "K", "N") if d in names)


@pytest.mark.parametrize("name", operators())
def test_every_operator_is_what_pytorch_has_of_that_name(name: str) -> None:
    program, wanted = FUNCTIONS[name]
    found = computed(program, dims_of(program))
    torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-14)


SEVERAL: list[tuple[Program, str, torch.Tensor]] = [
    (lambda x: sum(x, "G K"), "M", X.sum((1, 2))),
    (lambda x: mean(x, "G K"), "M", X.mean((1, 2))),
    (lambda x, y: contract(x, y, "K G"), "M N", torch.einsum("mgk,ngk->mn", X, Y)),
    (lambda x: softmax(x, "G K"), "M G K", X.flatten(1).softmax(-1).reshape(X.shape)),
    (lambda x, s: layer_norm(x, s, "G K"), "M G K", F.layer_norm(X, (2, 5), eps=S.item())),
]


@pytest.mark.parametrize(("program", "dims", "wanted"), SEVERAL)
def test_over_may_name_several_dims(program: Program, dims: str, wanted: torch.Tensor) -> None:
    torch.testing.assert_close(computed(program, dims), wanted)


def test_a_softmax_leaves_out_what_its_mask_hides() -> None:
    found = computed(lambda x: softmax(x, "K", mask=positions(x, "K") > 1), "M G K")
    torch.testing.assert_close(found, X.masked_fill(~LATE, -torch.inf).softmax(-1))


def test_numbers_stand_on_either_side() -> None:
    found = computed(lambda x: -x * (1 - 2 / (3 + 4 * x) - x / 5), "M G K")
    torch.testing.assert_close(found, -X * (1 - 2 / (3 + 4 * X) - X / 5))


# Of int32: key and token positions and lengths, as [B T L].
KEY, TOKEN, LENGTH = torch.arange(7), torch.arange(3)[:, None], LENS[:, None, None]
POSITIONS: dict[str, tuple[Program, torch.Tensor]] = {
    "sum": (lambda q, k, lens: positions(q, "T") + lens + positions(k, "L"), TOKEN + LENGTH + KEY),
    "difference": (lambda q, k, lens: 3 - positions(k, "L") - lens, 3 - KEY - LENGTH),
    "product": (lambda q, k, lens: lens * positions(k, "L") * -2, LENGTH * KEY * -2),
    "negative": (lambda q, k, lens: -positions(k, "L") + lens, LENGTH - KEY),
    "maximum": (lambda q, k, lens: maximum(lens - 5, positions(k, "L")), (LENGTH - 5).maximum(KEY)),
    "extent": (lambda q, k, lens: positions(k, "L") - (extent(q, "T") * 2 + 1), KEY - 7),
    "less": (lambda q, k, lens: positions(k, "L") < lens, KEY < LENGTH),
    "at most": (lambda q, k, lens: positions(k, "L") <= lens - 1, KEY <= LENGTH - 1),
    "more": (lambda q, k, lens: positions(k, "L") > lens, KEY > LENGTH),
    "at least": (lambda q, k, lens: positions(k, "L") >= lens - 3, KEY >= LENGTH - 3),
    "number on the left": (lambda q, k, lens: operator.le(2, positions(k, "L")), KEY >= 2),
    "both": (lambda q, k, lens: (lens > 1) & (positions(k, "L") < 4), (LENGTH > 1) & (KEY < 4)),
}


@pytest.mark.parametrize("name", POSITIONS)
def test_positions_are_computed_in_int32(name: str) -> None:
    program, wanted = POSITIONS[name]
    kinds = {n.out.type.dtype for n in spec(program).nodes if n.name not in ("q", "k")}
    assert kinds <= {DType.INT32, DType.BOOL}
    assert torch.equal(*torch.broadcast_tensors(computed(program, "B T L"), wanted))


def causal(q: Tensor, k: Tensor, lens: Tensor) -> Tensor:
    """The mask of causal attention, as README.md has it."""
    last = lens - extent(q, "T") + positions(q, "T")
    return where(positions(k, "L") <= last, 1, 0) * k


def test_the_causal_mask_is_aligned_at_the_bottom_right() -> None:
    seen = computed(causal, "B T L") != 0
    for length, mask in zip(LENS.tolist(), seen, strict=True):
        assert torch.equal(mask[:, :length], torch.ones(3, length).tril(length - 3).bool())
        assert not mask[:, length:].any()


def test_the_same_number_is_one_constant_of_each_type() -> None:
    graph = spec(lambda k, lens: where(positions(k, "L") < lens + 2 + 2, k * 2, k + 2))
    kinds = sorted(n.out.type.dtype.value for n in graph.of("const"))
    assert kinds == ["fp32", "int32"]


def test_a_position_times_a_real_tensor_is_real() -> None:
    graph = spec(lambda k, s: k + positions(k, "L") * s)
    assert graph.values[graph.outputs[0]].type.dtype is DType.FP32


def test_what_the_result_does_not_need_is_left_out_of_the_spec() -> None:
    def program(x: Tensor, w: Tensor, s: Tensor) -> Tensor:
        mean(x * w, "K")
        return exp(x)

    assert [n.name for n in spec(program).nodes] == ["x", "w", "s", "exp_x"]


REFUSED: dict[str, tuple[Program, str]] = {
    "half a position": (lambda k: positions(k, "L") + 0.5, "0.5 meets positions or lengths"),
    "half a length": (lambda lens: 0.5 * lens, "0.5 meets positions .*whole numbers"),
    "beyond int32": (lambda lens: lens + 2**31, "2147483648 meets positions"),
    "exp of positions": (lambda k: exp(positions(k, "L")), "exp takes real .*position_L: int32"),
    "sum of lengths": (lambda lens: sum(lens, "B"), "sum takes real numbers, and lens"),
    "quotient of lengths": (lambda lens, n: lens / n, "div takes real numbers.*divided by 1"),
    "contracted lengths": (lambda k, lens: contract(k, lens, "B"), "contract takes real numbers"),
    "chosen lengths": (
        lambda k, lens: where(positions(k, "L") < lens, lens, k),
        "where takes real numbers, and lens",
    ),
    "compared reals": (lambda x, w: x < w, "positions and lengths compare, and x: fp16.*maximum"),
    "compared real number": (lambda x: x >= 0, "positions and lengths compare, and x"),
    "mask as a number": (lambda k, lens: (positions(k, "L") < lens) * k, "is a mask.*where"),
    "sum of a mask": (lambda k, lens: sum(positions(k, "L") < lens, "L"), "is a mask"),
    "joined numbers": (lambda x, w: x & w, "both takes a mask, and x"),
    "condition without a mask": (lambda x: where(x, x, 0), "where takes a mask, and x"),
    "condition that is a number": (lambda x: where(1, x, 0), "where takes a mask, and 1"),
    "minus infinity": (lambda x: x + -np.inf, r"finite numbers, not -inf.*where\(mask, exp"),
    "a division by zero": (lambda x: x / 0, "divides x by 0.*x \\+ eps"),
    "a truth value": (lambda x: x + True, "finite numbers, not True"),
    "text": (lambda x: x * "w", "finite numbers, not 'w'"),
    "numbers alone": (lambda x: exp(2.0), "exp takes a tensor, not 2.0"),
    "equality": (lambda k, lens: where(positions(k, "L") == lens, k, 0), "no == and !="),
    "no dim": (lambda x: sum(x, ""), "over= names no dim"),
    "an unknown op": (lambda x: apply("cumsum", x), "no operator 'cumsum'.*softmax"),
    "an op of blocks": (lambda x: apply("accum", x), "no operator 'accum'"),
    "a stabiliser": (lambda x: apply("peak", x, over="K"), "no operator 'peak'"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_has_no_meaning_is_refused_in_a_sentence_with_a_hint(name: str) -> None:
    program, words = REFUSED[name]
    with pytest.raises(RecipeError) as caught:
        spec(program)
    assert re.search(words, f"{caught.value.sentence}; {caught.value.hint}")
    assert caught.value.hint


def test_dims_that_do_not_fit_are_named() -> None:
    with pytest.raises(GraphError, match="no dim 'N'"):
        spec(lambda x, y: contract(x, y, "N"))
