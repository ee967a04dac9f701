"""The command `mirage-kernels`: finds the verb, runs it, and turns errors into sentences.

Exit codes: 0 done, 1 the answer is no (a difference, a failed row), 2 bad input, 130 interrupted.
"""

from __future__ import annotations

import argparse
import difflib
import importlib
import os
import sys
from collections.abc import Sequence

from mirage_kernels.generator.commands.arguments import Parser, Verb, verb_program
from mirage_kernels.generator.errors import FileError, MirageError
from mirage_kernels.generator.terminal import PROGRAM, Terminal

# Each verb is the module of its name (with _ for -) in `commands`, imported when it is asked for.
VERBS = {
    "generate": "search, prove, plan and emit the kernels of a recipe",
    "search": "search the muGraphs of many recipes at once, keeping what is found",
    "run": "generate one kernel, compile the extension, run it on real data",
    "check": "re-verify every committed muGraph, re-emit every committed source",
    "list": "what there is: recipes, committed kernels, compiled kernels",
    "show": "a recipe, or a kernel's muGraph as text with what was proved",
    "bench": "measure compiled ops against PyTorch and the memory floor (GPU)",
    "tune": "compile and measure variants of kernels, keep the fastest in the catalog (GPU)",
    "import-mirage": "read a checkpoint of Mirage, prove its muGraphs equal to a recipe",
    "doctor": "what was found on this machine, what is missing, how to get it",
}
DONE, NO, BAD_INPUT, INTERRUPTED = 0, 1, 2, 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    # Proofs multiply many small tiles: threads of the matrix library only get in their way.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    words = list(sys.argv[1:] if arguments is None else arguments)
    terminal = Terminal(as_json=_wants_json(words))
    try:
        return _run(words, terminal)
    except MirageError as error:
        terminal.fail(error)
    except KeyboardInterrupt:
        terminal.note(f"{PROGRAM}: interrupted; every file is whole")
        return INTERRUPTED
    except BrokenPipeError:  # `mirage-kernels list | head`: the reader has had enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return DONE
    except MemoryError:
        terminal.fail(MirageError("there is not enough memory for this", "try a smaller --shape"))
    except OSError as error:
        place = f"{error.filename}: " if error.filename else ""
        terminal.fail(FileError(f"{place}{error.strerror}", "check the path, the space left on it"))
    return BAD_INPUT


def _run(words: Sequence[str], terminal: Terminal) -> int:
    name = next((word for word in words if not word.startswith("-")), None)
    if name is None:
        return _without_verb(words)
    if name not in VERBS:
        close = difflib.get_close_matches(name, VERBS, n=1)
        suggestion = f"did you mean `{verb_program(close[0])}`? " if close else ""
        raise MirageError(f"there is no verb {name!r}", f"{suggestion}verbs: {', '.join(VERBS)}")
    rest = list(words)
    rest.remove(name)
    module = f"mirage_kernels.generator.commands.{name.replace('-', '_')}"
    verb: Verb = importlib.import_module(module).VERB
    options = _parse(_verb_parser(name, verb), rest)
    return DONE if options is None else verb.run(options, terminal)


def _without_verb(words: Sequence[str]) -> int:
    verbs = "\n".join(f"  {name:<14}{summary}" for name, summary in VERBS.items())
    parser = Parser(
        prog=PROGRAM,
        usage=f"{PROGRAM} VERB ...",
        description="GPU kernels found by search, proved equal to their recipes.",
        epilog=f"verbs:\n{verbs}\n\n`{PROGRAM} VERB --help` shows what a verb takes.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="store_true", help="print the version and leave")
    options = _parse(parser, words)
    if options is None:
        return DONE
    if options.version:
        print(f"{PROGRAM} {_version()}")
    else:
        parser.print_help()
    return DONE


def _verb_parser(name: str, verb: Verb) -> Parser:
    summary = VERBS[name]
    parser = Parser(
        prog=verb_program(name),
        description=f"{summary[0].upper()}{summary[1:]}.",
        epilog=verb.details,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    verb.add_arguments(parser)
    return parser


def _parse(parser: Parser, words: Sequence[str]) -> argparse.Namespace | None:
    """Return the parsed words, or None when argparse has printed the help."""
    try:
        return parser.parse_args(words)
    except SystemExit:
        return None


def _wants_json(words: Sequence[str]) -> bool:
    """Say whether stdout belongs to a JSON document; bench's own `--json` names a file."""
    if "bench" in words:
        return "-" in words[words.index("--json") + 1 :][:1] if "--json" in words else False
    return "--json" in words


def _version() -> str:
    from mirage_kernels import __version__

    return __version__


if __name__ == "__main__":
    sys.exit(main())
