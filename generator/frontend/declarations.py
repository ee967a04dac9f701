"""What a recipe declares and what its program returns, checked: kinds of values, dims, names."""

from __future__ import annotations

import inspect
import keyword
import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

from msgspec import Meta, ValidationError, convert

from mirage_kernels.generator.errors import RecipeError
from mirage_kernels.generator.frontend.inner_exps import with_inner_exps
from mirage_kernels.generator.frontend.symbolic import Tensor, spec_of
from mirage_kernels.generator.ir import (
    OPS,
    DType,
    Graph,
    Kind,
    TensorType,
    Value,
    check,
    expression,
)

if TYPE_CHECKING:
    from mirage_kernels.generator.recipe import Recipe

STORED = (DType.FP32, DType.INT8, DType.FP8_E4M3, DType.FP8_E5M2)  # beside the kernel's own
SHAPE_EXAMPLE = 'shape("my model", K=4096, N=6144)'
# What each argument of @recipe is, and how it is written.
_KINDS: dict[str, tuple[object, str]] = {
    "inputs": (dict[str, str], '{"x": "M K", "weight": "N K", "eps": ""}'),
    "also": (dict[str, str], '{"total": "M K"}'),
    "output": (str, '"M N"'),
    "dynamic": (dict[str, int], '{"M": 4096}'),
    "typical": (dict[str, int], '{"Hkv": 8}'),
    "scalars": (dict[str, float], '{"eps": 1e-6}'),
    "ranges": (dict[str, str], '{"seq_lens": "T..L"}'),
    "optional": (tuple[str, ...], '("bias",), with its comma'),
    "stacked": (tuple[str, ...], '("lora_a", "lora_b")'),
    "stores": (dict[str, DType], '{"output": "fp32"}'),
    "tolerance": (Annotated[float, Meta(gt=0)], "1.1"),
}


def dims_of(text: str) -> tuple[str, ...]:
    """Return the dims of an input as a recipe declares it: `"B:int32"` has one."""
    return tuple(text.partition(":")[0].split())


def checked(recipe: Recipe) -> Recipe:
    """Return a recipe, lists as tuples.

    Raises RecipeError for what no kernel could be made of, whatever the program computes.
    """
    kept = {}
    for what, (kind, example) in _KINDS.items():
        given = getattr(recipe, what)
        try:
            kept[what] = convert(given, kind)
        except ValidationError as error:
            raise RecipeError(
                f"{what} of recipe {recipe.name} cannot be {given!r}", f"write {what}={example}"
            ) from error
    if not isinstance(recipe.shapes, tuple | list):
        raise RecipeError(
            f"shapes of recipe {recipe.name} cannot be {recipe.shapes!r}",
            f"write shapes=({SHAPE_EXAMPLE},), with its comma",
        )
    recipe = replace(recipe, shapes=tuple(recipe.shapes), **kept)
    for sentence, hint in _mistakes(recipe):
        raise RecipeError(sentence, hint)
    return recipe


def _mistakes(recipe: Recipe) -> Iterator[tuple[str, str]]:
    """Yield what is wrong in a declaration, and what would work."""
    own, inputs = f"of recipe {recipe.name}", recipe.inputs
    for entry in recipe.shapes:
        if not hasattr(entry, "stem"):
            yield f"shapes {own} hold {entry!r}", f"write shapes=({SHAPE_EXAMPLE},)"
    dims = sorted({d for text in inputs.values() for d in dims_of(text)})
    yield from _wrong_names(recipe, dims)
    for name, text in inputs.items():
        twice = [d for d in dims_of(text) if dims_of(text).count(d) > 1]
        if twice:
            hint = "dims go by name: give the second one a name of its own"
            yield f"input {name} {own} has dim {twice[0]} twice", hint
    for dim in (d for d in recipe.dynamic if d not in dims):
        hint = f"dims of its inputs: {', '.join(dims)}"
        yield f"recipe {recipe.name} has no input with its dynamic dim {dim}", hint
    yield from _unknown(recipe)
    for name, value in (*recipe.scalars.items(), ("tolerance", recipe.tolerance)):
        if not math.isfinite(value):
            yield f"{name} {own} cannot be {value!r}", "write a number such as 1.1"


def _unknown(recipe: Recipe) -> Iterator[tuple[str, str]]:
    """Yield names of inputs, results, dims and types that there are none of."""
    own, inputs = f"of recipe {recipe.name}", recipe.inputs
    numbers = [name for name, text in inputs.items() if not dims_of(text)]
    named: dict[str, tuple[str, Collection[str]]] = {
        "scalars": ("inputs without dims", numbers),
        "ranges": ("inputs", inputs),
        "optional": ("inputs", inputs),
        "stores": ("results", ("output", *recipe.also)),
        "typical": ("dynamic dims", recipe.dynamic),
    }
    for what, (kind, known) in named.items():
        for name in (n for n in getattr(recipe, what) if n not in known):
            sentence = f"{what} {own} names {name}, which is none of its {kind}"
            yield sentence, f"there are: {', '.join(known) or 'none'}"
    for name, type_ in ((n, t) for n, t in recipe.stores.items() if t not in STORED):
        hint = f"it may be {', '.join(t.value for t in STORED)}"
        yield f"{name} {own} cannot be stored as {type_.value}", hint


def _wrong_names(recipe: Recipe, dims: list[str]) -> Iterator[tuple[str, str]]:
    own, tensors = f"of recipe {recipe.name}", {*recipe.inputs, *recipe.also}
    named = [("recipe", recipe.name), *(("input", name) for name in recipe.inputs)]
    named += [*(("result", name) for name in recipe.also), *(("dim", name) for name in dims)]
    for kind, name in named:
        place = f"{kind} {name!r}" + ("" if kind == "recipe" else f" {own}")
        if not (name.isascii() and name.isidentifier()):
            hint = "letters, digits and _ make one"
            yield f"{place} is no name: emitted files use it as one", hint
        static = kind == "dim" and name not in recipe.dynamic
        if name in TAKEN or (name == ELEMENT and (static or kind == "input")):
            yield f"{place} has a name that emitted files need", "choose another name"
    for name in (d for d in dims if d in tensors):
        yield f"{name!r} {own} is a dim and a tensor", "dims are upper case by custom: M, K, Hkv"


def check_parameters(source: Recipe) -> None:
    """Raise RecipeError unless the program's parameters are the recipe's inputs, in order.

    Where options yield the recipe there may be others, which those inputs leave at their defaults.
    """
    found = inspect.signature(source.program).parameters.values()
    marks: dict[object, str] = {inspect.Parameter.VAR_POSITIONAL: "*"}
    if not source.family:
        marks[inspect.Parameter.KEYWORD_ONLY] = "*, "
    left_out = {p.name for p in found if source.family and p.default is not inspect.Parameter.empty}
    left_out = left_out - set(source.inputs) | set(source.choices)
    parameters = [marks.get(p.kind, "") + p.name for p in found if p.name not in left_out]
    if parameters != list(source.inputs):
        raise RecipeError(
            f"recipe {source.name} takes ({', '.join(parameters)}), "
            f"but declares the inputs {', '.join(source.inputs)}",
            "name the function's parameters like the inputs, in the same order",
        )
    unstacked = [name for name in source.stacked if not source.is_weight(name)]
    if unstacked:
        raise RecipeError(
            f"recipe {source.name} stacks {unstacked[0]}, which is no weight",
            "weights are the tensors without the first of the dynamic dims",
        )


def checked_spec(recipe: Recipe, made: object) -> Graph:
    """Return the spec of what a recipe's program returned.

    Beside the output there may be results such as the sum of x and a residual, which the next layer
    reads. Raises RecipeError for anything but tensors of the declared dims, for a result that is an
    input or that comes twice, for an input without use, and for an optional one that makes a
    difference where it is zeros.
    """
    dims = {"output": recipe.output, **recipe.also}
    results = made if isinstance(made, tuple) else (made,)
    found = [r for r in results if isinstance(r, Tensor)]
    if len(found) != len(results) or len(found) != len(dims):
        said = " and ".join("None" if r is None else type(r).__name__ for r in results)
        one = len(dims) == 1
        raise RecipeError(
            f"recipe {recipe.name} returns {said or 'nothing'}, not "
            + ("a tensor" if one else f"{len(dims)} tensors"),
            "return its one result" if one else f"return ({', '.join(dims)})",
        )
    for declared, result in zip(dims.values(), found, strict=True):
        if set(result.type.names) != set(declared.split()):
            raise RecipeError(
                f"recipe {recipe.name} says its output is [{declared}], "
                f"but computes [{' '.join(result.type.names)}]",
                "correct output= in @recipe(...) or the program; dims go by name, in any order",
            )
    spec = _laid_out(spec_of(*found), found[0].name, recipe.output.split())
    for number, (name, declared) in enumerate(recipe.also.items(), start=1):
        spec = _renamed(recipe.name, spec, number, (name, declared.split()))
    for sentence, hint in _unused(recipe, spec):
        raise RecipeError(f"recipe {recipe.name} {sentence}", hint)
    return check(with_inner_exps(spec))


def _laid_out(spec: Graph, name: str, dims: Sequence[str]) -> Graph:
    """Return the spec with a result's dims in the order in which the recipe stores it."""
    result = spec.producers[name]
    type_ = TensorType(tuple(map(result.out.type.dim, dims)), result.out.type.dtype)
    stored = replace(result, outs=(Value(name, type_),))
    return replace(spec, nodes=tuple(stored if n is result else n for n in spec.nodes))


def _renamed(recipe: str, spec: Graph, number: int, as_: tuple[str, Sequence[str]]) -> Graph:
    """Return the spec with a result beside the output called and laid out as the recipe says."""
    old, (name, dims) = spec.outputs[number], as_
    given = OPS[spec.producers[old].op].kind is Kind.SOURCE
    if name in spec.values or given or spec.outputs.count(old) > 1:
        raise RecipeError(
            f"recipe {recipe} returns {old} as {name} beside its output",
            "it must be computed from the inputs, once, under a name of its own",
        )
    nodes = []
    for node in spec.nodes:
        outs = node.outs
        if node.name == old:
            type_ = TensorType(tuple(map(node.out.type.dim, dims)), node.out.type.dtype)
            outs = (Value(name, type_),)
        args = tuple(name if a == old else a for a in node.args)
        nodes.append(replace(node, args=args, outs=outs))
    outputs = tuple(name if o == old else o for o in spec.outputs)
    return replace(spec, nodes=tuple(nodes), outputs=outputs)


def _unused(recipe: Recipe, spec: Graph) -> Iterator[tuple[str, str]]:
    """Yield inputs that play no part, and optional ones that play one as zeros."""
    if spec.outputs[0] in recipe.inputs:
        yield (
            f"returns its input {spec.outputs[0]} as it is",
            "return what is computed from the inputs",
        )
    for name in recipe.inputs:
        if not spec.users(name):
            yield (
                f"does not use its input {name}",
                "leave it out of inputs and of the function's parameters",
            )
    for name in recipe.optional:
        for node in spec.users(name):
            if node.op not in ("add", "sub") or (node.op, node.args[0]) == ("sub", name):
                yield (
                    f"computes {expression(node)} of its optional {name}",
                    "left out it counts as zeros, so it may only be added or subtracted",
                )


# Words of C++ (Python has a list of its own), and names that emitted files have of their own.
_CPP = """
    alignas alignof and_eq asm auto bitand bitor bool case catch char char16_t char32_t char8_t
    co_await co_return co_yield compl concept const const_cast consteval constexpr constinit
    decltype default delete do double dynamic_cast enum explicit export extern false float
    friend goto inline int long mutable namespace new noexcept not_eq nullptr operator or_eq
    private protected public register reinterpret_cast requires short signed sizeof static
    static_assert static_cast struct switch template this thread_local throw true typedef typeid
    typename union unsigned using virtual void volatile wchar_t xor xor_eq
"""
_EMITTED = """
    args block blockDim blockIdx buffer buffers call combine compute compute_statistics copy_tokens
    copy_vectors copy_weights e finish first first_k first_row first_token generated given grid
    gridDim group int32_t int64_t launch launch_after_prologue launch_cluster_split_k
    launch_producers launch_register_operand lines load load_lines maps mirage out out_tile own
    prefetch_weights producer_maps producers producing range receive receiver row_tiles rows shared
    stages statistics status step steps stream sums tag threadIdx tile tile_row tl token token_tiles
    torch triton uint32_t uint64_t warpSize with_knobs work workspace AnyM AnyRows AttentionArgs
    Block Call ClusterSplitKArgs ClusterSplitKBlock ClusterSplitKPlan Clusters Config Consumers
    Element INFINITY Knobs LaunchArgs Lines ProducerBlocks ProducerPlan Producers ProducersBlock
    ProducersPlan RegisterOperandArgs RegisterOperandBlock RegisterOperandMap RegisterOperandPlan
    Rows Shape Shared SharedMap Staging Step Steps Work
"""
TAKEN = frozenset((*keyword.kwlist, *_CPP.split(), *_EMITTED.split()))
ELEMENT = "T"  # emitted files call the storage type so; attention has dynamic dims of that name
