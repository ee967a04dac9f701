"""Kernels made abreast: each in a process of its own, before it is asked for."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from typing import TYPE_CHECKING

from mirage_kernels.generator.errors import MirageError
from mirage_kernels.generator.jobs.job import Say, WorkerLostError, in_process
from mirage_kernels.generator.jobs.run import StoppedError

if TYPE_CHECKING:
    from mirage_kernels.generator.pipeline import Result
    from mirage_kernels.generator.request import Request

# Makes the kernel of a request, whose search may take so many processes.
Generate = Callable[["Request", int], "Result"]
Told = tuple["Result", float] | MirageError  # with the seconds that it took


class Abreast:
    """Makes kernels in so many processes at once; close it, whatever became of them."""

    def __init__(self, generate: Generate, processes: int) -> None:
        """Begin nothing yet."""
        self.generate, self.processes = generate, processes
        self.stopping = threading.Event()
        self.threads = ThreadPoolExecutor(processes)
        self.begun: dict[int, tuple[Request, Future[Told]]] = {}

    def begin(self, requests: Sequence[Request]) -> None:
        """Begin several kernels that will probably be taken, by the same request objects.

        Of those that were to begin before, only these are wanted still.
        """
        for key in self.begun.keys() - {*map(id, requests)}:
            self.begun.pop(key)[1].cancel()
        new = [r for r in requests if id(r) not in self.begun]
        if self.processes == 1 or len(new) == 1:
            return
        for request in new:
            jobs = -(-2 * self.processes // len(new))  # some searches end long before others
            made = self.threads.submit(self._made, request, min(jobs, self.processes))
            self.begun[id(request)] = request, made

    def take(self, request: Request) -> tuple[Result, float] | None:
        """Return a kernel that was begun, and the seconds that it took, when it is made.

        None for one that was not, and for one whose process was lost. Raises what went wrong.
        """
        _, begun = self.begun.pop(id(request), (None, None))
        try:
            told = begun.result() if begun else None
        except WorkerLostError:
            return None
        if isinstance(told, MirageError):
            raise told
        return told

    def close(self) -> None:
        """End what still runs."""
        self.stopping.set()
        self.threads.shutdown(cancel_futures=True)

    def _made(self, request: Request, jobs: int) -> Told:
        """Make a kernel in a process; its recipe, with a user's function, stays here."""
        from mirage_kernels.generator.pipeline import Result

        def tell(say: Say) -> None:
            if torch := sys.modules.get("torch"):
                torch.set_num_threads(1)  # a forked process has none of its parent's
            started = time.monotonic()
            try:
                made = self.generate(request, jobs)
            except MirageError as error:
                return say(error)
            return say((made.record, made.report, made.files, time.monotonic() - started))

        with closing(in_process(tell, self.stopping)) as messages:
            for message in messages:
                if isinstance(message, MirageError):
                    return message
                *made, seconds = message
                return Result(request, *made), seconds
        raise StoppedError
