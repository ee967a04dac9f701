"""What a recipe's program returns, checked against what the recipe says, as a spec graph.

Beside the output there may be results that it is computed from: elementwise functions of the inputs
such as the sum of x and a residual, which the next layer reads. A kernel has them at hand anyway.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from mirage_kernels.generator.errors import RecipeError
from mirage_kernels.generator.frontend.symbolic import Tensor, spec_of
from mirage_kernels.generator.ir import OPS, Graph, Kind, Node, TensorType, Value, check, expression

if TYPE_CHECKING:
    from mirage_kernels.generator.recipe import Recipe


def checked_spec(recipe: Recipe, made: object) -> Graph:
    """Return the spec of what a recipe's program returned.

    Raises RecipeError for anything but tensors of the declared dims, for a result beside the output
    that is not elementwise or that the output does not need, for an input without use, and for an
    optional one that makes a difference where it is zeros.
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
    spec = spec_of(*found)
    for name, declared in recipe.also.items():
        spec = _named(recipe.name, spec, name, declared.split())
    _require_use(recipe, spec)
    return check(spec)


def _named(recipe: str, spec: Graph, name: str, dims: Sequence[str]) -> Graph:
    """Return the spec with the next result beside the output called and laid out as it says."""
    old = next(o for o in spec.outputs[1:] if o != name)
    if name in spec.values or not _is_elementwise(spec, old) or not spec.users(old):
        raise RecipeError(
            f"recipe {recipe} returns {old} as {name} beside its output",
            "it must be an elementwise function of inputs that the output is computed from, "
            "under a name of its own",
        )

    def node(n: Node) -> Node:
        args = tuple(name if a == old else a for a in n.args)
        if n.name != old:
            return replace(n, args=args)
        type_ = TensorType(tuple(n.out.type.dim(d) for d in dims), n.out.type.dtype)
        return replace(n, args=args, outs=(Value(name, type_),))

    outputs = tuple(name if o == old else o for o in spec.outputs)
    return replace(spec, nodes=tuple(map(node, spec.nodes)), outputs=outputs)


def _is_elementwise(spec: Graph, name: str) -> bool:
    """Say whether a value is computed elementwise from inputs."""
    node = spec.producers[name]
    if OPS[node.op].kind is not Kind.ELEMENTWISE:
        return False
    made = [a for a in node.args if OPS[spec.producers[a].op].kind is not Kind.SOURCE]
    return all(_is_elementwise(spec, a) for a in made)


def _require_use(recipe: Recipe, spec: Graph) -> None:
    """Raise RecipeError unless every input plays a part, optional ones none as zeros."""
    if spec.outputs[0] in recipe.inputs:
        raise RecipeError(
            f"recipe {recipe.name} returns its input {spec.outputs[0]} as it is",
            "return what is computed from the inputs",
        )
    for name in recipe.inputs:
        if not spec.users(name):
            raise RecipeError(
                f"recipe {recipe.name} does not use its input {name}",
                "leave it out of inputs and of the function's parameters",
            )
    for name in recipe.optional:
        for node in spec.users(name):
            if node.op not in ("add", "sub") or (node.op, node.args[0]) == ("sub", name):
                raise RecipeError(
                    f"recipe {recipe.name} computes {expression(node)} of its optional {name}",
                    "left out it counts as zeros, so it may only be added or subtracted",
                )
