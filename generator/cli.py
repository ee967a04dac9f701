"""The command `mirage-kernels`: finds the verb, runs it, and turns errors into sentences.

Exit codes: 0 done, 1 the answer is no (a difference, a failed row), 2 bad input,
3 a kernel was proved but cannot be emitted for the hardware, 130 interrupted.
"""

from __future__ import annotations

import argparse
import difflib
import importlib
import inspect
import os
import sys
from collections.abc import Sequence
from functools import partial
from typing import NoReturn

from mirage_kernels import __version__
from mirage_kernels.generator.errors import FileError, MirageError
from mirage_kernels.generator.terminal import PROGRAM, Terminal, complete_streams, drop_unwritable

COMMANDS = "mirage_kernels.generator.commands"
# A verb stands in VERBS of a module of COMMANDS, which is imported when it is asked for: first the
# function, whose docstring is what the help says beyond the summary, then its arguments.
VERBS = {
    "generate": "search, prove, plan and emit the kernels of a recipe",
    "search": "search the muGraphs of many recipes at once, keeping what is found",
    "run": "generate one kernel, compile the extension, run it on real data",
    "compile": "compile the kernels of a folder, which `mirage_kernels.load` then adds",
    "check": "re-verify every committed muGraph, re-emit every committed source",
    "list": "what there is: recipes, committed kernels, compiled kernels",
    "show": "a recipe, or a kernel's muGraph as text with what was proved",
    "bench": "measure compiled ops against PyTorch and the memory floor (GPU)",
    "tune": "compile and measure variants of kernels, keep the fastest in the catalog (GPU)",
    "import-mirage": "read a checkpoint of Mirage, prove its muGraphs equal to a recipe",
    "doctor": "what was found on this machine, what is missing, how to get it",
}
MODULES = {  # of verbs that share one; others have the module of their name
    "search": "generate",
    "list": "kernels",
    "show": "kernels",
    "check": "prove",
    "import-mirage": "prove",
}
DONE, BAD_INPUT, INTERRUPTED = 0, 2, 130


class Parser(argparse.ArgumentParser):
    """Argparse whose complaints are errors like all others: a sentence and a hint."""

    def error(self, message: str) -> NoReturn:
        """Raise instead of printing the usage and leaving."""
        raise MirageError(message, f"`{self.prog} --help` shows what it takes")


_Parser = partial(Parser, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    # Proofs multiply many small tiles: threads of the matrix library only get in their way.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    words = list(sys.argv[1:] if arguments is None else arguments)
    complete_streams()
    terminal = Terminal(as_json=_wants_json(words))
    try:
        code = _run(words, terminal)
        terminal.end()
        return code
    except MirageError as error:
        terminal.fail(error)
    except KeyboardInterrupt:
        terminal.note(f"{PROGRAM}: interrupted; every file is whole")
        return INTERRUPTED
    except BrokenPipeError:  # `mirage-kernels list | head`: the reader has had enough
        drop_unwritable()
        return DONE
    except MemoryError:
        terminal.fail(MirageError("there is not enough memory for this", "try a smaller --shape"))
    except OSError as error:
        place = f"{error.filename}: " if error.filename else ""
        terminal.fail(FileError(f"{place}{error.strerror}", "check the path, the space left on it"))
        drop_unwritable()
    return BAD_INPUT


def _run(words: list[str], terminal: Terminal) -> int:
    name = next((word for word in words if not word.startswith("-")), "")
    parser = _parser_of(name) if name else _parser_of_all()
    if name:
        words.remove(name)
    try:
        options = parser.parse_args(words)
    except SystemExit:  # argparse has printed the help, or the version
        return DONE
    if not name:
        parser.print_help()
        return DONE
    code: int = options.run(options, terminal)
    return code


def _parser_of_all() -> Parser:
    verbs = "\n".join(f"  {name:<14}{summary}" for name, summary in VERBS.items())
    parser = _Parser(
        prog=PROGRAM,
        usage=f"{PROGRAM} VERB ...",
        description="GPU kernels found by search, proved equal to their recipes.",
        epilog=f"verbs:\n{verbs}\n\n`{PROGRAM} VERB --help` shows what a verb takes.",
    )
    version = f"{PROGRAM} {__version__}"
    parser.add_argument("--version", action="version", version=version, help="print the version")
    return parser


def _parser_of(name: str) -> Parser:
    if name not in VERBS:
        close = difflib.get_close_matches(name, VERBS, n=1)
        suggestion = f"did you mean `{PROGRAM} {close[0]}`? " if close else ""
        raise MirageError(f"there is no verb {name!r}", f"{suggestion}verbs: {', '.join(VERBS)}")
    module = importlib.import_module(f"{COMMANDS}.{MODULES.get(name, name)}")
    run, *arguments = module.VERBS[name]
    summary = f"{VERBS[name][0].upper()}{VERBS[name][1:]}."
    parser = _Parser(prog=f"{PROGRAM} {name}", description=summary, epilog=inspect.getdoc(run))
    parser.set_defaults(run=run)
    for add in arguments:
        add(parser)
    return parser


def _wants_json(words: Sequence[str]) -> bool:
    """Say whether stdout belongs to a JSON document; bench's own `--json` names a file."""
    if "bench" in words:
        return "-" in words[words.index("--json") + 1 :][:1] if "--json" in words else False
    return "--json" in words


if __name__ == "__main__":
    sys.exit(main())
