"""Models as their kernels see them, read from Hugging Face configurations.

A configuration becomes a `Model`, which says what matters here in one vocabulary for all families
(`frontend/families.py`). `frontend/decode_steps.py` says which kernels it needs.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from mirage_kernels.generator.errors import FileError, RecipeError
from mirage_kernels.generator.frontend.families import (
    FAMILIES,
    PATTERNS,
    Config,
    Family,
    missing,
)
from mirage_kernels.recipes.models import KNOWN

_ACTIVATIONS = {
    **{"silu": "silu", "swish": "silu", "relu": "relu", "gelu": "gelu"},
    **{"gelu_pytorch_tanh": "gelu_tanh", "gelu_new": "gelu_tanh"},
}
_LAYERS = ("full_attention", "sliding_attention")  # the words of transformers for their kinds
# Above these nothing is a model: a kernel counts elements in 32 bits.
MOST, MOST_HEADS, MOST_NUMBER = 2**31 - 1, 2**16, 1e30


@dataclass(frozen=True)
class Latent:
    """Sizes of multi-head latent attention."""

    queries: int  # of the compressed queries; 0: they are not compressed
    keys: int
    nope: int
    rope: int
    values: int


@dataclass(frozen=True)
class Experts:
    """The experts of layers that have some."""

    routed: int
    columns: int  # of each expert's gate
    shared: int  # columns of all shared experts together; 0: there are none
    has_dense_layers: bool  # others have a plain MLP


@dataclass(frozen=True)
class Windows:
    """Which keys the layers see."""

    size: int  # the last keys, a token's own among them; 0: no layer has a window
    has_full: bool  # there are layers that see all keys


@dataclass(frozen=True)
class Model:
    """A model as its kernels see it."""

    name: str
    family: Family
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    rotary_dim: int
    vocab: int
    activation: str
    bias: bool  # of the projections of q, k and v
    mlp_bias: bool
    pre_norms: bool  # norms in front of attention and MLP
    post_norms: bool  # norms behind them
    windows: Windows
    scale: float  # of the scores
    cap: float  # of the scores; 0: none
    eps: float
    latent: Latent | None
    experts: Experts | None
    notes: tuple[str, ...]  # what a kernel does not do


# -- configurations --------------------------------------------------------------------------------


def load_model(name_or_path: str) -> Model:
    """Return the model of a `config.json`, of a folder that holds one, or of a known name.

    Raises RecipeError for a family that is not known and for a configuration that lacks a size.
    """
    path = Path(name_or_path)
    if path.is_dir():
        path = path / "config.json"
    if path.is_file():
        return model_of(_read(path), path.parent.name if path.name == "config.json" else path.stem)
    known = KNOWN.get(name_or_path.lower())
    if known is None:
        near = get_close_matches(name_or_path.lower(), KNOWN, n=3, cutoff=0.3) or [*KNOWN]
        raise RecipeError(
            f"there is no file and no known model called {name_or_path!r}",
            f"the path of a config.json works, or a name: {', '.join(near)}",
        )
    return model_of(known.config, name_or_path.lower())


def _read(path: Path) -> Config:
    try:
        config = json.loads(path.read_text())
    except (OSError, ValueError, RecursionError) as error:
        raise FileError(
            f"{path} is no JSON: {error}", "a Hugging Face config.json works"
        ) from error
    if not isinstance(config, dict):
        raise FileError(f"{path} holds no JSON object", "a Hugging Face config.json works")
    return config


def model_of(config: Config, name: str) -> Model:
    """Return what a configuration says; that of a model for images too holds one for text."""
    text = config.get("text_config")
    if isinstance(text, dict) and "model_type" in config:
        inner = {"model_type": f"{config['model_type']}_text", **text}
        return model_of(inner, name)
    family = FAMILIES.get(str(config.get("model_type")))
    if family is None:
        raise _unknown(config, name)
    whole = {**family.defaults, **config}  # null in the file is nothing, whatever the default
    return _model(_Reader(name, {k: v for k, v in whole.items() if v is not None}), family)


def _unknown(config: Config, name: str) -> RecipeError:
    lacks = missing(config)
    reason = f"; no recipe computes what it takes: {', '.join(lacks)}" if lacks else ""
    titles = ", ".join(each.title for each in FAMILIES.values())
    return RecipeError(
        f"{name}: nothing is known of models of type {config.get('model_type')!r}{reason}",
        f"known: {titles}; `mirage-kernels generate RECIPE --shape ...` makes kernels one by one",
    )


@dataclass(frozen=True)
class _Reader:
    name: str
    config: Config  # with defaults, without nulls

    def size(self, key: str, *, default: int | None = None, most: int = MOST) -> int:
        """Return a size, which is a whole number."""
        value = self.config.get(key, default)
        if value is None:
            raise RecipeError(
                f"{self.name}: the configuration has no {key}", "a whole config.json works"
            )
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
            raise self.wrong(key, f"a whole number from 1 to {most} works")
        return value

    def number(self, key: str, default: float, *, least: float = 0.0) -> float:
        """Return a number that may be a fraction; neither NaN nor an infinity is one."""
        value = self.config.get(key, default)
        works = f"a number from {least:g} to {MOST_NUMBER:g} works"
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.wrong(key, works)
        if not least <= value <= MOST_NUMBER:
            raise self.wrong(key, works)
        return float(value)

    def wrong(self, key: str, works: str) -> RecipeError:
        """Return the error of a value; one that is long is cut short."""
        return RecipeError(f"{self.name}: {key} is {self.config[key]!r:.40}", works)

    def is_on(self, key: str) -> bool:
        """Say whether an option is set."""
        return bool(self.config.get(key))


def _model(reader: _Reader, family: Family) -> Model:
    hidden = reader.size("hidden_size")
    heads = reader.size("num_attention_heads", most=MOST_HEADS)
    word = str(reader.config.get("hidden_activation") or reader.config.get("hidden_act", "silu"))
    if word not in _ACTIVATIONS:
        raise RecipeError(
            f"{reader.name}: no gated MLP with the activation {word!r}",
            f"known: {', '.join(_ACTIVATIONS)}",
        )
    latent = _latent(reader) if family.latent else None
    head_dim = reader.size("head_dim", default=_share(reader, hidden, heads))
    swin = reader.is_on("swin_norm")
    return Model(
        name=reader.name,
        family=family,
        hidden=hidden,
        intermediate=reader.size("intermediate_size"),
        heads=heads,
        kv_heads=reader.size("num_key_value_heads", default=heads),
        head_dim=head_dim,
        rotary_dim=_rotary_dim(reader, head_dim),
        vocab=reader.size("vocab_size"),
        activation=_ACTIVATIONS[word],
        bias=reader.is_on("attention_bias") or family.bias,
        mlp_bias=reader.is_on("mlp_bias"),
        pre_norms=not swin,
        post_norms=family.post_norms or swin,
        windows=_windows(reader, family),
        scale=_scale(reader, latent, head_dim),
        cap=_cap(reader, "attn_logit_softcapping"),
        eps=reader.number("rms_norm_eps", 1e-6),
        latent=latent,
        experts=_experts(reader) if family.latent else None,
        notes=_notes(reader),
    )


def _share(reader: _Reader, hidden: int, heads: int) -> int | None:
    """Return a head's part of the hidden size, if that is whole."""
    if reader.config.get("head_dim") is None and hidden % heads:
        raise RecipeError(
            f"{reader.name}: hidden_size {hidden} is no multiple of {heads} heads",
            "a configuration with a head_dim works",
        )
    return hidden // heads


def _rope(reader: _Reader) -> Config:
    """Return what is said of RoPE: transformers 5 has one key for it, older ones another."""
    for key in ("rope_parameters", "rope_scaling"):
        value = reader.config.get(key)
        if isinstance(value, dict):
            return value
    return {}


def _rotary_dim(reader: _Reader, head_dim: int) -> int:
    rope = {**reader.config, **_rope(reader)}
    factor = _Reader(reader.name, rope).number("partial_rotary_factor", 1.0)
    if not 0 < factor <= 1:
        raise RecipeError(
            f"{reader.name}: partial_rotary_factor is {factor:g}", "a part of 1 works, as 0.75"
        )
    return int(head_dim * factor)


def _cap(reader: _Reader, key: str) -> float:
    return reader.number(key, 0.0) if reader.is_on(key) else 0.0


def _scale(reader: _Reader, latent: Latent | None, head_dim: int) -> float:
    """Return what scores are multiplied by; YaRN's correction of it is DeepSeek's."""
    if latent is None:
        return float(reader.number("query_pre_attn_scalar", head_dim, least=1) ** -0.5)
    rope = {key: value for key, value in _rope(reader).items() if value is not None}
    yarn = _Reader(reader.name, rope)
    factor, whole = yarn.number("factor", 1.0), yarn.number("mscale_all_dim", 0.0)
    correction = 0.1 * whole * math.log(factor) + 1 if factor > 1 else 1.0
    return float((latent.nope + latent.rope) ** -0.5 * correction**2)


def _windows(reader: _Reader, family: Family) -> Windows:
    written = _written_types(reader)
    is_used = reader.config.get("use_sliding_window", True) is not False
    if not is_used or not reader.is_on("sliding_window"):
        return Windows(0, has_full=True)
    types = written or _layer_types(reader, family)
    size = reader.size("sliding_window") if "sliding_attention" in types else 0
    return Windows(size, has_full="full_attention" in types)


def _written_types(reader: _Reader) -> set[str]:
    """Return the kinds of layers that the configuration names; none: it names no layer's."""
    written = reader.config.get("layer_types", [])
    if not isinstance(written, list):
        raise reader.wrong("layer_types", f"a list of {' and '.join(_LAYERS)} works")
    for kind in written:
        if kind not in _LAYERS:
            raise RecipeError(
                f"{reader.name}: no recipe computes layers of type {kind!r:.40} (layer_types)",
                f"known: {', '.join(_LAYERS)}",
            )
    return {*written}


def _layer_types(reader: _Reader, family: Family) -> set[str]:
    """Return what kinds of layers the family has, in the words of transformers."""
    if family.windows == "all":
        return {"sliding_attention"}
    layers = reader.size("num_hidden_layers")
    if family.windows == "last":
        first = min(int(reader.number("max_window_layers", 0)), layers)
        has_full = {"full_attention"} if first else set[str]()
        return has_full | ({"sliding_attention"} if first < layers else set())
    kind = str(reader.config.get("model_type"))
    pattern = reader.size("sliding_window_pattern", default=PATTERNS[kind])
    has_full = {"full_attention"} if layers >= pattern else set[str]()
    return has_full | ({"sliding_attention"} if pattern > 1 else set())


def _latent(reader: _Reader) -> Latent:
    return Latent(
        queries=reader.size("q_lora_rank") if reader.is_on("q_lora_rank") else 0,
        keys=reader.size("kv_lora_rank"),
        nope=reader.size("qk_nope_head_dim"),
        rope=reader.size("qk_rope_head_dim"),
        values=reader.size("v_head_dim"),
    )


def _experts(reader: _Reader) -> Experts | None:
    """Return the experts of the layers behind the first, dense ones; None: all are dense."""
    dense = int(reader.number("first_k_dense_replace", 0))
    if not reader.is_on("n_routed_experts") or dense >= reader.size("num_hidden_layers"):
        return None
    columns = reader.size("moe_intermediate_size")
    shared = reader.size("n_shared_experts") if reader.is_on("n_shared_experts") else 0
    has_gaps = reader.size("moe_layer_freq", default=1) > 1
    routed = reader.size("n_routed_experts")
    return Experts(routed, columns, shared * columns, has_dense_layers=dense > 0 or has_gaps)


def _notes(reader: _Reader) -> tuple[str, ...]:
    notes, cap = list[str](), _cap(reader, "final_logit_softcapping")
    if cap:
        notes.append(f"PyTorch caps the logits softly, at {cap:g}, behind the lm_head")
    quantised = reader.config.get("quantization_config")
    if isinstance(quantised, dict):
        method = quantised.get("quant_method", "some way")
        notes.append(f"its weights are quantised ({method}): kernels take fp16 and bf16 weights")
    return tuple(notes)
