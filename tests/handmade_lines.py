"""muGraphs written down: lines without a loop, LayerNorm's statistics before one, two results."""

from __future__ import annotations

from msgspec.structs import replace

from mirage_kernels.generator.ir import DType, Graph
from mirage_kernels.generator.pipeline import prove_record
from mirage_kernels.generator.plan.threads import with_threads
from mirage_kernels.generator.recipe import Recipe, Shape, load_recipe, output_type, trace
from mirage_kernels.generator.records.record import About, KernelRecord, SearchSummary
from mirage_kernels.generator.schedules.streaming import planned
from mirage_kernels.generator.search.lower import Goal, lower
from mirage_kernels.generator.search.sketch import BlockSketch, ProgramSketch, Setting, Step, View
from mirage_kernels.generator.search.verify import Proof

K, N = 72, 40  # no multiples of a tile
TILES = {"M": 8, "K": 32, "N": 16}

NTRANS = BlockSketch(
    Setting(("M",), None),
    (View("h", ("M",), None), View("x", ("M",), None), View("alpha", (None,), None)),
    (
        Step("mul", (1, 1)),  # 3
        Step("sum", (3,), "K"),
        Step("sqrt", (4,)),
        Step("div", (1, 5)),  # 6: x on the sphere
        Step("sub", (6, 0)),
        Step("mul", (2, 7)),
        Step("add", (0, 8)),  # 9: h has moved
        Step("mul", (9, 9)),
        Step("sum", (10,), "K"),
        Step("sqrt", (11,)),
        Step("div", (9, 12)),
    ),
    ((13, ("M", "K")),),
)
LAYER_NORM_LINEAR = BlockSketch(
    Setting(("N", "M"), "K"),
    (
        View("x", (None, "M"), None),
        View("x", (None, "M"), "K"),
        View("norm_weight", (None, None), "K"),
        View("norm_bias", (None, None), "K"),
        View("weight", ("N", None), "K"),
        View("eps", (None, None), None),
        "size_K",  # 6
    ),
    (
        Step("sum", (0,), "K"),
        Step("div", (7, 6)),  # 8: the mean
        Step("sub", (0, 8)),
        Step("mul", (9, 9)),
        Step("sum", (10,), "K"),
        Step("div", (11, 6)),
        Step("add", (5, 12)),
        Step("sqrt", (13,)),  # 14: the deviation
        Step("sub", (1, 8)),
        Step("div", (15, 14)),
        Step("mul", (2, 16)),
        Step("add", (3, 17)),
        Step("contract", (4, 18), "K"),
        Step("accum", (19,)),
    ),
    ((20, ("M", "N")),),
)
RESIDUAL = BlockSketch(
    Setting(("N", "M"), "K"),
    (
        View("x", (None, "M"), "K"),
        View("norm_weight", (None, None), "K"),
        View("weight", ("N", None), "K"),
        View("eps", (None, None), None),
        View("bias", ("N", None), None),
        View("residual", (None, "M"), "K"),
        View("weight_offset", (None, None), None),
        "size_K",  # 7
    ),
    (
        Step("add", (0, 5)),  # 8: the result beside the output
        Step("contract", (8, 8), "K"),
        Step("accum", (9,)),
        Step("add", (1, 6)),
        Step("mul", (2, 11)),
        Step("contract", (8, 12), "K"),
        Step("accum", (13,)),
        Step("div", (10, 7)),
        Step("add", (3, 15)),
        Step("sqrt", (16,)),
        Step("div", (14, 17)),
        Step("add", (4, 18)),
    ),
    ((19, ("M", "N")),),
)
NORM_RESIDUAL = BlockSketch(
    Setting(("M",), None),
    (
        View("x", ("M",), None),
        View("norm_weight", (None,), None),
        View("eps", (None,), None),
        View("residual", ("M",), None),
        View("weight_offset", (None,), None),
        "size_K",  # 5
    ),
    (
        Step("add", (0, 3)),  # 6: the result beside the output
        Step("mul", (6, 6)),
        Step("sum", (7,), "K"),
        Step("div", (8, 5)),
        Step("add", (2, 9)),
        Step("sqrt", (10,)),
        Step("add", (1, 4)),
        Step("div", (6, 11)),
        Step("mul", (12, 13)),
    ),
    ((14, ("M", "K")),),
)
SILU_AND_MUL = BlockSketch(
    Setting(("N", "M"), None),
    (View("gate", ("N", "M"), None), View("up", ("N", "M"), None)),
    (Step("silu", (0,)), Step("mul", (1, 2))),
    ((3, ("M", "N")),),
)
GELU_TANH_AND_MUL = replace(SILU_AND_MUL, steps=(Step("gelu_tanh", (0,)), Step("mul", (1, 2))))
SKETCHES = {
    "ntrans": NTRANS,
    "layer_norm_linear": LAYER_NORM_LINEAR,
    "rms_norm_linear_residual": RESIDUAL,
    "rms_norm_residual": NORM_RESIDUAL,
    "silu_and_mul": SILU_AND_MUL,
    "gelu_tanh_and_mul": GELU_TANH_AND_MUL,
}


def shape_of(recipe: Recipe, depth: int = K) -> Shape:
    """Return a small shape of a recipe."""
    sizes = {"K": depth, "N": N}
    return Shape("a test", {name: sizes[name] for name in recipe.static_dims})


def mugraph(name: str, sketch: BlockSketch | None = None, depth: int = K) -> Graph:
    """Return the muGraph of a recipe here, or another one over its tensors."""
    recipe = load_recipe(name)
    return written(recipe, sketch or SKETCHES[name], shape_of(recipe, depth))


def written(recipe: Recipe, sketch: BlockSketch, shape: Shape) -> Graph:
    """Return a muGraph of one kernel over a recipe's tensors."""
    spec = trace(recipe, shape, DType.FP16)
    goal = Goal(spec, output_type(recipe, shape, DType.FP16), DType.FP16, TILES)
    return lower(ProgramSketch((sketch,)), goal)


def record(name: str, depth: int = K) -> KernelRecord:
    """Return the record of such a kernel, proved."""
    recipe = load_recipe(name)
    return record_of(recipe, SKETCHES[name], shape_of(recipe, depth))


def record_of(recipe: Recipe, sketch: BlockSketch, shape: Shape) -> KernelRecord:
    """Return the record of a kernel of any recipe, proved."""
    about = About(
        recipe=recipe.name,
        summary=recipe.summary,
        shape=shape.dims,
        source=shape.source,
        dtype="fp16",
        arch="sm_90a",
        search=SearchSummary(1, 1, 1),
        proof=Proof((), 0.0),
        accuracy=(),
    )
    made = planned(about, with_threads(written(recipe, sketch, shape)))
    return prove_record(made, trace(recipe, shape, DType.FP16), lambda event: None)
