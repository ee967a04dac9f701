"""One call for a model: `optimize(model)`.

torch.compile makes graphs of a model's code. In each of them, what a recipe's PyTorch reference
computes is replaced by this library's op where `supports()` covers its sizes and type; all else
stays as it is. Weights of linears that read one norm are put together once.

`mirage_kernels.matching` does it, and is imported by the first call: it loads torch._dynamo.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar
from weakref import WeakKeyDictionary

import torch
from torch import nn

from mirage_kernels.assumptions import checked
from mirage_kernels.errors import option_sentence

if TYPE_CHECKING:
    from mirage_kernels.matching.report import Report

_Model = TypeVar("_Model", bound=nn.Module)
_reports: WeakKeyDictionary[nn.Module, Report] = WeakKeyDictionary()


def optimize(
    model: _Model,
    example_inputs: Sequence[object] | Mapping[str, object] | None = None,
    *,
    mode: str | None = None,
    dynamic: bool | None = None,
    fullgraph: bool = False,
    pack: bool = True,
    compiled_only: bool = False,
    constant_modules: bool = False,
) -> _Model:
    """Serve a model by this library's ops, in place, and return it.

    Calls of the model, also those of `model.generate`, run graphs in which the ops stand for what
    they compute. With `example_inputs` (arguments, or a dict of keyword arguments) the graphs are
    made now, otherwise by the first call. `mode` is one of torch.compile's ("default",
    "reduce-overhead", ...): Inductor then compiles what is left; by default nothing is compiled.
    `dynamic` and `fullgraph` are torch.compile's.

    `pack` lets linears of one norm (queries, keys and values) be one product: their parameters
    become views of one tensor, with the same values, names and shapes. `compiled_only` replaces on
    the CPU, too, only what this build has kernels for. `constant_modules` promises that after the
    first call nobody changes the model's modules, their hooks or attributes; parameters may be
    written. A call then checks its inputs alone, which saves the host up to a millisecond.

    `print(mirage_kernels.report(model))` says what was replaced, what was not, and why. Call the
    model under `torch.inference_mode()` or `torch.no_grad()`: nothing is replaced where gradients
    are recorded.

    Raises RuntimeError for a model that is no module, for inputs that are neither a list nor a
    dict, and for an option that does not work; what the model raises on its inputs goes through.
    """
    if not isinstance(model, nn.Module):
        raise RuntimeError(option_sentence("model", type(model).__name__, ("torch.nn.Module",)))
    _require_arguments(example_inputs)
    from mirage_kernels.matching.backend import Backend, compile_options, traceable
    from mirage_kernels.matching.choose import Options
    from mirage_kernels.matching.report import Report

    chosen = Options(pack, compiled_only)
    own = Backend(made := Report(), mode, chosen)
    options = compile_options(checked("optimize", "constant_modules", constant_modules))
    compiled = torch.compile(  # type: ignore[call-overload]
        traceable(model), backend=own, dynamic=dynamic, fullgraph=fullgraph, **options
    )
    _reports[model] = made
    model._compiled_call_impl = _noting_the_first(model, made, compiled)
    if example_inputs is not None:
        with torch.no_grad():
            if isinstance(example_inputs, Mapping):
                model(**example_inputs)
            else:
                model(*example_inputs)
    return model


def _require_arguments(given: object) -> None:
    """Refuse what is no list of arguments; a tensor alone would be taken apart into rows."""
    if given is None or (isinstance(given, Sequence | Mapping) and not isinstance(given, str)):
        return
    works = ("a list of arguments", "a dict of keyword arguments")
    raise RuntimeError(option_sentence("example_inputs", type(given).__name__, works))


def _noting_the_first(
    model: nn.Module, report: Report, compiled: Callable[..., object]
) -> Callable[..., object]:
    """Return what a model's first call runs: it notes the call, and then stands aside."""

    def first(*inputs: object, **named: object) -> object:
        report.was_called = True
        model._compiled_call_impl = compiled
        return compiled(*inputs, **named)

    return first


def new_report(model: nn.Module) -> Report:
    """Return an empty report, which `report(model)` returns from now on."""
    from mirage_kernels.matching.report import Report

    _reports[model] = made = Report()
    return made


def report(model: nn.Module) -> Report:
    """Return what `optimize` did to a model: `replaced`, `kept`, `commands`; readable as text.

    Raises RuntimeError for a model that was not optimized.
    """
    if model not in _reports:
        raise RuntimeError(option_sentence("model", "not optimized", ("optimize(model)",)))
    return _reports[model]
