"""The compiled table, what is said of shapes and GPUs that it does not cover, and `supports`."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from mirage_kernels import kernel_table, supports

ROOT = Path(__file__).resolve().parents[2]
OPS = torch.ops.mirage_kernels
SHAPES = [(4096, 6144), (4096, 4096), (8192, 10240)]


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
@pytest.mark.parametrize(("k", "n"), SHAPES)
def test_the_shapes_of_the_catalog_are_listed(k: int, n: int, dtype: str) -> None:
    folder = ROOT / "kernels/sm_90a"
    if not folder.is_dir():
        pytest.skip("an installed wheel holds no sources")
    stem = f"K{k}_N{n}_{dtype}"
    assert (folder / f"rms_norm_linear/{stem}.cu").is_file()
    row = re.compile(rf"rms_norm_linear\W.*\W{stem}\W|rms_norm_linear_{stem}\W")
    assert row.search((folder / "table.cpp").read_text())


def test_no_kernel_is_listed_twice() -> None:
    rows = [(e.recipe, e.dtype, tuple(e.dims.items())) for e in kernel_table()]
    assert len(rows) == len(set(rows))


def test_uncovered_shape_names_the_nearest_and_the_command() -> None:
    op = "rms_norm_linear"
    sentence = OPS._not_covered(op, op, "fp16", ["K", "N"], [4096, 6000])
    assert sentence.startswith("mirage_kernels::rms_norm_linear: no kernel covers K=4096,N=6000 in")
    assert "the nearest covered are K=4096,N=6144 fp16, K=4096,N=6144 bf16" in sentence
    assert sentence.endswith(
        "`mirage-kernels generate rms_norm_linear --arch sm_90a --dtype fp16 --shape K=4096,N=6000 "
        '--out DIR` and `mirage-kernels compile DIR` make it, mirage_kernels.load("DIR") adds it'
    )


def test_recipe_without_kernels_is_named() -> None:
    sentence = OPS._not_covered("gated_mlp", "no_such_recipe", "bf16", ["K"], [8])
    assert "mirage_kernels::gated_mlp: no kernel of no_such_recipe covers K=8 in bf16" in sentence
    assert "this build contains none of that recipe" in sentence


def test_gpu_of_this_builds_architecture_is_taken() -> None:
    assert kernel_table()[0].arch == "sm_90a"
    assert OPS._architecture_complaint(9, 0, "NVIDIA H200") == ""


@pytest.mark.parametrize(("capability", "here"), [((8, 0), "sm_80"), ((10, 0), "sm_100a")])
def test_other_gpu_is_told_what_to_install(capability: tuple[int, int], here: str) -> None:
    sentence = OPS._architecture_complaint(*capability, "NVIDIA Other")
    assert "kernels for sm_90a only, but the GPU (NVIDIA Other) is sm_" in sentence
    assert f"make wheel ARCH={here}`" in sentence


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        ({"K": 4096, "N": 6144}, True),
        ({"K": 4096, "N": 6144, "M": 3, "dtype": torch.bfloat16}, True),
        ({"K": 4096, "N": 6144, "dtype": "fp16"}, True),
        ({"K": 4096, "N": 6144, "dtype": "bfloat16"}, True),
        ({"K": 4096, "N": 6144, "dtype": "float32"}, False),
        ({"K": 4096, "N": 6144, "dtype": "torch.float16"}, True),
        ({"K": "4096", "N": 6144}, False),
        ({"N": 6144}, True),
        ({"K": 4096, "N": 6145}, False),
        ({"K": 4096, "n": 6144}, False),
        ({"K": 4096, "N": 6144, "dtype": torch.float32}, False),
        ({"K": 5, "N": 7, "device": "cpu"}, True),
        ({"K": 5, "N": 7, "device": "cpu", "dtype": torch.float32}, False),
    ],
)
def test_supports_answers_without_raising(question: dict[str, object], answer: bool) -> None:
    assert supports("rms_norm_linear", **question) is answer


def test_supports_says_no_to_an_unknown_op_and_to_an_absent_gpu() -> None:
    assert not supports("no_such_op", K=4096)
    assert not supports(None)  # type: ignore[arg-type]
    if not torch.cuda.is_available():
        assert not supports("rms_norm_linear", K=4096, N=6144, device="cuda")
        assert not supports("rms_norm_linear", K=4096, N=6144, device=0)


def test_supports_knows_the_sizes_of_heads() -> None:
    assert supports("gqa", D=80, device="cpu")
    assert not supports("gqa", D=84, device="cpu")  # the op takes multiples of 8
    assert not supports("gqa", D="128", device="cpu")  # type: ignore[arg-type]


def test_supports_knows_the_sizes_that_the_append_kernel_is_for() -> None:
    source = (ROOT / "csrc/append/append.cu").read_text()
    sizes = {int(size) for size in re.findall(r"case (\d+):", source)}
    assert sizes == {D for D in range(8, 1024, 8) if supports("qk_norm_rope_append", D=D)}
    assert supports("qk_norm_rope_append", D=80, device="cpu", dtype=torch.bfloat16)


@pytest.mark.parametrize(
    ("op", "dims"),
    [
        ("layer_norm_linear", {"K": 1, "N": 1}),
        ("lora_linear", {"K": 1, "N": 1, "R": 1}),
        ("gated_mlp", {"K": 1, "N": 1}),
        ("rms_norm_gated_mlp", {"K": 1, "N": 1}),
        ("ntrans", {"K": 1}),
    ],
)
def test_supports_knows_every_op(op: str, dims: dict[str, int]) -> None:
    assert supports(op, **dims, M=3, device="cpu")
    assert not supports(op, **dims)
    assert not supports(op, Q=1, device="cpu")


def test_supports_asks_for_the_recipe_of_the_activation() -> None:
    assert supports("gated_mlp", activation="relu", device="cpu")
    assert not supports("gated_mlp", activation="swish", device="cpu")
    assert OPS._recipe_of("gated_mlp", "silu") == "gated_mlp"
    assert OPS._recipe_of("gated_mlp", "gelu_tanh") == "geglu_mlp"
    assert OPS._recipe_of("rms_norm_linear", "silu") == "rms_norm_linear"


@pytest.mark.gpu
def test_supports_says_yes_to_this_gpu() -> None:
    assert supports("rms_norm_linear", K=4096, N=6144, dtype=torch.float16, device="cuda")


@pytest.mark.parametrize(
    "odd", [{"device": "foo"}, {"device": [1]}, {"device": -3}, {"dtype": [1]}, {"activation": 3}]
)
def test_odd_questions_are_answered_no(odd: dict[str, object]) -> None:
    assert not supports("gated_mlp", **odd)  # type: ignore[arg-type]
