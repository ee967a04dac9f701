"""What a function is traced with: examples of its inputs and its own tensors, without values."""

from __future__ import annotations

import copy
import functools
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from mirage_kernels.generator.errors import RecipeError
from mirage_kernels.generator.frontend.declarations import TAKEN

if TYPE_CHECKING:
    import torch

_PLAIN = (bool, int, float, str, type(None))  # examples of these types are constants
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def bound(
    function: Callable[..., Any], examples: Mapping[str, Any]
) -> tuple[Callable[..., Any], dict[str, Any]]:
    """Return a function whose constants are the examples that are plain values, and the others."""
    import torch

    constants = {n: x for n, x in examples.items() if isinstance(x, _PLAIN)}
    if not constants:
        return function, dict(examples)
    others = {n: x for n, x in examples.items() if n not in constants}
    if not isinstance(function, torch.nn.Module):
        return _partial(function, constants), others
    own = copy.copy(function)
    own.forward = _partial(own.forward, constants)
    return own, others


def _partial(function: Callable[..., Any], constants: Mapping[str, Any]) -> Callable[..., Any]:
    """Return a function with constants, whose signature lacks them."""
    called = functools.partial(function, **constants)
    for name in ("__name__", "__doc__"):
        setattr(called, name, getattr(function, name, ""))
    return called


def in_type(
    run: Callable[..., Any], given: Mapping[str, torch.Tensor], dtype: torch.dtype
) -> tuple[Callable[..., Any], dict[str, torch.Tensor]]:
    """Return a function and its examples in the type that kernels store.

    Where some tensors are of 16 bits these are, and fp32 stays; where all are fp32 they are. Those
    of 8 and 64 bits stay. A module's tensors lose their values. Raises RecipeError for float64
    alone.
    """
    import torch

    own = [*given.values(), *(run.parameters() if isinstance(run, torch.nn.Module) else ())]
    floats = {x.dtype for x in own if x.is_floating_point()}
    if floats == {torch.float64}:
        raise RecipeError(
            "all tensors of the function are of torch.float64, which no kernel takes",
            "cast the examples, and a module, to torch.bfloat16, float16 or float32",
        )
    mixed = any(t.itemsize == 2 for t in floats)

    def type_of(x: torch.Tensor) -> torch.dtype:
        changes = x.element_size() == 2 or (x.element_size() == 4 and not mixed)
        return dtype if changes and x.is_floating_point() else x.dtype

    if isinstance(run, torch.nn.Module):
        run = without_values(run, type_of)
    return run, {
        name: torch.empty_strided(x.shape, x.stride(), dtype=type_of(x), device="meta")
        if type_of(x) is not x.dtype
        else x
        for name, x in given.items()
    }


def cast_of(given: Mapping[str, torch.Tensor], made: Mapping[str, torch.Tensor]) -> str:
    """Say what types of 16 bits examples had that are of others now, nothing where none had."""
    pairs = ((x.dtype, made[n].dtype) for n, x in given.items() if x.element_size() == 2)
    texts = [[str(t).removeprefix("torch.") for t in pair] for pair in pairs if pair[0] != pair[1]]
    hint = "the examples' {} became {} here: --dtype says in which types a program is made"
    return hint.format(*texts[0]) if texts else ""


def without_values(
    module: torch.nn.Module, type_of: Callable[[torch.Tensor], torch.dtype]
) -> torch.nn.Module:
    """Return a copy of a module whose tensors have no values: on the CPU, they take no memory."""
    import torch

    made = dict[int, torch.Tensor]()
    for own in (*module.parameters(), *module.buffers()):
        made[id(own)] = torch.empty_like(own, dtype=type_of(own), device="cpu")
        if isinstance(own, torch.nn.Parameter):
            made[id(own)] = torch.nn.Parameter(made[id(own)], own.requires_grad)
    return copy.deepcopy(module, made)


def require_examples(
    name: str, given: Mapping[str, object], dynamic: Mapping[str, Mapping[int, str]]
) -> None:
    """Raise RecipeError for an example that is no tensor, and a dynamic dim that none has.

    And for one whose name emitted files could not use.
    """
    import torch

    tensors = dict[str, torch.Tensor]()
    for own, value in given.items():
        if not isinstance(value, torch.Tensor):
            raise RecipeError(
                f"the example of {name}'s {own} is of {type(value).__name__}, no tensor",
                "examples are tensors, numbers, texts, True, False or None; wrap the function",
            )
        tensors[own] = value
    for own, dims in dynamic.items():
        wrong = [d for d in dims if own in tensors and not 0 <= d < tensors[own].dim()]
        if own not in tensors or wrong:
            raise RecipeError(
                f"`dynamic` names {f'dim {wrong[0]} of ' if wrong else ''}{own}, "
                f"which the examples of {name} do not have",
                f"they are {', '.join(f'{n} with {x.dim()} dims' for n, x in tensors.items())}",
            )
        for dim in (d for d in dims.values() if not _NAME.fullmatch(str(d)) or d in TAKEN):
            raise RecipeError(
                f"`dynamic` names a dim of {name}'s {own} {dim!r}, which emitted files cannot use",
                "letters, digits and _ make a name, upper case by custom: M, B, T",
            )


def fake(examples: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return tensors without memory on the CPU, where a module's parameters are."""
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode(allow_non_fake_inputs=True):
        return {
            name: torch.empty_strided(t.shape, t.stride(), dtype=t.dtype)
            for name, t in examples.items()
        }
