"""`list --model` and `generate --model`: what there is of a model's kernels, what is made."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mirage_kernels.generator import pipeline
from mirage_kernels.generator.build.selection import selected
from mirage_kernels.generator.commands.arguments import is_checkout, package_kernels
from mirage_kernels.generator.errors import SearchError, ToolchainError
from mirage_kernels.generator.pipeline import Result
from mirage_kernels.generator.request import Request

pytestmark = pytest.mark.skipif(not is_checkout(), reason="an installed wheel holds no sources")

# Small sizes, so that nothing of it is committed: only attention is.
CONFIG = {
    "model_type": "llama",
    "hidden_size": 512,
    "intermediate_size": 1024,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 1000,
}


@pytest.fixture
def config(workplace: Path) -> str:
    (workplace / "small.json").write_text(json.dumps(CONFIG))
    return "small.json"


def test_list_says_what_there_is_of_each_kernel(mirage_kernels, config: str) -> None:
    outcome = mirage_kernels("list", "--model", config, "--json")
    found = {(k["recipe"], k["static dims"]): k["bf16"] for k in json.loads(outcome.out)["kernels"]}
    assert found["rms_norm_linear", "K=512,N=1024"] == "missing"
    assert found["gqa", "D=128"] in ("compiled", "emitted")


def test_list_names_the_command_that_makes_what_is_missing(mirage_kernels, config: str) -> None:
    said = mirage_kernels("list", "--model", config, "--tp", "2").out
    assert "next: mirage-kernels generate --model small.json --tp 2 --arch sm_90a --out DIR" in said


def test_the_command_that_list_names_is_quoted_for_a_shell(mirage_kernels, config: str) -> None:
    Path(config).rename("my model.json")
    said = mirage_kernels("list", "--model", "my model.json").out
    assert "next: mirage-kernels generate --model 'my model.json' --tp 1" in said


def test_list_says_what_the_calls_of_a_model_are_told(mirage_kernels) -> None:
    outcome = mirage_kernels("list", "--model", "gemma-2-27b")
    told = "eps=1e-06, scale=0.0833333, weight_offset=1, window_left=4095, logits_soft_cap=50"
    assert f"arguments of the calls: {told}" in outcome.out
    assert "note: PyTorch caps the logits softly, at 30, behind the lm_head" in outcome.out


def test_generate_asks_for_what_is_missing_alone(mirage_kernels, config: str) -> None:
    words = ("--model", config, "--dtype", "bf16", "--out", "mine", "--dry-run", "--json")
    outcome = mirage_kernels("generate", *words)
    names = json.loads(outcome.out)["kernels"]
    assert "rms_norm_linear K512_N1024_bf16" in names
    assert "silu_and_mul N1024_bf16" in names
    assert not [name for name in names if name.endswith("fp16")]


def test_generate_writes_and_says_what_is_next(
    mirage_kernels, config: str, without_search: None
) -> None:
    said = mirage_kernels("generate", "--model", config, "--dtype", "bf16", "--out", "mine")
    assert said.code == 0
    assert "next: mirage-kernels compile mine" in said.out
    assert Path("mine/sm_90a/table.cpp").is_file()


def test_a_models_kernels_take_measured_knobs_from_the_catalog_that_is_named(
    mirage_kernels, config: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = list[Request]()

    def generate(request: Request, **_: object) -> Result:
        asked.append(request)
        raise SearchError("not searched here")

    monkeypatch.setattr(pipeline, "generate", generate)
    Path("measured.json").write_text('{"sections": []}')
    words = ("--model", config, "--dtype", "bf16", "--out", "mine")
    mirage_kernels("generate", *words, "--catalog", "measured.json")
    assert {request.catalogs for request in asked} == {(Path("measured.json"),)}
    said = mirage_kernels("generate", *words, "--catalog", "none.json")
    assert (said.code, "there is no catalog none.json" in said.err) == (2, True)


@pytest.mark.parametrize("words", [("gqa",), ("--shape", "K=1")])
def test_a_model_goes_with_no_recipe_or_shape(
    mirage_kernels, config: str, words: tuple[str, ...]
) -> None:
    outcome = mirage_kernels("generate", "--model", config, *words)
    assert outcome.code == 2
    assert "--model says which recipes and shapes there are to generate" in outcome.err


def test_generate_without_anything_says_what_it_takes(mirage_kernels) -> None:
    outcome = mirage_kernels("generate")
    assert outcome.code == 2
    assert "generate takes a recipe, a file or a model" in outcome.err


def test_a_wheel_of_a_model_without_its_kernels_is_refused(config: str) -> None:
    with pytest.raises(ToolchainError, match=r"kernels of small\.json@2 are not there") as raised:
        selected([f"model:{config}@2"], "sm_90a", package_kernels())
    assert "`mirage-kernels generate --model small.json --tp 2`" in raised.value.hint
