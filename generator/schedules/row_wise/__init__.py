"""Row-wise and elementwise kernels: a block holds a row, or a tile of one without sums."""

from __future__ import annotations

from mirage_kernels.generator.schedules.loop import lowered
from mirage_kernels.generator.schedules.row_wise.knobs import (
    RowWise,
    candidates,
    choose,
    fits,
    predict,
)
from mirage_kernels.generator.schedules.schedule import Schedule

SCHEDULE = Schedule(
    name=RowWise.schedule,
    knobs=RowWise,
    lower=lowered,
    fits=fits,
    choose=choose,
    candidates=candidates,
    registers=lambda program, knobs: 0,  # a thread holds a few elements
    shared_bytes=lambda program, knobs: 0,  # sums of warps take a few static bytes
    predict=predict,
)
