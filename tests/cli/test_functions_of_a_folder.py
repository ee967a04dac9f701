"""Programs of several PyTorch functions in one folder: none takes the place of another unsaid."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mirage_kernels.program_documents import document_files, read_document

SORTED = """
import torch


class Sorted(torch.nn.Module):
    def __init__(self, descending=False):
        super().__init__()
        self.descending = descending

    def forward(self, x):
        return torch.sort(x, descending=self.descending)[0]


up, down = Sorted(), Sorted(True)
sorted = Sorted()
example_inputs = torch.empty(4, 64, dtype=torch.bfloat16)
"""


@pytest.fixture
def generate(workplace: Path, mirage_kernels):
    """Write a file of a text and generate one of its functions into the folder `out`."""

    def run(file: str, name: str, text: str = SORTED):
        path = workplace / file
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        words = ("--dtype", "bf16", "--jobs", "1", "--store", str(workplace / "store"))
        return mirage_kernels("generate", f"{path}:{name}", "--out", str(workplace / "out"), *words)

    return run


def documents(folder: Path) -> dict[str, str]:
    """Return the names of a folder's programs, with what they are of."""
    read = map(read_document, document_files(folder))
    return {document["name"]: document["origin"] for document in read}


def test_a_program_has_the_name_that_its_file_has_for_it(generate, workplace: Path) -> None:
    assert [generate("mine.py", name).code for name in ("up", "down", "up")] == [0, 0, 0]
    assert documents(workplace / "out") == {"up": "../mine.py:up", "down": "../mine.py:down"}


@pytest.mark.parametrize(
    ("file", "name"), [("b/mine.py", "sorted"), ("a/other.py", "sorted"), ("a/mine.py", "Sorted")]
)
def test_another_function_of_the_same_name_is_refused(
    generate, workplace: Path, file: str, name: str
) -> None:
    assert generate("a/mine.py", "sorted").code == 0
    (before,) = document_files(workplace / "out")
    text = before.read_text()
    said = generate(file, name)
    assert said.code == 2
    mine, other = (workplace / one for one in (f"{file}:{name}", "a/mine.py:sorted"))
    place = f"{mine} would take the place of {other}: {before}"
    assert place in said.err.replace("\n", " ")
    assert before.read_text() == text


def test_a_function_whose_file_has_moved_is_generated_anew(generate, workplace: Path) -> None:
    generate("a/mine.py", "sorted")
    (workplace / "a").rename(workplace / "b")
    assert generate("b/mine.py", "sorted").code == 0
    assert documents(workplace / "out") == {"sorted": "../b/mine.py:sorted"}


def relu(name: str, factor: float, rows: int, does: str = "torch.relu(x)") -> str:
    """Return a file with a function of rows of 64, one kernel that all numbers of rows share."""
    return (
        f"import torch\ndef {name}(x): return {does} * {factor}\n"
        f"example_inputs = torch.empty({rows}, 64, dtype=torch.bfloat16)\n"
    )


def test_programs_whose_kernels_have_changed_are_removed(generate, workplace: Path) -> None:
    out = workplace / "out"
    assert generate("mine.py", "f", relu("f", 0.25, 4)).code == 0
    (old,) = document_files(out)
    assert generate("mine.py", "f", relu("f", 0.25, 8)).code == 0
    assert len(document_files(out)) == 2  # they share the kernel
    said = generate("mine.py", "f", relu("f", 0.125, 8))
    assert said.code == 0
    assert f"removed {old}: its kernels are others now. It was of x [4, 64]" in said.out
    (left,) = document_files(out)
    assert left != old


def test_a_program_of_an_earlier_version_is_removed_too(generate, workplace: Path) -> None:
    generate("mine.py", "f", relu("f", 0.25, 4))
    (old,) = document_files(workplace / "out")
    told = json.loads(old.read_text())
    del told["kernels"]
    old.write_text(json.dumps(told))
    generate("mine.py", "f", relu("f", 0.125, 8))
    assert not old.exists()


def test_a_kernel_of_another_function_is_not_changed(generate, workplace: Path) -> None:
    generate("mine.py", "f", relu("f", 0.25, 4))
    before = {file: file.read_bytes() for file in (workplace / "out").rglob("*.*")}
    said = generate("other.py", "f_relu", relu("f_relu", 0.5, 4, "x"))
    assert said.code == 2
    assert "f_relu would change f_relu_mul_D264_bf16, which" in said.err
    assert {file: file.read_bytes() for file in (workplace / "out").rglob("*.*")} == before
