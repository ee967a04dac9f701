"""What is written reads back unchanged: graphs, kernel records, dataclasses by the codec."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from mirage_kernels.generator.errors import FileError, GraphError
from mirage_kernels.generator.ir import (
    Builder,
    DType,
    Graph,
    Json,
    Level,
    Node,
    TensorType,
    Value,
    dumps,
    from_json,
    to_json,
    to_text,
)
from mirage_kernels.generator.ir.codec import from_data, to_data
from mirage_kernels.generator.plan.threads import with_threads
from mirage_kernels.generator.recipe import catalog, trace
from mirage_kernels.generator.records.record import KernelRecord, load_record


@pytest.mark.parametrize("name", catalog())
def test_every_recipes_spec_reads_back_from_its_json(name: str) -> None:
    recipe = catalog()[name]
    spec = trace(recipe, recipe.shapes[0], DType.BF16)
    assert from_json(json.loads(dumps(to_json(spec)))) == spec


def test_thread_graphs_read_back_from_their_json(fused: Callable[..., Graph]) -> None:
    graph = with_threads(fused())
    assert from_json(json.loads(dumps(to_json(graph)))) == graph


@pytest.mark.parametrize("value", [0.0, -1.5, 0.1, 1e-6, 1.0000001, 3e38])
def test_a_constant_keeps_every_digit(value: float) -> None:
    builder = Builder(Level.KERNEL)
    name = builder.add(Node("const", (), (Value("c", TensorType((), DType.FP32)),), value=value))
    graph = builder.graph([name])
    assert from_json(json.loads(dumps(to_json(graph)))).nodes[0].value == value


def test_json_text_breaks_what_is_longer_than_a_line(fused: Callable[..., Graph]) -> None:
    assert max(map(len, dumps(to_json(fused())).splitlines())) <= 120


Edit = Callable[[dict[str, Json]], None]


def _first_node(data: dict[str, Json]) -> dict[str, Json]:
    nodes = data["nodes"]
    assert isinstance(nodes, list)
    node = nodes[0]
    assert isinstance(node, dict)
    return node


MALFORMED: dict[str, Edit] = {
    "no nodes": lambda data: data.pop("nodes") and None,
    "nodes that are no list": lambda data: data.update(nodes="x"),
    "an unknown level": lambda data: data.update(level="warp"),
    "a node without op": lambda data: _first_node(data).pop("op") and None,
    "results that are no object": lambda data: _first_node(data).update(outs=["x"]),
    "an unknown element type": lambda data: _first_node(data).update(outs={"x": "fp8[M<=4]"}),
    "an extent that is no number": lambda data: _first_node(data).update(outs={"x": "fp16[M=a]"}),
    "a grid without loop": lambda data: data.update(grid=[]),
}


@pytest.mark.parametrize("what", MALFORMED)
def test_malformed_json_is_refused_in_one_sentence(fused: Callable[..., Graph], what: str) -> None:
    data = json.loads(json.dumps(to_json(fused())))
    MALFORMED[what](data)
    with pytest.raises(GraphError, match="JSON is malformed"):
        from_json(data)


def test_text_of_the_fused_mugraph_is_golden(
    fused: Callable[..., Graph], golden: Callable[[str, str], None]
) -> None:
    golden("fused.txt", to_text(with_threads(fused())) + "\n")


GoldenRecord = Callable[[DType], KernelRecord]


def test_a_record_reads_back_from_its_text(golden_record: GoldenRecord, tmp_path: Path) -> None:
    record = golden_record(DType.FP16)
    path = tmp_path / "record.json"
    path.write_text(record.text())
    assert load_record(path) == record
    assert load_record(path).text() == record.text()


@pytest.mark.parametrize("field", ["recipe", "shape", "variants", "proof", "mugraph"])
def test_a_record_without_a_field_is_refused_by_its_name(
    golden_record: GoldenRecord, tmp_path: Path, field: str
) -> None:
    data = golden_record(DType.FP16).to_json()
    del data[field]
    path = tmp_path / "record.json"
    path.write_text(json.dumps(data))
    with pytest.raises(FileError, match=f"{path} .*{field}"):
        load_record(path)


# -- the codec between frozen dataclasses and JSON ------------------------------------------------


@dataclass(frozen=True)
class Part:
    """A nested value."""

    size: int
    factor: float = 1.0


@dataclass(frozen=True)
class Whole:
    """A value with every kind of field."""

    name: str
    dtype: DType
    dims: Mapping[str, int]
    parts: tuple[Part, ...] = ()
    note: str | None = None
    more: Part = field(default_factory=lambda: Part(3))


WHOLE = Whole("a", DType.FP16, {"K": 8}, (Part(1), Part(2, 0.5)))
DATA: Json = {
    "name": "a",
    "dtype": DType.FP16.value,
    "dims": {"K": 8},
    "parts": [{"size": 1}, {"size": 2, "factor": 0.5}],
}


def test_a_value_reads_back_and_its_defaults_are_left_away() -> None:
    assert to_data(WHOLE) == DATA
    assert from_data(Whole, DATA) == WHOLE


def test_what_has_no_form_is_refused() -> None:
    with pytest.raises(TypeError, match="no form for complex"):
        to_data(1j)


@pytest.mark.parametrize(
    ("wrong", "place"),
    [
        ({"parts": [{"size": "1"}]}, r"\$\.parts\[0\]\.size"),
        ({"dims": {"K": 1.5}}, r"\$\.dims"),
        ({"dtype": "fp17"}, r"\$\.dtype"),
    ],
    ids=str,
)
def test_a_wrong_value_is_named_by_its_place(wrong: dict[str, Json], place: str) -> None:
    assert isinstance(DATA, dict)
    with pytest.raises(ValueError, match=place):
        from_data(Whole, {**DATA, **wrong})
