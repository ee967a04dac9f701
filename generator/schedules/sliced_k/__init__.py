"""Sliced-K: every warp of a block takes slices of the depth, by mma from a multistage pipeline."""

from __future__ import annotations

from mirage_kernels.generator.schedules.loop import lowered, sizes
from mirage_kernels.generator.schedules.schedule import Schedule
from mirage_kernels.generator.schedules.sliced_k.knobs import Footprint, SlicedK
from mirage_kernels.generator.schedules.sliced_k.rule import candidates, choose, fits, predict

registers, shared_bytes = sizes(SlicedK, Footprint.of)
SCHEDULE = Schedule(
    name=SlicedK.schedule,
    knobs=SlicedK,
    lower=lowered,
    fits=fits,
    choose=choose,
    candidates=candidates,
    registers=registers,
    shared_bytes=shared_bytes,
    predict=predict,
)
