"""The terms of a graph's nodes: the graph runs on tensors without data, and its calls are kept.

Runs below torch.compile's graphs as well as functions: what a library function is made of is seen
as PyTorch itself decomposes it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor, fx
from torch._dispatch.python import enable_python_dispatcher
from torch._guards import detect_fake_mode
from torch._ops import HigherOrderOperator
from torch._subclasses import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from mirage_kernels.matching.aten import Call, meaning
from mirage_kernels.matching.terms import Term, Terms

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch._ops import OpOverload

_SYMBOLS = (torch.SymInt, torch.SymFloat, torch.SymBool)
_COMPOSITE = torch._C.DispatchKey.CompositeImplicitAutograd


def is_composite(func: OpOverload) -> bool:
    """Say whether a function of PyTorch is made of others; what asks for a size is none at all."""
    name: str = func.name()  # type: ignore[no-untyped-call]
    if func.namespace != "aten" or not torch._C._dispatch_has_kernel(name):
        return False
    return bool(func.has_kernel_for_dispatch_key(_COMPOSITE))


class Elementary(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Shows the calls of functions that are not made of others."""

    def __torch_dispatch__(
        self,
        func: OpOverload,
        types: Sequence[type],
        args: tuple[object, ...] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        named = dict(kwargs or {})
        if is_composite(func):
            with self:
                made: object = func.decompose(*args, **named)
            if made is not NotImplemented:
                return made
        return self.called(func, args, named)

    def called(
        self, func: OpOverload, args: tuple[object, ...], named: Mapping[str, object]
    ) -> object:
        """Run such a call."""
        raise NotImplementedError


class Recorder(Elementary):  # type: ignore[no-untyped-call]
    """Keeps the term of every tensor that a call makes."""

    def __init__(self, terms: Terms) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.terms = terms
        self.known: dict[int, tuple[Tensor, Term]] = {}  # the tensor too, so that ids stay unique
        self.seen: set[int] = set()  # storages of values that nodes have made
        self.written: set[int] = set()  # those of them that were written to later

    def of(self, tensor: Tensor) -> Term:
        """Return the term of a tensor."""
        if id(tensor) not in self.known:
            self.known[id(tensor)] = (tensor, self.terms.leaf())
        return self.known[id(tensor)][1]

    def called(
        self, func: OpOverload, args: tuple[object, ...], named: Mapping[str, object]
    ) -> object:
        """Run a call, and keep the terms of what it makes."""
        out: object = func(*args, **named)
        self._keep(func, args, named, out)
        return out

    def _keep(
        self,
        func: OpOverload,
        args: tuple[object, ...],
        named: Mapping[str, object],
        out: object,
    ) -> None:
        name = func.overloadpacket.__name__
        is_written = func._schema.is_mutable
        found = None
        if func.namespace == "aten":
            found = meaning(
                name.removesuffix("_") if is_written else name,
                Call(self.terms, args, named, self.of, out),
            )
        if is_written:
            self.written |= {storage_of(t) for t in _written(func, args, named)} & self.seen
        parts = out if isinstance(out, list | tuple) else [out]
        meant = found if isinstance(found, list) else [found] * len(parts)
        for part, term in zip(parts, meant, strict=False):
            if isinstance(part, Tensor):
                self.known[id(part)] = (part, term if term is not None else self.terms.leaf())


def _written(
    func: OpOverload, args: Sequence[object], named: Mapping[str, object]
) -> Iterator[Tensor]:
    """Return the tensors that a call writes to."""
    for place, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            given = args[place] if place < len(args) else named.get(argument.name)
            yield from tensors_in(given)


def storage_of(tensor: Tensor) -> int:
    """Return which memory a tensor lies in."""
    try:
        own: int = tensor.untyped_storage()._cdata
        return own
    except (NotImplementedError, RuntimeError):  # of a layout without one
        return id(tensor)


def tensors_in(value: object) -> Iterator[Tensor]:
    """Return the tensors in nested lists, tuples and dicts."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for part in value:
            yield from tensors_in(part)
    elif isinstance(value, Mapping):
        yield from tensors_in([*value.values()])


@dataclass
class Traced:
    """A graph's nodes with their values; by term the nodes that are its tensors, in order."""

    values: dict[fx.Node, Tensor] = field(default_factory=dict)
    terms: dict[fx.Node, Term] = field(default_factory=dict)
    owners: dict[Term, list[fx.Node]] = field(default_factory=dict)
    computed: set[fx.Node] = field(default_factory=set)  # that make tensors, lists of them too
    views: set[fx.Node] = field(default_factory=set)  # of what another node has made
    unstable: set[fx.Node] = field(default_factory=set)  # in memory that the graph writes to
    results: dict[fx.Node, object] = field(default_factory=dict)  # of all nodes, lists too
    mode: FakeTensorMode | None = None  # of the values


def traced(module: fx.GraphModule, inputs: Sequence[object], terms: Terms) -> Traced:
    """Return the terms of the nodes of a graph that takes `inputs`."""
    mode = _fake_mode(module, inputs)
    recorder = Recorder(terms)
    run = _Run(module, mode, recorder)
    # With the dispatcher in Python, as in torch.compile itself: that in C++ may fix symbolic sizes.
    with lenient(mode), mode, torch.no_grad(), enable_python_dispatcher(), recorder:
        run.run(*(run.fake(node, given) for node, given in _given(module, inputs)))
    for node, value in run.found.values.items():
        if storage_of(value) in recorder.written:
            run.found.unstable.add(node)
    run.found.results, run.found.mode = run.env, mode
    return run.found


def _given(module: fx.GraphModule, inputs: Sequence[object]) -> Iterator[tuple[fx.Node, object]]:
    nodes = [n for n in module.graph.nodes if n.op == "placeholder"]
    return zip(nodes, inputs, strict=True)


def _fake_mode(module: fx.GraphModule, inputs: Sequence[object]) -> FakeTensorMode:
    """Return the mode of the inputs' values.

    In another one (torch.compile has a second for its backends) a view of an input would get memory
    of its own, and a write to it would not be seen.
    """
    known = [_example(n) for n in module.graph.nodes if n.op == "placeholder"]
    for value in (*known, *inputs):
        if isinstance(value, FakeTensor):
            own: FakeTensorMode = value.fake_mode
            return own
    found: FakeTensorMode | None = detect_fake_mode(inputs)
    return found or FakeTensorMode()


def _example(node: fx.Node) -> object:
    return node.meta.get("example_value", node.meta.get("val"))


@contextmanager
def lenient(mode: FakeTensorMode) -> Iterator[None]:
    """Let parameters that a module holds into the calls, and shapes be asked without a guard."""
    allowed, shapes = mode.allow_non_fake_inputs, mode.shape_env
    mode.allow_non_fake_inputs = True
    try:
        with nullcontext() if shapes is None else shapes.suppress_guards():
            yield
    finally:
        mode.allow_non_fake_inputs = allowed


class _Run(fx.Interpreter):
    def __init__(self, module: fx.GraphModule, mode: FakeTensorMode, recorder: Recorder) -> None:
        super().__init__(module, garbage_collect_values=False)
        self.mode, self.recorder, self.found = mode, recorder, Traced()

    def fake(self, node: fx.Node, given: object) -> object:
        """Return an input without its data."""
        known = _example(node)
        if known is not None:
            return known
        if isinstance(given, Tensor) and not isinstance(given, FakeTensor):
            return self.mode.from_tensor(given)
        return given

    def run_node(self, n: fx.Node) -> object:
        if isinstance(n.target, HigherOrderOperator):
            return _example(n)  # a graph inside of the graph: what it computes is not looked at
        if n.op != "placeholder" and isinstance(_example(n), _SYMBOLS):
            return _example(n)  # a number that may change between calls, read from a tensor
        made: object = super().run_node(n)
        if n.op == "get_attr" and isinstance(made, Tensor):
            made = self.mode.from_tensor(made)
        if isinstance(made, Tensor) and n.op != "output":
            term = self.recorder.of(made)
            self.found.values[n], self.found.terms[n] = made, term
            self.found.owners.setdefault(term, []).append(n)
        storages = {storage_of(t) for t in tensors_in(made)}
        if storages and n.op not in ("placeholder", "get_attr"):
            self.found.computed.add(n)
        if storages <= self.recorder.seen:
            self.found.views.add(n)
        self.recorder.seen |= storages
        return made


def function_terms(
    function: Callable[..., object], inputs: Mapping[str, object], terms: Terms
) -> tuple[dict[str, Term], list[Term]]:
    """Return the terms of a function's tensor inputs and of its results."""
    recorder = Recorder(terms)
    with torch.no_grad(), recorder:
        made = function(**inputs)
    given = {name: recorder.of(x) for name, x in inputs.items() if isinstance(x, Tensor)}
    return given, [recorder.of(x) for x in tensors_in(made)]
