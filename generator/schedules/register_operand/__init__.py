"""Register-operand wgmma (RS): tokens are stationary in registers, weights stream past them."""

from __future__ import annotations

from mirage_kernels.generator.schedules.loop import lowered, sizes
from mirage_kernels.generator.schedules.register_operand.knobs import (
    RegisterBlock,
    RegisterOperand,
)
from mirage_kernels.generator.schedules.register_operand.rule import (
    candidates,
    choose,
    fits,
    predict,
)
from mirage_kernels.generator.schedules.schedule import Schedule

registers, shared_bytes = sizes(RegisterOperand, RegisterBlock.of)
SCHEDULE = Schedule(
    name=RegisterOperand.schedule,
    knobs=RegisterOperand,
    lower=lowered,
    fits=fits,
    choose=choose,
    candidates=candidates,
    registers=registers,
    shared_bytes=shared_bytes,
    predict=predict,
)
