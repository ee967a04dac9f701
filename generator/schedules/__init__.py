"""Every way of running a muGraph as a kernel: a module each, all of one shape (`schedule.py`).

Adding a schedule adds a module and a row to these tables. In the order in which they are asked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mirage_kernels.generator.emit.cuda import Part
from mirage_kernels.generator.ir import Json
from mirage_kernels.generator.ir.codec import from_data
from mirage_kernels.generator.plan.program import TileProgram
from mirage_kernels.generator.schedules import (
    cluster_rows,
    cluster_split_k,
    flash_decode,
    general,
    register_operand,
    row_wise,
    sliced_k,
    wgmma_attention,
)
from mirage_kernels.generator.schedules.cluster_split_k import writer as cluster_split_k_writer
from mirage_kernels.generator.schedules.register_operand import writer as register_operand_writer
from mirage_kernels.generator.schedules.schedule import Knobs, Ranked, Schedule, Variant
from mirage_kernels.generator.schedules.sliced_k import writer as sliced_k_writer

RANKED: dict[str, Ranked[TileProgram]] = {
    room.SCHEDULE.name: room.SCHEDULE
    for room in (cluster_rows, row_wise, register_operand, cluster_split_k, sliced_k)
}
SCHEDULES: dict[str, Schedule[Any]] = {
    **RANKED,
    **{room.SCHEDULE.name: room.SCHEDULE for room in (flash_decode, wgmma_attention, general)},
}
# What writes a schedule's forms, of a program and the variants of a kernel.
PARTS: dict[str, Callable[[TileProgram, Sequence[Variant]], list[Part]]] = {
    "cluster_rows": cluster_rows.parts,
    "row_wise": row_wise.parts,
    "register_operand": register_operand_writer.parts,
    "cluster_split_k": cluster_split_k_writer.parts,
    "sliced_k": sliced_k_writer.parts,
}


def read_knobs(data: Mapping[str, Json]) -> Knobs:
    """Read knobs among an object's fields; raises ValueError saying what is wrong."""
    name = data["schedule"]
    if name not in SCHEDULES:
        raise ValueError(f"there is no schedule called {name}")
    return from_data(SCHEDULES[str(name)].knobs, dict(data))


def read_variant(data: Mapping[str, Json]) -> Variant:
    """Read a variant; raises ValueError saying what is wrong."""
    few = bool(from_data(int, data.get("few_tiles", 0)))
    return Variant(from_data(int, data["bucket"]), read_knobs(data), few_tiles=few)
