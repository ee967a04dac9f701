"""The codec between frozen dataclasses and JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import pytest

from mirage_kernels.generator.ir import DType, Json
from mirage_kernels.generator.ir.codec import from_data, to_data


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
