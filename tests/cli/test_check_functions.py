"""The program of a PyTorch function is cut again: its kernels are proved, all files compared."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from mirage_kernels.generator.cli import main

FUNCTION = """
import torch


def layer(x, w, cos, sin, positions):
    cos, sin = cos[positions], sin[positions]
    y = torch.sort(torch.relu(x @ w), dim=-1)[0]
    half = y.shape[-1] // 2
    return y * cos + torch.cat((-y[:, half:], y[:, :half]), -1) * sin


example_inputs = {
    "x": torch.empty(8, 32),
    "w": torch.empty(32, 64),
    "cos": torch.empty(20, 64),
    "sin": torch.empty(20, 64),
    "positions": torch.empty(8, dtype=torch.int64),
}
dynamic = {"x": {0: "M"}, "positions": {0: "M"}}
"""
CATALOG = "is not in the catalog"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with a function, and beside it what is generated of that."""
    place = tmp_path_factory.mktemp("made")
    (place / "layers.py").write_text(FUNCTION)
    words = ("generate", f"{place}/layers.py:layer", "--dtype", "bf16", "--jobs", "1")
    assert main((*words, "--out", f"{place}/kernels", "--store", f"{place}/store")) == 0
    return place


@pytest.fixture
def checked(made: Path, tmp_path: Path, mirage_kernels) -> Callable[..., tuple[int, str]]:
    shutil.copytree(made / "kernels", tmp_path / "kernels")

    def check(*functions: str) -> tuple[int, str]:
        given = [f"{made}/layers.py:{name}" for name in functions]
        outcome = mirage_kernels(
            "check", *given, "--kernels", str(tmp_path / "kernels"), "--jobs", "1"
        )
        return outcome.code, outcome.out + outcome.err

    return check


def changed(folder: Path, pattern: str, old: str, new: str) -> None:
    path = next(folder.glob(pattern))
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


def test_all_parts_are_proved_again(checked) -> None:
    code, said = checked("layer")
    assert (code, "every muGraph proved again, every source as emitted" in said) == (0, True)


def test_without_the_function_its_program_and_kernels_are_named(checked) -> None:
    code, said = checked()
    assert code == 1
    assert CATALOG in said
    assert "program.json: a PyTorch function's program is checked by" in said


MADE_ANEW = "program.json"  # the program is cut otherwise without the kernel of a step
CHANGES = [
    ("kernels/*/*.program.json", '"size":', '"sized":', "is not what the generator makes"),
    ("kernels/*/layer_neg_add/*.json", '"op": "neg"', '"op": "abs"', "not equal to its recipe"),
    ("kernels/*/layer_neg_add/*.cu", "kAligned", "kBligned", "is not what the generator makes"),
    ("kernels/*/layer_neg_add/*.cu", "row >= 0 ", "row >= 1 ", "is not what the generator makes"),
    ("kernels/*/layer_neg_add/*.json", '"wraps": true', '"wraps": false', MADE_ANEW),
    ("kernels/*/*.program.json", '"of": "sin"', '"of": "cos"', "is not what the generator makes"),
]


@pytest.mark.parametrize(("pattern", "old", "new", "reason"), CHANGES)
def test_a_change_of_a_part_is_told(
    checked, tmp_path: Path, pattern: str, old: str, new: str, reason: str
) -> None:
    changed(tmp_path, pattern, old, new)
    code, said = checked("layer")
    assert (code, reason in said) == (1, True)


APPEND = """
import torch


def append(q, k, v, cos, positions, keys, values, slots):
    keys[slots] = k * cos[positions]
    values[slots] = v
    return q * cos[positions]


example_inputs = {name: torch.empty(8, 64) for name in ("q", "k", "v")} | {
    "cos": torch.empty(20, 64),
    "positions": torch.empty(8, dtype=torch.int64),
    "keys": torch.empty(50, 64),
    "values": torch.empty(50, 64),
    "slots": torch.empty(8, dtype=torch.int64),
}
dynamic = {name: {0: "M"} for name in ("q", "k", "v", "positions", "slots")}
"""


@pytest.fixture(scope="module")
def appending(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with a function of two kernels that are one launch, and what is generated of it."""
    place = tmp_path_factory.mktemp("appending")
    (place / "caches.py").write_text(APPEND)
    words = ("generate", f"{place}/caches.py:append", "--dtype", "bf16", "--jobs", "1")
    assert main((*words, "--out", f"{place}/kernels", "--store", f"{place}/store")) == 0
    return place


@pytest.mark.parametrize(("old", "new", "code"), [("", "", 0), ("args.ends[0]", "args.ends[1]", 1)])
def test_a_launch_of_several_kernels_is_held_as_one(
    appending: Path, tmp_path: Path, mirage_kernels, old: str, new: str, code: int
) -> None:
    shutil.copytree(appending / "kernels", tmp_path / "kernels")
    (record,) = (tmp_path / "kernels").glob("*/append_*/*.json")
    assert "mul" in record.parent.name
    changed(tmp_path, "kernels/*/append_*/*.cu", old, new)
    words = ("--kernels", str(tmp_path / "kernels"), "--jobs", "1")
    outcome = mirage_kernels("check", f"{appending}/caches.py:append", *words)
    assert outcome.code == code
