"""Which kernels a model's decode step needs: recipes and shapes, on one of several GPUs.

STEPS is the table: each row says which recipes a step needs at which shapes. A recipe that does not
exist yet has its row too, and counts as there from the day when the catalog has it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from mirage_kernels.generator.errors import ShapeError
from mirage_kernels.generator.frontend.models import Model
from mirage_kernels.generator.recipe import Recipe, Shape

# Ops without a recipe, in every build: sizes of heads that they have kernels for, and the number
# of which what is rotated of a head is a multiple there.
HAND_WRITTEN = ("qk_norm_rope_append", "rope_append")
_APPENDED_HEADS, _ROTATED = (64, 96, 128, 192, 256), 16
_OF_HEADS, _HEAD_STEP = "DCP", 8  # dims of heads, and what they are multiples of


@dataclass(frozen=True)
class Rank:
    """One of `tp` GPUs, which share the heads, the intermediate size and the vocabulary."""

    model: Model
    tp: int
    packed: bool = True  # q, k and v are one product

    @property
    def heads(self) -> int:
        """Query heads."""
        return self.model.heads // self.tp

    @property
    def kv_heads(self) -> int:
        """Heads of the cache; each GPU has one at least."""
        return max(1, self.model.kv_heads // self.tp)

    @property
    def intermediate(self) -> int:
        """Columns of the gate."""
        return self.model.intermediate // self.tp

    @property
    def shared_experts(self) -> int:
        """Columns of the gate of all shared experts together; 0: there are none."""
        experts = self.model.experts
        return 0 if experts is None else experts.shared // self.tp

    @property
    def vocab(self) -> int:
        """Rows of the lm_head, padded to as many on every GPU."""
        return -(-self.model.vocab // self.tp)


@dataclass(frozen=True)
class Need:
    """A kernel that a model needs: a recipe's name, or an op's that has none, and static dims."""

    step: str
    recipe: str
    dims: Mapping[str, int]

    @property
    def is_hand_written(self) -> bool:
        """Say whether every build has a kernel for it, without a recipe."""
        head = self.dims.get("D", 0)
        is_whole = self.dims.get("R", head) % _ROTATED == 0
        return self.recipe in HAND_WRITTEN and head in _APPENDED_HEADS and is_whole

    def found(self, recipes: Mapping[str, Recipe]) -> tuple[Recipe, Shape] | None:
        """Return recipe and shape, under the name that the catalog has for it; None: no recipe."""
        recipe = recipes.get(self.recipe)
        if recipe is None or any(self.dims.get(d, 0) % _HEAD_STEP for d in _OF_HEADS):
            return None  # attention's ops refuse other heads
        shapes = (s for s in recipe.shapes if dict(s.dims) == self.dims)
        return recipe, next(shapes, Shape(self.step, self.dims))


# -- the decode step -------------------------------------------------------------------------------

Kernels = Iterator[tuple[str, Mapping[str, int]]]
Step = tuple[str, Callable[[Rank], Kernels]]


def _norm_linear(model: Model, *, bias: bool = False) -> str:
    if not model.pre_norms:
        return "linear"
    return "rms_norm_linear_full" if bias or model.family.weight_offset else "rms_norm_linear"


def _qkv(rank: Rank) -> Kernels:
    model, latent = rank.model, rank.model.latent
    if latent is None:
        is_packed = rank.packed or model.family.packed
        whole = rank.heads + 2 * rank.kv_heads
        for count in (whole,) if is_packed else (rank.heads, rank.kv_heads):
            dims = {"K": model.hidden, "N": count * model.head_dim}
            yield _norm_linear(model, bias=model.bias), dims
        return
    queries = rank.heads * (latent.nope + latent.rope)
    keys = latent.keys + latent.rope
    first = latent.queries or queries
    for columns in (first + keys,) if rank.packed else (first, keys):
        yield _norm_linear(model, bias=model.bias), {"K": model.hidden, "N": columns}
    if latent.queries:
        yield "rms_norm_linear", {"K": latent.queries, "N": queries}
    yield "rms_norm", {"K": latent.keys}


def _append(rank: Rank) -> Kernels:
    model, latent = rank.model, rank.model.latent
    if latent is not None:
        yield "mla_rope_append", {"C": latent.keys, "P": latent.rope}
        return
    name = "qk_norm_rope_append" if model.family.qk_norm else "rope_append"
    rotated = {} if model.rotary_dim == model.head_dim else {"R": model.rotary_dim}
    yield name, {"D": model.head_dim, **rotated}


def _attention(rank: Rank) -> Kernels:
    model, latent = rank.model, rank.model.latent
    if latent is not None:
        yield "mla_decode", {"C": latent.keys, "P": latent.rope}
        return
    dims = {"D": model.head_dim}
    if model.cap:
        yield "gqa_full", dims
        return
    if model.windows.has_full:
        yield "gqa", dims
    yield "sliding_window_attention", dims  # of several query tokens in any case


def _absorbed(rank: Rank) -> Kernels:
    latent = rank.model.latent
    if latent is not None:
        yield "batched_linear", {"K": latent.nope, "N": latent.keys}
        yield "batched_linear", {"K": latent.keys, "N": latent.values}


def _o_proj(rank: Rank) -> Kernels:
    model = rank.model
    depth = model.latent.values if model.latent is not None else model.head_dim
    yield "linear", {"K": rank.heads * depth, "N": model.hidden}


_GATED = {
    **{"silu": "gated_mlp", "gelu_tanh": "geglu_mlp"},
    **{"gelu": "gated_mlp_gelu", "relu": "gated_mlp_relu"},
}


def _mlp(rank: Rank) -> Kernels:
    model = rank.model
    if not _has_dense_layers(model):
        return
    dims = {"K": model.hidden, "N": rank.intermediate}
    if not model.mlp_bias:
        yield ("rms_norm_" if model.pre_norms else "") + _GATED[model.activation], dims
        return
    columns = 2 if rank.packed or model.family.packed else 1  # gate and up, as one or apart
    yield _norm_linear(model, bias=True), {**dims, "N": columns * rank.intermediate}
    yield f"{model.activation}_and_mul", {"N": rank.intermediate}


def _has_dense_layers(model: Model) -> bool:
    return model.experts is None or model.experts.has_dense_layers


def _experts(rank: Rank) -> Kernels:
    model, experts = rank.model, rank.model.experts
    if experts is None:
        return
    yield "rms_norm", {"K": model.hidden}
    yield "moe_router", {"K": model.hidden, "E": experts.routed}
    sizes = {"E": experts.routed, "K": model.hidden, "N": experts.columns // rank.tp}
    yield "routed_experts", sizes
    if experts.shared:
        yield _GATED[model.activation], {"K": model.hidden, "N": rank.shared_experts}
        yield "linear", {"K": rank.shared_experts, "N": model.hidden}


def _down_proj(rank: Rank) -> Kernels:
    if _has_dense_layers(rank.model):
        yield "linear", {"K": rank.intermediate, "N": rank.model.hidden}


def _many_tokens(rank: Rank) -> Kernels:
    model = rank.model
    yield "rms_norm", {"K": model.hidden}
    if model.latent is not None and model.latent.queries:
        yield "rms_norm", {"K": model.latent.queries}
    if _has_dense_layers(model):
        yield _GATED[model.activation], {"K": model.hidden, "N": rank.intermediate}
        yield f"{model.activation}_and_mul", {"N": rank.intermediate}
    if rank.shared_experts:
        yield f"{model.activation}_and_mul", {"N": rank.shared_experts}


def _post_norms(rank: Rank) -> Kernels:
    if rank.model.post_norms:
        yield "rms_norm_add", {"K": rank.model.hidden}


def _lm_head(rank: Rank) -> Kernels:
    name = "rms_norm_linear_full" if rank.model.family.weight_offset else "rms_norm_linear"
    yield name, {"K": rank.model.hidden, "N": rank.vocab}


STEPS: Sequence[Step] = (
    ("norm, qkv_proj", _qkv),
    ("RoPE, append to the cache", _append),
    ("products of latent attention", _absorbed),
    ("attention", _attention),
    ("o_proj, residual", _o_proj),
    ("norms behind a block", _post_norms),
    ("norm, gated MLP", _mlp),
    ("experts", _experts),
    ("down_proj, residual", _down_proj),
    ("norm, lm_head", _lm_head),
    ("many tokens", _many_tokens),
)


def needs(model: Model, tp: int, *, packed: bool = True) -> list[Need]:
    """Return the kernels that a decode step needs on one of `tp` GPUs, each once, in its order.

    `packed`: the weights of q, k and v are one; else each is behind a norm of its own. Raises
    ShapeError where the heads or the intermediate size cannot be shared so.
    """
    _require_shared(model, tp)
    found: dict[tuple[str, str], Need] = {}
    for step, kernels in STEPS:
        for recipe, dims in kernels(Rank(model, tp, packed)):
            need = Need(f"{model.name} {step}, TP {tp}", recipe, dims)
            found.setdefault((recipe, str(dims)), need)
    return [*found.values()]


def call_arguments(model: Model) -> dict[str, float | str]:
    """Return what the calls of a model's ops are told beside their tensors."""
    found: dict[str, float | str] = {"eps": model.eps, "scale": model.scale}
    if model.family.weight_offset:
        found["weight_offset"] = 1.0  # `rms_norm_geglu_mlp` takes its norm's weight with it added
    if model.family.qk_norm:
        found["norm"] = model.family.qk_norm
    if model.windows.size:
        found["window_left"] = model.windows.size - 1
    if model.cap:
        found["logits_soft_cap"] = model.cap
    return found


def _require_shared(model: Model, tp: int) -> None:
    if model.heads % model.kv_heads:
        raise ShapeError(
            f"{model.name} has {model.heads} query heads for {model.kv_heads} of keys and values",
            "a multiple works",
        )
    works = [n for n in range(1, model.heads + 1) if _shared_wrongly(model, n) == ""]
    wrong = _shared_wrongly(model, tp)
    if wrong:
        *most, last = (str(n) for n in works)
        words = f"{', '.join(most)} or {last}" if most else last
        raise ShapeError(f"{model.name} has {wrong}", f"--tp {words} works")


def _shared_wrongly(model: Model, tp: int) -> str:
    """Return what so many GPUs cannot share; nothing where they can."""
    experts = model.experts
    columns = model.intermediate if _has_dense_layers(model) else 0
    for what, size in (
        ("query heads", model.heads),
        ("columns of the MLP", columns),
        ("columns of each routed expert", 0 if experts is None else experts.columns),
        ("columns of shared experts", 0 if experts is None else experts.shared),
    ):
        if size % tp:
            return f"{size} {what}, which --tp {tp} does not divide"
    if model.kv_heads % tp and tp % model.kv_heads:
        heads = f"{model.kv_heads} heads of keys and values"
        return f"{heads}, which --tp {tp} neither divides nor repeats"
    return ""
