"""Bad input: one sentence, a hint, exit code 2, no traceback, and every file as it was."""

from __future__ import annotations

import io
import json
import tempfile
from pathlib import Path

import pytest
import torch

from mirage_kernels.generator import pipeline
from mirage_kernels.generator.commands import arguments
from mirage_kernels.generator.commands.arguments import package_kernels
from mirage_kernels.generator.target import TARGETS

HEAD = """
from mirage_kernels.generator.language import contract, exp, relu
from mirage_kernels.generator.recipe import recipe, shape

@recipe(
    inputs={"x": "M K", "weight": "N K"},
    output="M N",
    dynamic={"M": 64},
    reference=None,
    shapes=(shape("my model", K=64, N=64),),
)
def mine(x, weight):
"""
RECIPE_FILES = {
    "typo.py": HEAD + "    return contarct(x, weight, over='K')\n",
    "fails.py": "1 / 0\n",
    "leaves.py": "raise SystemExit(0)\n",
    "no_shapes.py": HEAD.replace('(shape("my model", K=64, N=64),)', "()") + "    return x\n",
    "binary.py": "\udcff\udcfe",
}
OTHER_FILES = {
    "broken.json": '{"recipe": "rms_norm',
    "list.json": "[1, 2]\n",
    "folder/file": "x\n",
}

GENERATE = ("generate", "rms_norm_linear")
# Command, then words that the sentence and the hint must hold.
BAD_COMMANDS = [
    (("frobnicate",), "there is no verb 'frobnicate'", "verbs: generate"),
    (("generat", "x"), "there is no verb 'generat'", "did you mean `mirage-kernels generate`"),
    (("--frob",), "--frob", "--help"),
    (("generate",), "generate takes a recipe, a file or a model", "RECIPE, or --model NAME"),
    ((*GENERATE, "--frob"), "--frob", "`mirage-kernels generate --help`"),
    (("generate", "batch_norm"), "no recipe called 'batch_norm'", "nearest: layer_norm, "),
    ((*GENERATE, "--shape", "K4096"), "'K4096'", "--shape K=...,N=..."),
    ((*GENERATE, "--shape", ""), "''", "--shape K=...,N=..."),
    ((*GENERATE, "--shape", "K=4096,N=many"), "many", "--shape K=...,N=..."),
    ((*GENERATE, "--shape", "K=4096"), "static dims K, N", "--shape K=...,N=..."),
    ((*GENERATE, "--shape", "K=64,N=64,Q=1"), "Q", "--shape K=...,N=..."),
    ((*GENERATE, "--shape", "K=0,N=64"), "at least 1", ""),
    ((*GENERATE, "--dtype", "fp8"), "no dtype 'fp8'", "fp16, bf16"),
    ((*GENERATE, "--arch", "sm_12"), "'sm_12'", ", ".join(TARGETS)),
    ((*GENERATE, "--jobs", "0"), "'0' is not a whole number", "--help"),
    ((*GENERATE, "--out", ""), "--out is ''", "--out ."),
    ((*GENERATE, "--out", "nowhere/kernels"), "nowhere does not exist", "mkdir -p nowhere"),
    ((*GENERATE, "--out", "list.json"), "list.json is a file", "--out DIR"),
    ((*GENERATE, "--out", "list.json/kernels"), "list.json", ""),
    (("generate", "absent.py"), "absent.py does not exist", "path"),
    (("generate", "typo.py"), "contarct", "typo.py:13"),
    (("generate", "fails.py"), "fails.py, line 1: ZeroDivisionError", "nothing was written"),
    (("generate", "leaves.py"), "leaves.py calls exit(0)", "only defines a recipe"),
    (("generate", "no_shapes.py"), "mine has no shapes of its own", "--shape K=...,N=..."),
    ((*GENERATE, "--shape", "K=99999999999,N=64"), "dim K of rms_norm_linear must be at most", ""),
    (("check", "rms_norm_linear"), "rms_norm_linear is no recipe file", "--kernels DIR"),
    (("generate", "binary.py"), "binary.py", "nothing was written"),
    (("show",), "required: NAME", "`mirage-kernels show --help`"),
    (("show", "batch_norm"), "called 'batch_norm'", "`mirage-kernels list`"),
    (("show", "rms_norm_linear/K4096_N6145_fp16"), "", "nearest: rms_norm_linear/K4096_N6144_fp16"),
    (("show", "absent.json"), "absent.json", ""),
    (("show", "broken.json"), "broken.json is not a kernel record: it is no JSON", "generate"),
    (("show", "list.json"), "list.json is not a kernel record: it holds no muGraph", "generate"),
    (("show", "fails.py"), "fails.py, line 1: ZeroDivisionError", ""),
    (("check", "--kernels", "nowhere"), "nowhere does not exist", "--kernels"),
    (("check", "--kernels", "list.json"), "list.json is not a folder", "--kernels"),
    (("check", "--kernels", "folder"), "folder holds no kernels", "--kernels"),
    (("list", "--kernels", "nowhere"), "nowhere does not exist", "--kernels"),
    (("list", "surplus"), "surplus", "`mirage-kernels list --help`"),
    (("run", "batch_norm"), "no recipe called 'batch_norm'", "`mirage-kernels list`"),
    (("run", "rms_norm_linear", "--shape", "K=1"), "static dims K, N", "--shape"),
    (
        ("run", "group_norm_linear"),
        "the library's op, and it has none for group_norm_linear",
        "--out DIR",
    ),
    (("bench", "batch_norm"), "no recipe called 'batch_norm'", "`mirage-kernels list`"),
    (("bench", "--m", "1,x"), "'x' is not a whole number", "--help"),
    (("bench", "--shape", "K=1,N=1"), "--shape needs a recipe", "bench RECIPE"),
    (("bench", "--json", "nowhere/rows.json"), "nowhere does not exist", "mkdir"),
    (("bench", "--json", "folder"), "folder is a folder", "file"),
    (("search", "layer_cake"), "no recipe called 'layer_cake'", "nearest: "),
    (("search", "--executor", "cloud"), "'cloud'", "`mirage-kernels search --help`"),
    (("doctor", "--frob"), "--frob", "`mirage-kernels doctor --help`"),
]


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


@pytest.fixture
def with_files(workplace: Path) -> Path:
    for name, text in (RECIPE_FILES | OTHER_FILES).items():
        file = workplace / name
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(text.encode("utf-8", "surrogateescape"))
    return workplace


@pytest.mark.parametrize(
    ("words", "sentence", "hint"), BAD_COMMANDS, ids=[" ".join(c[0]) for c in BAD_COMMANDS]
)
def test_bad_input_gets_a_sentence_and_leaves_files_alone(
    words: tuple[str, ...], sentence: str, hint: str, mirage_kernels, with_files: Path
) -> None:
    before = contents(with_files), contents(package_kernels() / "sm_90a")
    outcome = mirage_kernels(*words)
    assert outcome.code == 2
    assert outcome.out == ""
    first, *rest = [line for line in outcome.err.splitlines() if "mirage-kernels: " in line]
    assert first.startswith("mirage-kernels: ")
    assert sentence in first
    assert rest == []
    assert hint in outcome.err.partition("hint: ")[2]
    assert "Traceback" not in outcome.err
    assert (contents(with_files), contents(package_kernels() / "sm_90a")) == before


def test_bad_input_with_json_is_a_document(mirage_kernels) -> None:
    document = json.loads(mirage_kernels("generate", "batch_norm", "--json").out)
    assert document["error"] == "there is no recipe called 'batch_norm'"
    assert document["hint"].count("norm") == 3


@pytest.mark.parametrize("unwritable", ["", "sm_90a", "sm_90a/rms_norm_linear"])
def test_folder_that_cannot_be_written_is_named_before_the_search(
    unwritable: str, mirage_kernels, monkeypatch, workplace
) -> None:
    folder = workplace / unwritable
    folder.mkdir(parents=True, exist_ok=True)

    def temporary_file(dir: Path) -> io.BytesIO:
        if dir == folder:
            raise OSError(30, "Read-only file system")
        return io.BytesIO()

    monkeypatch.setattr(tempfile, "TemporaryFile", temporary_file)
    outcome = mirage_kernels("generate", "rms_norm_linear", "--out", str(workplace))
    assert outcome.code == 2
    assert f"{folder} can't be written: {folder}: Read-only file system" in outcome.err


def test_a_record_that_cannot_be_read_is_named_before_the_search(
    mirage_kernels, monkeypatch, workplace
) -> None:
    monkeypatch.setattr(pipeline, "generate", lambda *_, **__: pytest.fail("a search begins"))
    broken = workplace / "sm_90a/linear/K1_fp16.json"
    broken.parent.mkdir(parents=True)
    broken.write_text("{")
    outcome = mirage_kernels("generate", "rms_norm_linear", "--out", str(workplace))
    assert outcome.code == 2
    assert f"{broken} is not a kernel record" in outcome.err


def test_without_a_gpu_bench_says_so(mirage_kernels, monkeypatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    outcome = mirage_kernels("bench", "rms_norm_linear")
    assert outcome.code == 2
    assert "bench needs an NVIDIA GPU" in outcome.err
    assert "mirage-kernels doctor" in outcome.err


def test_installed_package_asks_for_a_folder(mirage_kernels, monkeypatch, workplace) -> None:
    monkeypatch.setattr(arguments, "ROOT", workplace)
    outcome = mirage_kernels("generate", "rms_norm_linear")
    assert outcome.code == 2
    assert "not a source checkout" in outcome.err
    assert "--out DIR" in outcome.err
    assert list(workplace.iterdir()) == []


def test_full_disk_is_a_sentence(mirage_kernels, monkeypatch, workplace) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device", "kernels/x.cu")

    monkeypatch.setattr(pipeline, "generate", full)
    outcome = mirage_kernels("generate", "rms_norm_linear", "--out", str(workplace))
    assert outcome.code == 2
    assert "kernels/x.cu: No space left on device" in outcome.err
