"""Recipes: small tensor programs over named dims, with the shapes they are built for.

A recipe file holds one function decorated with `recipe`; the decorated name is a `Recipe`.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from mirage_kernels.generator.errors import GraphError, RecipeError, ShapeError
from mirage_kernels.generator.frontend.options import Form, check_parameters, recipes_of
from mirage_kernels.generator.frontend.options import form as form
from mirage_kernels.generator.frontend.recipe_checks import (
    check_declaration,
    require_extent,
    require_kinds,
)
from mirage_kernels.generator.frontend.recipe_files import run_file
from mirage_kernels.generator.frontend.results import spec_of_results
from mirage_kernels.generator.frontend.symbolic import Tensor
from mirage_kernels.generator.ir import Builder, Dim, DType, Graph, Level, TensorType, check
from mirage_kernels.generator.ir.text import expression

if TYPE_CHECKING:
    import torch

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


def shape(source: str, **dims: int) -> Shape:
    """Make a catalog entry: `shape("Llama-3-8B qkv_proj", K=4096, N=6144)`.

    Raises RecipeError for a source that is no text and for sizes that are no whole numbers.
    """
    if not isinstance(source, str):
        raise RecipeError(f"a shape's source is a text, not {source!r}", 'shape("my model", K=64)')
    for name, size in dims.items():
        require_extent(f"dim {name} of the shape {source!r}", size)
    return Shape(source, dims)


def _own_dtype(recipe_name: str, name: str, kind: str, otherwise: DType) -> DType:
    if not kind:
        return otherwise
    if kind not in {d.value for d in DType}:
        raise RecipeError(
            f"input {name} of recipe {recipe_name} has the unknown element type {kind!r}",
            f"element types: {', '.join(d.value for d in DType)}; none means the kernel's own",
        )
    return DType(kind)


@dataclass(frozen=True)
class Recipe:
    """A tensor program, its inputs by name, its PyTorch reference and the shapes it is built for.

    `inputs` and `output` give dims as text, `"M K"`; an input with no dims is a run-time scalar
    (fp32), one that ends in `:int32` holds positions or lengths. `dynamic` gives the bound of
    every dim whose extent is known only at run time; all other dims are static. The first of them
    numbers what a call brings, tokens or sequences: an input without it is a weight. `ranges` gives
    the least and the largest value of int32 inputs, as numbers or dims: `"1..L"`. A call may leave
    out what is `optional`: it counts as zeros then, so the program may only add or subtract it.
    `also` names results beside the output, which the program returns behind it and computes it
    from: elementwise functions of the inputs, stored as they are computed. Weights that are
    `stacked` may also come as slices of stacks, of which every token has its own.
    """

    name: str
    program: Program
    inputs: Mapping[str, str]
    output: str
    dynamic: Mapping[str, int]
    shapes: tuple[Shape, ...]
    reference: Reference
    dtypes: tuple[DType, ...] = (DType.FP16, DType.BF16)
    tolerance: float = 1.1  # error allowed, as a multiple of the unfused program's
    scalars: Mapping[str, float] = field(default_factory=dict)
    ranges: Mapping[str, str] = field(default_factory=dict)
    optional: tuple[str, ...] = ()
    also: Mapping[str, str] = field(default_factory=dict)
    stacked: tuple[str, ...] = ()
    summary: str = ""
    family: str = ""  # the recipe whose options yield this one
    choices: Mapping[str, str] = field(default_factory=dict)  # options that are words

    @property
    def results(self) -> tuple[str, ...]:
        """Dims of every result, the output's first."""
        return (self.output, *self.also.values())

    @property
    def static_dims(self) -> tuple[str, ...]:
        """Names of the static dims, in order of appearance."""
        names = " ".join(text.partition(":")[0] for text in self.inputs.values()).split()
        return tuple(dict.fromkeys(n for n in names if n not in self.dynamic))

    def reference_results(self, *inputs: object) -> tuple[torch.Tensor, ...]:
        """Return what the reference computes, one result or several."""
        made = self.reference(*inputs)
        return made if isinstance(made, tuple) else (made,)

    def is_weight(self, name: str) -> bool:
        """Return whether an input is a weight: a tensor that has none of a call's tokens."""
        dims = self.inputs.get(name, "").partition(":")[0].split()
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
        return static | {n: Dim(n, bound, dynamic=True) for n, bound in self.dynamic.items()}

    def input_types(self, chosen: Shape, dtype: DType) -> dict[str, TensorType]:
        """Return the type of every input at a shape."""
        dims = self.dims(chosen)
        types = {}
        for name, text in self.inputs.items():
            names, _, kind = text.partition(":")
            own = _own_dtype(self.name, name, kind.strip(), dtype if names.split() else DType.FP32)
            types[name] = TensorType(tuple(dims[n] for n in names.split()), own)
        return types

    def range_of(self, name: str, sizes: Mapping[str, int]) -> tuple[int, int]:
        """Return the least and the largest value of an int32 input when dims have these extents."""
        if name not in self.ranges:
            return 1, max(sizes.values())
        ends = self.ranges[name].split("..")
        if len(ends) != 2 or not all(e.isdigit() or e in sizes for e in ends):
            raise RecipeError(
                f"recipe {self.name} gives {name} the range {self.ranges[name]!r}",
                'write numbers or dims with two dots between: "1..L"',
            )
        least, largest = (int(e) if e.isdigit() else sizes[e] for e in ends)
        return least, largest


@dataclass(frozen=True)
class Family:
    """A recipe with options: the programs that they yield."""

    recipes: tuple[Recipe, ...]


def recipe(
    *,
    inputs: Mapping[str, str],
    output: str,
    dynamic: Mapping[str, int],
    shapes: tuple[Shape, ...] = (),
    reference: Reference,
    scalars: Mapping[str, float] | None = None,
    ranges: Mapping[str, str] | None = None,
    optional: tuple[str, ...] = (),
    also: Mapping[str, str] | None = None,
    stacked: tuple[str, ...] = (),
    tolerance: float = 1.1,
) -> Callable[[Program], Recipe]:
    """Turn a function over symbolic tensors into a Recipe named like the function.

    `scalars` gives the values that run-time scalars take in tests and measurements, `optional` the
    inputs that count as zeros where a call leaves them out, `also` results beside the output,
    `stacked` the weights of which every token may have its own. Raises RecipeError for a
    declaration that is wrong whatever the program computes.
    """
    declared: dict[str, object] = {
        "inputs": inputs,
        "also": also or {},
        "output": output,
        "dynamic": dynamic,
        "scalars": scalars or {},
        "ranges": ranges or {},
        "optional": optional,
        "stacked": stacked,
        "shapes": shapes,
    }

    def decorate(program: Program) -> Recipe:
        name = program.__name__
        require_kinds(name, declared)
        made = Recipe(
            name=name,
            program=program,
            inputs=dict(inputs),
            output=output,
            dynamic=dict(dynamic),
            shapes=tuple(shapes),
            reference=reference,
            tolerance=tolerance,
            scalars=dict(scalars or {}),
            ranges=dict(ranges or {}),
            optional=tuple(optional),
            also=dict(also or {}),
            stacked=tuple(stacked),
            summary=(program.__doc__ or "").strip().partition("\n")[0].rstrip("."),
        )
        check_declaration(made, Shape)
        return made

    return decorate


def options(declared: Mapping[str, str], *forms: Form) -> Callable[[Recipe], Family]:
    """Turn a recipe that names all its inputs into one for each form (`frontend/options.py`).

    Raises RecipeError for a form with options that are not declared, or as `recipe` does.
    """

    def decorate(source: Recipe) -> Family:
        yielded = recipes_of(source, declared, forms)
        for each in yielded:
            check_declaration(each, Shape)
        return Family(yielded)

    return decorate


def trace(source: Recipe, chosen: Shape, dtype: DType) -> Graph:
    """Run a recipe on symbolic tensors and return its spec: a kernel graph of elementary ops.

    Raises RecipeError when the recipe's own code fails or its output has other dims than it says,
    and for inputs that it does not use.
    """
    check_parameters(source)
    builder = Builder(Level.KERNEL)
    types = source.input_types(chosen, dtype)
    arguments = {
        name: Tensor(builder, builder.input(name, type_, optional=name in source.optional))
        for name, type_ in types.items()
    }
    try:
        made = source.program(**arguments, **source.choices)
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
    dims = {"output": source.output, **source.also}
    spec = check(spec_of_results(source.name, made, dims))
    return _computing(source, _with_neutral_options(source, spec))


def _computing(source: Recipe, spec: Graph) -> Graph:
    """Return the spec if every input plays a part in it and its output is not one of them."""
    if spec.outputs[0] in source.inputs:
        raise RecipeError(
            f"recipe {source.name} returns its input {spec.outputs[0]} as it is",
            "return what is computed from the inputs",
        )
    unused = [name for name in source.inputs if not spec.users(name)]
    if unused:
        raise RecipeError(
            f"recipe {source.name} does not use its input {unused[0]}",
            "leave it out of inputs and of the function's parameters",
        )
    return spec


def _with_neutral_options(source: Recipe, spec: Graph) -> Graph:
    """Return the spec if zeros in place of an optional input are as if it were not there."""
    unknown = [name for name in source.optional if name not in source.inputs]
    if unknown:
        raise RecipeError(
            f"recipe {source.name} has no input {unknown[0]}, which it says is optional",
            f"its inputs: {', '.join(source.inputs)}",
        )
    for name in source.optional:
        for node in spec.users(name):
            if node.op not in ("add", "sub") or (node.op, node.args[0]) == ("sub", name):
                raise RecipeError(
                    f"recipe {source.name} computes {expression(node)} of its optional {name}",
                    "left out it counts as zeros, so it may only be added or subtracted",
                )
    return spec


def output_type(source: Recipe, chosen: Shape, dtype: DType) -> TensorType:
    """Return the type of a recipe's result in device memory."""
    dims = source.dims(chosen)
    return TensorType(tuple(dims[n] for n in source.output.split()), dtype)


def catalog() -> dict[str, Recipe]:
    """Return the recipes that come with the package, by name."""
    package = importlib.import_module("mirage_kernels.recipes")
    found: dict[str, Recipe] = {}
    for info in sorted(pkgutil.iter_modules(package.__path__), key=lambda m: m.name):
        module = importlib.import_module(f"{package.__name__}.{info.name}")
        found.update({r.name: r for r in _recipes_in(module)})
    return dict(sorted(found.items()))


def _recipes_in(module: ModuleType) -> list[Recipe]:
    values = vars(module).values()
    yielded = [r for v in values if isinstance(v, Family) for r in v.recipes]
    return [v for v in values if isinstance(v, Recipe)] + yielded


def load_recipe(name_or_path: str) -> Recipe:
    """Return a recipe of the catalog by name, or one that a recipe file defines.

    `my_recipes.py:name` names one of several in a file. Raises RecipeError for an unknown name, an
    unreadable file, a file whose Python fails, or one that defines no recipe or several.
    """
    file, _, name = name_or_path.partition(".py:")
    if not name and not name_or_path.endswith(".py"):
        known = catalog()
        if name_or_path not in known:
            raise RecipeError(
                f"there is no recipe called {name_or_path!r}",
                f"the nearest: {', '.join(get_close_matches(name_or_path, known, n=3, cutoff=0))}; "
                "`mirage-kernels list` names all; a recipe file is given by its path, my_recipe.py",
            )
        return known[name_or_path]
    path = Path(f"{file}.py" if name else name_or_path)
    if not path.is_file():
        raise RecipeError(f"recipe file {path} does not exist", "check the path")
    found = [r for r in _recipes_in(run_file(path)) if not name or r.name == name]
    if len(found) == 1:
        return found[0]
    if name:
        raise RecipeError(f"{path} defines no recipe called {name}", "check the name")
    several = ", ".join(f"{path}:{r.name}" for r in found)
    raise RecipeError(
        f"{name_or_path} defines {len(found)} recipes, not one",
        f"name one: {several}" if found else "decorate one function with @recipe(...)",
    )
