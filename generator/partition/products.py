"""Matrix products among a function's nodes: what they multiply, and how many rows that has."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from math import prod

from mirage_kernels.generator.errors import RecipeError
from mirage_kernels.generator.frontend.editing import CASTS, is_view, upstream
from mirage_kernels.generator.frontend.export import has_eight_bits, operator_of, rounds
from mirage_kernels.generator.ir import DType
from mirage_kernels.generator.partition.pieces import is_elementwise
from mirage_kernels.generator.partition.rewriting import PRODUCTS, TURNS
from mirage_kernels.generator.partition.trace import Node, Trace
from mirage_kernels.generator.recipe import Recipe
from mirage_kernels.generator.recipe import trace as spec_of

MOST_NODES = 14  # of a kernel: what a search finds in seconds
MOST_OF_SEVERAL = 8  # nodes of a kernel with what is in front of such products
FEW_COLUMNS = 512
ROW = 32  # elements of a row, or more
ATTENTION = "scaled_dot_product_attention"


def require_one_type(trace: Trace) -> None:
    """Raise RecipeError for a product of tensors of several types, which PyTorch refuses too."""
    for node in products_of(trace.nodes):
        types = dict.fromkeys(str(n.meta["val"].dtype) for n in node.all_input_nodes)
        if len(types) > 1:
            raise RecipeError(
                f"{trace.where(node)}: it multiplies tensors of {' and '.join(types)}",
                trace.cast
                or "PyTorch refuses that: cast them, or give the module and the inputs one type",
            )


def free_extents(node: Node) -> tuple[int, int]:
    """Return the rows of a product's two operands: what each has and the other has not."""
    a, b, *_ = (tuple(map(int, n.meta["val"].shape)) for n in factors(node))
    op = operator_of(node)
    if op == "einsum":
        names = str(node.args[0]).replace(" ", "").partition("->")[0].split(",")
        mine, other = (dict(zip(x, s, strict=True)) for x, s in zip(names, (a, b), strict=True))
        return prod(n for d, n in mine.items() if d not in other), prod(
            n for d, n in other.items() if d not in mine
        )
    if op == "linear":
        return prod(a[:-1]), b[0]
    columns = b[-1] if len(b) > 1 else 1
    rows = prod(a[:-1]) if len(b) <= 2 else a[-2] if len(a) > 1 else 1
    return rows, columns


def is_rounded(node: Node) -> bool:
    """Say whether a value goes to be rounded to 8 bits, element by element, and nowhere else.

    Kernels store the scale that it has, or what is rounded, beside it.
    """
    while is_elementwise(node) and not rounds(node):
        (user, *others) = node.users or (None,)
        if user is None or others:
            return False
        node = user
    return rounds(node)


def numbers_rows(x: Node, of: Node) -> bool:
    """Say whether a value has one number for a row of another: its sum, or its scale."""
    return ROW * int(x.meta["val"].numel()) <= int(of.meta["val"].numel())


def is_wide(trace: Trace, result: Node, nodes: Sequence[Node]) -> bool:
    """Say whether a kernel of some nodes stores a result in fp32, as PyTorch does.

    Fast schedules store 16 bits of products: where PyTorch widens what it has rounded to these, it
    widens what they store.
    """
    widened = operator_of(result) in CASTS and not is_wider(trace, result.all_input_nodes[0])
    return is_wider(trace, result) and not (products_of(nodes) and widened)


def products_of(nodes: Sequence[Node]) -> list[Node]:
    """Return the products among nodes, attention aside."""
    return [n for n in nodes if operator_of(n) in PRODUCTS]


def is_wider(trace: Trace, node: Node) -> bool:
    """Say whether elements of a value have more bytes than kernels store."""
    return bool(node.meta["val"].dtype.itemsize > trace.dtype.itemsize)


def is_batched(node: Node) -> bool:
    """Say whether a product multiplies by several matrices, as those of experts."""
    shapes = [tuple(n for n in map(int, x.meta["val"].shape) if n > 1) for x in factors(node)]
    if operator_of(node) == "einsum":
        return len(max(shapes, key=prod)) > 2  # weights are more than what they multiply
    return len(shapes[1]) > 2


def has_few_columns(recipe: Recipe) -> bool:
    """Say whether products are by vectors, or [K, N] matrices of so few columns that none fits.

    General kernels are as fast as PyTorch there (`others/router_columns`, 4096 -> 128 with a
    softmax: 4.7 us, PyTorch 7.2). Of 4096 columns they were not: 13.7 us, PyTorch 12.2.
    """
    spec, found = spec_of(recipe, recipe.shapes[0], DType.BF16), list[bool]()
    for node in spec.of("contract"):
        for dims in (spec.values[a].type.dims for a in node.args):
            if not any(d.dynamic for d in dims):
                few = dims[-1].name != node.over and dims[-1].size <= FEW_COLUMNS
                found.append(len(dims) == 1 or few)
    return bool(found) and all(found)


def is_quantized(trace: Trace, factor: Node, nodes: Collection[Node]) -> bool:
    """Say whether nodes make a factor of inputs of static extents, one of 8 bits among them."""
    among = {*nodes}
    own = upstream(factor, among)
    given = {factor, *(a for n in own for a in n.all_input_nodes)} - among
    tensors = (n.meta["val"] for n in given if hasattr(n.meta.get("val"), "dtype"))
    static = (isinstance(s, int) for n in given for s in trace.shape(n))
    return any(has_eight_bits(x.dtype) for x in tensors) and all(static)


def makes_rows(node: Node, nodes: Sequence[Node]) -> bool:
    """Say whether a node makes weights [N, K] of a product among nodes."""
    own = [n for n in nodes if not is_view(n)]
    weights = [n.args[1] for n in own if operator_of(n) == "linear"]
    turned = [factors(n)[1] for n in own if operator_of(n) in ("matmul", "mm", "addmm")]
    weights += [n.args[0] for n in turned if operator_of(n) in (*TURNS, "t", "numpy_T")]
    return any(node in upstream(w, own) for w in weights)


def may_be_general(nodes: Sequence[Node]) -> bool:
    """Say whether a search finds a general kernel soon for products by several matrices."""
    return len(nodes) <= MOST_OF_SEVERAL or not any(map(is_batched, products_of(nodes)))


def factors(node: Node) -> Sequence[Node]:
    """Return the tensors that a product multiplies."""
    op = operator_of(node)
    if op == "einsum":
        return list(node.args[1])
    if op == ATTENTION:
        return list(node.args[:3])
    return [n for n in node.args if isinstance(n, type(node))][
        1 if op in ("addmm", "baddbmm") else 0 :
    ][:2]
