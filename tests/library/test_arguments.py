"""A wrong call gets one sentence: the op, the argument, what was given, what would work.

The checks are those of the GPU path: compiled code that CPU tensors pass through too.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import mirage_kernels
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
    "x has dtype float32; float16 and bfloat16 work": (X.float(), NORM_WEIGHT, WEIGHT),
    "x has no dims; a tensor [..., K] with at least one works": (
        X.new_zeros(()),
        NORM_WEIGHT,
        WEIGHT,
    ),
    "norm_weight has dtype bfloat16, but x has float16; give both the same dtype": (
        X,
        NORM_WEIGHT.bfloat16(),
        WEIGHT,
    ),
    "norm_weight has shape [7], but x of shape [2, 3, 64] needs [K] = [64]": (
        X,
        NORM_WEIGHT[:7],
        WEIGHT,
    ),
    "weight has shape [64, 96], but x of shape [2, 3, 64] needs [N, K] = [any, 64]": (
        X,
        NORM_WEIGHT,
        WEIGHT.t(),
    ),
    "weight has shape [64], but x of shape [2, 3, 64] needs [N, K] = [any, 64]": (
        X,
        NORM_WEIGHT,
        WEIGHT[0],
    ),
    "weight of shape [96, 64] is not contiguous; pass weight.contiguous(), made once and kept": (
        X,
        NORM_WEIGHT,
        WEIGHT.new_ones(N, 2 * K)[:, :K],
    ),
    "weight does not start at a multiple of 16 bytes; pass weight.clone(), made once and kept": (
        X,
        NORM_WEIGHT,
        one_element_in(WEIGHT),
    ),
    "weight is None; a tensor works": (X, NORM_WEIGHT, None),
    "x has dtype int16; float16 and bfloat16 work": (X.short(), NORM_WEIGHT, WEIGHT),
    "weight is on meta, another on cpu; one device works": (X, NORM_WEIGHT, WEIGHT.to("meta")),
    "eps is -1; a finite number that is not negative works, such as 1e-6": (
        X,
        NORM_WEIGHT,
        WEIGHT,
        -1.0,
    ),
}


@pytest.mark.parametrize("sentence", WRONG_CALLS)
def test_wrong_argument_gets_a_sentence(sentence: str) -> None:
    with pytest.raises(RuntimeError) as raised:
        rms_norm_linear(*WRONG_CALLS[sentence])
    assert str(raised.value) == PREFIX + sentence


WRONG_OUTS = {
    ("out has shape [3, 96], but x of shape [2, 3, 64] needs [..., N] = [2, 3, 96]"): X.new_empty(
        3, N
    ),
    "out has dtype float32, but x has float16; give both the same dtype": torch.empty(2, 3, N),
    (
        "out of shape [2, 3, 96] is not contiguous from a multiple of 16 bytes on; a tensor from "
        "torch.empty is"
    ): WEIGHT.new_empty(2, 3, 2 * N)[..., :N],
    "out shares memory with weight; give it memory of its own": WEIGHT.view(-1)[: 6 * N].view(
        2, 3, N
    ),
}


@pytest.mark.parametrize("sentence", WRONG_OUTS)
def test_wrong_out_gets_a_sentence(sentence: str) -> None:
    with pytest.raises(RuntimeError) as raised:
        rms_norm_linear(X, NORM_WEIGHT, WEIGHT, out=WRONG_OUTS[sentence])
    assert str(raised.value) == PREFIX + sentence


A, R = 3, 8
BIAS = torch.ones(N).half()
LORA_A, LORA_B = torch.ones(R, K).half(), torch.ones(N, R).half()
STACK_A, STACK_B = LORA_A.expand(A, R, K).contiguous(), LORA_B.expand(A, N, R).contiguous()
IDS = torch.zeros(2, 3, dtype=torch.int32)

WRONG_OPTIONS = {
    "bias has shape [95], but weight of shape [96, 64] needs [N] = [96]": (
        "rms_norm_linear",
        (X, NORM_WEIGHT, WEIGHT),
        {"bias": BIAS[1:]},
    ),
    "residual has shape [3, 64], but x of shape [2, 3, 64] needs [..., K] = [2, 3, 64]": (
        "rms_norm_linear",
        (X, NORM_WEIGHT, WEIGHT),
        {"residual": X[0]},
    ),
    "norm_bias has dtype float32, but x has float16; give both the same dtype": (
        "layer_norm_linear",
        (X, NORM_WEIGHT, NORM_WEIGHT.float(), WEIGHT),
        {},
    ),
    "lora_b has shape [96, 7], but lora_a of shape [8, 64] needs [N, R] = [96, 8]": (
        "lora_linear",
        (X, WEIGHT, LORA_A, LORA_B[:, 1:].contiguous(), 1.0),
        {},
    ),
    "adapter_ids has shape [3], but x of shape [2, 3, 64] needs [...] = [2, 3]": (
        "lora_linear",
        (X, WEIGHT, STACK_A, STACK_B, 1.0),
        {"adapter_ids": IDS[0]},
    ),
    "adapter_ids has dtype float32; int32 and int64 work": (
        "lora_linear",
        (X, WEIGHT, STACK_A, STACK_B, 1.0),
        {"adapter_ids": IDS.float()},
    ),
    (
        "gate_up_weight has shape [95, 64], but x of shape [2, 3, 64] needs [2 N, K] = "
        "[any even, 64]"
    ): ("gated_mlp", (X, WEIGHT[1:].clone()), {}),
    "up_weight has shape [88, 64], but gate_weight of shape [96, 64] needs [N, K] = [96, 64]": (
        "gated_mlp",
        (X, WEIGHT, WEIGHT[8:]),
        {},
    ),
    "activation is 'swish'; 'silu', 'gelu', 'gelu_tanh' and 'relu' work": (
        "rms_norm_gated_mlp",
        (X, NORM_WEIGHT, WEIGHT),
        {"activation": "swish"},
    ),
    "scale is inf; a finite number works": (
        "lora_linear",
        (X, WEIGHT, LORA_A, LORA_B, torch.inf),
        {},
    ),
    "weight_offset is nan; a finite number works": (
        "rms_norm",
        (X, NORM_WEIGHT),
        {"weight_offset": torch.nan},
    ),
    "out is a pair, but residual is not given; one tensor works, or residual beside the pair": (
        "rms_norm",
        (X, NORM_WEIGHT),
        {"out": (X, X)},
    ),
    "with residual, out is a pair (y, total); two tensors work": (
        "rms_norm_linear",
        (X, NORM_WEIGHT, WEIGHT),
        {"residual": X, "out": torch.ones(2, 2, 3)},
    ),
    "gate has shape [3, 5], but without up it holds both, [..., 2 N]; an even last dim works": (
        "act_and_mul",
        (torch.ones(3, 5).half(),),
        {},
    ),
    "gate is None; a tensor works": ("act_and_mul", (None,), {}),
    (
        "q has lines of 512 elements and latent_dim is 512; a positive one that is shorter works, "
        "or the pair of its parts"
    ): ("mla_decode", (torch.ones(2, 4, 512).half(), torch.ones(2, 9, 576).half()), {"scale": 1.0}),
    "q is of type tuple; a tensor works": ("mla_decode", ((X,), X), {"scale": 1.0}),
}


@pytest.mark.parametrize("sentence", WRONG_OPTIONS)
def test_wrong_option_gets_a_sentence(sentence: str) -> None:
    op, args, options = WRONG_OPTIONS[sentence]
    with pytest.raises(RuntimeError) as raised:
        getattr(mirage_kernels, op)(*args, **options)
    assert str(raised.value) == f"mirage_kernels::{op}: {sentence}"


@pytest.mark.parametrize("op", ["rms_norm_linear", "gated_mlp"])
def test_dims_without_elements_are_fine_on_the_cpu(op: str) -> None:
    weights = (NORM_WEIGHT,) if op == "rms_norm_linear" else ()
    assert getattr(mirage_kernels, op)(X, *weights, WEIGHT[:0]).shape == (2, 3, 0)
    empty = tuple(weight[:0] for weight in weights)
    y = getattr(mirage_kernels, op)(X[..., :0], *empty, torch.ones(8, 0).half())
    assert y.shape == (2, 3, 8 if weights else 4)
    assert not y.any()


def test_results_of_a_pair_do_not_share_memory() -> None:
    weight = torch.eye(K).half()
    both = torch.empty(2, 3, K).half()
    with pytest.raises(RuntimeError, match="total shares memory with out; give it memory of its"):
        rms_norm_linear(X, NORM_WEIGHT, weight, residual=X, out=(both, both))


def test_every_input_that_requires_grad_is_refused(case) -> None:
    arguments = case.arguments(2)
    for name in set(case.tensors) - {"adapter_ids"}:
        given = arguments | {name: arguments[name].clone().requires_grad_()}
        with pytest.raises(InferenceOnlyError, match=f"{name} requires grad.*inference_mode"):
            case.call(**given)


@pytest.mark.parametrize("name", ["x", "norm_weight", "weight"])
def test_input_that_requires_grad_is_refused_by_name(name: str) -> None:
    tensors = {"x": X, "norm_weight": NORM_WEIGHT, "weight": WEIGHT}
    tensors[name] = tensors[name].clone().requires_grad_()
    with pytest.raises(InferenceOnlyError, match=f"{PREFIX}{name} requires grad.*inference_mode"):
        rms_norm_linear(**tensors)
