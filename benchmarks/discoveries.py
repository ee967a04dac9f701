"""Write docs/discoveries.md and the golden muGraphs: what the search finds in the bare mathematics.

    python benchmarks/discoveries.py

Every form of muGraph that the search proved equal to a recipe is listed with its predicted time;
the exhibits below are drawn, and kept under tests/golden/mugraphs for the tests of the verifier.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from mirage_kernels.generator.ir import DType, Graph, Node, dumps, retile, to_json, to_text
from mirage_kernels.generator.pipeline import Request, goal_of, searched
from mirage_kernels.generator.recipe import load_recipe, trace
from mirage_kernels.generator.records.files import write_whole
from mirage_kernels.generator.search.select import Ranked, mugraphs, rank
from mirage_kernels.generator.target import target

ROOT = Path(__file__).resolve().parents[1]
GOLDEN = ROOT / "tests" / "golden" / "mugraphs"


@dataclass(frozen=True)
class Exhibit:
    """A form of muGraph to show for a recipe, and what is worth seeing in it."""

    recipe: str
    form: str
    words: str

    @property
    def stem(self) -> str:
        """Name of its golden file."""
        short = self.form.replace("; then ", " ").replace(",", "").replace(" ", "_")
        return f"{self.recipe}-{short}"


EXHIBITS = (
    Exhibit("rms_norm_linear", "loop over K", "one kernel; the division comes after the product"),
    Exhibit("rms_norm_linear", "loop over K; then library product", "the norm, then the library"),
    Exhibit("lora_linear", "loop over K", "one kernel; x is read once for both products"),
    Exhibit("gated_mlp", "loop over K", "one kernel; both products share x"),
    Exhibit("rms_norm_gated_mlp", "loop over K", "norm, both products and the gate in one kernel"),
    Exhibit("layer_norm_linear", "loop over K", "mean and variance beside the product"),
    Exhibit("gqa", "loop over L", "one flash-style kernel, its running maximum arbitrary"),
    Exhibit("gqa", "blocks split L, loop over L, combine", "split-KV, combined in the same kernel"),
    Exhibit(
        "gqa",
        "blocks split L, loop over L, store partial sums; then no loop",
        "split-KV in two kernels; the first also stores its peaks",
    ),
    Exhibit("qk_norm_attention", "loop over L", "both norms inside the attention kernel"),
    Exhibit(
        "qk_norm_attention",
        "blocks split L, loop over L, combine",
        "the same, split and combined in one kernel",
    ),
    Exhibit(
        "sliding_window_attention",
        "blocks split L, loop over L, combine",
        "two masks that meet, several query tokens",
    ),
    Exhibit(
        "qk_layer_norm_attention",
        "blocks split L, loop over L, combine",
        "the norms as they are written, queries before the loop, keys in it",
    ),
    Exhibit("rms_norm", "no loop", "whole tokens in a block; nothing is split or carried"),
)
# What surrounds a library's product: short programs, whose forms are listed only.
LISTED = (
    *("rms_norm_residual", "layer_norm"),
    *("silu_and_mul", "gelu_and_mul", "gelu_tanh_and_mul", "relu_and_mul"),
)


def form_of(graph: Graph) -> str:
    """Return the form in words: `blocks split L, loop over L, store partial sums; then ...`."""
    kernels = [n for n in graph.nodes if n.op in ("block", "contract")]
    return "; then ".join(_kernel_form(n) for n in kernels)


def _kernel_form(node: Node) -> str:
    if node.body is None or node.body.space is None:
        return "library product"
    space, words = node.body.space, []
    words += [f"blocks split {axis.dim}" for axis in space.reduced]
    words += [f"loop over {space.loop.dim}"] if space.loop is not None else []
    if space.reduced:
        combines = node.body.of("combine", "combine_rescaled")
        words.append("combine" if combines else "store partial sums")
    return ", ".join(words) or "no loop"


def best_of_forms(ranked: Sequence[Ranked]) -> dict[str, Ranked]:
    """Return the first muGraph of every form, in the order of rank."""
    best: dict[str, Ranked] = {}
    for candidate in ranked:
        best.setdefault(form_of(candidate.graph), candidate)
    return best


def found(recipe: str) -> tuple[str, dict[str, Ranked]]:
    """Return a sentence about the search of a recipe, and the best muGraph of every form."""
    source = load_recipe(recipe)
    request = Request(source, source.shapes[0], DType.FP16)
    spec = trace(source, request.shape, request.dtype)
    outcome = searched(request, jobs=2, progress=lambda event: None, store=None)
    ranked = rank(mugraphs(outcome.programs, goal_of(request, spec)), spec, target(request.arch))
    counts = outcome.counts
    sentence = (
        f"At {request.shape.source} ({', '.join(f'{d}={n}' for d, n in request.shape.dims.items())}"
        f"), fp16: {counts.states:,} values kept, {counts.candidates:,} programs found, "
        f"{len(outcome.programs):,} proved, {counts.rejected:,} rejected by the verifier."
    )
    return sentence, best_of_forms(ranked)


def page(recipe: str, sentence: str, forms: dict[str, Ranked]) -> Iterator[str]:
    """Yield the lines about one recipe."""
    yield from ("", f"## {recipe}", "", f"{load_recipe(recipe).summary}.", "", sentence, "")
    yield from ("| form | predicted us |", "| --- | --- |")
    for form, ranked in forms.items():
        yield f"| {form} | {ranked.estimate.microseconds:.1f} |"
    for exhibit in (e for e in EXHIBITS if e.recipe == recipe):
        if exhibit.form not in forms:
            raise SystemExit(f"{recipe}: the search did not find {exhibit.form!r}")
        graph = forms[exhibit.form].graph
        yield from ("", f"### {exhibit.form}: {exhibit.words}", "", "```")
        yield from (to_text(graph), "```")


def golden(exhibit: Exhibit, ranked: Ranked) -> str:
    """Return the golden file of an exhibit."""
    graph = retile(ranked.graph, {})
    return dumps(
        {"recipe": exhibit.recipe, "form": exhibit.form, "mugraph": to_json(graph)},
    )


HEAD = """\
# What the search finds

Made by `python benchmarks/discoveries.py`. Each muGraph was found from the recipe's mathematics
alone, made safe where it has exp (every `peak`, `last`, `..._rescaled`), and proved equal to the
recipe; nothing in the generator names a recipe. The drawings are those of `mirage-kernels show`.
Predicted times are the cost model's, at 8 tokens or sequences and 4096 keys; they rank, they are
not measurements.\
"""


def main(names: Sequence[str]) -> None:
    """Search every recipe of the page, and write the page and the golden files."""
    lines = [HEAD]
    for recipe in (*dict.fromkeys(e.recipe for e in EXHIBITS), *LISTED):
        if names and recipe not in names:
            continue
        sentence, forms = found(recipe)
        lines += page(recipe, sentence, forms)
        for exhibit in (e for e in EXHIBITS if e.recipe == recipe):
            text = golden(exhibit, forms[exhibit.form])
            write_whole(GOLDEN / f"{exhibit.stem}.json", text)
        print(recipe, sentence)
    if not names:
        write_whole(ROOT / "docs" / "discoveries.md", "\n".join(lines) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
