"""Measures transformers' generation with a static cache: eager, torch.compile, and this library.

    python benchmarks/generate_tokens.py --json benchmarks/results/generate_tokens.json

A model of Llama-3.1-8B's shape with random weights in bf16. Each way decodes greedily; the others
are then led along eager's tokens, and every step says how far its logits are from eager's and
whether it would have chosen the same token where eager's two best logits are not tied (further
apart than both ways' logits differ). Needs transformers and about 40 GB of GPU memory; no way
starts after `--seconds`. `--tiny` runs everything small, also without a GPU.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from transformers import CompileConfig, LlamaConfig, LlamaForCausalLM, StaticCache
from transformers.generation import LogitsProcessor, LogitsProcessorList

import mirage_kernels
from mirage_kernels.generator.commands.bench import document_of, measured_here
from mirage_kernels.generator.records.files import write_whole
from mirage_kernels.integrations import transformers as mirage

LLAMA_8B = {
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 128256,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 8192,
    "bos_token_id": 1,
    "eos_token_id": None,
    "pad_token_id": 0,
}
TINY = {
    **LLAMA_8B,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 128,
}
WAYS = ("eager", "compile", "mirage")


@dataclass(frozen=True)
class Setting:
    """What is generated: sequences, tokens of a prompt, steps, and how often."""

    batch: int
    prompt: int
    steps: int
    repeats: int


@dataclass(frozen=True)
class Generated:
    """Tokens `[B, prompt + steps]` and logits by step, `[B, vocabulary]` each."""

    tokens: torch.Tensor
    logits: tuple[torch.Tensor, ...]


@dataclass(frozen=True)
class Agreement:
    """How a way's logits compare with eager's, along eager's tokens."""

    largest_error: float  # of a logit
    relative_error: float  # largest norm of a step's difference over that of eager's logits
    same_tokens: int  # steps of sequences
    tied: int  # of those that differ: eager's two best are no further apart than the error
    different: int  # of those that differ: all others


class Led(LogitsProcessor):
    """Makes generation take given tokens."""

    def __init__(self, tokens: torch.Tensor) -> None:
        self.tokens = tokens

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        chosen = self.tokens[:, input_ids.shape[1]].unsqueeze(-1)
        return torch.full_like(scores, float("-inf")).scatter(1, chosen, 0.0)


def new_model(device: str, *, tiny: bool) -> LlamaForCausalLM:
    """Make a model with random weights where it is served."""
    torch.manual_seed(0)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device(device):
            return LlamaForCausalLM(LlamaConfig(**(TINY if tiny else LLAMA_8B))).eval()
    finally:
        torch.set_default_dtype(before)


def serve(model: LlamaForCausalLM, way: str) -> None:
    """Set a model up for one way of generating."""
    torch._dynamo.reset()
    if hasattr(model, "_compiled_call"):
        del model._compiled_call
    if way == "mirage":
        mirage.apply(model, constant_modules=True)  # nothing changes or writes them meanwhile
        mirage_kernels.constant_weights()
    config = model.generation_config
    if way == "compile":
        config.compile_config = CompileConfig()
    if config.compile_config is not None:
        config.compile_config.dynamic = False
        config.compile_config.fullgraph = True
    config.disable_compile = way == "eager"


def generate(
    model: LlamaForCausalLM,
    prompt: torch.Tensor,
    cache: StaticCache,
    steps: int,
    led: torch.Tensor | None = None,
    *,
    keep: bool = False,
) -> Generated:
    """Generate greedily, or along given tokens; `keep` the logits of each step."""
    cache.reset()
    made = model.generate(
        prompt,
        attention_mask=torch.ones_like(prompt),
        past_key_values=cache,
        max_new_tokens=steps,
        do_sample=False,
        logits_processor=LogitsProcessorList([] if led is None else [Led(led)]),
        output_logits=keep,
        return_dict_in_generate=True,
    )
    return Generated(made.sequences, made.logits if keep else ())


def seconds_of(
    model: LlamaForCausalLM, prompt: torch.Tensor, cache: StaticCache, steps: int
) -> float:
    """Return how long it takes to generate."""
    _synchronize(prompt)
    begin = time.perf_counter()
    generate(model, prompt, cache, steps)
    _synchronize(prompt)
    return time.perf_counter() - begin


def _synchronize(tensor: torch.Tensor) -> None:
    if tensor.is_cuda:
        torch.cuda.synchronize()


def agreement(made: Generated, wanted: Generated, prompt: int) -> Agreement:
    """Compare logits along the same tokens."""
    largest, relative, counts = 0.0, 0.0, [0, 0, 0]
    for step, (logits, own) in enumerate(zip(made.logits, wanted.logits, strict=True)):
        difference = (logits - own).abs()
        largest = max(largest, difference.max().item())
        ratio = (logits - own).norm(dim=-1) / own.norm(dim=-1)
        relative = max(relative, ratio.max().item())
        best = own.topk(2, dim=-1).values
        differs = logits.argmax(-1) != wanted.tokens[:, prompt + step]
        is_tied = (best[:, 0] - best[:, 1]) <= 2 * difference.amax(-1)
        counts[0] += int((~differs).sum())
        counts[1] += int((differs & is_tied).sum())
        counts[2] += int((differs & ~is_tied).sum())
    return Agreement(largest, relative, *counts)


def measured(
    model: LlamaForCausalLM, way: str, setting: Setting, eager: Generated | None
) -> tuple[dict[str, object], Generated]:
    """Generate one way: tokens per second, and how it agrees with eager."""
    torch.manual_seed(setting.batch)
    vocabulary = model.config.vocab_size
    shape = (setting.batch, setting.prompt)
    prompt = torch.randint(3, vocabulary, shape, device=model.device)
    cache = StaticCache(config=model.config, max_cache_len=setting.prompt + setting.steps)
    begin = time.perf_counter()
    led = None if eager is None else eager.tokens
    made = generate(model, prompt, cache, setting.steps, led, keep=True)  # compiles, too
    first = time.perf_counter() - begin
    times = [seconds_of(model, prompt, cache, setting.steps) for _ in range(setting.repeats)]
    prefill = min(seconds_of(model, prompt, cache, 1) for _ in range(setting.repeats))
    taken = statistics.median(times)
    row: dict[str, object] = {
        "way": way,
        **asdict(setting),
        "tokens_per_second": setting.batch * setting.steps / taken,
        "seconds": times,
        "milliseconds_per_step": 1e3 * (taken - prefill) / max(setting.steps - 1, 1),
        "first_call_seconds": first,
    }
    if eager is not None:
        row["agreement"] = asdict(agreement(made, eager, setting.prompt))
    return row, made


def main() -> int:
    """Measure, print, and write JSON where asked."""
    arguments = _arguments()
    begin = time.perf_counter()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    rows: list[dict[str, object]] = []
    model = new_model(device, tiny=arguments.tiny)
    eager: dict[int, Generated] = {}
    for way in arguments.ways:
        serve(model, way)
        for batch in arguments.batch:
            if time.perf_counter() - begin > arguments.seconds:
                print(f"{way}, {batch} sequences: not run, {arguments.seconds} s are over")
                continue
            setting = Setting(batch, arguments.prompt, arguments.steps, arguments.repeats)
            row, made = measured(model, way, setting, eager.get(batch))
            eager |= {batch: made} if way == "eager" else {}
            rows.append(row)
            print(", ".join(f"{key} {value}" for key, value in row.items()), flush=True)
            _write(arguments.json, rows)
        if way == "mirage":
            print(mirage_kernels.report(model), flush=True)
    return 0


def _write(path: Path | None, rows: list[dict[str, object]]) -> None:
    """Write what was measured so far: the next row may take too long."""
    if path is not None:
        here = measured_here("python benchmarks/generate_tokens.py")
        write_whole(path, document_of(here, rows))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--batch", nargs="+", type=int, default=[1, 8])
    parser.add_argument("--prompt", type=int, default=128, help="tokens of a prompt")
    parser.add_argument("--steps", type=int, default=256)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=[*WAYS])
    parser.add_argument("--seconds", type=float, default=420, help="no way starts after these")
    parser.add_argument("--tiny", action="store_true", help="a model of two small layers")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
