"""What tests of emitted kernels share: a kernel with a second product after the loop."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from mirage_kernels.generator.ir import DType, Graph
from mirage_kernels.generator.plan.threads import with_threads
from mirage_kernels.generator.recipe import Shape
from mirage_kernels.generator.records.record import About, KernelRecord
from mirage_kernels.generator.schedules.streaming import planned


@pytest.fixture(scope="session")
def adapted_record(
    adapted: Callable[..., Graph], golden_record: Callable[[DType], KernelRecord]
) -> Callable[..., KernelRecord]:
    """The record of a linear layer with an adapter, not proved."""

    def make(dims: dict[str, int], dtype: DType = DType.FP16, arch: str = "sm_90a") -> KernelRecord:
        fields = vars(golden_record(dtype))
        about = About(**{name: fields[name] for name in About.__dataclass_fields__})
        mine = replace(about, recipe="lora_linear", shape=dims, arch=arch)
        return planned(mine, with_threads(adapted(Shape("a test", dims), dtype)))

    return make
