"""`supports`: one meaning for every op, and a sentence for what does not exist."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import torch

from mirage_kernels import kernel_table, supports
from mirage_kernels.signatures import signatures

ROOT = Path(__file__).resolve().parents[2]
OPS = torch.ops.mirage_kernels
COVERED = {"K": 4096, "N": 6144}


def most_tokens(recipe: str) -> int:
    rows = [e for e in kernel_table() if e.recipe == recipe and e.dims == COVERED]
    return max(row.max_tokens for row in rows)


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        (COVERED, True),
        (COVERED | {"M": 3, "dtype": torch.bfloat16}, True),
        (COVERED | {"M": np.int64(3)}, True),
        ({"K": np.int32(4096), "N": np.uint16(6144)}, True),
        (COVERED | {"dtype": "fp16"}, True),
        (COVERED | {"dtype": "bfloat16"}, True),
        (COVERED | {"dtype": "torch.float16"}, True),
        (COVERED | {"residual": True, "bias": True, "weight_offset": 1.0}, True),
        (COVERED | {"M": 10**6}, False),
        (COVERED | {"M": 10**6, "device": "cpu"}, True),
        ({"N": 6144}, True),
        ({"K": 4096, "N": 6145}, False),
        ({"K": 5, "N": 7, "device": "cpu"}, True),
    ],
)
def test_a_kernel_of_this_build_computes_the_call(
    question: dict[str, object], answer: bool
) -> None:
    assert supports("rms_norm_linear", **question) is answer


def test_tokens_count_up_to_the_kernels_most() -> None:
    most = most_tokens("rms_norm_linear")
    assert supports("rms_norm_linear", **COVERED, M=most)
    assert not supports("rms_norm_linear", **COVERED, M=most + 1)


def test_adapters_ask_for_kernels_of_their_own() -> None:
    for name in ("lora_linear", "lora_linear_batched"):
        rows = [e for e in kernel_table() if e.recipe == name]
        stacked = name == "lora_linear_batched"
        for row in rows[:3]:
            assert supports("lora_linear", **row.dims, dtype=row.dtype, adapter_ids=stacked)
    assert not supports("lora_linear", K=4096, N=4096, R=15, adapter_ids=True)
    assert supports("lora_linear", K=5, N=7, R=3, A=9, adapter_ids=torch.ones(2), device="cpu")


def test_an_absent_gpu_serves_nothing() -> None:
    if not torch.cuda.is_available():
        assert not supports("rms_norm_linear", **COVERED, device="cuda")
        assert not supports("rms_norm_linear", **COVERED, device=0)


def test_sizes_of_heads_are_known() -> None:
    assert supports("gqa", D=80, device="cpu")
    assert not supports("gqa", D=84, device="cpu")  # the op takes multiples of 8


def test_the_sizes_that_the_append_kernel_is_for_are_known() -> None:
    source = (ROOT / "csrc/append/append.cu").read_text()
    sizes = {int(size) for size in re.findall(r"case (\d+):", source)}
    assert sizes == {D for D in range(8, 1024, 8) if supports("qk_norm_rope_append", D=D)}
    assert supports("qk_norm_rope_append", D=80, device="cpu", dtype=torch.bfloat16)


@pytest.mark.parametrize("op", sorted({s.op for s in signatures()}))
def test_every_op_is_known_with_its_dims(op: str) -> None:
    form = next(s for s in signatures() if s.op == op)
    dims = dict.fromkeys(form.static_dims, 8)
    assert supports(op, **dims, M=3, device="cpu")
    assert not supports(op, **dims)
    with pytest.raises(RuntimeError, match=f"supports.'{op}'.: it has no dim and no option 'Q'"):
        supports(op, Q=1, device="cpu")


def test_the_recipe_of_the_activation_is_asked_for() -> None:
    assert supports("gated_mlp", activation="relu", device="cpu")
    assert OPS._recipe_of("gated_mlp", "silu") == "gated_mlp"
    assert OPS._recipe_of("gated_mlp", "gelu_tanh") == "geglu_mlp"
    assert OPS._recipe_of("rms_norm_linear", "silu") == "rms_norm_linear"


@pytest.mark.gpu
def test_this_gpu_serves_a_covered_call() -> None:
    assert supports("rms_norm_linear", **COVERED, dtype=torch.float16, device="cuda")


# -- attention -------------------------------------------------------------------------------------


def compiled(recipe: str) -> set[tuple[int, str]]:
    return {(e.dims["D"], e.dtype) for e in kernel_table() if e.recipe == recipe}


@pytest.mark.parametrize(
    ("recipe", "op", "options"),
    [
        ("gqa", "gqa", {}),
        ("gqa", "gqa_csr", {"T": 1}),
        ("gqa", "gqa", {"T": 9, "causal": False, "sinks": True}),
        ("sliding_window_attention", "gqa", {"T": 2}),
        ("sliding_window_attention", "gqa", {"window_left": 0}),
        ("gqa_full", "gqa", {"logits_soft_cap": 30.0, "window_left": -1}),
        ("qk_norm_attention", "qk_norm_attention", {"weight_offset": 1.0}),
        ("qk_layer_norm_attention", "qk_norm_attention", {"norm": "layer"}),
        ("none", "qk_norm_attention", {"norm": "layer", "weight_offset": 1.0}),
        ("none", "gqa", {"T": 2, "causal": False, "window_left": 4}),
        ("none", "qk_norm_attention", {"T": 2}),
    ],
)
def test_options_choose_the_recipe_of_attention(
    recipe: str, op: str, options: dict[str, object]
) -> None:
    for depth in (64, 128, 72):
        for dtype in ("fp16", "bf16"):
            answer = supports(op, D=depth, dtype=dtype, **options)
            assert answer is ((depth, dtype) in compiled(recipe))


def test_open_dims_of_attention_may_be_any() -> None:
    assert supports("gqa", D=72, B=4, Hkv=8, G=4, L=100, T=1, device="cpu")
    assert supports("mla_decode", C=32, P=16, B=4, Hq=8, L=100, device="cpu")


def test_both_sizes_of_latents_are_asked_for() -> None:
    both = {(e.dims["C"], e.dims["P"]) for e in kernel_table() if e.recipe == "mla_decode"}
    assert supports("mla_decode", C=512, P=64) is ((512, 64) in both)
    assert not supports("mla_decode", C=512, P=72)


# -- what does not exist ---------------------------------------------------------------------------

WRONG = {
    "op is 'rms_norm_liner'; 'rms_norm_linear' is the nearest of act_and_mul,": (
        "rms_norm_liner",
        {"K": 4096},
    ),
    "op is None; one of act_and_mul,": (None, {}),
    "it has no dim and no option 'n'; 'N' is the nearest of K, M, N, bias,": (
        "rms_norm_linear",
        {"n": 6144},
    ),
    "it has no dim and no option 'residul'; 'residual' is the nearest of K, M, N,": (
        "rms_norm_linear",
        {"residul": True},
    ),
    "it has no dim and no option 'T'": ("rms_norm_linear", {"T": 2}),
    "it has no dim and no option 'activation'": ("rms_norm_linear", {"activation": "silu"}),
    "it has no dim and no option 'K'": ("gqa", {"K": 64}),
    "it has no dim and no option 'D'": ("mla_decode", {"D": 64}),
    "activation is 'swish'; one of silu, gelu, gelu_tanh, relu works": (
        "gated_mlp",
        {"activation": "swish"},
    ),
    "activation is 3; one of silu": ("gated_mlp", {"activation": 3}),
    "norm is 'l2'; one of rms, layer works": ("qk_norm_attention", {"norm": "l2"}),
    "K is '4096'; an integer works": ("rms_norm_linear", {"K": "4096"}),
    "M is 3.0; an integer works": ("rms_norm_linear", {"M": 3.0}),
    "K is a tensor; an integer works": ("rms_norm_linear", {"K": torch.tensor(4096)}),
    "M is a tensor; an integer works": ("rms_norm_linear", {"M": torch.tensor(3)}),
    "K is True; an integer works": ("rms_norm_linear", {"K": True}),
    "M is -1; 0 or more works": ("rms_norm_linear", {"M": -1}),
    "T is -2; 0 or more works": ("gqa", {"T": -2}),
    "dtype is 'float32'; torch.float16 and torch.bfloat16 work": (
        "rms_norm_linear",
        {"dtype": "float32"},
    ),
    "dtype is torch.float32;": ("gqa", {"dtype": torch.float32, "device": "cpu"}),
    r"dtype is \[1\];": ("gated_mlp", {"dtype": [1]}),
    "device is 'foo'; a torch.device works, its name, or the number of a GPU": (
        "gated_mlp",
        {"device": "foo"},
    ),
    r"device is \[1\];": ("gated_mlp", {"device": [1]}),
    "device is -3;": ("gated_mlp", {"device": -3}),
}


@pytest.mark.parametrize("sentence", WRONG)
def test_a_question_about_what_does_not_exist_is_refused(sentence: str) -> None:
    op, asked = WRONG[sentence]
    with pytest.raises(RuntimeError, match=f"^mirage_kernels.supports.*: {sentence}"):
        supports(op, **asked)  # type: ignore[arg-type]


@pytest.mark.usefixtures("fresh_compiler")
def test_tokens_are_compared_in_a_compiled_function() -> None:
    def chosen(x: torch.Tensor) -> torch.Tensor:
        served = supports("rms_norm_linear", **COVERED, M=x.shape[0], dtype=x.dtype)
        return x + 1 if served else x - 1

    compiled_chosen = torch.compile(chosen, fullgraph=True, backend="eager", dynamic=True)
    for tokens in (3, 5, 10**5):
        x = torch.zeros(tokens, 1).half()
        assert torch.equal(compiled_chosen(x), chosen(x))
