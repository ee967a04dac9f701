"""Generates kernels of layers that transformers has: python -m programs.published --out DIR

Each is the package's own module, of small sizes and 16 tokens, through `from_torch`. A row per
layer goes into DIR/programs.json: its kernels, what PyTorch runs, seconds.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from programs import PROGRAMS, Program, Size
from programs.generate import Row, command_in_types
from programs.generate import generated as generated_of

WIDTH, HEADS, KV_HEADS, HEAD, INNER = 1024, 16, 4, 64, 4096
SEQUENCES, TOKENS = 2, 8
HEADS_ALONE = {"hidden_size": WIDTH, "num_attention_heads": HEADS}
SIZES = {**HEADS_ALONE, "intermediate_size": INNER}
GROUPED = {**SIZES, "num_key_value_heads": KV_HEADS}
OWN_HEADS = {**GROUPED, "head_dim": HEAD}


class Alone(nn.Module):
    """A layer of hidden states, without a mask."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer
        taken = inspect.signature(layer.forward).parameters
        self.absent = {name: None for name in ("attention_mask", "alibi") if name in taken}

    def forward(self, x: Tensor) -> Tensor:
        """Return the layer's hidden states."""
        return self.hidden(x)

    def hidden(self, x: Tensor, **taken: object) -> Tensor:
        """Return the layer's hidden states, of what else it takes too."""
        made = self.layer(x, **taken, **self.absent)
        return made[0] if isinstance(made, tuple) else made


class Rotated(Alone):
    """A layer that takes cosines and sines of positions too."""

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Return the layer's hidden states."""
        return self.hidden(x, position_embeddings=(cos, sin))


class Published(Program):
    """A layer of transformers: `run` makes it."""


def published(
    layer: str, config: str, sizes: Mapping[str, int], *, first: bool = False, turning: int = 0
) -> None:
    """Register a layer, `model.Class`; some are told that they are the first of a model.

    `turning` elements of each head turn with the positions.
    """
    model, _, name = layer.partition(".")
    shapes: dict[str, tuple[Size, ...]] = {"x": (SEQUENCES, TOKENS, WIDTH)}
    shapes |= dict.fromkeys(("cos", "sin"), (SEQUENCES, TOKENS, turning)) if turning else {}

    def made() -> nn.Module:
        package = f"transformers.models.{model}"
        settings: Any = importlib.import_module(f"{package}.configuration_{model}")
        modeling: Any = importlib.import_module(f"{package}.modeling_{model}")
        own = getattr(settings, config)(**sizes)
        own._attn_implementation = "eager" if model == "gemma2" else "sdpa"  # it caps scores
        with torch.device("meta"):
            one = getattr(modeling, name)(own, *((0,) if first else ()))
        return (Rotated if turning else Alone)(one.bfloat16().eval())

    rows = (SEQUENCES * TOKENS,)
    registered = f"transformers/{model}"
    PROGRAMS[registered] = Published(registered, made, shapes, rows, {})


for turns, own_sizes, several in (
    (HEAD, GROUPED, "llama.Llama mistral.Mistral qwen2.Qwen2 phi3.Phi3 cohere.Cohere"),
    (HEAD, GROUPED, "cohere2.Cohere2 olmo.Olmo olmo2.Olmo2 granite.Granite arcee.Arcee"),
    (HEAD, GROUPED, "starcoder2.Starcoder2 exaone4.Exaone4 apertus.Apertus diffllama.DiffLlama"),
    (HEAD, OWN_HEADS, "qwen3.Qwen3 gemma.Gemma gemma2.Gemma2 smollm3.SmolLM3 helium.Helium"),
    (HEAD, OWN_HEADS, "ernie4_5.Ernie4_5 seed_oss.SeedOss nanochat.NanoChat"),
    (HEAD // 2, GROUPED, "glm.Glm glm4.Glm4 phi.Phi nemotron.Nemotron"),
    (HEAD // 2, SIZES, "persimmon.Persimmon"),
    (HEAD // 4, GROUPED, "stablelm.StableLm"),
    (HEAD, HEADS_ALONE, "falcon.Falcon"),
):
    for decoder in several.split():
        family = decoder.partition(".")[2]
        published(f"{decoder}DecoderLayer", f"{family}Config", own_sizes, first=True, turning=turns)
published("gpt_neox.GPTNeoXLayer", "GPTNeoXConfig", SIZES, first=True, turning=HEAD // 4)
published("modernbert.ModernBertEncoderLayer", "ModernBertConfig", SIZES, first=True, turning=HEAD)
published("gpt2.GPT2Block", "GPT2Config", {"n_embd": WIDTH, "n_head": HEADS}, first=True)
published("opt.OPTDecoderLayer", "OPTConfig", {**HEADS_ALONE, "ffn_dim": INNER}, first=True)
published("bert.BertLayer", "BertConfig", SIZES)
published("albert.AlbertLayer", "AlbertConfig", SIZES)
published("vit.ViTLayer", "ViTConfig", SIZES)
published("dinov2.Dinov2Layer", "Dinov2Config", SIZES)
published("clip.CLIPEncoderLayer", "CLIPVisionConfig", SIZES)
published("siglip.SiglipEncoderLayer", "SiglipVisionConfig", SIZES)
published("wav2vec2.Wav2Vec2EncoderLayer", "Wav2Vec2Config", SIZES)
published(
    "whisper.WhisperEncoderLayer",
    "WhisperConfig",
    {"d_model": WIDTH, "encoder_attention_heads": HEADS, "encoder_ffn_dim": INNER},
)
published("recurrent_gemma.RecurrentGemmaMlp", "RecurrentGemmaConfig", SIZES)
published("xlstm.xLSTMFeedForward", "xLSTMConfig", {"hidden_size": WIDTH})


def generated(program: Program, options: argparse.Namespace) -> list[Row]:
    """Generate the kernels of one layer and return its row for each type."""
    assert isinstance(program, Published)
    module: Any = program.run()
    return generated_of(replace(program, run=module), options)


def main() -> None:
    """Generate all layers, or those that are named."""
    layers = [one for one in PROGRAMS.values() if isinstance(one, Published)]
    command_in_types(__doc__, "programs.published", generated).run(layers)


if __name__ == "__main__":
    main()
