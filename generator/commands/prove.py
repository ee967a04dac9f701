"""`check` and `import-mirage`: prove muGraphs that were found before, here or by Mirage."""

from __future__ import annotations

import argparse
from pathlib import Path

from mirage_kernels.generator.commands import arguments as given
from mirage_kernels.generator.commands.arguments import argument
from mirage_kernels.generator.errors import FileError, MirageError, RecipeError
from mirage_kernels.generator.frontend.mirage.checkpoints import read_checkpoint
from mirage_kernels.generator.frontend.mirage.proofs import Held, Terms
from mirage_kernels.generator.frontend.mirage.verdicts import Verdict, parsed, verified
from mirage_kernels.generator.ir import to_json, to_text
from mirage_kernels.generator.records.check import check as differences_in
from mirage_kernels.generator.records.folder import emitted, without_plan
from mirage_kernels.generator.request import Event
from mirage_kernels.generator.terminal import Terminal, counted


def check(arguments: argparse.Namespace, terminal: Terminal) -> int:
    """Every muGraph is proved again, and every source must be what the generator emits from it.

    Exit code 1 and a diff where a byte differs. Kernels of a recipe file need the file. A PyTorch
    function, FILE.py:NAME, is cut again with the kernels that there are, without a search.

    examples:
      mirage-kernels check
      mirage-kernels check path/to/my_recipe.py --kernels path/to/kernels
      mirage-kernels check path/to/my_model.py:Layer --kernels path/to/kernels
    """
    if arguments.kernels is None and not given.is_checkout():
        raise FileError(
            "this is an installed package: it holds compiled kernels, not their sources",
            "check a source checkout, or give its folder: --kernels DIR",
        )
    folder = given.kernels_folder(arguments.kernels)
    for file in arguments.files:
        if given.function(file) is not None:
            continue
        if not file.endswith(".py"):
            raise RecipeError(
                f"{file} is no recipe file",
                "kernels of the catalog's recipes are checked without naming them; --kernels DIR",
            )
        given.recipe(file)
    count = len(emitted(folder)) + len(without_plan(folder))
    if not count:
        raise FileError(
            f"{folder} holds no kernels to check",
            "`mirage-kernels generate rms_norm_linear` makes some; --kernels DIR looks elsewhere",
        )
    kernels = counted(count, "kernel")
    files = [str(Path(file).resolve()) for file in arguments.files]
    with terminal.watch(f"checking {kernels} in {folder}") as progress:
        found = differences_in(folder, progress=progress, jobs=arguments.jobs, recipe_files=files)
    for difference in found:
        terminal.line(f"{difference.path}: {difference.reason}")
        if difference.diff:
            terminal.line(difference.diff.rstrip("\n"))
    terminal.line(
        f"{counted(len(found), 'difference')} in {kernels}; "
        "`mirage-kernels generate RECIPE` makes them anew"
        if found
        else f"{kernels}: every muGraph proved again, every source as emitted"
    )
    terminal.document({"folder": str(folder), "kernels": count, "differences": found})
    return 1 if found else 0


def import_mirage(arguments: argparse.Namespace, terminal: Terminal) -> int:
    """Tensors are bound to the recipe's inputs by position and extents, in any order of their dims.

    Every graph gets a line. Exit code 1 where one is not parsed or, with --verify, refused: its
    line says why. --show has the code of the shown graph. What a proof covers: docs/mirage.md.

    examples:
      mirage-kernels import-mirage gated_mlp.json --verify gated_mlp
      mirage-kernels import-mirage rmsnorm.json --verify rms_norm_linear --hold norm_weight=1,eps=0
      mirage-kernels import-mirage gqa.json --verify gqa --hold scale=1,seq_lens=L
      mirage-kernels import-mirage lora.json --verify my_lora.py --show 0
    """
    values = _values(arguments.hold)
    if values and not arguments.verify:
        raise MirageError("--hold needs a recipe", "name it: --verify RECIPE")
    terms = Terms(given.recipe(arguments.verify), values) if arguments.verify else None
    path, number = Path(arguments.file), arguments.show
    verdicts = [parsed(i, graph) for i, graph in enumerate(read_checkpoint(path))]
    graphs = counted(len(verdicts), "graph")
    if number is not None and not 0 <= number < len(verdicts):
        hint = f"the file holds {graphs}, numbered from 0"
        raise MirageError(f"there is no graph {number} to show", hint)
    if terms:
        with terminal.watch(f"proving {graphs} of {path.name}") as watch:
            verdicts = verified(
                terms, verdicts, lambda done, total: watch(Event("prove", done, total, ""))
            )
    program = None if number is None else verdicts[number].program
    if program is not None:
        terminal.line(to_text(program.graph))
    else:
        _print(verdicts, terms is not None, terminal)
    shown = verdicts if number is None else [verdicts[number]]
    rows = [_verdict_json(verdict) for verdict in shown]
    terminal.document({"file": path.name, "counts": _counts(verdicts), "graphs": rows})
    return 0 if all(v.program is not None and not v.reason for v in shown) else 1


def _values(text: str) -> Held:
    """Read `eps=0,seq_lens=L`; raise MirageError for what is not of this form."""
    values: dict[str, float | str] = {}
    hint = "write --hold eps=0,seq_lens=L"
    for item in filter(None, text.split(",")):
        name, equals, value = (word.strip() for word in item.partition("="))
        if not (name and equals and value) or name in values:
            problem = f"{item!r} in --hold {text} is not of the form NAME=VALUE, each name once"
            raise MirageError(problem, hint)
        try:
            values[name] = value if value.isidentifier() else float(value)
        except ValueError:
            problem = f"{value!r} in --hold {text} is no number and no dim"
            raise MirageError(problem, hint) from None
    return values


def _print(verdicts: list[Verdict], proving: bool, terminal: Terminal) -> None:
    rows = [
        {
            "graph": str(v.number),
            "launches": "-" if v.program is None else counted(v.kernels, "kernel"),
            "verdict": _verdict(v),
        }
        for v in verdicts
    ]
    terminal.table(rows, left=3)
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


def _verdict_json(verdict: Verdict) -> dict[str, object]:
    return {
        "number": verdict.number,
        "parsed": verdict.program is not None,
        "verified": verdict.proof is not None,
        "reason": verdict.reason,
        "binding": str(verdict.choice) if verdict.choice else None,
        "proof": verdict.proof.to_json() if verdict.proof else None,
        "graph": to_json(verdict.program.graph) if verdict.program else None,
    }


VERBS = {
    "check": (
        check,
        argument("files", "FILE", "recipe files beside the catalog", nargs="*"),
        *(given.KERNELS, given.JOBS, given.JSON),
    ),
    "import-mirage": (
        import_mirage,
        argument("file", "FILE.json", "a list of muGraphs in Mirage's schema"),
        argument("--verify", "RECIPE", "prove each graph equal to a recipe, or refuse it"),
        argument(
            "--hold",
            "eps=0,scale=1",
            "values of the recipe's inputs that the graphs lack: numbers, or a dim's extent",
            default="",
        ),
        argument("--show", "N", "print graph number N", type=int),
        given.JSON,
    ),
}
