"""`mirage-kernels import-mirage`: what it prints, its document, its exit codes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from mirage_kernels.generator.frontend.mirage.builder import KernelGraph
from mirage_kernels.generator.frontend.mirage.checkpoints import checkpoint_text

GATED_MLP = f"{Path(__file__).parents[2]}/recipes/gated_mlp.py:gated_mlp"  # a recipe file
Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def file(
    programs: dict[str, Callable[..., KernelGraph]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> str:
    """A checkpoint in the current folder: two RMSNorm kernels and a gated MLP."""
    monkeypatch.chdir(tmp_path)
    graphs = [programs["rms_norm"](), programs["rms_norm"](steps=2), programs["gated_mlp"]()]
    Path("some.json").write_text(checkpoint_text([g.program for g in graphs]))
    return "some.json"


def test_every_graph_gets_a_line_and_the_counts_come_last(command: Command, file: str) -> None:
    code, out, _ = command("import-mirage", file)
    assert code == 0
    assert out.count("1 kernel  parsed") == 3
    assert out.endswith("3 graphs: 3 parsed\n")


def test_verdicts_name_the_binding_and_the_reasons(command: Command, file: str) -> None:
    hold = ("--hold", "norm_weight=1,eps=0")
    code, out, _ = command("import-mirage", file, "--verify", "rms_norm_linear", *hold)
    assert code == 0
    assert out.count("verified, 2^-") == 2
    assert "refused: rms_norm_linear takes x[M K], weight[N K]" in out
    assert "where the graphs' tensors are x[M K], weight[K N]" in out
    assert out.endswith("3 graphs: 3 parsed, 2 verified, 1 refused\n")


def test_the_document_holds_graphs_proofs_and_counts(command: Command, file: str) -> None:
    code, out, _ = command("import-mirage", file, "--verify", GATED_MLP, "--json")
    document = json.loads(out)
    assert code == 0
    assert document["counts"] == {"graphs": 3, "parsed": 3, "verified": 1, "refused": 2}
    first, _, last = document["graphs"]
    assert last["verified"]
    assert last["proof"]["log2_failure"] < -40
    assert last["graph"]["level"] == "kernel"
    assert not first["verified"]
    assert first["reason"]


def test_a_graph_is_shown(command: Command, file: str) -> None:
    code, out, _ = command("import-mirage", file, "--show", "1")
    assert code == 0
    assert "loop cuts K by 16" in out


def test_a_graph_that_is_not_parsed_is_the_answer_no(command: Command, file: str) -> None:
    Path(file).write_text(Path(file).read_text().replace("tb_silu_op", "tb_pow_op"))
    code, out, _ = command("import-mirage", file)
    assert code == 1
    assert "not parsed: there is no operator 'tb_pow_op' here" in out
    assert out.endswith("3 graphs: 2 parsed\n")


BAD = [
    (("absent.json",), "absent.json"),
    (("broken.json",), "broken.json is no JSON"),
    ((".",), "Is a directory"),
    ((), "required: FILE.json"),
    (("some.json", "--show", "3"), "there is no graph 3 to show"),
    (("some.json", "--show", "-1"), "there is no graph -1 to show"),
    (("some.json", "--show", "x"), "'x'"),
    (("some.json", "--hold", "eps=0"), "--hold needs a recipe"),
    (("some.json", "--verify", "batch_norm"), "no recipe called 'batch_norm'"),
    (("some.json", "--verify", "rms_norm_linear", "--hold", "eps"), "NAME=VALUE"),
    (("some.json", "--verify", "rms_norm_linear", "--hold", "eps=0,eps=1"), "NAME=VALUE"),
    (("some.json", "--verify", "rms_norm_linear", "--hold", "eps=1.2.3"), "no number"),
    (("some.json", "--verify", "rms_norm_linear", "--hold", "x1=0"), "no input 'x1'"),
    (("some.json", "--verify", "rms_norm_linear", "--hold", "eps=Q"), "no dim"),
]


@pytest.mark.parametrize(("words", "sentence"), BAD, ids=[" ".join(w) for w, _ in BAD])
def test_bad_input_gets_a_sentence(
    words: tuple[str, ...], sentence: str, command: Command, file: str
) -> None:
    Path("broken.json").write_text("[[{]")
    code, out, err = command("import-mirage", *words)
    assert code == 2
    assert out == ""
    assert sentence in err
    assert "Traceback" not in err
