"""Kernels of a recipe file, and a muGraph without a plan: what is said of them, what is checked."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from mirage_kernels.generator.cli import main

RECIPE = '''
from mirage_kernels.generator.language import contract, relu
from mirage_kernels.generator.recipe import recipe, shape


def reference(x, weight):
    from torch.nn.functional import linear, relu

    return linear(relu(x), weight)


@recipe(
    inputs={"x": "M K", "weight": "N K"},
    output="M N",
    dynamic={"M": 16},
    reference=reference,
    shapes=(shape("a kernel", K=72, N=40), shape("no plan", K=20, N=40)),
)
def relu_linear(x, weight):
    """linear(relu(x), weight)."""
    return contract(relu(x), weight, over="K")
'''
KERNEL = "sm_90a/relu_linear/K72_N40_fp16"
KEPT = "sm_90a/relu_linear/K20_N40_fp16.mugraph.json"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recipe file, and beside it the kernels of both its shapes."""
    folder = tmp_path_factory.mktemp("made")
    (folder / "relu_linear.py").write_text(RECIPE)
    words = ("generate", f"{folder}/relu_linear.py", "--dtype", "fp16", "--jobs", "1")
    assert main((*words, "--store", f"{folder}/store")) == 0
    return folder


@pytest.fixture
def checked(made: Path, tmp_path: Path, mirage_kernels) -> Callable[..., tuple[int, str]]:
    shutil.copytree(made / "kernels", tmp_path / "kernels")

    def check(*files: str) -> tuple[int, str]:
        given = [str(made / file) for file in files]
        outcome = mirage_kernels(
            "check", *given, "--kernels", str(tmp_path / "kernels"), "--jobs", "1"
        )
        return outcome.code, outcome.out + outcome.err

    return check


def test_a_size_that_no_plan_reads_gets_a_hint(made: Path, tmp_path: Path, mirage_kernels) -> None:
    given = ("--shape", "K=20,N=40", "--dtype", "fp16", "--jobs", "1", "--store", f"{made}/store")
    outcome = mirage_kernels(
        "generate", f"{made}/relu_linear.py", *given, "--out", str(tmp_path / "out")
    )
    assert "relu_linear K20_N40_fp16: proved, not emitted: " in outcome.out
    assert "a multiple of 8 in place of K 20 there may be a plan" in outcome.out


def test_kernels_of_a_recipe_file_are_proved_again(checked) -> None:
    code, said = checked("relu_linear.py")
    assert code == 0
    assert "2 kernels: every muGraph proved again" in said


def test_without_the_recipe_file_the_hint_names_it(checked) -> None:
    code, said = checked()
    assert code == 1
    assert f"{KERNEL}.json: recipe relu_linear is not in the catalog" in said
    assert "`mirage-kernels check FILE --kernels DIR`" in said


@pytest.mark.parametrize(
    ("path", "old", "new", "reason"),
    [
        (KEPT, b'"log2_failure": -', b'"log2_failure": -9', "is not what the generator makes"),
        (KEPT, b'"relu"', b'"silu"', "not equal to its recipe"),
        (KEPT, b"}\n", b"}\r\n", "is not what the generator makes"),
        (f"{KERNEL}.json", b'"relu"', b'"silu"', "not equal to its recipe"),
        (f"{KERNEL}.cu", b"relu", b"re\xffu", "is not what the generator makes"),
        (f"{KERNEL}.py", b"\n", b"\r\n", "is not what the generator makes"),
    ],
)
def test_every_change_is_told(
    checked, tmp_path: Path, path: str, old: bytes, new: bytes, reason: str
) -> None:
    file = tmp_path / "kernels" / path
    content = file.read_bytes()
    assert old in content
    file.write_bytes(content.replace(old, new, 1))
    code, said = checked("relu_linear.py")
    assert code == 1
    assert f"{path}: " in said
    assert reason in said


def test_a_record_that_is_nested_without_end_is_named(checked, tmp_path: Path) -> None:
    (tmp_path / "kernels" / f"{KERNEL}.json").write_text("[" * 100_000)
    code, said = checked("relu_linear.py")
    assert code == 2
    assert f"{KERNEL}.json is not a kernel record" in said
