"""The backend of torch.compile: replaces in each graph, and hands on what is left."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, fx, nn
from torch._dynamo import list_backends, lookup_backend, register_backend

from mirage_kernels.errors import option_sentence
from mirage_kernels.matching.choose import DEFAULT, Options, choose
from mirage_kernels.matching.packing import Pack
from mirage_kernels.matching.report import GraphReport, Report, graph_report, refused_graph
from mirage_kernels.matching.rewrite import rewrite
from mirage_kernels.matching.terms import Terms
from mirage_kernels.matching.trace import traced

_Compiled = Callable[..., object]
_GRAD = (
    "gradients are recorded and a tensor requires them, but ops are for inference; call the model "
    "under torch.inference_mode() or torch.no_grad()"
)
_NAMES = ("rest", "pack", "compiled_only")


@dataclass(frozen=True)
class Backend:
    """A backend of torch.compile: replaces in every graph, and notes it in its report."""

    report: Report
    mode: str | None = None  # of Inductor; None: nothing else is compiled
    options: Options = DEFAULT

    def __call__(self, module: fx.GraphModule, inputs: Sequence[object]) -> _Compiled:
        found, packs = replaced(module, inputs, self.options)
        self.report.graphs.append(found)
        compiled = module.forward if self.mode is None else self._rest(module, inputs)
        for pack in packs:
            pack.move()
        return compiled

    def _rest(self, module: fx.GraphModule, inputs: Sequence[object]) -> _Compiled:
        inductor: Callable[..., _Compiled] = lookup_backend("inductor")
        patches = torch._inductor.list_mode_options(self.mode)
        return inductor(module, inputs, config_patches=patches)


def compile_options(constant_modules: bool) -> dict[str, object]:
    """Return torch.compile's options: with the promise, a call checks nothing about modules."""
    if not constant_modules:
        return {}
    return {"options": {"guard_filter_fn": torch.compiler.skip_guard_on_all_nn_modules_unsafe}}


def replaced(
    module: fx.GraphModule, inputs: Sequence[object], options: Options = DEFAULT
) -> tuple[GraphReport, list[Pack]]:
    """Replace in a graph, in place; say what was replaced, and which weights were put together."""
    if torch.is_grad_enabled() and any(isinstance(t, Tensor) and t.requires_grad for t in inputs):
        return refused_graph(_GRAD), []
    found = traced(module, inputs, Terms())
    placeholders = [n for n in module.graph.nodes if n.op == "placeholder"]
    known = dict(zip(placeholders, inputs, strict=True))
    weights = {n: t for n, t in known.items() if isinstance(t, nn.Parameter)}
    choice = choose(module.graph, found, weights, options)
    report = graph_report(choice, module.graph, found)
    return report, rewrite(module, choice, weights)


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
    chosen = Options(bool(given.get("pack", True)), bool(given.get("compiled_only", False)))
    rest = given.get("rest", "inductor")
    if rest not in ("inductor", "eager"):
        raise RuntimeError(option_sentence("rest", rest, ("inductor", "eager")))
    own = Backend(Report(), None if rest == "eager" else mode or "default", chosen)
    return own(module, inputs)


if "mirage_kernels" not in list_backends(exclude_tags=()):
    register_backend(backend, name="mirage_kernels")  # type: ignore[arg-type]
