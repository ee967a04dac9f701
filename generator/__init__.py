"""The build-time superoptimizer: from recipes to proved muGraphs to kernel sources.

As `import mirage_kernels.generator as mi` it has Mirage's interface: `mi.new_kernel_graph()` and
what belongs to it (docs/mirage.md). Each name is loaded when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mirage_kernels.generator.frontend.mirage.builder import (
        KernelGraph,
        bfloat16,
        bypass_compile_errors,
        float16,
        float32,
        new_graph,
        new_kernel_graph,
        new_threadblock_graph,
        set_gpu_device_id,
    )
    from mirage_kernels.generator.frontend.mirage.optimize import superoptimize
    from mirage_kernels.generator.frontend.mirage.running import convert_dtype_to_torch_type
    from mirage_kernels.generator.frontend.mirage.sources import (
        generate_cuda_program,
        generate_triton_program,
    )

_FACE = "mirage_kernels.generator.frontend.mirage"
_HOME = {  # modules of the names that `builder` does not define
    "convert_dtype_to_torch_type": "running",
    "generate_cuda_program": "sources",
    "generate_triton_program": "sources",
    "superoptimize": "optimize",
}
# Names of Mirage that have no counterpart here, and what they are about.
_ABSENT = {
    "MPK": "megakernels of whole models",
    "MPKMetadata": "megakernels of whole models",
    "MirageModelConfig": "megakernels of whole models",
    "PersistentKernel": "megakernels of whole models",
    "generate_nki_program": "programs for Trainium",
}
__all__ = [
    "KernelGraph",
    "bfloat16",
    "bypass_compile_errors",
    "convert_dtype_to_torch_type",
    "float16",
    "float32",
    "generate_cuda_program",
    "generate_triton_program",
    "new_graph",
    "new_kernel_graph",
    "new_threadblock_graph",
    "set_gpu_device_id",
    "superoptimize",
]


def __getattr__(name: str) -> object:
    if name in _ABSENT:
        raise import_module(f"{_FACE}.builder").absence(name, _ABSENT[name])
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(f"{_FACE}.{_HOME.get(name, 'builder')}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
