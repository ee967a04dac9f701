"""Row-wise and elementwise kernels: a block holds a row, or a tile of one without sums."""

from mirage_kernels.generator.schedules.row_wise.knobs import SCHEDULE as SCHEDULE
