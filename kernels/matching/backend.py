"""The backend of torch.compile: replaces in each graph, and hands on what is left."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from types import FunctionType, MethodType

import torch
from torch import Tensor, fx, nn
from torch._dynamo import list_backends, lookup_backend, register_backend
from torch._dynamo.eval_frame import OptimizedModule
from torch._dynamo.external_utils import wrap_inline
from torch._dynamo.trace_rules import check
from torch._guards import detect_fake_mode
from torch._subclasses import FakeTensorMode

from mirage_kernels.assumptions import checked
from mirage_kernels.errors import option_sentence
from mirage_kernels.matching.choose import DEFAULT, Options, choose
from mirage_kernels.matching.packing import PackedCall, Whole
from mirage_kernels.matching.report import GraphReport, Report, graph_report, refused_graph
from mirage_kernels.matching.rewrite import rewrite
from mirage_kernels.matching.terms import Terms
from mirage_kernels.matching.trace import traced

_Compiled = Callable[..., object]
_GRAD = (
    "gradients are recorded and a tensor requires them, but ops are for inference; call the model "
    "under torch.inference_mode() or torch.no_grad()"
)
_FLAGS = ("pack", "compiled_only")
_NAMES = ("rest", *_FLAGS)


@dataclass(frozen=True)
class Backend:
    """A backend of torch.compile: replaces in every graph, and notes it in its report."""

    report: Report
    mode: str | None = None  # of Inductor; None: nothing else is compiled
    options: Options = DEFAULT

    def __post_init__(self) -> None:
        """Refuse a mode that Inductor does not have."""
        modes = tuple(torch._inductor.list_mode_options())
        if self.mode is not None and self.mode not in modes:
            raise RuntimeError(option_sentence("mode", repr(self.mode), ("None", *modes)))

    def __call__(self, module: fx.GraphModule, inputs: Sequence[object]) -> _Compiled:
        """Return what runs a graph."""
        made = replaced(module, inputs, self.options)
        self.report.graphs.append(made.report)
        if made.unpacked is None:
            return self._rest(module, inputs)
        compiled = self._rest(module, _with_wholes(module, inputs, made.wholes))
        return PackedCall(compiled, made.wholes, self._without_packing(made.unpacked))

    def _rest(self, module: fx.GraphModule, inputs: Sequence[object]) -> _Compiled:
        if self.mode is None:
            return module.forward
        inductor: Callable[..., _Compiled] = lookup_backend("inductor")
        patches = torch._inductor.list_mode_options(self.mode)
        return inductor(module, inputs, config_patches=patches)

    def _without_packing(self, module: fx.GraphModule) -> _Compiled:
        """Return what runs a graph for weights that cannot be one: it is compiled when called."""
        own = replace(self, options=replace(self.options, pack=False))
        compiled: _Compiled = torch.compile(_framed(module.forward), backend=own)
        return compiled


@dataclass(frozen=True)
class Replaced:
    """A graph in which ops stand: with weights that are one now, also as it was."""

    report: GraphReport
    wholes: tuple[Whole, ...] = ()
    unpacked: fx.GraphModule | None = None


def traceable(model: nn.Module) -> _Compiled:
    """Return the call of a model, as torch.compile makes graphs of it.

    It makes none of a module of torch.nn that stands alone, only inside of another function.
    """
    is_compiled = isinstance(model, OptimizedModule)
    is_torchs = isinstance(model.forward, MethodType) and check(model.forward)
    return _framed(model._call_impl) if is_compiled or is_torchs else model._call_impl


def _framed(function: _Compiled) -> _Compiled:
    """Return a function around one that torch.compile would not trace by itself.

    Its code is its own: torch.compile counts graphs by code, and stops at eight.
    """
    made: FunctionType = wrap_inline(function)  # type: ignore[assignment]
    made.__code__ = made.__code__.replace()
    return made


def compile_options(constant_modules: bool) -> dict[str, object]:
    """Return torch.compile's options: with the promise, a call checks nothing about modules."""
    if not constant_modules:
        return {}
    return {"options": {"guard_filter_fn": torch.compiler.skip_guard_on_all_nn_modules_unsafe}}


def replaced(
    module: fx.GraphModule, inputs: Sequence[object], options: Options = DEFAULT
) -> Replaced:
    """Replace in a graph, in place; say what was replaced, and which weights are one now."""
    if torch.is_grad_enabled() and any(isinstance(t, Tensor) and t.requires_grad for t in inputs):
        return Replaced(refused_graph(_GRAD))
    try:
        found = traced(module, inputs, Terms())
    except Exception as error:  # of any function of PyTorch: the graph runs as it is
        return Replaced(refused_graph(_untraced(error)))
    placeholders = [n for n in module.graph.nodes if n.op == "placeholder"]
    known = dict(zip(placeholders, inputs, strict=True))
    weights = {n: t for n, t in known.items() if isinstance(t, nn.Parameter)}
    choice = choose(module.graph, found, weights, options)
    report = graph_report(choice, module.graph, found)
    unpacked = _copied(module) if choice.packs else None
    return Replaced(report, rewrite(module, choice, found), unpacked)


def _copied(module: fx.GraphModule) -> fx.GraphModule:
    """Return a module with a graph of its own, without what is known of the nodes' values."""
    graph = deepcopy(module.graph)
    for node in graph.nodes:
        node.meta.clear()
    return fx.GraphModule(module, graph)


def _untraced(error: Exception) -> str:
    """Say in a line that a graph did not run on tensors without data."""
    text = " ".join(str(error).split())
    return f"it does not run on tensors without data: {type(error).__name__}: {text[:200]}"


def _with_wholes(
    module: fx.GraphModule, inputs: Sequence[object], wholes: Sequence[Whole]
) -> list[object]:
    """Return the inputs for which a graph with wholes is compiled; those have no data yet."""
    placeholders = [n for n in module.graph.nodes if n.op == "placeholder"]
    given = [*inputs]
    with detect_fake_mode(inputs) or FakeTensorMode():
        for place in (whole.places[0] for whole in wholes):
            value = placeholders[place].meta["example_value"]
            given[place] = torch.empty(value.shape, dtype=value.dtype, device=value.device)
    return given


def backend(
    module: fx.GraphModule,
    inputs: Sequence[object],
    *,
    mode: str | None = None,
    options: Mapping[str, object] | None = None,
) -> _Compiled:
    """Compile a graph for `torch.compile(model, backend="mirage_kernels")`.

    What is not replaced goes to Inductor, in `mode`, or with `options={"rest": "eager"}` runs as it
    is. Further options: `pack` (may weights be put together; True) and `compiled_only` (on the CPU
    too, replace only what this build has kernels for; False).
    """
    given = dict(options or {})
    for name in given.keys() - set(_NAMES):
        raise RuntimeError(option_sentence("backend", name, _NAMES))
    chosen = Options(**{n: checked("optimize", n, given[n]) for n in _FLAGS if n in given})
    rest = given.get("rest", "inductor")
    if rest not in ("inductor", "eager"):
        raise RuntimeError(option_sentence("rest", rest, ("inductor", "eager")))
    own = Backend(Report(), None if rest == "eager" else mode or "default", chosen)
    return own(module, inputs)


if "mirage_kernels" not in list_backends(exclude_tags=()):
    register_backend(backend, name="mirage_kernels")  # type: ignore[arg-type]
