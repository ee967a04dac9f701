"""A wrong call gets one sentence: the op, the argument, what was given, what would work.

The checks are those of the GPU path: compiled code that CPU tensors pass through too. Arguments of
a wrong type, kinds of tensors that no program reads, and gradients are refused in Python: PyTorch's
dispatcher would refuse them in a page, or take them and drop the gradient.
"""

from __future__ import annotations

import pickle
import re
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad
from wrong_calls import GOOD, NORM_WEIGHT, WEIGHT, WRONG, X

import mirage_kernels
from mirage_kernels import rms_norm_linear
from mirage_kernels.errors import ExtensionMissingError, InferenceOnlyError, TorchTooOldError


def described(value: object) -> str:
    """Describe an argument as far as it can be seen."""
    if isinstance(value, tuple):
        return f"({', '.join(map(described, value))})"
    if not isinstance(value, Tensor):
        plain = value is None or isinstance(value, int | float | str | list)
        return repr(value)[:30] if plain else type(value).__name__
    if value.is_nested or value.is_sparse:
        return "nested" if value.is_nested else "sparse"
    dtype = str(value.dtype).removeprefix("torch.")
    strided = "" if value.is_contiguous() else f" of strides {list(value.stride())}"
    there = " on meta" if value.is_meta else ""
    return f"{dtype} {list(value.shape)}{strided}{there}"


def test_wrong_calls_get_a_sentence(golden: Callable[[str, str], None]) -> None:
    text = ""
    for call, wrong in ((call, wrong) for call, every in WRONG.items() for wrong in every):
        op = call.partition(" ")[0]
        with pytest.raises(RuntimeError) as raised:
            getattr(mirage_kernels, op)(**GOOD[call] | wrong)
        assert re.fullmatch(f"mirage_kernels::{op}: .+", str(raised.value)), wrong
        changed = ", ".join(f"{name} = {described(value)}" for name, value in wrong.items())
        text += f"{call} with {changed}\n    {raised.value}\n"
    golden("wrong_calls.txt", text)


def test_numbers_may_be_numpys_and_tensors_of_one_element() -> None:
    expected = rms_norm_linear(X, NORM_WEIGHT, WEIGHT, 0.5)
    for eps in (np.float32(0.5), torch.tensor(0.5)):
        assert torch.equal(rms_norm_linear(X, NORM_WEIGHT, WEIGHT, eps), expected)


@pytest.mark.parametrize("op", ["rms_norm_linear", "gated_mlp"])
def test_dims_without_elements_are_fine_on_the_cpu(op: str) -> None:
    weights = (NORM_WEIGHT,) if op == "rms_norm_linear" else ()
    assert getattr(mirage_kernels, op)(X, *weights, WEIGHT[:0]).shape == (2, 3, 0)
    empty = tuple(weight[:0] for weight in weights)
    y = getattr(mirage_kernels, op)(X[..., :0], *empty, torch.ones(8, 0).half())
    assert y.shape == (2, 3, 8 if weights else 4)
    assert not y.any()


def test_results_of_a_pair_do_not_share_memory() -> None:
    weight = torch.eye(64).half()
    both = torch.empty(2, 3, 64).half()
    with pytest.raises(RuntimeError, match="total shares memory with out; give it memory of its"):
        rms_norm_linear(X, NORM_WEIGHT, weight, residual=X, out=(both, both))


def test_every_input_that_requires_grad_is_refused_by_name(case) -> None:
    arguments = case.arguments(2)
    for name in set(case.tensors) - {"adapter_ids"}:
        given = arguments | {name: arguments[name].clone().requires_grad_()}
        sentence = f"mirage_kernels::{case.op}: {name} requires grad.*inference_mode"
        with pytest.raises(InferenceOnlyError, match=sentence):
            case.call(**given)


def test_every_result_that_requires_grad_is_refused(case) -> None:
    arguments, outs = case.arguments(2), case.poisoned(2)
    outs[-1].requires_grad_()
    with pytest.raises(InferenceOnlyError, match=r"(out|total) requires grad"):
        case.into(outs, arguments)
    with torch.no_grad():
        assert case.into(outs, arguments)[-1] is outs[-1]


@pytest.mark.parametrize("records", [True, False])
def test_forward_mode_is_refused(case, records: bool) -> None:
    arguments = case.arguments(2)
    with torch.set_grad_enabled(records), forward_ad.dual_level():
        case.call(**arguments)
        for name in set(case.tensors) - {"adapter_ids"}:
            tensor = arguments[name]
            given = arguments | {name: forward_ad.make_dual(tensor, tensor)}
            sentence = f"mirage_kernels::{case.op}: {name} carries a tangent.*unpack_dual"
            with pytest.raises(InferenceOnlyError, match=sentence):
                case.call(**given)


def test_forward_mode_of_a_function_is_refused_where_nothing_is_recorded() -> None:
    def norm_linear(x: Tensor) -> Tensor:
        return rms_norm_linear(x, NORM_WEIGHT, WEIGHT)

    with torch.no_grad(), pytest.raises(InferenceOnlyError, match="x carries a tangent"):
        torch.func.jvp(norm_linear, (X,), (X,))


@pytest.mark.parametrize("error", [ExtensionMissingError, TorchTooOldError, InferenceOnlyError])
def test_errors_can_be_pickled(error: type[Exception]) -> None:
    assert str(pickle.loads(pickle.dumps(error("a sentence")))) == "a sentence"
