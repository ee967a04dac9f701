"""`check` refuses committed attention whose masks hide with another constant, or do not hide.

A constant in place of minus infinity under the peak is no mistake in exact arithmetic: a peak may
be any number. But where all that is seen lies far below the constant, 0 is divided by 0.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from mutation import places

from mirage_kernels.generator.cli import main
from mirage_kernels.generator.errors import VerifyError
from mirage_kernels.generator.ir import Graph
from mirage_kernels.generator.recipe import Shape, catalog, trace
from mirage_kernels.generator.records.record import KernelRecord, load_record
from mirage_kernels.generator.search.cases import small_cases
from mirage_kernels.generator.search.gate import Gate
from mirage_kernels.generator.search.verify import Prover

KERNELS = Path(__file__).resolve().parents[2] / "kernels"
RECORD = "sm_90a/gqa/D64_fp16"
HIDDEN, NOTHING = float("-inf"), 0.0  # what masks put in place of scores, and of their powers
OTHERS = {"0": 0.0, "-1": -1.0, "1e4": 1e4}


def with_constant(graph: Graph, old: float, new: float) -> Graph:
    """Return a muGraph with another number in place of a constant, wherever it is."""
    nodes = []
    for node in graph.nodes:
        if node.body is not None:
            node = replace(node, body=with_constant(node.body, old, new))
        if node.op == "const" and node.value == old:
            node = replace(node, value=new)
        nodes.append(node)
    return replace(graph, nodes=tuple(nodes))


def unmasked(graph: Graph) -> Iterator[Graph]:
    """Yield the muGraphs of which one mask hides nothing: first of scores, then of powers."""
    for place in places(graph):
        for node in place.graph.of("where"):
            seen = node.args[1]
            yield place.with_node(node, replace(node, args=(node.args[0], seen, seen)))


def mutants(graph: Graph) -> dict[str, Graph]:
    """Return mutants by what hides scores under the peak or powers in the sums."""
    under_the_peak, in_the_sums = unmasked(graph)
    made = {
        f"{text} {where}": with_constant(graph, old, new)
        for where, old in (("under the peak", HIDDEN), ("in the sums", NOTHING))
        for text, new in OTHERS.items()
        if new != old
    }
    return made | {"none under the peak": under_the_peak, "none in the sums": in_the_sums}


@cache
def committed(name: str) -> KernelRecord:
    return load_record(KERNELS / f"{name}.json")


MUTANTS = mutants(committed(RECORD).graph)


def checked(record: KernelRecord, folder: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """Return what `check` says of a folder with this kernel alone."""
    for part in ("sm_90a/gqa/D64_fp16.cu", "forms/gqa"):
        source, copied = KERNELS / part, folder / part
        copied.parent.mkdir(parents=True, exist_ok=True)
        (shutil.copytree if source.is_dir() else shutil.copy)(source, copied)
    (folder / record.path).write_text(record.text())
    main(("check", "--kernels", str(folder), "--jobs", "1"))
    said = capsys.readouterr()
    lines = (said.out + said.err).splitlines()
    return "".join(line for line in lines if line.startswith(f"{record.path}: "))


def test_check_accepts_the_record_itself(tmp_path: Path, capsys) -> None:
    assert checked(committed(RECORD), tmp_path, capsys) == ""


@pytest.mark.parametrize("what", MUTANTS)
def test_check_refuses_another_constant_or_none(what: str, tmp_path: Path, capsys) -> None:
    said = checked(replace(committed(RECORD), graph=MUTANTS[what]), tmp_path, capsys)
    expected = "on the distribution" if what.endswith("peak") else "not equal to its recipe"
    assert expected in said


def attentions() -> list[str]:
    """Return a committed kernel of every recipe with a peak."""
    paths = sorted((KERNELS / "sm_90a").glob("*/*_bf16.json"))
    first = {path.parent.name: path for path in reversed(paths)}
    with_peak = [p for p in first.values() if '"peak"' in p.read_text()]
    return [f"sm_90a/{p.parent.name}/{p.stem}" for p in with_peak]


@pytest.mark.parametrize("name", attentions())
def test_the_gate_refuses_what_the_proof_of_any_attention_accepts(name: str) -> None:
    record = committed(name)
    recipe = catalog()[record.recipe]
    spec = trace(recipe, Shape(record.source, record.shape), record.storage)
    prover, gate = Prover(spec, range_of=recipe.range_of), Gate(spec, recipe, record.storage)
    for what, mutant in mutants(record.graph).items():
        if what.endswith("peak"):
            prover.compare(mutant, small_cases(spec)[0], seed=1)
            with pytest.raises(VerifyError, match="on the distribution"):
                gate.measure(mutant)
