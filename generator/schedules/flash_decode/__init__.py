"""Flash decode: few query rows, each warp of a block takes keys of its own."""

from __future__ import annotations

from mirage_kernels.generator.schedules.attention import lowered, shared_bytes
from mirage_kernels.generator.schedules.attention.program import AttentionRoles
from mirage_kernels.generator.schedules.flash_decode.knobs import FlashDecode, fits
from mirage_kernels.generator.schedules.schedule import Schedule

SCHEDULE = Schedule(
    name=FlashDecode.schedule,
    knobs=FlashDecode,
    roles=AttentionRoles,
    lower=lowered,
    fits=fits,
    shared_bytes=shared_bytes,
)
