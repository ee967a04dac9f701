"""Register-operand wgmma (RS): tokens are stationary in registers, weights stream past them."""

from mirage_kernels.generator.schedules.register_operand.rule import SCHEDULE as SCHEDULE
