"""muGraphs written by hand, for plans to be priced on: what kernels of these programs look like.

Each is checked as any muGraph is, and none is proved: they are data for planners and their tests.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from mirage_kernels.generator.ir import (
    Axis,
    Builder,
    Dim,
    DType,
    Graph,
    Level,
    Node,
    Space,
    TensorType,
    Value,
    check,
    parts_of,
    tile_type,
    with_precision,
)
from mirage_kernels.generator.ir.infer import extents_of

STORAGE = DType.FP16
_ANY = TensorType((), DType.FP32)  # replaced by what the builder infers


@dataclass(frozen=True)
class Kernel:
    """A block graph in words.

    `inputs`: "x_tile = x * M / K" cuts nothing along the first grid axis, M along the second, K in
    the loop. `steps`: "y = contract x_tile w_tile over K". `outputs`: "y -> out N M" with its omap.
    """

    space: Space
    inputs: Sequence[str]
    steps: Sequence[str]
    outputs: Sequence[str]


@dataclass(frozen=True)
class Program:
    """A muGraph in words: tensors ("x" -> "M K", scalars have no dims), kernels, dims."""

    dims: Mapping[str, Dim]
    tensors: Mapping[str, str]
    middle: Mapping[str, str]  # tensors between kernels and results, in the order they are made
    kernels: Sequence[Kernel]

    def type(self, text: str) -> TensorType:
        """Return a tensor's type from its dims; fp32 if the text ends in :fp32."""
        names, _, kind = text.partition(":")
        dims = tuple(self.dims[n] for n in names.split())
        return TensorType(dims, DType(kind) if kind else STORAGE if dims else DType.FP32)


def dims(**sizes: int | str) -> dict[str, Dim]:
    """Return dims by name; extents in quotes are bounds of dynamic ones."""
    return {n: Dim(n, int(size), isinstance(size, str)) for n, size in sizes.items()}


def build(program: Program) -> Graph:
    """Return the checked muGraph of a program in words."""
    outer = Builder(Level.KERNEL)
    for name, text in program.tensors.items():
        outer.input(name, program.type(text))
    made = {name: program.type(text) for name, text in program.middle.items()}
    for kernel in program.kernels:
        bound = [line.split(" = ")[1].split()[0] for line in kernel.inputs]
        body = _body(kernel, outer.types, made)
        stored = [line.split(" -> ")[1].split()[0] for line in kernel.outputs]
        outs = tuple(Value(name, made[name]) for name in stored)
        outer.add(Node("block", tuple(bound), outs, body=body))
    return check(outer.graph(list(made)[-1:]))


def _body(kernel: Kernel, types: Mapping[str, TensorType], made: Mapping[str, TensorType]) -> Graph:
    body = Builder(Level.BLOCK, kernel.space)
    bound = [line.split(" = ")[1].split()[0] for line in kernel.inputs]
    extents = extents_of([types[t] for t in bound])
    for line, tensor in zip(kernel.inputs, bound, strict=True):
        body.add(_input(line, types[tensor], kernel.space, extents))
    for line in kernel.steps:
        body.add(_step(line))
    for line in kernel.outputs:
        value, _, right = line.partition(" -> ")
        tensor, *cuts = right.split()
        name = f"{tensor}_stored"
        omap = tuple(None if c == "*" else c for c in cuts)
        body.add(Node("output", (value,), (Value(name, made[tensor]),), cuts=omap))
    stored = [n.name for n in body.nodes if n.op == "output"]
    return with_precision(body.graph(stored), STORAGE)


def _input(line: str, full: TensorType, space: Space, extents: dict[str, int]) -> Node:
    name, _, right = line.partition(" = ")
    imap, _, fmap = right.partition(" / ")
    cuts = tuple(None if c == "*" else c for c in imap.split()[1:])
    node = Node("input", (), (Value(name, full),), cuts=cuts, loop_cut=fmap or None)
    return replace(node, outs=(Value(name, tile_type(node, full, space, extents)),))


def _step(line: str) -> Node:
    name, _, right = line.partition(" = ")
    left, _, over = right.partition(" over ")
    op, *args = left.split()
    if op == "const":
        return Node(op, (), (Value(name, _ANY),), value=float(args[0]))
    return Node(op, tuple(args), (Value(name, _ANY),), over=over)


def gated_mlp(m: int = 8) -> Graph:
    """silu(x gate^T) * (x up^T), x shared, one kernel."""
    grid = (Axis("x", "N", 32), Axis("y", "M", m))
    kernel = Kernel(
        Space(grid, Axis("loop", "K", 512)),
        ("x_tile = x * M / K", "gate_tile = gate N * / K", "up_tile = up N * / K"),
        (
            "gated = contract x_tile gate_tile over K",
            "gated_total = accum gated",
            "raised = contract x_tile up_tile over K",
            "raised_total = accum raised",
            "activated = silu gated_total",
            "product = mul activated raised_total",
        ),
        ("product -> out N M",),
    )
    tensors = {"x": "M K", "gate": "N K", "up": "N K"}
    return build(Program(dims(M="4096", K=4096, N=4096), tensors, {"out": "M N"}, [kernel]))


def lora_linear(m: int = 16) -> Graph:
    """x w^T + (x a^T) b^T, one kernel: every block makes x a^T anew."""
    grid = (Axis("x", "N", 32), Axis("y", "M", m))
    kernel = Kernel(
        Space(grid, Axis("loop", "K", 512)),
        (
            "x_tile = x * M / K",
            "weight_tile = weight N * / K",
            "a_tile = lora_a * * / K",
            "b_tile = lora_b N *",
            "scale_tile = scale * *",
        ),
        (
            "product = contract x_tile weight_tile over K",
            "product_total = accum product",
            "narrow = contract x_tile a_tile over K",
            "narrow_total = accum narrow",
            "adapted = contract narrow_total b_tile over R",
            "scaled = mul adapted scale_tile",
            "both = add product_total scaled",
        ),
        ("both -> out N M",),
    )
    tensors = {"x": "M K", "weight": "N K", "lora_a": "R K", "lora_b": "N R", "scale": ""}
    sizes = dims(M="4096", K=4096, N=4096, R=16)
    return build(Program(sizes, tensors, {"out": "M N"}, [kernel]))


_ATTENTION = (
    "products = contract q_tile k_tile over D",
    "scores = mul products scale_tile",
    "bound = peak scores over L",
    "shifted = sub scores bound",
    "weights = exp shifted",
    "weight_sum = sum weights over L",
    "weight_total = accum_rescaled weight_sum bound",
    "mixed = contract weights v_tile over L",
    "mixed_total = accum_rescaled mixed bound",
)
_QUERY = {"q": "B H G D", "k": "B L H D", "v": "B L H D", "scale": ""}


def _heads(keys: int) -> dict[str, Dim]:
    return dims(B="256", L=str(keys), H=8, G=4, D=128)


def _looped(*more: Axis) -> Space:
    return Space((Axis("x", "H", 1), Axis("y", "B", 1), *more), Axis("loop", "L", 128))


def gqa(keys: int = 4096) -> Graph:
    """Attention of one query token over L keys in one kernel, a block per sequence and head."""
    inputs = (
        "q_tile = q H B",
        "k_tile = k H B / L",
        "v_tile = v H B / L",
        "scale_tile = scale * *",
    )
    steps = (*_ATTENTION, "normal = div mixed_total weight_total")
    kernel = Kernel(_looped(), inputs, steps, ("normal -> out H B",))
    return build(Program(_heads(keys), _QUERY, {"out": "B H G D"}, [kernel]))


def gqa_cluster(keys: int = 4096) -> Graph:
    """The same with L dealt out to eight blocks, which combine through their shared memories."""
    inputs = (
        *("q_tile = q H B *", "k_tile = k H B L / L", "v_tile = v H B L / L"),
        "scale_tile = scale * * *",
    )
    steps = (
        *_ATTENTION,
        "bound_last = last bound",
        "mixed_all = combine_rescaled mixed_total bound_last over L",
        "weight_all = combine_rescaled weight_total bound_last over L",
        "normal = div mixed_all weight_all",
    )
    space = _looped(Axis("z", "L", keys // 8, reduced=True))
    kernel = Kernel(space, inputs, steps, ("normal -> out H B *",))
    return build(Program(_heads(keys), _QUERY, {"out": "B H G D"}, [kernel]))


def gqa_split(keys: int = 4096, parts: int = 16) -> Graph:
    """The same in two kernels: partial results of every part of L, then their sum."""
    inputs = (
        *("q_tile = q H B *", "k_tile = k H B L / L", "v_tile = v H B L / L"),
        "scale_tile = scale * * *",
    )
    side = parts_of("L")
    outputs = ("mixed_total", "weight_total", "bound_last")
    stored = ("mixed_parts", "weight_parts", "bound_parts")
    first = Kernel(
        _looped(Axis("z", "L", keys // parts, reduced=True)),
        inputs,
        (*_ATTENTION, "bound_last = last bound"),
        [f"{value} -> {tensor} H B {side}" for value, tensor in zip(outputs, stored, strict=True)],
    )
    second = Kernel(
        Space((Axis("x", "H", 1), Axis("y", "B", 1))),
        ("mixed = mixed_parts H B", "sums = weight_parts H B", "bounds = bound_parts H B"),
        (
            f"bound = peak bounds over {side}",
            "shifted = sub bounds bound",
            "share = exp shifted",
            "mixed_share = mul mixed share",
            f"mixed_all = sum mixed_share over {side}",
            "weight_share = mul sums share",
            f"weight_all = sum weight_share over {side}",
            "normal = div mixed_all weight_all",
        ),
        ("normal -> out H B",),
    )
    middle = {
        "mixed_parts": f"B H G D {side}:fp32",
        "weight_parts": f"B H G {side}:fp32",
        "bound_parts": f"B H G {side}:fp32",
        "out": "B H G D",
    }
    heads = _heads(keys) | dims(**{side: parts})
    return build(Program(heads, _QUERY, middle, [first, second]))


def qk_norm_attention(keys: int = 4096) -> Graph:
    """gqa of normalised queries and keys; a key's norm divides its score."""
    inputs = (
        *("q_tile = q H B", "k_tile = k H B / L", "v_tile = v H B / L", "scale_tile = scale * *"),
        *("q_weight_tile = q_weight * *", "k_weight_tile = k_weight * *", "eps_tile = eps * *"),
    )
    steps = (
        "size_D = size over D",
        "q_squared = contract q_tile q_tile over D",
        "q_mean = div q_squared size_D",
        "q_moved = add q_mean eps_tile",
        "q_root = sqrt q_moved",
        "q_unit = div q_tile q_root",
        "q_scaled = mul q_unit q_weight_tile",
        "q_normed = mul q_scaled k_weight_tile",
        "k_squared = contract k_tile k_tile over D",
        "k_mean = div k_squared size_D",
        "k_moved = add k_mean eps_tile",
        "k_root = sqrt k_moved",
        "raw = contract q_normed k_tile over D",
        "products = div raw k_root",
        *_ATTENTION[1:],
        "normal = div mixed_total weight_total",
    )
    kernel = Kernel(_looped(), inputs, steps, ("normal -> out H B",))
    tensors = _QUERY | {"q_weight": "D", "k_weight": "D", "eps": ""}
    return build(Program(_heads(keys), tensors, {"out": "B H G D"}, [kernel]))


MUGRAPHS: dict[str, Callable[[], Graph]] = {
    "gated MLP, 8 tokens": gated_mlp,
    "gated MLP, 64 tokens": lambda: gated_mlp(64),
    "LoRA, 16 tokens": lora_linear,
    "LoRA, 64 tokens": lambda: lora_linear(64),
    "GQA, one kernel": gqa,
    "GQA, a cluster per head": gqa_cluster,
    "GQA, split in two kernels": gqa_split,
    "QK-norm attention": qk_norm_attention,
}
