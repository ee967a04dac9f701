"""The process that measures, seen from outside: a question, an answer, or how it ended.

One process serves many questions, as loading PyTorch takes longer than measuring. When it crashes
or hangs, that is the answer to the question it had, and the next one starts another process.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Protocol

from mirage_kernels.generator.errors import ToolchainError
from mirage_kernels.generator.ir.text import Json

START_SECONDS = 300.0
TAIL_LINES = 3
Question = Mapping[str, Json]


class Measurer(Protocol):
    """Whatever answers questions about times."""

    def ask(self, question: Question, *, seconds: float) -> dict[str, Json]:
        """Return the answer, or {"failed": how it ended}; never later than `seconds`."""

    def close(self) -> None:
        """End it."""


class _EndedError(Exception):
    """The process did not answer."""


@dataclass
class Process:
    """A worker process, started when there is something to ask, and again after its end."""

    command: Sequence[str]
    running: subprocess.Popen[bytes] | None = None
    said: IO[bytes] | None = None  # its stderr
    unread: bytes = field(default=b"")

    def ask(self, question: Question, *, seconds: float) -> dict[str, Json]:
        """Ask the process; see `Measurer`."""
        try:
            if self.running is None:
                self._start()
            self._write(question)
            answer = self._answer(seconds)
        except _EndedError as ended:
            self.close()
            return {"failed": str(ended)}
        if answer.get("leaving"):
            self.close()
        return answer

    def close(self) -> None:
        """Kill the process, whatever it does."""
        if self.running is None:
            return
        self.running.kill()
        self.running.wait()
        for stream in (self.running.stdin, self.running.stdout, self.said):
            if stream is not None:
                stream.close()
        self.running, self.said, self.unread = None, None, b""

    def _start(self) -> None:
        self.said = tempfile.TemporaryFile()  # noqa: SIM115  (closed by `close`)
        self.running = subprocess.Popen(
            self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.said
        )
        try:
            greeting = self._answer(START_SECONDS)
        except _EndedError as ended:
            self.close()
            raise ToolchainError(
                f"the process that measures did not start: {ended}",
                "`mirage-kernels doctor` says what is missing",
            ) from ended
        if "refused" in greeting:
            self.close()
            raise ToolchainError(str(greeting["refused"]), str(greeting["hint"]))

    def _write(self, question: Question) -> None:
        assert self.running is not None
        assert self.running.stdin is not None
        try:
            self.running.stdin.write(json.dumps(question).encode() + b"\n")
            self.running.stdin.flush()
        except BrokenPipeError as broken:
            raise _EndedError(self._how_it_ended()) from broken

    def _answer(self, seconds: float) -> dict[str, Json]:
        """Return the next line of its stdout as JSON."""
        assert self.running is not None
        assert self.running.stdout is not None
        stream, end = self.running.stdout.fileno(), time.monotonic() + seconds
        while b"\n" not in self.unread:
            ready, _, _ = select.select([stream], [], [], max(0.0, end - time.monotonic()))
            if not ready:
                raise _EndedError(f"no answer within {seconds:g} s")
            more = os.read(stream, 1 << 16)
            if not more:
                raise _EndedError(self._how_it_ended())
            self.unread += more
        line, _, self.unread = self.unread.partition(b"\n")
        answer: dict[str, Json] = json.loads(line)
        return answer

    def _how_it_ended(self) -> str:
        assert self.running is not None
        code = self.running.wait()
        how = f"exit code {code}" if code >= 0 else signal.Signals(-code).name
        return f"the process died: {how}{self._last_words()}"

    def _last_words(self) -> str:
        if self.said is None:
            return ""
        self.said.seek(0)
        lines = self.said.read().decode(errors="replace").strip().splitlines()
        return "".join(f" / {line.strip()}" for line in lines[-TAIL_LINES:])


def worker_process(folder: Path) -> Process:
    """Return the process that measures a folder's libraries on this machine's GPU."""
    module = "mirage_kernels.generator.tuning.worker"
    return Process((sys.executable, "-m", module, str(folder)))
