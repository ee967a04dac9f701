"""Models as their kernels see them, read from Hugging Face configurations.

A configuration becomes a `Model`, which says what matters here in one vocabulary for all families.
`frontend/decode_steps.py` says which kernels it needs.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from mirage_kernels.generator.errors import FileError, RecipeError
from mirage_kernels.recipes.models import KNOWN, Value

_ACTIVATIONS = {"silu": "silu", "gelu_pytorch_tanh": "gelu_tanh"}
_WORKS = "a Hugging Face config.json works"
Config = Mapping[str, object]


@dataclass(frozen=True)
class Family:
    """What a `model_type` of transformers says that its configurations leave out."""

    title: str
    bias: bool = False  # of the projections of q, k and v
    weight_offset: bool = False  # norm weights are stored less 1
    qk_norm: str = ""  # "rms" or "layer": of each head
    post_norms: bool = False  # behind attention and MLP too
    mixed_windows: bool = False  # layers with and without a sliding window
    latent: bool = False  # multi-head latent attention
    defaults: Mapping[str, Value] | None = None


FAMILIES: Mapping[str, Family] = {
    "llama": Family("Llama"),
    "mistral": Family("Mistral", defaults={"sliding_window": 4096}),
    "qwen2": Family("Qwen2, Qwen2.5", bias=True, defaults={"use_sliding_window": False}),
    "qwen3": Family(
        "Qwen3", qk_norm="rms", defaults={"head_dim": 128, "use_sliding_window": False}
    ),
    "gemma2": Family(
        "Gemma 2",
        weight_offset=True,
        post_norms=True,
        mixed_windows=True,
        defaults={
            "head_dim": 256,
            "vocab_size": 256000,
            "attn_logit_softcapping": 50.0,
            "hidden_activation": "gelu_pytorch_tanh",
        },
    ),
    "gemma3_text": Family(
        "Gemma 3",
        weight_offset=True,
        qk_norm="rms",
        post_norms=True,
        mixed_windows=True,
        defaults={
            "head_dim": 256,
            "vocab_size": 262208,
            "hidden_activation": "gelu_pytorch_tanh",
            "sliding_window": 4096,
        },
    ),
    "phi3": Family("Phi-3"),
    "chameleon": Family("Chameleon", qk_norm="layer"),
    "deepseek_v2": Family("DeepSeek-V2", latent=True),
    "deepseek_v3": Family("DeepSeek-V3", latent=True),
}


@dataclass(frozen=True)
class Latent:
    """Sizes of multi-head latent attention, and of the experts that such models have."""

    queries: int  # of the compressed queries; 0: they are not compressed
    keys: int
    nope: int
    rope: int
    values: int
    shared_experts: int  # their intermediate sizes together
    has_routed_experts: bool


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
    vocab: int
    activation: str
    bias: bool
    has_cap: bool
    has_window: bool
    latent: Latent | None


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
    except (OSError, ValueError) as error:
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
        titles = ", ".join(each.title for each in FAMILIES.values())
        raise RecipeError(
            f"{name}: nothing is known of models of type {config.get('model_type')!r}",
            f"known: {titles}; `mirage-kernels generate RECIPE --shape ...` "
            "makes kernels one by one",
        )
    own = {key: value for key, value in config.items() if value is not None}
    return _model(_Reader(name, {**(family.defaults or {}), **own}, config), family)


@dataclass(frozen=True)
class _Reader:
    name: str
    config: Config
    written: Config  # without defaults, with nulls

    def size(self, *keys: str, default: int | None = None) -> int:
        """Return the first of some sizes that there is."""
        for key in keys:
            value = self.config.get(key)
            if isinstance(value, int) and not isinstance(value, bool) and value > 0:
                return value
            if value is not None:
                raise RecipeError(f"{self.name}: {key} is {value!r}", "a positive number works")
        if default is None:
            raise RecipeError(
                f"{self.name}: the configuration has no {keys[0]}", "a whole config.json works"
            )
        return default

    def is_on(self, key: str) -> bool:
        """Say whether an option is set; null in the file counts as off, whatever the default."""
        return bool(self.config.get(key)) and not (
            key in self.written and self.written[key] is None
        )


def _model(reader: _Reader, family: Family) -> Model:
    hidden, heads = reader.size("hidden_size"), reader.size("num_attention_heads")
    word = str(reader.config.get("hidden_activation") or reader.config.get("hidden_act", "silu"))
    if word not in _ACTIVATIONS:
        raise RecipeError(
            f"{reader.name}: no gated MLP with the activation {word!r}",
            f"known: {', '.join(_ACTIVATIONS)}",
        )
    if reader.is_on("swin_norm"):
        raise RecipeError(
            f"{reader.name} norms the results of attention and MLP, not their inputs (swin_norm)",
            "models with the norm in front work",
        )
    sliding = reader.config.get("use_sliding_window", True) is not False
    bias = reader.config.get("attention_bias", family.bias) is True or family.bias
    return Model(
        name=reader.name,
        family=family,
        hidden=hidden,
        intermediate=reader.size("intermediate_size"),
        heads=heads,
        kv_heads=reader.size("num_key_value_heads", default=heads),
        head_dim=reader.size("head_dim", default=hidden // heads),
        vocab=reader.size("vocab_size"),
        activation=_ACTIVATIONS[word],
        bias=bias,
        has_cap=reader.is_on("attn_logit_softcapping"),
        has_window=sliding and reader.is_on("sliding_window"),
        latent=_latent(reader) if family.latent else None,
    )


def _latent(reader: _Reader) -> Latent:
    shared = reader.size("n_shared_experts", default=0) if reader.is_on("n_shared_experts") else 0
    return Latent(
        queries=reader.size("q_lora_rank", default=0) if reader.is_on("q_lora_rank") else 0,
        keys=reader.size("kv_lora_rank"),
        nope=reader.size("qk_nope_head_dim"),
        rope=reader.size("qk_rope_head_dim"),
        values=reader.size("v_head_dim"),
        shared_experts=shared * reader.size("moe_intermediate_size", default=0) if shared else 0,
        has_routed_experts=reader.is_on("n_routed_experts"),
    )
