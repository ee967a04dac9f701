"""Makes the README's tables and their plots from the result files.

python benchmarks/summary.py            # rewrite them: needs the extra `plot`
python benchmarks/summary.py --check    # exit 1 if a table is not what the results say

docs/gains.svg shows a dozen calls of ops, docs/tokens.svg how fast transformers generates.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
README, DOCS = HERE.parent / "README.md", HERE.parent / "docs"
MODELS = DOCS / "models.md"
END = "<!-- end of table -->"
OURS, OTHERS = "#1f6f8b", "#c9c9c9"
GENERATED = "generate_tokens.json"
WAYS = {
    "eager": "eager",
    "compile": "torch.compile, reduce-overhead",
    "mirage": "mirage_kernels",
}
FILES = {"": "bench_fp16.json", "attention": "bench_attention_fp16.json"}


@dataclass(frozen=True)
class Shown:
    """A row to show: where it stands, and what a reader calls it."""

    file: str
    workload: str
    dims: dict[str, int]
    label: str
    setting: str = ""

    def matches(self, row: dict[str, object]) -> bool:
        """Say whether a row of a result file is this one."""
        dims = row["dims"]
        assert isinstance(dims, dict)
        same = row["workload"] == self.workload and row.get("setting", "") == self.setting
        return same and all(dims.get(name) == size for name, size in self.dims.items())


def _linear(workload: str, tokens: int, what: str, **dims: int) -> Shown:
    counted = "1 token" if tokens == 1 else f"{tokens} tokens"
    return Shown("", workload, {"M": tokens, **dims}, f"{what}, {counted}")


def _decode(workload: str, batch: int, keys: int, setting: str = "decode") -> Shown:
    dims = {"B": batch, "L": keys, "Hq": 32, "page": 16}
    what = f"{workload}, 32/8 heads of 128, {batch} x {keys} keys"
    return Shown("attention", workload, dims, what, setting)


SHOWN = (
    _linear("rms_norm_linear", 1, "rms_norm_linear 4096 -> 6144", K=4096, N=6144),
    _linear("rms_norm_linear", 16, "rms_norm_linear 4096 -> 6144", K=4096, N=6144),
    _linear("rms_norm_linear", 64, "rms_norm_linear 4096 -> 6144", K=4096, N=6144),
    _linear("layer_norm_linear", 8, "layer_norm_linear 4096 -> 6144", K=4096, N=6144),
    _linear("gated_mlp", 8, "gated_mlp 4096 -> 2 x 14336", K=4096, N=14336),
    _linear("gated_mlp", 64, "gated_mlp 4096 -> 2 x 14336", K=4096, N=14336),
    _linear("lora_linear", 16, "lora_linear 4096 -> 4096, rank 16", K=4096, N=4096, R=16),
    _linear("ntrans", 8, "ntrans 4096", K=4096),
    _decode("gqa", 1, 4096),
    _decode("gqa", 8, 4096),
    _decode("gqa", 64, 1024),
    _decode("qk_norm_attention", 8, 4096),
)


@dataclass(frozen=True)
class Times:
    """Microseconds of one row: reading the bytes once, our op, and the best of PyTorch."""

    label: str
    floor: float
    ours: float
    torch: float
    peer: str


def times() -> list[Times]:
    """Return every shown row as it was measured."""
    files = {k: json.loads((HERE / "results" / f).read_text()) for k, f in FILES.items()}
    return [_times(shown, files[shown.file]["rows"]) for shown in SHOWN]


def _times(shown: Shown, rows: list[dict[str, object]]) -> Times:
    (row,) = [row for row in rows if shown.matches(row)]
    peer = str(row.get("best_peer") or "eager")
    torch = row["best_peer_us" if row.get("best_peer") else "eager_us"]
    floor, ours = row["floor_us"], row["ours_us"]
    assert isinstance(floor, float)
    assert isinstance(ours, float)
    assert isinstance(torch, float)
    return Times(shown.label, floor, ours, torch, peer)


def table() -> str:
    """Return the README's table and where its numbers come from."""
    lines = [
        "| call, fp16 | floor, us | mirage-kernels, us | over the floor | PyTorch, us |",
        "| --- | --- | --- | --- | --- |",
    ]
    for t in times():
        ours = f"{t.ours:.1f} | {t.ours / t.floor:.2f}"
        lines.append(f"| {t.label} | {t.floor:.1f} | {ours} | {t.torch:.1f} ({t.peer}) |")
    found = [json.loads((HERE / "results" / f).read_text())["environment"] for f in FILES.values()]
    made = {
        f"{e['gpu']}, driver {e['driver']}, CUDA {e['cuda']}, torch {e['torch']}" for e in found
    }
    when = {f"{e['date'].partition(' ')[0]}, commit {e['commit']}" for e in found}
    source = f"{'; '.join(sorted(made))}; `mirage-kernels bench`, {'; '.join(sorted(when))}."
    return "\n".join([*lines, "", source])


def plot() -> None:
    """Draw the same rows as bars: time over the floor, ours and PyTorch's."""
    pyplot = _pyplot()
    shown = times()[::-1]
    figure, axes = pyplot.subplots(figsize=(9, 5.2))
    for offset, name, color in ((0.2, "mirage-kernels", OURS), (-0.2, "PyTorch", OTHERS)):
        values = [(t.ours if name != "PyTorch" else t.torch) / t.floor for t in shown]
        places = [i + offset for i in range(len(shown))]
        bars = axes.barh(places, values, height=0.38, label=name, color=color)
        axes.bar_label(bars, fmt="%.2f", padding=2, fontsize=7)
    axes.axvline(1.0, color="black", linewidth=0.8)
    axes.set_yticks(range(len(shown)), [t.label for t in shown], fontsize=8)
    axes.set_xscale("log")
    axes.set_xticks([1, 2, 4, 8, 16], ["1", "2", "4", "8", "16"])
    axes.minorticks_off()
    axes.set_xlim(0.8, 30)
    axes.set_xlabel("time / time to read the same bytes once (H200, fp16, cold)")
    axes.legend(loc="lower right", frameon=False)
    _save(figure, axes, "gains.svg")


# -- transformers' generation ----------------------------------------------------------------------


def generated() -> dict[int, dict[str, dict[str, Any]]]:
    """Return the rows of generation, by sequences and by way."""
    rows = json.loads((HERE / "results" / GENERATED).read_text())["rows"]
    batches = sorted({row["batch"] for row in rows})
    return {b: {row["way"]: row for row in rows if row["batch"] == b} for b in batches}


def tokens_table() -> str:
    """Return tokens per second of every way, and ours over torch.compile's."""
    lines = [
        "| sequences | eager | torch.compile | mirage_kernels | over torch.compile |",
        "| --- | --- | --- | --- | --- |",
    ]
    for batch, ways in generated().items():
        eager, compiled, ours = (ways[way]["tokens_per_second"] for way in WAYS)
        speeds = f"{eager:.0f} | {compiled:.0f} | {ours:.0f}"
        lines.append(f"| {batch} | {speeds} | {ours / compiled:.2f} |")
    return "\n".join(lines)


def agreement_table() -> str:
    """Return how the ways agree with eager, and where their numbers come from."""
    lines = [
        "| sequences | way | ms per step | tokens that differ from eager's, where its two best "
        "logits are not tied | tied | logits' error against eager's, largest (relative) |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for batch, ways in generated().items():
        for way, name in WAYS.items():
            row, found = ways[way], ways[way].get("agreement")
            said = " | | "
            if found is not None:
                judged = found["same_tokens"] + found["different"]
                said = f"{found['different']} of {judged} | {found['tied']} | "
                said += f"{found['largest_error']:.2f} ({found['relative_error']:.3f})"
            lines.append(f"| {batch} | {name} | {row['milliseconds_per_step']:.2f} | {said} |")
    e = json.loads((HERE / "results" / GENERATED).read_text())["environment"]
    source = f"{e['gpu']}, torch {e['torch']}, commit {e['commit']}, `{e['command']}`."
    return "\n".join([*lines, "", source])


def plot_tokens() -> None:
    """Draw tokens per second, relative to torch.compile's, as bars."""
    pyplot = _pyplot()
    figure, axes = pyplot.subplots(figsize=(9, 2.6))
    found = generated()
    for offset, (way, name) in zip((0.27, 0.0, -0.27), WAYS.items(), strict=True):
        speeds = [ways[way]["tokens_per_second"] for ways in found.values()]
        values = [
            s / w["compile"]["tokens_per_second"]
            for s, w in zip(speeds, found.values(), strict=True)
        ]
        color = {"mirage": OURS, "compile": OTHERS}.get(way, "#e6e6e6")
        places = [offset - i for i in range(len(values))]
        bars = axes.barh(places, values, height=0.25, label=name, color=color)
        axes.bar_label(bars, [f"{s:.0f} per second" for s in speeds], padding=2, fontsize=7)
    ticks = ["1 sequence" if b == 1 else f"{b} sequences" for b in found]
    axes.set_yticks([-i for i in range(len(ticks))], ticks, fontsize=8)
    axes.set_xlim(0, 2.6)
    axes.set_xlabel("tokens per second over torch.compile's (Llama-3.1-8B's shape, bf16, H200)")
    axes.legend(loc="upper right", frameon=False, fontsize=8)
    _save(figure, axes, "tokens.svg")


# -- both ------------------------------------------------------------------------------------------


def _pyplot() -> Any:
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    matplotlib.rcParams["svg.hashsalt"] = "mirage-kernels"
    return pyplot


def _save(figure: Any, axes: Any, name: str) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(DOCS / name, metadata={"Date": None})


TABLES = (
    (README, "<!-- table: python benchmarks/summary.py -->", table),
    (README, "<!-- tokens: python benchmarks/summary.py -->", tokens_table),
    (MODELS, "<!-- table: python benchmarks/summary.py -->", agreement_table),
)


def filled(text: str, begin: str, made: str) -> str:
    """Return a page with what was made behind a mark."""
    before, mark, rest = text.partition(begin)
    _, end, after = rest.partition(END)
    if not (mark and end):
        raise ValueError(f"there is no {begin} .. {END}")
    return f"{before}{begin}\n\n{made}\n\n{END}{after}"


def main(arguments: list[str]) -> int:
    """Rewrite or check the tables, and draw the plots."""
    differs = False
    for page, begin, make in TABLES:
        text = page.read_text()
        made = filled(text, begin, make())
        differs |= made != text
        if "--check" not in arguments:
            page.write_text(made)
    if "--check" in arguments:
        return int(differs)
    plot()
    plot_tokens()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
