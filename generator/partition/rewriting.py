"""Graphs that torch.export made, written in operators that kernels have forms for.

    view_as_real(view_as_complex(x) * y)  ->  stack(re, im), each of real products
    type_as(x, y)                         ->  cast(x)
    unbind(x)[i]                          ->  select(x, i)
    narrow(x, i, n, m)                    ->  x[..., n:n + m]
    x[:, [n]]                             ->  x[:, n:n + 1]
    pad(x, [0, 0])                        ->  x
    dropout(x)                            ->  x, unless a module trains
    ones_like(x), x.new_ones(n)           ->  full(n, 1), which takes no tensor
    torch.tensor(2.0)                     ->  full([], 2.0)
    einsum("...i,i", x, y)                ->  einsum("abi,i->ab", x, y)
    einsum("ab,bc,cd->ad", x, y, z)       ->  einsum("ac,cd->ad", einsum("ab,bc->ac", x, y), z)
    einsum("abc->ca", x)                  ->  permute(sum(x, 1))
    isnan(x)                              ->  x != x
    nan_to_num(x)                         ->  clamp(where(x == x, x, 0), least, largest)
    glu(x)                                ->  x[:h] * sigmoid(x[h:])
    adaptive_avg_pool2d(x, 1)             ->  mean(x, [-2, -1])
    repeat(x, n, 1)                       ->  flatten(expand(unsqueeze(x, 0)), 0, 1)
    repeat_interleave(x, n, i)            ->  flatten(expand(unsqueeze(x, i + 1)), i, i + 1)
    linear(reshape(transpose(x)), w)      ->  linear(reshape(contiguous(transpose(x))), w)

The last is what PyTorch does there; the kernel that makes x stores it so, where there is one.

It is done before anything else, alike in the graphs of one function at several extents.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from string import ascii_letters
from typing import Any

from mirage_kernels.generator.errors import RecipeError
from mirage_kernels.generator.frontend.editing import (
    Node,
    added,
    arguments_of,
    cast,
    is_op,
    mutates,
    number,
    substitute,
)
from mirage_kernels.generator.frontend.export import operator_of

PRODUCTS = frozenset(("linear", "mm", "bmm", "addmm", "baddbmm", "matmul", "einsum", "mv"))
_SEEN = """
view reshape _unsafe_view unflatten flatten permute transpose swapaxes swapdims mT mH adjoint
unsqueeze squeeze select slice
"""
TURNS = ("transpose", "permute", "swapaxes", "swapdims", "mT")
POOLS = tuple(f"adaptive_avg_pool{n}d" for n in (1, 2, 3))
SEEN = frozenset(_SEEN.split())  # views of one tensor
LIKES = {  # of tensors like another one: the number that they are full of, None for an operand
    f"{prefix}{name}{suffix}": value
    for name, value in (("full", None), ("ones", 1), ("zeros", 0))
    for prefix, suffix in (("new_", ""), ("", "_like"))
}


def rewritten(graph: Any) -> None:
    """Rewrite a graph."""
    for node in [n for n in graph.nodes if is_op(n, "_assert_tensor_metadata")]:  # before casts
        graph.erase_node(node)
    for node in [n for n in graph.nodes if is_op(n, "dropout")]:
        x, share, trains = node.args
        if not (trains and share):
            substitute(graph, node, x)
    _without_likes(graph)
    _without_type_as(graph)
    _without_unbind(graph)
    _without_narrow(graph)
    _without_glu(graph)
    _without_pools(graph)
    _without_empty_pads(graph)
    _without_nan(graph)
    _without_copies_of_all(graph)
    _with_copies_of_turned(graph)
    for node in [n for n in graph.nodes if is_op(n, "einsum")]:
        ranks = [x.meta["val"].dim() for x in node.args[1]]
        node.args = (spelled_out(node.args[0], ranks), *node.args[1:])
        _in_pairs(graph, node)
    complexes = _Complexes(graph)
    for node in [n for n in graph.nodes if is_op(n, "view_as_real", "real", "imag")]:
        complexes.as_real(node)


AUTOCAST = "wrap_with_autocast"
WRAPPERS = {"wrap_with_set_grad_enabled": 1, AUTOCAST: 4}  # where the body stands


def without_wrappers(graph: Any, owner: Any) -> None:
    """Put what `no_grad` and a disabled `autocast` enclose in their place.

    `owner` is the module that has the graph. Raises RecipeError for `autocast` that casts.
    """
    for node in [n for n in graph.nodes if str(n.target) in WRAPPERS]:
        at = WRAPPERS[str(node.target)]
        if str(node.target) == AUTOCAST and node.args[2]:
            raise RecipeError(
                f"it calls operators under autocast to {node.args[1]}",
                "cast the tensors, or disable autocast",
            )
        body = getattr(owner, node.args[at].target)
        without_wrappers(body.graph, body)
        given = [n for n in body.graph.nodes if n.op == "placeholder"]
        copied = dict(zip(given, node.args[at + 1 :], strict=True))
        with graph.inserting_before(node):
            made = graph.graph_copy(body.graph, copied)
        several = made if isinstance(made, list | tuple) else [made]
        for user in [*node.users]:
            user.replace_all_uses_with(several[user.args[1]])
            graph.erase_node(user)
        graph.erase_node(node)
    for node in [n for n in graph.nodes if n.op == "get_attr" and not n.users]:
        graph.erase_node(node)


def regions(graph: Any) -> dict[Node, int]:
    """Return for each node how many operators in front of it write over their operands."""
    found, count = dict[Node, int](), 0
    for node in graph.nodes:
        found[node] = count
        count += mutates(node)
    return found


def _without_likes(graph: Any) -> None:
    for node in [n for n in graph.nodes if is_op(n, *LIKES)]:
        made, value = node.meta["val"], LIKES[operator_of(node)]
        given = node.args[-1] if value is None else value
        if isinstance(given, int | float):
            substitute(graph, node, number(graph, node, made.shape, given, made.dtype))


def _without_type_as(graph: Any) -> None:
    for node in [n for n in graph.nodes if is_op(n, "type_as")]:
        substitute(graph, node, cast(graph, node, node.args[0], node.meta["val"].dtype))


def _without_unbind(graph: Any) -> None:
    import torch

    for node in [n for n in graph.nodes if n.target is operator.getitem]:
        source, number = node.args
        if is_op(source, "unbind"):
            dim = [*source.args[1:], *source.kwargs.values(), 0][0]
            given = (source.args[0], dim, number)
            substitute(graph, node, added(graph, node, torch.ops.aten.select.int, given))


def _without_empty_pads(graph: Any) -> None:
    for node in [n for n in graph.nodes if is_op(n, "pad", "constant_pad_nd")]:
        if not any(node.args[1]) and not any(map(mutates, graph.nodes)):
            substitute(graph, node, node.args[0])


def _without_nan(graph: Any) -> None:
    """Write what NaN is replaced by as a choice; other numbers for infinities stay PyTorch's."""
    import torch

    aten = torch.ops.aten
    for node in [n for n in graph.nodes if is_op(n, "isnan", "nan_to_num")]:
        given, dtype = arguments_of(node), node.meta["val"].dtype
        x = given["self"]
        if is_op(node, "isnan"):
            substitute(graph, node, added(graph, node, aten.ne.Tensor, (x, x)))
        elif dtype.is_floating_point and given["posinf"] is None and given["neginf"] is None:
            is_number = added(graph, node, aten.eq.Tensor, (x, x))
            other = (is_number, x, float(given["nan"] or 0))
            made = added(graph, node, aten.where.ScalarOther, other)
            ends = torch.finfo(dtype)
            substitute(
                graph, node, added(graph, node, aten.clamp.default, (made, ends.min, ends.max))
            )


def _without_narrow(graph: Any) -> None:
    import torch

    for node in [n for n in graph.nodes if is_op(n, "narrow")]:
        x, dim, start, length = node.args
        if isinstance(start, int):
            start %= int(x.meta["val"].shape[dim]) or 1
            given = (x, dim, start, start + length)
            substitute(graph, node, added(graph, node, torch.ops.aten.slice.Tensor, given))


def _with_copies_of_turned(graph: Any) -> None:
    """Say that rows of products are copied where dims that a function makes one are turned."""
    import torch

    for node in [n for n in graph.nodes if is_op(n, "reshape", "flatten")]:
        x, region = node.args[0], regions(graph)
        made = x.args[0] if is_op(x, *TURNS) else None
        if made is None or made.op != "call_function" or _may_look(x, node):
            continue
        if _is_multiplied(node) and region[x] == region[node]:
            copy = added(graph, node, torch.ops.aten.contiguous.default, (x,))
            node.replace_input_with(x, copy)


def _may_look(x: Node, node: Node) -> bool:
    """Say whether the view of what a kernel stored has another shape without a copy."""
    import torch

    stored = torch.empty(x.args[0].meta["val"].shape, device="meta")
    seen = x.target(stored, *x.args[1:], **x.kwargs).reshape(node.meta["val"].shape)
    return seen._is_view()  # type: ignore[no-any-return]


def _is_multiplied(node: Node) -> bool:
    """Say whether a product takes a value, or a view of it."""
    return any(is_op(u, *PRODUCTS) or (is_op(u, *SEEN) and _is_multiplied(u)) for u in node.users)


def spelled_out(equation: str, ranks: Sequence[int]) -> str:
    """Return an equation of einsum with a letter for every dim, and its result."""
    given, arrow, result = equation.replace(" ", "").partition("->")
    free = [c for c in ascii_letters if c not in equation]
    operands, longest = list[str](), ""
    for names, rank in zip(given.split(","), ranks, strict=True):
        dims = "".join(free[: max(0, rank - len(names.replace(".", "")))][::-1])
        longest = max(longest, dims, key=len)
        operands.append(names.replace("...", dims))
    once = sorted(c for c in {*given} - {*",."} if given.count(c) == 1)
    result = result.replace("...", longest) if arrow else longest + "".join(once)
    return f"{','.join(operands)}->{result}"


def _in_pairs(graph: Any, node: Node) -> None:
    """Write an einsum as products of two operands, the first two first, as PyTorch does.

    What one operand alone has and the result has not is summed up before. An equation with a letter
    twice in one operand stays as it is.
    """
    import torch

    aten = torch.ops.aten
    given, _, result = node.args[0].partition("->")
    names, operands = given.split(","), [*node.args[1]]
    if any(len({*x}) < len(x) for x in (*names, result)):
        return
    for i, own in enumerate(names):
        others = {*result}.union(*(x for j, x in enumerate(names) if j != i))
        if dims := [k for k, letter in enumerate(own) if letter not in others]:
            operands[i] = added(graph, node, aten.sum.dim_IntList, (operands[i], dims))
            names[i] = "".join(letter for letter in own if letter in others)
    while len(names) > 2:
        later = {*result}.union(*names[2:])
        made = "".join(dict.fromkeys(x for x in names[0] + names[1] if x in later))
        equation = f"{names[0]},{names[1]}->{made}"
        product = added(graph, node, aten.einsum.default, (equation, operands[:2]))
        names, operands = [made, *names[2:]], [product, *operands[2:]]
    if len(names) == 1:
        order = [names[0].index(letter) for letter in result]
        substitute(graph, node, added(graph, node, aten.permute.default, (operands[0], order)))
    elif operands != [*node.args[1]]:
        node.args = (f"{','.join(names)}->{result}", operands)


def _without_glu(graph: Any) -> None:
    import torch

    aten = torch.ops.aten
    for node in [n for n in graph.nodes if is_op(n, "glu")]:
        x, dim = [*node.args, *node.kwargs.values(), -1][:2]
        half = int(node.meta["val"].shape[dim])
        ends = ((0, half), (half, 2 * half))
        a, b = (added(graph, node, aten.slice.Tensor, (x, dim, *each)) for each in ends)
        gate = added(graph, node, aten.sigmoid.default, (b,))
        substitute(graph, node, added(graph, node, aten.mul.Tensor, (a, gate)))


def _without_pools(graph: Any) -> None:
    import torch

    for node in [n for n in graph.nodes if is_op(n, *POOLS)]:
        x, sizes = node.args[:2]
        if all(size == 1 for size in sizes):
            given = (x, [*range(-len(sizes), 0)], True)
            substitute(graph, node, added(graph, node, torch.ops.aten.mean.dim, given))


def _without_copies_of_all(graph: Any) -> None:
    """Write a tensor that is repeated as a whole as a view that PyTorch copies, kernels do not."""
    import torch

    aten = torch.ops.aten
    for node in [n for n in graph.nodes if is_op(n, "repeat")]:
        x, times = node.args
        own = [*map(int, x.meta["val"].shape)]
        own = [1] * (len(times) - len(own)) + own
        apart = added(graph, node, aten.reshape.default, (x, [i for n in own for i in (1, n)]))
        sizes = [i for pair in zip(times, own, strict=True) for i in pair]
        more = added(graph, node, aten.expand.default, (apart, sizes))
        whole = [n * m for n, m in zip(times, own, strict=True)]
        substitute(graph, node, added(graph, node, aten.reshape.default, (more, whole)))


@dataclass(frozen=True)
class _Complexes:
    """Complex products as real ones."""

    graph: Any

    def as_real(self, node: Node) -> None:
        """Replace the real view of a product by two real values side by side, a part by itself."""
        import torch

        (z,), whole = node.args, is_op(node, "view_as_real")
        if (
            not z.meta["val"].is_complex()
            or not self.has_parts(z)
            or (whole and not is_op(z, "mul"))
        ):
            return
        parts = self.parts(z, node)
        made = parts[is_op(node, "imag")]
        if whole:
            made = added(self.graph, node, torch.ops.aten.stack.default, (parts, -1))
        substitute(self.graph, node, made)

    def has_parts(self, z: Node) -> bool:
        """Say whether a value has a real view, which conjugates lack, or is made of such."""
        if is_op(z, "mul", "_conj"):
            return all(self.has_parts(x) for x in z.all_input_nodes)
        return not z.meta["val"].is_conj()

    def parts(self, z: Node, before: Node) -> list[Node]:
        """Return the real and the imaginary part of a value."""
        import torch

        aten = torch.ops.aten

        def add(target: Any, *args: Any) -> Node:
            return added(self.graph, before, target, args)

        if not z.meta["val"].is_complex():
            return [z]
        if is_op(z, "mul") and all(isinstance(a, type(z)) for a in z.args):
            (a, *ai), (b, *bi) = (self.parts(x, before) for x in z.args)
            mul = aten.mul.Tensor
            if not ai or not bi:
                return [add(mul, x, y) for x in (a, *ai) for y in (b, *bi)]
            real = add(aten.sub.Tensor, add(mul, a, b), add(mul, ai[0], bi[0]))
            return [real, add(aten.add.Tensor, add(mul, a, bi[0]), add(mul, ai[0], b))]
        if is_op(z, "_conj"):
            real, imaginary = self.parts(z.args[0], before)
            return [real, add(aten.neg.default, imaginary)]
        pairs = z.args[0] if is_op(z, "view_as_complex") else add(aten.view_as_real.default, z)
        return [add(aten.select.int, pairs, -1, i) for i in range(2)]
