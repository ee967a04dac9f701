"""Walks a user's path with a wheel, from pip to text, and says how long each step takes.

    python benchmarks/users_path.py dist/mirage_kernels-*.whl --json FILE

pip installs the wheel into a new folder. There, outside of any checkout: `generate --model` of a
small Llama whose sizes no wheel has, `compile`, `load`, `optimize`, and transformers' `generate`
with a static cache. Greedy tokens are compared with those of eager PyTorch: the first that differs
may only be where eager's two best logits are nearer than twice the error. Without a GPU the model
decodes by PyTorch's own programs. Needs pip, torch and transformers in this Python, and nvcc.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

CONFIG: dict[str, object] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 1024,
    "intermediate_size": 2560,
    "num_hidden_layers": 4,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "vocab_size": 4096,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 512,
    "bos_token_id": 1,
    "eos_token_id": None,
    "pad_token_id": 0,
    "tie_word_embeddings": False,
}
TEXT = """
import json, sys
import torch
import mirage_kernels
from transformers import LlamaConfig, LlamaForCausalLM

device, checkout = sys.argv[1:]
assert checkout not in mirage_kernels.__file__, mirage_kernels.__file__
loaded = mirage_kernels.load("mine")
torch.manual_seed(1)
config = LlamaConfig(**json.load(open("config.json")))
model = LlamaForCausalLM(config).to(device, torch.bfloat16).eval()
ids = torch.randint(2, config.vocab_size, (1, 12), device=device)
ask = dict(max_new_tokens=48, do_sample=False, output_logits=True, return_dict_in_generate=True)
ask |= dict(cache_implementation="static", disable_compile=True)
with torch.inference_mode():
    eager = model.generate(ids, **ask)
    mirage_kernels.optimize(model)
    ours = model.generate(ids, **ask)
report = mirage_kernels.report(model)
wanted, made = (torch.stack(way.logits).float().squeeze(1) for way in (eager, ours))
best = wanted.topk(2).values
apart = best[:, 0] - best[:, 1]
error = (wanted - made).abs().amax(-1)
other = (eager.sequences[0, 12:] != ours.sequences[0, 12:]).nonzero().flatten().tolist()
said = {"loaded": loaded, "report": str(report).splitlines(), "tokens": len(wanted)}
said |= {"differs_at": other[0] if other else None}
said |= {"tied_there": bool(other) and bool(apart[other[0]] <= 2 * error[other[0]])}
said |= {"largest_error": float(error[: other[0] if other else None].max())}
print(json.dumps(said))
"""
Json = dict[str, object]


def main() -> int:
    """Walk the path; return 1 where tokens differ though they were not tied."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--device", default="", choices=["", "cpu", "cuda"])
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    device = asked.device or ("cuda" if has_gpu() else "cpu")
    with tempfile.TemporaryDirectory() as folder:
        site = Path(folder) / "site"
        began = time.monotonic()
        install = ("-m", "pip", "install", "-q", "--no-deps", "--target", str(site))
        ran(Path(folder), {}, *install, str(asked.wheel.resolve()))
        installed = {"pip install": round(time.monotonic() - began, 1)}
        steps, said = walked(site, Path(folder), device, CONFIG)
    document: Json = {
        "wheel": asked.wheel.name,
        "device": device,
        "steps_s": installed | steps,
    } | said
    text = json.dumps(document, indent=1) + "\n"
    print(text, end="")
    if asked.json is not None:
        asked.json.write_text(text)
    return int(said["differs_at"] is not None and not said["tied_there"])


def walked(
    site: Path, folder: Path, device: str, config: dict[str, object]
) -> tuple[dict[str, float], Json]:
    """Go from an installed package to text; return seconds by step and what the last one said."""
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "text.py").write_text(TEXT)
    verb = ("-m", "mirage_kernels.generator.cli")
    steps = {
        "generate": (
            *verb,
            "generate",
            "--model",
            "config.json",
            "--dtype",
            "bf16",
            "--out",
            "mine",
        ),
        "compile": (*verb, "compile", "mine"),
        "load, optimize, text": ("text.py", device, str(Path(__file__).resolve().parents[1])),
    }
    took, printed = dict[str, float](), ""
    paths = {"PYTHONPATH": f"{site}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    for name, words in steps.items():
        began = time.monotonic()
        printed = ran(folder, paths, *words)
        took[name] = round(time.monotonic() - began, 1)
    return took, json.loads(printed.splitlines()[-1])


def ran(folder: Path, environment: dict[str, str], *words: str) -> str:
    """Run Python in a folder and return what it prints; exit where it fails."""
    outcome = subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        env=os.environ | environment,
        capture_output=True,
        text=True,
    )
    if outcome.returncode != 0:
        raise SystemExit(f"{' '.join(words)[:200]}\n{outcome.stdout}\n{outcome.stderr}")
    return outcome.stdout


def has_gpu() -> bool:
    """Say whether PyTorch sees one."""
    import torch

    return torch.cuda.is_available()


if __name__ == "__main__":
    sys.exit(main())
