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

# Ops without a recipe, and the sizes of heads that their kernels have.
HAND_WRITTEN = {"qk_norm_rope_append": (64, 96, 128, 192, 256)}


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
    def vocab(self) -> int:
        """Rows of the lm_head, padded to as many on every GPU."""
        return -(-self.model.vocab // self.tp)


@dataclass(frozen=True)
class Need:
    """A kernel that a model needs: a recipe's name, or an op's that has none, and static dims."""

    step: str
    recipe: str
    dims: Mapping[str, int]

    def found(self, recipes: Mapping[str, Recipe]) -> tuple[Recipe, Shape] | None:
        """Return recipe and shape, under the name that the catalog has for it; None: no recipe."""
        recipe = recipes.get(self.recipe)
        if recipe is None:
            return None
        shapes = (s for s in recipe.shapes if dict(s.dims) == self.dims)
        return recipe, next(shapes, Shape(self.step, self.dims))


# -- the decode step -------------------------------------------------------------------------------

Kernels = Iterator[tuple[str, Mapping[str, int]]]
Step = tuple[str, Callable[[Rank], Kernels]]


def _norm_linear(model: Model, *, bias: bool = False) -> str:
    return "rms_norm_linear_full" if bias or model.family.weight_offset else "rms_norm_linear"


def _qkv(rank: Rank) -> Kernels:
    model, latent = rank.model, rank.model.latent
    if latent is None:
        heads = (rank.heads + 2 * rank.kv_heads,) if rank.packed else (rank.heads, rank.kv_heads)
        for count in heads:
            dims = {"K": model.hidden, "N": count * model.head_dim}
            yield _norm_linear(model, bias=model.bias), dims
        return
    queries = rank.heads * (latent.nope + latent.rope)
    first = (latent.queries or queries) + latent.keys + latent.rope
    yield "rms_norm_linear", {"K": model.hidden, "N": first}
    if latent.queries:
        yield "rms_norm_linear", {"K": latent.queries, "N": queries}
    yield "rms_norm", {"K": latent.keys}


def _append(rank: Rank) -> Kernels:
    latent, norm = rank.model.latent, rank.model.family.qk_norm
    if latent is not None:
        yield "mla_rope_append", {"C": latent.keys, "P": latent.rope}
    elif norm:
        yield "qk_norm_rope_append", {"D": rank.model.head_dim}
    else:
        yield "rope_append", {}
        yield "rope_append_fp32", {}  # tables of cosines and sines come in either type


def _attention(rank: Rank) -> Kernels:
    model, latent = rank.model, rank.model.latent
    if latent is not None:
        yield "mla_decode", {"C": latent.keys, "P": latent.rope}
        return
    dims = {"D": model.head_dim}
    if model.has_cap:
        yield "gqa_full", dims
        return
    if not model.has_window or model.family.mixed_windows:
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


def _gated(model: Model) -> str:
    return {"silu": "gated_mlp", "gelu_tanh": "geglu_mlp"}[model.activation]


def _mlp(rank: Rank) -> Kernels:
    dims = {"K": rank.model.hidden, "N": rank.intermediate}
    yield f"rms_norm_{_gated(rank.model)}", dims


def _experts(rank: Rank) -> Kernels:
    latent = rank.model.latent
    if latent is not None and latent.shared_experts:
        yield "gated_mlp", {"K": rank.model.hidden, "N": latent.shared_experts // rank.tp}
    if latent is not None and latent.has_routed_experts:
        yield "routed_experts", {"K": rank.model.hidden}


def _down_proj(rank: Rank) -> Kernels:
    yield "linear", {"K": rank.intermediate, "N": rank.model.hidden}


def _many_tokens(rank: Rank) -> Kernels:
    yield "rms_norm", {"K": rank.model.hidden}
    yield _gated(rank.model), {"K": rank.model.hidden, "N": rank.intermediate}
    yield f"{rank.model.activation}_and_mul", {"N": rank.intermediate}


def _post_norms(rank: Rank) -> Kernels:
    if rank.model.family.post_norms:
        yield "rms_norm", {"K": rank.model.hidden}


def _lm_head(rank: Rank) -> Kernels:
    yield _norm_linear(rank.model), {"K": rank.model.hidden, "N": rank.vocab}


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


def _require_shared(model: Model, tp: int) -> None:
    for what, size in (("query heads", model.heads), ("columns of the MLP", model.intermediate)):
        if size % tp:
            raise ShapeError(
                f"{model.name} has {size} {what}, which --tp {tp} does not divide",
                "a divisor of both works, such as 1, 2 or 4",
            )
    if model.kv_heads % tp and tp % model.kv_heads:
        raise ShapeError(
            f"{model.name} has {model.kv_heads} heads of keys and values, which --tp {tp} neither "
            "divides nor repeats",
            "a divisor or a multiple works",
        )
