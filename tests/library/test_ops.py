"""Every op on CPU tensors: PyTorch's own program behind the op's real front door."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from exact import results, same
from torch import Tensor
from torch.nn.functional import linear

from mirage_kernels import linear as linear_op
from mirage_kernels import lora_linear, rms_norm_linear
from mirage_kernels.generator.recipe import load_recipe
from mirage_kernels.library import ACTIVATIONS

DTYPES = [torch.float16, torch.bfloat16]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("tokens", [1, 7])
def test_is_close_to_float64(case, tokens: int, dtype: torch.dtype) -> None:
    case = replace(case, dtype=dtype)
    arguments = case.arguments(tokens)
    for y, exact in zip(results(case.call(**arguments)), case.oracle(arguments), strict=True):
        assert y.dtype == dtype
        assert y.shape == exact.shape
        error = (y.double() - exact).norm() / exact.norm()
        assert error < 3 * torch.finfo(dtype).eps


@pytest.mark.parametrize("dtype", DTYPES)
def test_is_exact_on_small_integers(case, dtype: torch.dtype) -> None:
    if case.integers is None:
        pytest.skip("the activation is not exact")
    case = replace(case, dtype=dtype)
    arguments = case.integer_arguments(5)
    for y, exact in zip(results(case.call(**arguments)), case.oracle(arguments), strict=True):
        assert torch.equal(y, exact.to(dtype))


@pytest.mark.parametrize("leading", [(), (1,), (2, 3), (2, 1, 3), (0,), (2, 0)])
def test_takes_any_leading_dims(case, leading: tuple[int, ...]) -> None:
    arguments = case.arguments(*leading)
    for y, exact in zip(results(case.call(**arguments)), case.oracle(arguments), strict=True):
        assert y.shape == exact.shape
        assert torch.allclose(y.double(), exact, atol=0.03)


def test_takes_strided_rows(case) -> None:
    arguments = case.arguments(5)
    x = arguments[case.first]
    wide = torch.full((5, x.shape[1] + 8), torch.nan, dtype=x.dtype)
    wide[:, : x.shape[1]] = x
    strided = arguments | {case.first: wide[:, : x.shape[1]]}
    assert same(case.call(**strided), case.call(**arguments))


def test_writes_out_and_returns_it(case) -> None:
    arguments = case.arguments(2, 3)
    outs = case.poisoned(2, 3)
    returned = case.into(outs, arguments)
    assert all(a is b for a, b in zip(returned, outs, strict=True))
    assert same(outs, case.call(**arguments))


def test_changes_no_input(case) -> None:
    arguments = case.arguments(4)
    before = {n: v.clone() for n, v in arguments.items() if isinstance(v, Tensor)}
    case.call(**arguments)
    assert all(torch.equal(arguments[name], value) for name, value in before.items())


def test_autocast_changes_nothing(case) -> None:
    arguments = case.arguments(5)
    expected = case.call(**arguments)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert same(case.call(**arguments), expected)


@pytest.mark.parametrize("guard", [torch.no_grad, torch.inference_mode])
def test_runs_on_parameters_where_gradients_are_off(case, guard: Callable[[], object]) -> None:
    arguments = case.arguments(3)
    name = next(n for n in reversed(case.tensors) if n != "adapter_ids")
    with guard():  # type: ignore[attr-defined]
        y = case.call(**arguments | {name: torch.nn.Parameter(arguments[name])})
    assert not any(t.requires_grad for t in results(y))
    assert same(y, case.call(**arguments))


@pytest.mark.parametrize(
    "op", ["rms_norm_linear", "layer_norm_linear", "gated_mlp", "rms_norm_gated_mlp"]
)
def test_equals_the_recipes_reference_bit_for_bit(cases, op: str) -> None:
    arguments = cases[op].arguments(7)
    assert same(cases[op].call(**arguments), load_recipe(op).reference(**arguments))


def test_the_composite_program_adds_what_the_options_add(case) -> None:
    """On the CPU, where the op inside of it runs PyTorch's program."""
    if not case.options or case.takes_any_size:
        pytest.skip("nothing goes around a kernel")
    arguments = case.arguments(5) | ({"eps": 1e-6} if "norm_weight" in case.tensors else {})
    for y, exact in zip(case.program("composite", arguments), case.oracle(arguments), strict=True):
        assert (y.double() - exact).norm() / exact.norm() < 3e-3


def test_eps_defaults_to_one_millionth_and_is_honoured(cases) -> None:
    arguments = cases["rms_norm_linear"].arguments(3) | {"eps": 1e-6}
    unnamed = {name: value for name, value in arguments.items() if name != "eps"}
    assert same(rms_norm_linear(**unnamed), rms_norm_linear(**arguments))
    assert not same(rms_norm_linear(**unnamed), rms_norm_linear(**arguments | {"eps": 1.0}))


def test_the_residual_pair_is_the_sum_and_the_op_of_the_sum(cases) -> None:
    arguments = cases["rms_norm_linear"].arguments(3)
    residual = torch.randn(3, 64).half()
    y, total = rms_norm_linear(**arguments, residual=residual)
    assert torch.equal(total, arguments["x"] + residual)
    assert torch.equal(y, rms_norm_linear(**arguments | {"x": total}))


@pytest.mark.parametrize("adapters", [1, 5, 40])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_each_token_has_its_own_adapter_however_many_there_are(
    cases, adapters: int, dtype: torch.dtype
) -> None:
    case = replace(cases["lora_linear batched"], sizes={"K": 64, "N": 96, "R": 8, "A": adapters})
    arguments = case.arguments(2, 3)
    arguments["adapter_ids"] = torch.tensor([[0, -1, adapters - 1], [-1, 0, 0]], dtype=dtype)
    (exact,) = case.oracle(arguments)
    assert torch.allclose(case.call(**arguments).double(), exact, atol=0.02)


@pytest.mark.parametrize("adapters", [2, 40])
def test_numbers_of_no_adapter_mean_none_to_the_program(cases, adapters: int) -> None:
    """Checking mode, always on for the CPU, refuses them before the program runs."""
    case = replace(cases["lora_linear batched"], sizes={"K": 64, "N": 96, "R": 8, "A": adapters})
    arguments = case.arguments(3) | {"adapter_ids": torch.tensor([-1, adapters, -7])}
    (y,) = case.program("library", arguments)
    assert torch.equal(y, linear(arguments["x"], arguments["weight"]))


def test_an_infinite_token_leaves_other_tokens_alone(cases) -> None:
    arguments = cases["lora_linear batched"].arguments(3)
    arguments["adapter_ids"] = torch.tensor([0, 1, 2])
    before = lora_linear(**arguments)
    arguments["x"][1] = torch.inf
    after = lora_linear(**arguments)
    assert torch.equal(after[[0, 2]], before[[0, 2]])
    assert not torch.isfinite(after[1]).any()


@pytest.mark.parametrize("op", ["rms_norm", "layer_norm", "ntrans"])
def test_norms_whose_sums_fp16_cannot_hold_are_summed_in_fp32(cases, op: str) -> None:
    case = replace(cases[op], sizes={"K": 4096})
    arguments = case.arguments(3)
    arguments["x"] = (arguments["x"].float() * 1200).half()
    (exact,) = case.oracle(arguments)
    assert (case.call(**arguments).double() - exact).norm() / exact.norm() < 1e-3


def test_accepts_what_a_gpu_would_not_cover() -> None:
    x, norm_weight, weight = torch.ones(2, 24), torch.ones(24), torch.ones(5, 24)
    y = rms_norm_linear(x.half(), norm_weight.half(), weight.half(), 0.0)
    assert torch.equal(y, torch.full((2, 5), 24.0).half())


def test_what_fails_in_pytorchs_program_is_said(cases, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(x: Tensor) -> Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 3 apples.")

    monkeypatch.setitem(ACTIVATIONS, "silu", fails)
    with pytest.raises(RuntimeError) as raised:
        cases["gated_mlp"].call(**cases["gated_mlp"].arguments(2))
    assert str(raised.value) == (
        "mirage_kernels::gated_mlp: PyTorch's own program failed: CUDA out of memory. Tried to "
        "allocate 3 apples."
    )


@pytest.mark.parametrize("tokens", [1, 7])
@pytest.mark.parametrize("with_bias", [False, True])
def test_linear_adds_to_residual_in_place(tokens: int, with_bias: bool) -> None:
    x, weight, bias, residual = (
        torch.randn(*shape).half() for shape in [(tokens, 64), (96, 64), (96,), (tokens, 96)]
    )
    given = bias if with_bias else None
    expected = linear_op(x, weight, given, residual=residual)
    assert linear_op(x, weight, given, residual=residual, out=residual) is residual
    assert torch.equal(residual, expected)


def test_linear_refuses_out_that_overlaps_residual_elsewhere() -> None:
    x, weight, rows = torch.ones(2, 64).half(), torch.ones(96, 64).half(), torch.ones(3, 96).half()
    with pytest.raises(RuntimeError, match="out shares memory with residual"):
        linear_op(x, weight, residual=rows[:2], out=rows[1:])


def test_linear_refuses_out_that_is_x() -> None:
    x, weight = torch.ones(2, 64).half(), torch.ones(64, 64).half()
    with pytest.raises(RuntimeError, match="out shares memory with x"):
        linear_op(x, weight, residual=torch.ones(2, 64).half(), out=x)
