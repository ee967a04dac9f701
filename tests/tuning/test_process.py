"""The worker process from outside: crashes, hangs and refusals are answers or sentences."""

from __future__ import annotations

import itertools
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection

import pytest

from mirage_kernels.generator.errors import ToolchainError
from mirage_kernels.generator.tuning.process import Process, Serve


def obedient(pipe: Connection) -> None:
    """Do what the question says; count the questions that this process had."""
    pipe.send({"ready": True})
    for count in itertools.count(1):
        do = pipe.recv()["do"]
        if do == "crash":
            os.kill(os.getpid(), signal.SIGSEGV)
        if do == "hang":
            time.sleep(600)
        if do == "leave":
            print("first words", file=sys.stderr)
            sys.exit("last words")
        goodbye = {"leaving": True} if do == "say goodbye" else {}
        pipe.send({"count": count} | goodbye)


def refuse(pipe: Connection) -> None:
    pipe.send({"refused": "no GPU", "hint": "get one"})


def fail(pipe: Connection) -> None:
    raise SystemExit("no torch")


Make = Callable[[Serve], Process]


@pytest.fixture
def make() -> Iterator[Make]:
    made: list[Process] = []

    def process(serve: Serve) -> Process:
        made.append(Process(serve))
        return made[-1]

    yield process
    for one in made:
        one.close()


def asked(process: Process, *orders: str, seconds: float = 30) -> list[object]:
    return [process.ask({"do": order}, seconds=seconds) for order in orders]


def test_a_crash_is_the_answer_to_its_question_and_another_process_goes_on(make: Make) -> None:
    first, second = {"count": 1}, {"count": 2}
    crashed = {"failed": "the process died: SIGSEGV"}
    answers = asked(make(obedient), "work", "work", "crash", "work")
    assert answers == [first, second, crashed, first]


def test_a_hang_is_the_answer_to_its_question_and_another_process_goes_on(make: Make) -> None:
    process = make(obedient)
    assert asked(process, "work")
    assert asked(process, "hang", seconds=0.2) == [{"failed": "no answer within 0.2 s"}]
    assert asked(process, "work") == [{"count": 1}]


def test_a_process_that_leaves_says_its_last_words_or_goodbye(make: Make) -> None:
    died = {"failed": "the process died: exit code 1 / first words / last words"}
    goodbye, again = {"count": 1, "leaving": True}, {"count": 1}
    assert asked(make(obedient), "leave", "say goodbye", "work") == [died, goodbye, again]


def test_a_worker_that_refuses_is_an_error_with_its_hint(make: Make) -> None:
    process = make(refuse)
    with pytest.raises(ToolchainError, match="no GPU") as raised:
        asked(process, "work")
    assert raised.value.hint == "get one"


def test_a_worker_that_does_not_start_is_an_error(make: Make) -> None:
    with pytest.raises(ToolchainError, match=r"did not start: .*exit code 1 / no torch"):
        asked(make(fail), "work")


def test_nothing_is_started_before_there_is_a_question(make: Make) -> None:
    process = make(obedient)
    process.close()
    assert process.running is None
