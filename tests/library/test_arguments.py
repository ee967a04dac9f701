"""A wrong call gets one sentence: the op, the argument, what was given, what would work.

The checks are those of the GPU path: compiled code that CPU tensors pass through too.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from mirage_kernels import rms_norm_linear
from mirage_kernels.errors import InferenceOnlyError

K, N = 64, 96
X = torch.ones(2, 3, K).half()
NORM_WEIGHT = torch.ones(K).half()
WEIGHT = torch.ones(N, K).half()
PREFIX = "mirage_kernels::rms_norm_linear: "


def one_element_in(tensor: Tensor) -> Tensor:
    """Return the same values, starting two bytes behind an aligned address."""
    return torch.cat([tensor.new_zeros(1), tensor.flatten()])[1:].view(tensor.shape)


WRONG_CALLS = {
    "x of another dtype": (
        (X.float(), NORM_WEIGHT, WEIGHT),
        "x has dtype float32; float16 and bfloat16 work",
    ),
    "x without dims": (
        (X.new_zeros(()), NORM_WEIGHT, WEIGHT),
        "x has no dims; a tensor [..., K] with at least one works",
    ),
    "norm_weight of another dtype": (
        (X, NORM_WEIGHT.bfloat16(), WEIGHT),
        "norm_weight has dtype bfloat16, but x has float16; give both the same dtype",
    ),
    "norm_weight of another length": (
        (X, NORM_WEIGHT[:7], WEIGHT),
        "norm_weight has shape [7], but x of shape [2, 3, 64] needs [K] = [64]",
    ),
    "transposed weight": (
        (X, NORM_WEIGHT, WEIGHT.t()),
        "weight has shape [64, 96], but x of shape [2, 3, 64] needs [N, K] = [any, 64]",
    ),
    "weight with one dim": (
        (X, NORM_WEIGHT, WEIGHT[0]),
        "weight has shape [64], but x of shape [2, 3, 64] needs [N, K] = [any, 64]",
    ),
    "weight that is not contiguous": (
        (X, NORM_WEIGHT, WEIGHT.new_ones(N, 2 * K)[:, :K]),
        "weight of shape [96, 64] is not contiguous; pass weight.contiguous(), made once and kept",
    ),
    "weight at an odd address": (
        (X, NORM_WEIGHT, one_element_in(WEIGHT)),
        "weight does not start at a multiple of 16 bytes; pass weight.clone(), made once and kept",
    ),
    "negative eps": (
        (X, NORM_WEIGHT, WEIGHT, -1.0),
        "eps is -1; a finite number that is not negative works, such as 1e-6",
    ),
}


@pytest.mark.parametrize("call", WRONG_CALLS)
def test_wrong_argument_gets_a_sentence(call: str) -> None:
    args, sentence = WRONG_CALLS[call]
    with pytest.raises(RuntimeError) as raised:
        rms_norm_linear(*args)
    assert str(raised.value) == PREFIX + sentence


WRONG_OUTS = {
    "of another shape": (
        WEIGHT.new_empty(3, N),
        "out has shape [3, 96], but x of shape [2, 3, 64] needs [..., N] = [2, 3, 96]",
    ),
    "of another dtype": (
        torch.empty(2, 3, N),
        "out has dtype float32, but x has float16; give both the same dtype",
    ),
    "not contiguous": (
        WEIGHT.new_empty(2, 3, 2 * N)[..., :N],
        "out of shape [2, 3, 96] is not contiguous from a multiple of 16 bytes on; a tensor from "
        "torch.empty is",
    ),
    "in the weight's memory": (
        WEIGHT.view(-1)[: 6 * N].view(2, 3, N),
        "out shares memory with weight; give it memory of its own",
    ),
}


@pytest.mark.parametrize("out", WRONG_OUTS)
def test_wrong_out_gets_a_sentence(out: str) -> None:
    tensor, sentence = WRONG_OUTS[out]
    with pytest.raises(RuntimeError) as raised:
        rms_norm_linear(X, NORM_WEIGHT, WEIGHT, out=tensor)
    assert str(raised.value) == PREFIX + sentence


@pytest.mark.parametrize("name", ["x", "norm_weight", "weight"])
def test_input_that_requires_grad_is_refused_by_name(name: str) -> None:
    tensors = {"x": X, "norm_weight": NORM_WEIGHT, "weight": WEIGHT}
    tensors[name] = tensors[name].clone().requires_grad_()
    with pytest.raises(InferenceOnlyError, match=f"{PREFIX}{name} requires grad.*inference_mode"):
        rms_norm_linear(**tensors)


def test_what_is_no_tensor_is_refused_by_name() -> None:
    with pytest.raises(RuntimeError, match="Expected a value of type 'Tensor' for argument 'x'"):
        rms_norm_linear([1.0], NORM_WEIGHT, WEIGHT)  # type: ignore[arg-type]
