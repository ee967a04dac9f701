"""Recipes: small tensor programs over named dims, with the shapes they are built for.

A recipe file holds one function decorated with `recipe`; the decorated name is a `Recipe`.
"""

from __future__ import annotations

import importlib.util
import inspect
import pkgutil
import re
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from mirage_kernels.generator.errors import GraphError, RecipeError, ShapeError
from mirage_kernels.generator.frontend.declarations import (
    SHAPE_EXAMPLE,
    check_parameters,
    checked,
    checked_spec,
    dims_of,
)
from mirage_kernels.generator.frontend.options import Form
from mirage_kernels.generator.frontend.options import form as form
from mirage_kernels.generator.frontend.symbolic import Tensor, unknown_operator
from mirage_kernels.generator.ir import Builder, Dim, DType, Graph, Indexed, Level, TensorType
from mirage_kernels.generator.ir.ranges import ends_of

if TYPE_CHECKING:
    import torch

    from mirage_kernels.generator.partition.trace import Function

_MISSING_NAME = re.compile(r"cannot import name '(\w+)' from 'mirage_kernels.generator.language'")
# Kernels count columns in int32, and proofs run at full extents: 8 times the largest vocabulary.
LARGEST_STATIC, LARGEST_DYNAMIC = 2**21, 2**31 - 1

Program = Callable[..., Tensor | tuple[Tensor, ...]]
Reference = Callable[..., "torch.Tensor | tuple[torch.Tensor, ...]"]


@dataclass(frozen=True)
class Shape:
    """One entry of a recipe's catalog: extents of the static dims and the model they come from."""

    source: str
    dims: Mapping[str, int]

    @property
    def stem(self) -> str:
        """Name of the shape in file names, such as `K4096_N6144`."""
        return "_".join(f"{name}{size}" for name, size in self.dims.items())

    def kernel(self, dtype: DType) -> str:
        """Name of a kernel of the shape, such as `K4096_N6144_fp16`; without dims `fp16`."""
        return "_".join(filter(None, (self.stem, dtype.value)))


def shape(source: str, **dims: int) -> Shape:
    """Make a catalog entry: `shape("Llama-3-8B qkv_proj", K=4096, N=6144)`.

    Raises RecipeError for a source that is no text and for sizes that are no whole numbers.
    """
    if not isinstance(source, str):
        raise RecipeError(f"a shape's source is a text, not {source!r}", f"write {SHAPE_EXAMPLE}")
    for name, size in dims.items():
        if type(size) is not int:
            raise RecipeError(
                f"dim {name} of the shape {source!r} must be a whole number, not {size!r}",
                f"write {SHAPE_EXAMPLE}",
            )
    return Shape(source, dims)


def _no_program(*args: Tensor) -> Tensor:
    raise RecipeError("a recipe is declared without a program", "decorate a function: @recipe(...)")


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A tensor program, its inputs by name, its PyTorch reference and the shapes it is built for.

    `inputs` and `output` give dims as text, `"M K"`; an input with no dims is a run-time scalar
    (fp32), one that ends in `:int32` holds positions or lengths, in `:bool` a mask. `dynamic` gives
    the bound of every dim whose extent is known only at run time; all other dims are static. The
    first of them numbers what a call brings, tokens or sequences: an input without it is a weight.
    `ranges` gives the least and the largest value of int32 inputs, as numbers or dims: `"1..L"`. A
    call may leave out what is `optional`: it counts as zeros then, so the program may only add or
    subtract it. `scalars` gives the values that run-time scalars take in tests and measurements.
    `also` names results beside the output, which the program returns behind it; where it is
    computed from them they are stored on the way. Weights that are `stacked` may also come as
    slices of stacks, of which every token has its own. `stores` gives the types of results that are
    not of the kernel's own: of `output`, or some of `also`. `strided` says that tensors lie apart
    in memory: only schedules that take any strides serve then; so do tensors that are `indexed`.
    Of several programs that share nothing but inputs, and that one launch is to run, `independent`
    says how many results each has.
    `broadcast` names vectors that calls give as one element, with a stride of 0.
    Along the output's last dim, whatever has it may come in `row_parts` of so many rows each: every
    part of a weight and of the output is a tensor of its own then.
    Of inputs that are `grouped` a call gives one element for so many neighbours along some dims;
    `apart` is the same program with such dims as two each, which general kernels take.
    General kernels are planned for the `typical` extents of dynamic dims.
    """

    inputs: Mapping[str, str]
    output: str
    dynamic: Mapping[str, int]
    reference: Reference
    shapes: tuple[Shape, ...] = ()
    tolerance: float = 1.1  # error allowed, as a multiple of the unfused program's
    scalars: Mapping[str, float] = field(default_factory=dict)
    ranges: Mapping[str, str] = field(default_factory=dict)
    optional: tuple[str, ...] = ()
    also: Mapping[str, str] = field(default_factory=dict)
    stacked: tuple[str, ...] = ()
    stores: Mapping[str, DType] = field(default_factory=dict)
    strided: bool = False
    indexed: tuple[Indexed, ...] = ()
    independent: tuple[int, ...] = ()
    broadcast: tuple[str, ...] = ()
    row_parts: tuple[int, ...] = ()
    grouped: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    apart: Recipe | None = None
    typical: Mapping[str, int] = field(default_factory=dict)
    dtypes: tuple[DType, ...] = (DType.FP16, DType.BF16)
    name: str = ""
    program: Program = _no_program
    summary: str = ""
    family: str = ""  # the recipe whose options yield this one
    choices: Mapping[str, str] = field(default_factory=dict)  # options that are words

    def __call__(self, program: Program) -> Recipe:
        """Return the recipe of a function over symbolic tensors, named like the function.

        Raises RecipeError for a declaration that is wrong whatever the program computes.
        """
        summary = (program.__doc__ or "").strip().partition("\n")[0].rstrip(".")
        return checked(replace(self, name=program.__name__, program=program, summary=summary))

    @property
    def results(self) -> tuple[str, ...]:
        """Dims of every result, the output's first."""
        return (self.output, *self.also.values())

    @property
    def static_dims(self) -> tuple[str, ...]:
        """Names of the static dims, in order of appearance."""
        names = [n for text in self.inputs.values() for n in dims_of(text)]
        return tuple(dict.fromkeys(n for n in names if n not in self.dynamic))

    def stored(self, dtype: DType) -> tuple[DType, ...]:
        """Return the element type of every result, the output's first, in a kernel of a type."""
        return tuple(self.stores.get(n, dtype) for n in ("output", *self.also))

    def reference_results(self, *inputs: object) -> tuple[torch.Tensor, ...]:
        """Return what the reference computes, one result or several."""
        made = self.reference(*inputs)
        return made if isinstance(made, tuple) else (made,)

    def is_weight(self, name: str) -> bool:
        """Return whether an input is a weight: a tensor that has none of a call's tokens."""
        dims = dims_of(self.inputs.get(name, ""))
        return bool(dims) and next(iter(self.dynamic), "") not in dims

    def dims(self, chosen: Shape) -> dict[str, Dim]:
        """Return every dim of the recipe with its extent at a shape.

        Raises ShapeError when the shape misses a static dim, names an unknown one, or has an
        extent below 1 or beyond what kernels count.
        """
        wanted = self.static_dims
        if set(chosen.dims) != set(wanted):
            given = ", ".join(f"{k}={v}" for k, v in chosen.dims.items())
            raise ShapeError(
                f"{self.name} has static dims {', '.join(wanted)}, the shape gives {given or None}",
                f"write --shape {','.join(f'{n}=...' for n in wanted)}",
            )
        for name, size in (*chosen.dims.items(), *self.dynamic.items()):
            if size < 1:
                raise ShapeError(f"dim {name} of {self.name} must be at least 1, not {size}")
            most = LARGEST_DYNAMIC if name in self.dynamic else LARGEST_STATIC
            if size > most:
                raise ShapeError(f"dim {name} of {self.name} must be at most {most}, not {size}")
        static = {n: Dim(n, chosen.dims[n]) for n in wanted}
        return static | {
            n: Dim(n, bound, dynamic=True, typical=self.typical.get(n, 0))
            for n, bound in self.dynamic.items()
        }

    def input_types(self, chosen: Shape, dtype: DType) -> dict[str, TensorType]:
        """Return the type of every input at a shape."""
        dims = self.dims(chosen)
        types = {}
        for name, text in self.inputs.items():
            own, kind = dims_of(text), text.partition(":")[2].strip()
            kind, known = kind or (dtype if own else DType.FP32).value, [d.value for d in DType]
            if kind not in known:
                raise RecipeError(
                    f"input {name} of recipe {self.name} has the unknown element type {kind!r}",
                    f"element types: {', '.join(known)}; none means the kernel's own",
                )
            types[name] = TensorType(tuple(dims[n] for n in own), DType(kind))
        return types

    def range_of(self, name: str, sizes: Mapping[str, int]) -> tuple[int, int]:
        """Return the least and the largest value of an int32 input when dims have these extents."""
        if name not in self.ranges:
            return 1, max(sizes.values())
        ends = ends_of(self.ranges[name], sizes)
        if ends is None:
            raise RecipeError(
                f"recipe {self.name} gives {name} the range {self.ranges[name]!r}",
                'write numbers or dims with two dots between: "1..L", "0..L-1"',
            )
        return ends


recipe = Recipe  # as a decorator: `@recipe(inputs=..., ...)` declares what the function computes


def options(declared: Mapping[str, str], *forms: Form) -> Callable[[Recipe], tuple[Recipe, ...]]:
    """Turn a recipe that names all its inputs into one for each form (`frontend/options.py`).

    Raises RecipeError for a form with options that are not declared, or as `recipe` does.
    """
    return lambda source: tuple(checked(form(source, declared)) for form in forms)


def trace(source: Recipe, chosen: Shape, dtype: DType) -> Graph:
    """Run a recipe on symbolic tensors and return its spec: a kernel graph of elementary ops.

    Raises RecipeError when the recipe's own code fails or its output has other dims than it says,
    and for inputs that it does not use.
    """
    check_parameters(source)
    builder = Builder(Level.KERNEL)
    types = source.input_types(chosen, dtype)
    arguments = dict[str, Tensor]()
    for name, type_ in types.items():
        optional, grouped = name in source.optional, source.grouped.get(name)
        made = builder.input(name, type_, optional=optional, grouped=grouped)
        arguments[name] = Tensor(builder, made)
    try:
        returned = source.program(**arguments, **source.choices)
    except (RecipeError, GraphError):
        raise
    except (Exception, SystemExit) as error:  # the recipe's own code may raise anything
        frames = traceback.extract_tb(error.__traceback__)
        own = [f for f in frames if f.filename == inspect.getfile(source.program)]
        line = (own or frames)[-1]
        raise RecipeError(
            f"recipe {source.name} fails: {type(error).__name__}: {error}",
            f"look at {Path(line.filename).name}:{line.lineno}: {line.line}",
        ) from error
    return checked_spec(source, returned)


def output_type(source: Recipe, chosen: Shape, dtype: DType) -> TensorType:
    """Return the type of a recipe's result in device memory."""
    dims = source.dims(chosen)
    stored, *_ = source.stored(dtype)
    return TensorType(tuple(dims[n] for n in source.output.split()), stored)


def catalog() -> dict[str, Recipe]:
    """Return the recipes that come with the package, by name."""
    package = importlib.import_module("mirage_kernels.recipes")
    names = [f"{package.__name__}.{info.name}" for info in pkgutil.iter_modules(package.__path__)]
    found = {r.name: r for name in names for r in _recipes_in(importlib.import_module(name))}
    return dict(sorted(found.items()))


def _recipes_in(module: ModuleType) -> list[Recipe]:
    values = [v if isinstance(v, tuple) else (v,) for v in vars(module).values()]
    return [one for several in values for one in several if isinstance(one, Recipe)]


def load_recipe(name_or_path: str) -> Recipe:
    """Return a recipe of the catalog by name, or one that a recipe file defines.

    `my_recipes.py:name` names one of several in a file, or a PyTorch function or module that
    `load_function` finds. Raises RecipeError for an unknown name, an unreadable file, a file whose
    Python fails, or one that defines no recipe or several.
    """
    file, name = _file_and_name(name_or_path)
    if file is None:
        known = catalog()
        if name_or_path not in known:
            raise RecipeError(
                f"there is no recipe called {name_or_path!r}",
                f"the nearest: {', '.join(get_close_matches(name_or_path, known, n=3, cutoff=0))}; "
                "`mirage-kernels list` names all; a recipe file is given by its path, my_recipe.py",
            )
        return known[name_or_path]
    module = _run_file(file)
    function = _function_of(module, name)
    if function is not None:
        from mirage_kernels.generator.frontend.from_torch import from_torch

        own, dynamic = (function.run, function.examples), function.dynamic
        return from_torch(*own, dynamic=dynamic, name=function.named)
    named = getattr(module, name, None) if name else None
    found = [r for r in _recipes_in(module) if name in ("", r.name) or r is named]
    if len(found) == 1:
        return found[0]
    if name:
        raise RecipeError(f"{file} defines no recipe called {name}", "check the name")
    several = ", ".join(f"{file}:{r.name}" for r in found)
    raise RecipeError(
        f"{name_or_path} defines {len(found)} recipes, not one",
        f"name one: {several}" if found else "decorate one function with @recipe(...)",
    )


def load_function(name_or_path: str) -> Function | None:
    """Return the PyTorch function or module that `path/to/file.py:Name` names, None for a recipe.

    The file has `example_inputs` for it (a dict of tensors by name, a list of them in order, or a
    function that returns either), or `get_inputs` and `get_init_inputs` as KernelBench has, and
    `dynamic` where some extents are known at run time only. A module that is made of a class is put
    into `eval()` mode. Raises RecipeError as `load_recipe`.
    """
    file, name = _file_and_name(name_or_path)
    return None if file is None or not name else _function_of(_run_file(file), name)


def _file_and_name(name_or_path: str) -> tuple[Path | None, str]:
    """Return the file that a recipe is in, and which one of it: `my_recipes.py:name`."""
    file, _, name = name_or_path.partition(".py:")
    if not name and not name_or_path.endswith(".py"):
        return None, ""
    path = Path(f"{file}.py" if name else name_or_path)
    if not path.is_file():
        raise RecipeError(f"recipe file {path} does not exist", "check the path")
    return path, name


def _function_of(module: ModuleType, name: str) -> Function | None:
    """Return a PyTorch function, or a module's class or instance, of a file."""
    from mirage_kernels.generator.frontend.export import name_of
    from mirage_kernels.generator.partition.trace import Function

    named = getattr(module, name, None) if name else None
    if not callable(named) or isinstance(named, Recipe):
        return None
    inputs = getattr(module, "example_inputs", getattr(module, "get_inputs", None))
    if inputs is None:
        raise RecipeError(
            f"{module.__name__}.py has {name}, but no inputs to trace it with",
            'write example_inputs = {"x": torch.empty(8, 4096)}, or a function get_inputs()',
        )
    first: Callable[[], list[object]] = getattr(module, "get_init_inputs", list)
    try:
        given = inputs() if callable(inputs) else inputs
        given = [given] if hasattr(given, "stride") else given  # a single tensor
        function = named(*first()) if isinstance(named, type) else named
        if isinstance(named, type) and hasattr(function, "eval"):
            function.eval()
    except Exception as error:  # the file is the user's: it may raise anything
        raise RecipeError(
            f"{module.__name__}.py, {name}: {type(error).__name__}: {error}",
            "a class is called with what get_init_inputs() returns, example_inputs with nothing",
        ) from error
    dynamic = getattr(module, "dynamic", None) or {}
    return Function(function, given, dynamic, name_of(function, name))


def _run_file(path: Path) -> ModuleType:
    """Run a recipe file. Raises RecipeError with the line that fails, or the missing operator."""
    spec = importlib.util.spec_from_file_location(path.stem, path.resolve())
    if spec is None or spec.loader is None:
        raise RecipeError(f"recipe file {path} cannot be read as Python")
    module = importlib.util.module_from_spec(spec)
    folder = str(path.resolve().parent)
    if folder not in sys.path:  # as Python does for a program: modules beside it are found
        sys.path.insert(0, folder)
    try:
        spec.loader.exec_module(module)
    except RecipeError:
        raise
    except Exception as error:  # the file is the user's: it may raise anything
        missing = _MISSING_NAME.match(str(error))
        if missing:
            raise unknown_operator(missing[1]) from error
        frames = traceback.extract_tb(error.__traceback__)
        own = [f.lineno for f in frames if f.filename == str(path.resolve())]
        line = own[-1] if own else getattr(error, "lineno", None)
        raise RecipeError(
            f"{path.name}, line {line}: {type(error).__name__}: {error}",
            "the recipe file must run as Python; nothing was written",
        ) from error
    return module
