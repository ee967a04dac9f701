"""`torch.export` as `from_torch` uses it: each operator a step, with its line in the source."""

from __future__ import annotations

import contextlib
import functools
import inspect
import logging
import operator
import re
import traceback
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mirage_kernels.generator.errors import GraphError, RecipeError
from mirage_kernels.generator.frontend import masks
from mirage_kernels.generator.frontend.aten import ATEN
from mirage_kernels.generator.frontend.chosen import Extents, counted
from mirage_kernels.generator.frontend.chosen import given as mask_of
from mirage_kernels.generator.frontend.examples import fake, without_values
from mirage_kernels.generator.frontend.positional.program import Program
from mirage_kernels.generator.frontend.steps import Steps
from mirage_kernels.generator.ir import DType
from mirage_kernels.generator.ir.dtypes import EIGHT_BITS, STORAGE_DTYPES

if TYPE_CHECKING:
    import torch


def name_of(function: Callable[..., Any], called: str = "") -> str:
    """Return the name of a recipe that is made of a function or module, which a file `called` so.

    Where only the object is known, a module has the name of its class.
    """
    made = called or getattr(function, "__name__", type(function).__name__)
    snake = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", made).lower()
    return plain(snake)


def plain(name: str) -> str:
    """Return a name as an identifier: `up.weight` becomes `up_weight`, `0.bias` `_0_bias`."""
    return re.sub(r"\W|^(?=\d)", "_", name)


_VIEWS = """
view reshape _unsafe_view permute transpose swapaxes swapdims t numpy_T mT mH adjoint squeeze
unsqueeze expand expand_as flatten unflatten alias detach slice select narrow split chunk getitem
view_as_real
"""
CASTS = frozenset(("to", "_to_copy"))
VIEWS = frozenset(_VIEWS.split())  # operators that only look at their operand in another way
BRANCHES = "it takes tensors by keyword and returns tensors; branches may not depend on values"
RETURNED = "a program returns tensors, or None, beside what it writes over"
LONGER = "with the examples it can: name a dynamic dim in all inputs that have it"


def exported(
    function: Callable[..., Any], examples: Mapping[str, torch.Tensor], hint: str = BRANCHES
) -> Any:
    """Return what torch.export makes of a function; raises RecipeError where it cannot."""
    import torch

    module = function if isinstance(function, torch.nn.Module) else torch.nn.Module()
    if module is not function:
        module.forward = function
    try:
        with _in_silence():
            program = torch.export.export(_on_cpu(module), (), fake(examples), strict=False)
    except Exception as error:  # the function may raise anything
        said = str(error).strip().partition("\n")[0]
        raise RecipeError(
            f"torch.export cannot trace {name_of(function)}{_line_of(function, error)}: "
            f"{type(error).__name__}: {said}",
            hint,
        ) from error
    _untie(program)
    return program


def _untie(program: Any) -> None:
    """Let what a module has under several names, as tied weights, be one input: the first."""
    own = {**program.constants, **program.state_dict}
    targets = {s.arg.name: s.target for s in program.graph_signature.input_specs}
    first: dict[int, Any] = {}
    for node in [n for n in program.graph.nodes if n.op == "placeholder"]:
        tensor = own.get(targets[node.name])
        if tensor is not None and first.setdefault(id(tensor), node) is not node:
            node.replace_all_uses_with(first[id(tensor)])
            program.graph.erase_node(node)


def _on_cpu(module: torch.nn.Module) -> torch.nn.Module:
    """Return a module with its tensors on the CPU, where `fake` has examples."""
    own = (*module.parameters(), *module.buffers())
    here = all(x.device.type == "cpu" for x in own)
    return module if here else without_values(module, lambda x: x.dtype)


@contextlib.contextmanager
def _in_silence() -> Iterator[None]:
    """Keep torch from logging its stack where it raises an error, too."""
    logger = logging.getLogger("torch._subclasses.fake_tensor")
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(before)


def _unwrapped(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return what is called of a function or module, without decorators."""
    called = getattr(function, "forward", function)
    called = called.func if isinstance(called, functools.partial) else called
    own: Callable[..., Any] = inspect.unwrap(called)
    return own


def _line_of(function: Callable[..., Any], error: BaseException) -> str:
    """Return the function's last line on the way to an error."""
    file = inspect.getsourcefile(_unwrapped(function))
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename == file]
    return "".join(f" at {Path(f.filename).name}:{f.lineno}: {f.line}" for f in frames[-1:])


def input_names(program: Any) -> dict[Any, str]:
    """Return the inputs of an exported program by name, parameters and buffers among them."""
    targets = {s.arg.name: s.target for s in program.graph_signature.input_specs}
    nodes = (n for n in program.graph.nodes if n.op == "placeholder")
    return {node: plain(targets.get(node.name) or node.name) for node in nodes}


def called_names(program: Any) -> dict[Any, str]:
    """Return the function's own names of inputs of an exported program: graphs have lower case."""
    taken = program.graph_signature.user_inputs
    own = dict(zip(taken, program.call_spec.in_spec.child(1).context, strict=True))
    nodes = (n for n in program.graph.nodes if n.op == "placeholder")
    return {node: own[node.name] for node in nodes if node.name in own}


def ends_of(program: Any, name: str, *, writes: bool = False) -> list[Any]:
    """Return an exported program's results, None among them; raises RecipeError for others.

    `writes`: it writes over something, and may return None alone.
    """
    ends = [*next(n.args[0] for n in program.graph.nodes if n.op == "output")]
    results = [n for n in ends if n is not None]
    if not (results or writes) or any(getattr(n, "op", "") == "" for n in results):
        raise RecipeError(f"{name} returns something else than tensors", RETURNED)
    return ends


def returned_by(program: Any, names: Iterator[str | None]) -> dict[str, Any]:
    """Return how an exported program's results lie in what it returns: of these names, or None."""

    def part(of: Any) -> dict[str, Any]:
        if of.is_leaf():
            name = next(names)
            return {"none": True} if name is None else {"value": name}
        parts = [part(child) for child in of.children()]
        if of.type in (dict, OrderedDict):
            return {"dict": [[*pair] for pair in zip(of.context, parts, strict=True)]}
        return {"list" if of.type is list else "tuple": parts}

    return part(program.call_spec.out_spec)


def operator_of(node: Any) -> str:
    """Return the name of a node's ATen operator, as `ATEN` has it."""
    name = str(getattr(node.target, "_schema", node.target)).partition("(")[0]
    name = name.rpartition("::")[2].partition(".")[0]
    own = name in ATEN or name.startswith("__")
    return name if own else name.rstrip("_")


def dtype_of(value: torch.Tensor, name: str) -> DType:
    """Return the element type of an input; raises RecipeError for one that kernels don't take."""
    import torch

    from mirage_kernels.element_types import TYPES

    taken = (*STORAGE_DTYPES, DType.FP32, DType.BOOL, DType.INT32, *EIGHT_BITS)
    dtype = torch.int32 if value.dtype is torch.int64 else value.dtype
    found = next((d for d in taken if TYPES[d.value] is dtype), None)
    if found is None:
        raise RecipeError(
            f"input {name} is of {value.dtype}",
            "inputs are of fp16, bf16, fp32, fp8 (e4m3fn, e5m2), int8 or uint8, masks of bool, "
            "what is compared of int32 or int64",
        )
    return found


def input_of(program: Program, extents: Extents, dtype: DType, strides: Extents = ()) -> Any:
    """Add an input to a program; a boolean one is a mask, whole numbers are compared."""
    made = program.input(extents, dtype, strides)
    formed = {DType.BOOL: mask_of, DType.INT32: counted}.get(dtype)
    return formed(made) if formed else made


def applied(program: Program, node: Any, found: Mapping[Any, Any]) -> Any:
    """Apply an ATen operator; raises GraphError where it has no form."""
    import torch

    own = operator_of(node)
    args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), lambda n: found[n])
    if own == "_assert_tensor_metadata":  # before a cast
        return None
    if node.target is operator.getitem:
        if node.users and args[1] >= len(args[0]):
            raise GraphError("positions of largest elements are no result of a kernel")
        return args[0][args[1]] if node.users else None
    made = node.meta.get("val")
    if own in masks.NUMBERED:
        args = masks.with_numbers(args)
    if own not in masks.MASKED and getattr(made, "is_floating_point", bool)():
        args = masks.reals(Steps(program), args)
    known = own in ATEN or own in masks.MASKED
    if own in masks.SOURCES or (known and own not in masks.HIDDEN and masks.is_positional(args)):
        return _formed(lambda: masks.applied(Steps(program), own, args, kwargs))
    if isinstance(made, torch.Tensor) and not _has_form(made.dtype, own):
        raise GraphError(f"its result is of {made.dtype}", "kernels compute real numbers")
    if own == "flatten" and made is not None:  # of expanded dims as well, which stay one element
        return _formed(
            lambda: ATEN["reshape"](Steps(program), args[0], tuple(map(int, made.shape)))
        )
    if own not in ATEN:
        raise GraphError("kernels cannot be made of it", "docs/from_torch.md lists what there is")
    kept = {k: v for k, v in kwargs.items() if k not in ("dtype", "layout", "device")}
    return _formed(lambda: ATEN[own](Steps(program), *args, **kept))


def _has_form(dtype: torch.dtype, own: str) -> bool:
    """Say whether kernels have values of a type that an operator makes, and store it.

    What is rounded to 8 bits is another number, and kernels round what they store alone.
    """
    import torch

    if has_eight_bits(dtype):
        return own in VIEWS or (own in CASTS and dtype is not torch.uint8)
    return dtype.is_floating_point


def rounds(node: Any) -> bool:
    """Say whether a node rounds to 8 bits: what a kernel stores, and none computes with."""
    value = node.meta.get("val")
    casts = node.op == "call_function" and operator_of(node) in CASTS
    return casts and hasattr(value, "dtype") and has_eight_bits(value.dtype)


def has_eight_bits(dtype: torch.dtype) -> bool:
    """Say whether tensors of a type are quantized: kernels take them, and store none."""
    from mirage_kernels.element_types import TYPES

    return dtype in (TYPES[d.value] for d in EIGHT_BITS)


def _formed(make: Callable[[], Any]) -> Any:
    """Return what an operator becomes; raises GraphError for arguments that have no form."""
    try:
        return make()
    except TypeError as error:
        named = re.search(r"argument '(\w+)'", str(error))
        which = f"its argument {named[1]} has" if named else "its arguments have"
        raise GraphError(f"{which} no form here", "see docs/from_torch.md") from error


def place_of(function: Callable[..., Any], examples: Mapping[str, torch.Tensor], node: Any) -> str:
    """Return an operator and where the function calls it.

    torch.export says so for modules; a function is run on tensors without memory.
    """
    import torch
    from torch.overrides import TorchFunctionMode

    node = node.args[0] if node.target is operator.getitem else node
    found = re.findall(
        r'File "(.*?)", line (\d+), in .*\n\s*(.*)', node.meta.get("stack_trace") or ""
    )
    if found:
        library = str(Path(torch.__file__).parent)
        mine = [line for line in found if not line[0].startswith(library)] or found
        file, number, text = mine[-1]
        return f"{node.target} at {Path(file).name}:{number}: {text}"
    name = str(node.target).removeprefix("aten.").partition(".")[0].strip("_")
    name = {"index": "getitem"}.get(name, name)
    own = _unwrapped(function)
    lines = list[str]()

    class Calls(TorchFunctionMode):
        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            if name in getattr(func, "__name__", ""):
                frames = traceback.extract_stack()
                mine = [f for f in frames if f.filename == inspect.getsourcefile(own)]
                lines.extend(f" at {Path(f.filename).name}:{f.lineno}: {f.line}" for f in mine[-1:])
            return func(*args, **(kwargs or {}))

    with contextlib.suppress(Exception), Calls():
        function(**fake(examples))
    return f"{node.target}{lines[0] if lines else ''}"
