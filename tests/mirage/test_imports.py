"""Checkpoints: written and read back unchanged, and malformed ones named by place."""

from __future__ import annotations

import copy
import functools
import json
import operator
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from mirage_kernels.generator.errors import FileError, MirageError
from mirage_kernels.generator.frontend.mirage.builder import KernelGraph
from mirage_kernels.generator.frontend.mirage.checkpoints import (
    OP_TYPES,
    checkpoint_text,
    read_checkpoint,
)
from mirage_kernels.generator.frontend.mirage.verdicts import parsed
from mirage_kernels.generator.frontend.positional.ops import POSITIONAL

MUTATIONS = 400


def text_of(*graphs: KernelGraph) -> str:
    return checkpoint_text([graph.program for graph in graphs])


def write(folder: Path, text: str) -> Path:
    path = folder / "checkpoint.json"
    path.write_text(text)
    return path


@pytest.fixture(scope="session")
def data(programs: dict[str, Callable[..., KernelGraph]]) -> list:
    return json.loads(
        text_of(*(programs[name]() for name in ("rms_norm", "gqa", "gated_mlp", "lora")))
    )


def test_every_operator_of_the_format_has_a_meaning() -> None:
    of_torch = {
        "alike",
        "amax",
        "counted",
        "expand",
        "mean",
        "number",
        "permute",
        "reshape",
        "where",
    }
    assert {step.op for step in OP_TYPES.values()} == set(POSITIONAL) - of_torch


def test_a_written_graph_reads_back_unchanged(
    named_program: tuple[str, KernelGraph], tmp_path: Path
) -> None:
    program = named_program[1].program
    (found,) = read_checkpoint(write(tmp_path, checkpoint_text([program])))
    assert found == program


def test_the_format_is_as_committed(
    programs: dict[str, Callable[..., KernelGraph]], golden: Callable[[str, str], None]
) -> None:
    golden("mirage_checkpoint.json", text_of(programs["rms_norm"](), programs["gqa"]()))


def test_older_files_mean_the_same(data: list, tmp_path: Path) -> None:
    newer = read_checkpoint(write(tmp_path, json.dumps(data)))
    names = json.dumps(data).replace("tb_forloop_accum_", "tb_accum_")
    assert read_checkpoint(write(tmp_path, names)) == newer
    wrapped = json.dumps({"generated_graphs": data, "callstack": []})
    assert read_checkpoint(write(tmp_path, wrapped)) == newer


@pytest.mark.parametrize(
    ("op", "reason"),
    [
        ("frobnicate", "there is no operator 'tb_frobnicate_op' here"),
        ("clamp", "the file does not say with which numbers tb_clamp_op computes"),
    ],
)
def test_what_cannot_be_read_is_a_reason_why_one_graph_is_not_parsed(
    op: str, reason: str, data: list, tmp_path: Path
) -> None:
    changed = json.dumps(data).replace("tb_silu_op", f"tb_{op}_op")
    found = read_checkpoint(write(tmp_path, changed))
    assert [f for f in found if isinstance(f, str)] == [reason]
    assert len(found) == len(data)


BROKEN = [
    ("", "is no JSON"),
    ('[[{"op_type": "\udcff"}]]', "is no JSON"),
    ('[[{"x": ' + "[" * 100_000, "is nested too deeply"),
    ("3", "Expected `array`, got `int`"),
    ("{}", "missing required field `generated_graphs`"),
    ("[[]]", "graph 0: the graph has no operators"),
    ("[[3]]", r"Expected `object`, got `int` - at `\$\[0\]\[0\]`"),
    ('[[{"op_type": 3}]]', r"Expected `str`, got `int` - at `\$\[0\]\[0\].op_type`"),
]


@pytest.mark.parametrize(("text", "sentence"), BROKEN, ids=[s for _, s in BROKEN])
def test_a_file_that_breaks_the_schema_gets_its_place_named(
    text: str, sentence: str, tmp_path: Path
) -> None:
    path = tmp_path / "broken.json"
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(FileError, match=sentence):
        read_checkpoint(path)


EDITS = [
    (("output_tensors", 0, "guid"), 10_000_000, "made twice"),
    (("input_tensors", 0, "guid"), 5, "no operator before it makes the tensor 5"),
    (("input_tensors", 0, "dim"), [4, 4, 0, 0], "is declared"),
    (("output_tensors", 0, "dim"), [1, 1, 0, 0], "is declared"),
    (("output_tensors", 0, "num_dims"), 9, "num_dims is 9"),
    (("output_tensors", 0, "num_dims"), True, "Expected `int`, got `bool` - at .*num_dims"),
    (("bgraph", "forloop_range"), "4", "Expected `int`, got `str` - at .*forloop_range"),
    (("bgraph", "grid_dim", "x"), 10**30, "Expected `int` <= .* at .*grid_dim.x"),
    (("bgraph", "grid_dim"), {}, "missing required field `x` - at .*grid_dim"),
    (("bgraph", "operators", 0, "forloop_dim"), None, "missing required field `forloop_dim`"),
    (("bgraph", "operators"), [], "fewer tensors"),
    (("input_tensors",), [], "more tensors than its operator"),
]


@pytest.mark.parametrize(("keys", "value", "sentence"), EDITS, ids=[e[2] for e in EDITS])
def test_a_wrong_value_of_a_kernel_gets_a_sentence(
    keys: tuple, value: object, sentence: str, data: list, tmp_path: Path
) -> None:
    changed = copy.deepcopy(data)
    place = next(op for op in changed[0] if op["op_type"] == "kn_customized_op")
    for key in keys[:-1]:
        place = place[key]
    place[keys[-1]] = value
    with pytest.raises(FileError, match=sentence):
        read_checkpoint(write(tmp_path, json.dumps(changed)))


HOSTILE = [None, True, -1, 0, 1, 7, 2**31, 10**40, 1.5, 1e308, "", "x", "kn_exp_op", [], {}, [[]]]


def places(data: object, at: tuple = ()) -> Iterator[tuple]:
    """Yield the path of every value in a document."""
    pairs = enumerate(data) if isinstance(data, list) else getattr(data, "items", tuple)()
    for key, value in pairs:
        yield (*at, key)
        yield from places(value, (*at, key))


def mutated(data: list, rng: np.random.Generator) -> list:
    """Return a document with one or two values replaced, removed or doubled."""
    changed = copy.deepcopy(data)
    for _ in range(int(rng.integers(1, 3))):
        paths = list(places(changed))
        *path, last = paths[int(rng.integers(len(paths)))]
        holder = functools.reduce(operator.getitem, path, changed)
        kind = int(rng.integers(4))
        if kind == 0:
            del holder[last]
        elif kind == 1 and isinstance(holder, list):
            holder.insert(last, copy.deepcopy(holder[last]))
        else:
            holder[last] = HOSTILE[int(rng.integers(len(HOSTILE)))]
    return changed


def test_hostile_files_get_a_sentence_and_never_a_traceback(data: list, tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    small = data[1:2]  # two kernels
    refused = 0
    for _ in range(MUTATIONS):
        path = write(tmp_path, json.dumps(mutated(small, rng)))
        try:
            found = [parsed(0, graph) for graph in read_checkpoint(path)]
            refused += any(verdict.program is None for verdict in found)
        except MirageError:  # anything else is a traceback
            refused += 1
    assert refused > MUTATIONS // 2


def test_published_checkpoints_are_parsed_and_read_back_unchanged(
    checkpoints: Path, tmp_path: Path
) -> None:
    files = sorted(checkpoints.glob("*.json"))
    assert files
    for path in files:
        found = read_checkpoint(path)
        assert [f for f in found if isinstance(f, str)] == []
        assert read_checkpoint(write(tmp_path, checkpoint_text(found))) == found
        assert all(parsed(0, graph).program for graph in found)
