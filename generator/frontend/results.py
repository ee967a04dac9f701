"""What a recipe's program returns, checked against what the recipe says, as a spec graph.

Beside the output there may be results that it is computed from: elementwise functions of the inputs
such as the sum of x and a residual, which the next layer reads. A kernel has them at hand anyway.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from mirage_kernels.generator.errors import RecipeError
from mirage_kernels.generator.frontend.symbolic import Tensor, spec_of
from mirage_kernels.generator.ir import OPS, Graph, Kind, Node, TensorType, Value


def spec_of_results(recipe: str, made: object, dims: Mapping[str, str]) -> Graph:
    """Return the spec of what a program returned; `dims` of the results by name, output first.

    Raises RecipeError for anything but tensors of these dims, and for a result beside the output
    that is not elementwise or that the output does not need.
    """
    results = made if isinstance(made, tuple) else (made,)
    found = [r for r in results if isinstance(r, Tensor)]
    if len(found) != len(results) or len(found) != len(dims):
        one = len(dims) == 1
        wanted = "a tensor" if one else f"{len(dims)} tensors"
        raise RecipeError(
            f"recipe {recipe} returns {_said(results)}, not {wanted}",
            "return its one result" if one else f"return ({', '.join(dims)})",
        )
    for declared, result in zip(dims.values(), found, strict=True):
        if set(result.type.names) != set(declared.split()):
            raise RecipeError(
                f"recipe {recipe} says its output is [{declared}], "
                f"but computes [{' '.join(result.type.names)}]",
                "correct output= in @recipe(...) or the program; dims go by name, in any order",
            )
    spec = spec_of(*found)
    for name, declared in list(dims.items())[1:]:
        spec = _named(recipe, spec, name, declared.split())
    return spec


def _said(results: Sequence[object]) -> str:
    names = ("None" if result is None else type(result).__name__ for result in results)
    return " and ".join(names) or "nothing"


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
    if OPS[node.op].kind is Kind.SOURCE:
        return False
    sources = [a for a in node.args if OPS[spec.producers[a].op].kind is Kind.SOURCE]
    rest = [a for a in node.args if a not in sources]
    return OPS[node.op].kind is Kind.ELEMENTWISE and all(_is_elementwise(spec, a) for a in rest)
