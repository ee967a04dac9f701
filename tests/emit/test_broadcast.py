"""Vectors of one element: epilogues read them by their stride, and nothing copies them first."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from mirage_kernels.generator.records.programs import program_entry
from mirage_kernels.generator.records.record import KernelRecord, load_record
from mirage_kernels.generator.schedules.streaming import sources

KERNELS = Path(__file__).resolve().parents[2] / "kernels/sm_90a"


@pytest.fixture(scope="module")
def linear() -> KernelRecord:
    """A linear layer that computes with a bias of one element."""
    record = load_record(KERNELS / "linear/K1024_N8192_bf16.json")
    return replace(record, broadcast=("bias",))


def signature(record: KernelRecord) -> str:
    """Return a program's signature, whose text lies in several literals."""
    return program_entry(record).replace('"\n    "', "")


def test_an_epilogue_reads_a_vector_of_one_element_by_its_stride(linear: KernelRecord) -> None:
    place = [n.name for n in linear.graph.inputs if n.out.type.dims].index("bias")
    forms = [text for path, text in sources([linear]).items() if path.startswith("forms")]
    cuda = [text for text in forms if "load_row(bias" in text]
    assert cuda
    assert all(f"load_row(bias, args.row_strides[{place}], out_tile" in text for text in cuda)


def test_a_signature_says_which_vectors_are_read_by_their_stride(linear: KernelRecord) -> None:
    assert "broadcast" in signature(linear)
    assert "broadcast" not in signature(replace(linear, broadcast=()))


def test_what_the_loop_loads_is_never_read_by_its_stride(linear: KernelRecord) -> None:
    assert "broadcast" not in signature(replace(linear, broadcast=("weight",)))


def test_a_record_keeps_which_inputs_are_broadcast(linear: KernelRecord, tmp_path: Path) -> None:
    file = tmp_path / "record.json"
    file.write_text(linear.text())
    assert load_record(file).broadcast == ("bias",)
