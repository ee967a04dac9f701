"""The process that measures, seen from outside: a question, an answer, or how it ended.

One process serves many questions, as loading PyTorch takes longer than measuring. When it crashes
or hangs, that is the answer to the question it had, and the next one starts another process.
"""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Protocol

from mirage_kernels.generator.errors import ToolchainError
from mirage_kernels.generator.ir.text import Json

START_SECONDS = 300.0
TAIL_LINES = 3
Question = Mapping[str, Json]
Serve = Callable[[Connection], None]  # greets, then answers questions until there are no more


class Measurer(Protocol):
    """Whatever answers questions about times."""

    def ask(self, question: Question, *, seconds: float) -> dict[str, Json]:
        """Return the answer, or {"failed": how it ended}; never later than `seconds`."""

    def close(self) -> None:
        """End it."""


@dataclass
class Process:
    """A worker process, started when there is something to ask, and again after its end."""

    serve: Serve
    running: BaseProcess | None = None
    pipe: Connection = field(init=False)
    said: Path = field(init=False)  # what it printed

    def ask(self, question: Question, *, seconds: float) -> dict[str, Json]:
        """Ask the process; see `Measurer`."""
        running = self.running or self._start()
        answer = self._answer(running, question, seconds)
        ended = answer.pop("ended", None)
        if ended or answer.get("leaving"):
            self.close()
        return {"failed": ended} if ended else answer

    def close(self) -> None:
        """Kill the process, whatever it does."""
        if self.running is None:
            return
        self.running.kill()
        self.running.join()
        self.pipe.close()
        self.said.unlink()
        self.running = None

    def _start(self) -> BaseProcess:
        handle, name = tempfile.mkstemp(prefix="mirage-kernels-")
        os.close(handle)
        spawn = get_context("spawn")
        self.said, (self.pipe, theirs) = Path(name), spawn.Pipe()
        self.running = running = spawn.Process(target=_serve, args=(self.serve, theirs, self.said))
        running.start()
        theirs.close()
        greeting = self._answer(running, None, START_SECONDS)
        if "ended" in greeting:
            greeting = {
                "refused": f"the process that measures did not start: {greeting['ended']}",
                "hint": "`mirage-kernels doctor` says what is missing",
            }
        if "refused" in greeting:
            self.close()
            raise ToolchainError(str(greeting["refused"]), str(greeting["hint"]))
        return running

    def _answer(
        self, running: BaseProcess, question: Question | None, seconds: float
    ) -> dict[str, Json]:
        """Return what it answers to a question, its greeting, or {"ended": how it ended}."""
        try:
            if question is not None:
                self.pipe.send(question)
            if not self.pipe.poll(seconds):
                return {"ended": f"no answer within {seconds:g} s"}
            answer: dict[str, Json] = self.pipe.recv()
        except (EOFError, ConnectionError):
            running.join()
            code = running.exitcode or 0
            how = f"exit code {code}" if code >= 0 else signal.Signals(-code).name
            lines = self.said.read_text(errors="replace").strip().splitlines()
            last = map(str.strip, lines[-TAIL_LINES:])
            return {"ended": " / ".join([f"the process died: {how}", *last])}
        return answer


def _serve(serve: Serve, pipe: Connection, said: Path) -> None:
    """Serve in the process; what it and its libraries print goes to a file."""
    with said.open("wb") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    serve(pipe)


def worker_process(folder: Path) -> Process:
    """Return the process that measures a folder's libraries on this machine's GPU."""
    from mirage_kernels.generator.tuning.worker import serve

    return Process(partial(serve, folder))
