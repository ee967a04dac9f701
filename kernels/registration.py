"""What PyTorch must know of the ops beside their compiled code: shapes, and PyTorch's programs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import wraps

import torch
from torch import Tensor

from mirage_kernels import (
    append_library,
    around,
    attention_fakes,
    attention_library,
    fakes,
    library,
)
from mirage_kernels.signatures import signatures

Program = Callable[..., None]


class _Failure(threading.local):
    """What a program said when it failed last, for the compiled op to repeat."""

    text = ""


_failure = _Failure()


def own_types(x: Tensor) -> AbstractContextManager[object]:
    """Suspend autocast, under which programs would multiply in another type than that of x."""
    kind = x.device.type
    if kind in ("cpu", "cuda") and torch.is_autocast_enabled(kind):
        return torch.autocast(kind, enabled=False)
    return nullcontext()


def _registered(program: Program) -> Program:
    @wraps(program)
    def run(x: Tensor, *args: object, **kwargs: object) -> None:
        try:
            with torch.no_grad(), own_types(x):
                program(x, *args, **kwargs)
        except Exception as error:  # whatever PyTorch raises: memory may be short
            _failure.text = str(error)
            raise

    return run


def _register(suffix: str, programs: Mapping[str, Program]) -> None:
    for name, program in programs.items():
        op, dot, overload = name.partition(".")
        full = f"mirage_kernels::_{op}_{suffix}{dot}{overload}"
        torch.library.impl(full, "default", _registered(program))


for _signature in signatures():
    torch.library.register_fake(_signature.name(), fakes.functional(_signature))
    torch.library.register_fake(_signature.name("out"), fakes.into(_signature))
attention_fakes.register()
for _programs in (library.PROGRAMS, attention_library.PROGRAMS, append_library.PROGRAMS):
    _register("library", _programs)
_register("around", around.AROUND)
torch.library.impl("mirage_kernels::_failure", "default", lambda: _failure.text)
