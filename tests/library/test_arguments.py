"""A wrong call gets one sentence: the op, the argument, what was given, what would work.

The checks are those of the GPU path: compiled code that CPU tensors pass through too. Arguments of
a wrong type, kinds of tensors that no program reads, and gradients are refused in Python: PyTorch's
dispatcher would refuse them in a page, or take them and drop the gradient.
"""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad

import mirage_kernels
from mirage_kernels import rms_norm_linear
from mirage_kernels.errors import ExtensionMissingError, InferenceOnlyError, TorchTooOldError

K, N, A, R = 64, 96, 3, 8
X = torch.ones(2, 3, K).half()
NORM_WEIGHT = torch.ones(K).half()
WEIGHT = torch.ones(N, K).half()
BIAS = torch.ones(N).half()
LORA_A, LORA_B = torch.ones(R, K).half(), torch.ones(N, R).half()
STACK_A, STACK_B = LORA_A.expand(A, R, K).contiguous(), LORA_B.expand(A, N, R).contiguous()
IDS = torch.zeros(2, 3, dtype=torch.int32)

NORMED = {"x": X, "norm_weight": NORM_WEIGHT}
LORA = {"x": X, "weight": WEIGHT, "lora_a": LORA_A, "lora_b": LORA_B, "scale": 1.0}
GOOD = {
    "rms_norm_linear": NORMED | {"weight": WEIGHT},
    "layer_norm_linear": NORMED | {"norm_bias": NORM_WEIGHT, "weight": WEIGHT},
    "lora_linear": LORA,
    "lora_linear batched": LORA | {"lora_a": STACK_A, "lora_b": STACK_B},
    "gated_mlp": {"x": X, "gate_weight": WEIGHT},
    "rms_norm_gated_mlp": NORMED | {"gate_weight": WEIGHT},
    "rms_norm": NORMED,
    "layer_norm": NORMED,
    "act_and_mul": {"gate": X},
}


def one_element_in(tensor: Tensor) -> Tensor:
    """Return the same values, starting two bytes behind an aligned address."""
    return torch.cat([tensor.new_zeros(1), tensor.flatten()])[1:].view(tensor.shape)


WRONG: dict[str, dict[str, dict[str, object]]] = {
    "rms_norm_linear": {
        "x has dtype float32; float16 and bfloat16 work": {"x": X.float()},
        "x has dtype int16; float16 and bfloat16 work": {"x": X.short()},
        "x has no dims; a tensor [..., K] with at least one works": {"x": X.new_zeros(())},
        "x has layout torch.sparse_coo; a dense tensor on cpu or cuda works": {"x": X.to_sparse()},
        "norm_weight has dtype bfloat16, but x has float16; give both the same dtype": {
            "norm_weight": NORM_WEIGHT.bfloat16()
        },
        "norm_weight has shape [7], but x of shape [2, 3, 64] needs [K] = [64]": {
            "norm_weight": NORM_WEIGHT[:7]
        },
        "weight has shape [64, 96], but x of shape [2, 3, 64] needs [N, K] = [any, 64]": {
            "weight": WEIGHT.t()
        },
        "weight has shape [64], but x of shape [2, 3, 64] needs [N, K] = [any, 64]": {
            "weight": WEIGHT[0]
        },
        (
            "weight of shape [96, 64] is not contiguous; pass weight.contiguous(), made once and "
            "kept"
        ): {"weight": WEIGHT.new_ones(N, 2 * K)[:, :K]},
        (
            "weight does not start at a multiple of 16 bytes; pass weight.clone(), made once and "
            "kept"
        ): {"weight": one_element_in(WEIGHT)},
        "weight is None; a tensor works": {"weight": None},
        "weight is of type list; a tensor works": {"weight": [1.0]},
        "weight is on meta, another on cpu; one device works": {"weight": WEIGHT.to("meta")},
        "eps is -1; a finite number that is not negative works, such as 1e-6": {"eps": -1.0},
        "eps is of type str; a number works": {"eps": "1e-6"},
        "eps is None; a number works": {"eps": None},
        "eps is of type ndarray; a number works": {"eps": np.ones(3)},
        "eps is of type int; a number works": {"eps": 10**400},
        "eps is 1e+39; a number that fits float32 works": {"eps": 1e39},
        "weight_offset is -1e+39; a number that fits float32 works": {"weight_offset": -1e39},
        "bias has shape [95], but weight of shape [96, 64] needs [N] = [96]": {"bias": BIAS[1:]},
        "bias is of type float; a tensor or None works": {"bias": 1.0},
        "residual is of type int; a tensor works": {"residual": 0},
        "residual has shape [3, 64], but x of shape [2, 3, 64] needs [..., K] = [2, 3, 64]": {
            "residual": X[0]
        },
        "out has shape [3, 96], but x of shape [2, 3, 64] needs [..., N] = [2, 3, 96]": {
            "out": X.new_empty(3, N)
        },
        "out has dtype float32, but x has float16; give both the same dtype": {
            "out": torch.empty(2, 3, N)
        },
        (
            "out of shape [2, 3, 96] is not contiguous from a multiple of 16 bytes on; a tensor "
            "from torch.empty is"
        ): {"out": WEIGHT.new_empty(2, 3, 2 * N)[..., :N]},
        "out shares memory with weight; give it memory of its own": {
            "out": WEIGHT.view(-1)[: 6 * N].view(2, 3, N)
        },
        "out is of type ndarray; a tensor works": {"out": np.ones(3)},
        "with residual, out is a pair (y, total); two tensors work": {
            "residual": X,
            "out": torch.ones(2, 2, 3),
        },
    },
    "layer_norm_linear": {
        "norm_bias has dtype float32, but x has float16; give both the same dtype": {
            "norm_bias": NORM_WEIGHT.float()
        },
    },
    "lora_linear": {
        "lora_b has shape [96, 7], but lora_a of shape [8, 64] needs [N, R] = [96, 8]": {
            "lora_b": LORA_B[:, 1:].contiguous()
        },
        "scale is inf; a finite number works": {"scale": torch.inf},
    },
    "lora_linear batched": {
        "adapter_ids has shape [3], but x of shape [2, 3, 64] needs [...] = [2, 3]": {
            "adapter_ids": IDS[0]
        },
        "adapter_ids has dtype float32; int32 and int64 work": {"adapter_ids": IDS.float()},
    },
    "gated_mlp": {
        (
            "gate_up_weight has shape [95, 64], but x of shape [2, 3, 64] needs [2 N, K] = "
            "[any even, 64]"
        ): {"gate_weight": WEIGHT[1:].clone()},
        (
            "up_weight has shape [88, 64], but gate_weight of shape [96, 64] needs [N, K] = "
            "[96, 64]"
        ): {"up_weight": WEIGHT[8:]},
        "activation is of type builtin_function_or_method; a string works": {
            "activation": torch.relu
        },
    },
    "rms_norm_gated_mlp": {
        "activation is 'swish'; 'silu', 'gelu', 'gelu_tanh' and 'relu' work": {
            "activation": "swish"
        },
    },
    "rms_norm": {
        "x is of type ndarray; a tensor works": {"x": np.ones((3, K), np.float16)},
        "x has dtype complex64; float16 and bfloat16 work": {"x": X.to(torch.complex64)},
        "x is nested; a dense tensor on cpu or cuda works": {
            "x": torch.nested.nested_tensor([X[0], X[0]], layout=torch.jagged)
        },
        "weight_offset is nan; a finite number works": {"weight_offset": torch.nan},
        "out is a pair, but residual is not given; one tensor works, or residual beside the pair": {
            "out": (X, X)
        },
    },
    "layer_norm": {"norm_bias is of type float; a tensor or None works": {"norm_bias": 1e-5}},
    "act_and_mul": {
        "gate has shape [3, 5], but without up it holds both, [..., 2 N]; an even last dim works": {
            "gate": torch.ones(3, 5).half()
        },
        "gate is None; a tensor works": {"gate": None},
    },
}


@pytest.mark.parametrize(("call", "sentence"), [(c, s) for c in WRONG for s in WRONG[c]])
def test_wrong_argument_gets_a_sentence(call: str, sentence: str) -> None:
    op = call.partition(" ")[0]
    with pytest.raises(RuntimeError) as raised:
        getattr(mirage_kernels, op)(**GOOD[call] | WRONG[call][sentence])
    assert str(raised.value) == f"mirage_kernels::{op}: {sentence}"


def test_a_promise_of_a_wrong_type_gets_a_sentence() -> None:
    with pytest.raises(RuntimeError, match=r"constant is of type str; True or False works$"):
        mirage_kernels.constant_weights("no")  # type: ignore[arg-type]


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
    weight = torch.eye(K).half()
    both = torch.empty(2, 3, K).half()
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


def test_forward_mode_is_refused() -> None:
    with forward_ad.dual_level(), pytest.raises(InferenceOnlyError, match="x requires grad"):
        rms_norm_linear(forward_ad.make_dual(X, X), NORM_WEIGHT, WEIGHT)


@pytest.mark.parametrize("error", [ExtensionMissingError, TorchTooOldError, InferenceOnlyError])
def test_errors_can_be_pickled(error: type[Exception]) -> None:
    assert str(pickle.loads(pickle.dumps(error("a sentence")))) == "a sentence"
