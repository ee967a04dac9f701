"""Attention by wgmma: many query rows, which take the M side of the warpgroup instruction."""

from __future__ import annotations

from mirage_kernels.generator.schedules.attention import lowered, shared_bytes
from mirage_kernels.generator.schedules.attention.program import AttentionRoles
from mirage_kernels.generator.schedules.schedule import Schedule
from mirage_kernels.generator.schedules.wgmma_attention.knobs import WgmmaAttention, fits

SCHEDULE = Schedule(
    name=WgmmaAttention.schedule,
    knobs=WgmmaAttention,
    roles=AttentionRoles,
    lower=lowered,
    fits=fits,
    shared_bytes=shared_bytes,
)
