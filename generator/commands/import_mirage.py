"""`import-mirage`: read a checkpoint of the Mirage superoptimizer, prove its graphs."""

from __future__ import annotations

import argparse
from pathlib import Path

from mirage_kernels.generator.commands import arguments as given
from mirage_kernels.generator.commands.arguments import argument
from mirage_kernels.generator.errors import MirageError
from mirage_kernels.generator.frontend.mirage.binding import Held, Terms
from mirage_kernels.generator.frontend.mirage.checkpoints import read_checkpoint
from mirage_kernels.generator.frontend.mirage.verification import Verdict, parsed, verified
from mirage_kernels.generator.ir import to_json, to_text
from mirage_kernels.generator.ir.text import Json
from mirage_kernels.generator.request import Event
from mirage_kernels.generator.terminal import Table, Terminal, counted

DETAILS = """\
examples:
  mirage-kernels import-mirage gated_mlp.json --verify gated_mlp
  mirage-kernels import-mirage rmsnorm.json --verify rms_norm_linear --hold norm_weight=1,eps=0
  mirage-kernels import-mirage gqa.json --verify gqa --hold scale=1,seq_lens=L
  mirage-kernels import-mirage lora.json --verify my_lora.py --show 0

Tensors are bound to the recipe's inputs by position and extents, whatever order their dims are in.
Exit code 1 where a graph is not parsed. What a proof covers: docs/mirage.md.
"""
ARGUMENTS = (
    argument("file", metavar="FILE.json", help="a list of muGraphs in Mirage's schema"),
    argument("--verify", metavar="RECIPE", help="prove each graph equal to a recipe, or refuse it"),
    argument(
        "--hold",
        metavar="eps=0,scale=1",
        default="",
        help="values of the recipe's inputs that the graphs lack: numbers, or a dim's extent",
    ),
    argument("--show", type=int, metavar="N", help="print graph number N"),
    given.JSON,
)


def run(arguments: argparse.Namespace, terminal: Terminal) -> int:
    """Read the file, prove its graphs, print a line for each and the counts."""
    held = read_held(arguments.hold)
    if held and not arguments.verify:
        raise MirageError("--hold needs a recipe", "name it: --verify RECIPE")
    recipe = given.recipe(arguments.verify) if arguments.verify else None
    terms = Terms(recipe, held) if recipe else None
    path = Path(arguments.file)
    verdicts = [parsed(i, graph) for i, graph in enumerate(read_checkpoint(path))]
    shown = _shown(arguments.show, verdicts)
    if terms:
        with terminal.watch(f"proving {counted(len(verdicts), 'graph')} of {path.name}") as watch:
            verdicts = verified(
                terms, verdicts, lambda done, total: watch(Event("prove", done, total, ""))
            )
    if shown is not None and shown.program is not None:
        terminal.line(to_text(shown.program.graph))
    else:
        _print(verdicts, terms is not None, terminal)
    terminal.document(_document(path, verdicts, shown))
    return 0 if all(v.program is not None for v in verdicts) else 1


def read_held(text: str) -> Held:
    """Read `eps=0,seq_lens=L`; raise MirageError for what is not of this form."""
    held: dict[str, float | str] = {}
    for item in filter(None, text.split(",")):
        name, equals, value = (word.strip() for word in item.partition("="))
        if not (name and equals and value) or name in held:
            raise MirageError(
                f"{item!r} in --hold {text} is not of the form NAME=VALUE, each name once",
                "write --hold eps=0,seq_lens=L",
            )
        held[name] = value if value.isidentifier() else _number(value, text)
    return held


def _number(value: str, text: str) -> float:
    try:
        return float(value)
    except ValueError:
        raise MirageError(
            f"{value!r} in --hold {text} is no number and no dim", "write --hold eps=0,seq_lens=L"
        ) from None


def _shown(number: int | None, verdicts: list[Verdict]) -> Verdict | None:
    if number is None:
        return None
    if not 0 <= number < len(verdicts):
        raise MirageError(
            f"there is no graph {number} to show",
            f"the file holds {counted(len(verdicts), 'graph')}, numbered from 0",
        )
    return verdicts[number]


def _print(verdicts: list[Verdict], proving: bool, terminal: Terminal) -> None:
    launches = [counted(v.kernels, "kernel") if v.program is not None else "-" for v in verdicts]
    rows = tuple((str(v.number), n, _verdict(v)) for v, n in zip(verdicts, launches, strict=True))
    terminal.table(Table(("graph", "launches", "verdict"), rows, left=3))
    for choice in dict.fromkeys(str(v.choice) for v in verdicts if v.choice is not None):
        terminal.line(f"\nwhere the graphs' tensors are {choice}")
    counts = _counts(verdicts)
    told = ("parsed", "verified", "refused") if proving else ("parsed",)
    found = ", ".join(f"{counts[name]} {name}" for name in told)
    terminal.line(f"\n{counted(counts['graphs'], 'graph')}: {found}")


def _verdict(verdict: Verdict) -> str:
    if verdict.program is None:
        return f"not parsed: {verdict.reason}"
    if verdict.proof is not None:
        bound = verdict.proof.log2_failure
        return f"verified, 2^{bound:g}" if bound else "verified"
    return f"refused: {verdict.reason}" if verdict.reason else "parsed"


def _counts(verdicts: list[Verdict]) -> dict[str, int]:
    read = [v for v in verdicts if v.program is not None]
    return {
        "graphs": len(verdicts),
        "parsed": len(read),
        "verified": sum(v.proof is not None for v in read),
        "refused": sum(bool(v.reason) for v in read),
    }


def _document(path: Path, verdicts: list[Verdict], shown: Verdict | None) -> Json:
    rows: list[Json] = [
        {
            "number": v.number,
            "parsed": v.program is not None,
            "verified": v.proof is not None,
            "reason": v.reason,
            "binding": str(v.choice) if v.choice else None,
            "proof": v.proof.to_json() if v.proof else None,
            "graph": to_json(v.program.graph) if v.program and shown in (None, v) else None,
        }
        for v in verdicts
        if shown is None or v.number == shown.number
    ]
    return {"file": path.name, "counts": {**_counts(verdicts)}, "graphs": rows}
