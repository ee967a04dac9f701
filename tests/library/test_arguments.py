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
    "no weight": ((X, NORM_WEIGHT, None), "weight is None; a tensor works"),
    "x of integers": (
        (X.short(), NORM_WEIGHT, WEIGHT),
        "x has dtype int16; float16 and bfloat16 work",
    ),
    "weight without data": (
        (X, NORM_WEIGHT, WEIGHT.to("meta")),
        "weight is on meta, another on cpu; one device works",
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


A, R = 3, 8
BIAS = torch.ones(N).half()
LORA_A, LORA_B = torch.ones(R, K).half(), torch.ones(N, R).half()
STACK_A, STACK_B = LORA_A.expand(A, R, K).contiguous(), LORA_B.expand(A, N, R).contiguous()
IDS = torch.zeros(2, 3, dtype=torch.int32)

WRONG_OPTIONS = {
    "bias of another length": (
        ("rms_norm_linear", (X, NORM_WEIGHT, WEIGHT), {"bias": BIAS[1:]}),
        "bias has shape [95], but weight of shape [96, 64] needs [N] = [96]",
    ),
    "residual of another shape": (
        ("rms_norm_linear", (X, NORM_WEIGHT, WEIGHT), {"residual": X[0]}),
        "residual has shape [3, 64], but x of shape [2, 3, 64] needs [..., K] = [2, 3, 64]",
    ),
    "norm_bias of another dtype": (
        ("layer_norm_linear", (X, NORM_WEIGHT, NORM_WEIGHT.float(), WEIGHT), {}),
        "norm_bias has dtype float32, but x has float16; give both the same dtype",
    ),
    "adapters of two ranks": (
        ("lora_linear", (X, WEIGHT, LORA_A, LORA_B[:, 1:].contiguous(), 1.0), {}),
        "lora_b has shape [96, 7], but lora_a of shape [8, 64] needs [N, R] = [96, 8]",
    ),
    "ids of another shape": (
        ("lora_linear", (X, WEIGHT, STACK_A, STACK_B, 1.0), {"adapter_ids": IDS[0]}),
        "adapter_ids has shape [3], but x of shape [2, 3, 64] needs [...] = [2, 3]",
    ),
    "ids of another dtype": (
        ("lora_linear", (X, WEIGHT, STACK_A, STACK_B, 1.0), {"adapter_ids": IDS.float()}),
        "adapter_ids has dtype float32; int32 and int64 work",
    ),
    "packed weight with an odd number of rows": (
        ("gated_mlp", (X, WEIGHT[1:].clone()), {}),
        "gate_up_weight has shape [95, 64], but x of shape [2, 3, 64] needs [2 N, K] = "
        "[any even, 64]",
    ),
    "gate and up of two sizes": (
        ("gated_mlp", (X, WEIGHT, WEIGHT[8:]), {}),
        "up_weight has shape [88, 64], but gate_weight of shape [96, 64] needs [N, K] = [96, 64]",
    ),
    "unknown activation": (
        ("rms_norm_gated_mlp", (X, NORM_WEIGHT, WEIGHT), {"activation": "swish"}),
        "activation is 'swish'; 'silu', 'gelu', 'gelu_tanh' and 'relu' work",
    ),
    "scale that is not finite": (
        ("lora_linear", (X, WEIGHT, LORA_A, LORA_B, torch.inf), {}),
        "scale is inf; a finite number works",
    ),
    "offset that is no number": (
        ("rms_norm", (X, NORM_WEIGHT), {"weight_offset": torch.nan}),
        "weight_offset is nan; a finite number works",
    ),
    "pair without residual": (
        ("rms_norm", (X, NORM_WEIGHT), {"out": (X, X)}),
        "out is a pair, but residual is not given; one tensor works, or residual beside the pair",
    ),
    "one result for two": (
        ("rms_norm_linear", (X, NORM_WEIGHT, WEIGHT), {"residual": X, "out": torch.ones(2, 2, 3)}),
        "with residual, out is a pair (y, total); two tensors work",
    ),
    "gate and up in an odd size": (
        ("act_and_mul", (torch.ones(3, 5).half(),), {}),
        "gate has shape [3, 5], but without up it holds both, [..., 2 N]; an even last dim works",
    ),
    "gate that is no tensor": (
        ("act_and_mul", (None,), {}),
        "gate is None; a tensor works",
    ),
    "latents without rope": (
        (
            "mla_decode",
            (torch.ones(2, 4, 512).half(), torch.ones(2, 9, 576).half()),
            {"scale": 1.0},
        ),
        "q has lines of 512 elements and latent_dim is 512; a positive one that is shorter works, "
        "or the pair of its parts",
    ),
    "half a pair of latents": (
        ("mla_decode", ((X,), X), {"scale": 1.0}),
        "q is of type tuple; a tensor works",
    ),
}


@pytest.mark.parametrize("call", WRONG_OPTIONS)
def test_wrong_option_gets_a_sentence(call: str) -> None:
    (op, args, options), sentence = WRONG_OPTIONS[call]
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
