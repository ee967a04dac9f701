"""Kernels made abreast: each in a process of its own, before it is asked for."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from mirage_kernels.generator.errors import SearchError
from mirage_kernels.generator.jobs.abreast import Abreast
from mirage_kernels.generator.jobs.job import in_process
from mirage_kernels.generator.request import Request

Started = Callable[..., Abreast]


def request_of(name: str) -> Request:
    """Return a request whose recipe cannot be pickled, as those of users' functions."""
    return cast("Request", SimpleNamespace(name=name, recipe=lambda: name))


def made(request: Request, jobs: int) -> Any:
    """Return what tells where it was made."""
    return SimpleNamespace(record=os.getpid(), report=jobs, files={request.name: "text"})


@pytest.fixture
def start() -> Iterator[Started]:
    """Return what makes kernels in two processes; what still runs ends with the test."""
    begun: list[Abreast] = []

    def started(generate: Callable[[Request, int], Any] = made, processes: int = 2) -> Abreast:
        begun.append(Abreast(generate, processes))
        return begun[-1]

    yield started
    for one in begun:
        one.close()


def test_each_is_made_in_a_process_of_its_own(start: Started) -> None:
    kernels, requests = start(), [request_of(name) for name in "abc"]
    kernels.begin(requests)
    taken = [kernels.take(request) for request in requests]
    results = [one[0] for one in taken if one is not None]
    assert [result.request for result in results] == requests
    assert [result.files for result in results] == [{n: "text"} for n in "abc"]
    assert len({os.getpid(), *(cast("int", result.record) for result in results)}) == 4


def test_a_kernel_is_taken_once(start: Started) -> None:
    kernels, requests = start(), [request_of(name) for name in "ab"]
    kernels.begin(requests)
    assert kernels.take(requests[0]) is not None
    assert kernels.take(requests[0]) is None


@pytest.mark.parametrize(("processes", "names"), [(1, "abc"), (2, "a"), (2, "")])
def test_nothing_is_begun_that_would_not_be_abreast(
    start: Started, processes: int, names: str
) -> None:
    kernels, requests = start(processes=processes), [request_of(name) for name in names]
    kernels.begin(requests)
    assert all(kernels.take(request) is None for request in requests)


def test_what_goes_wrong_is_raised_where_it_is_taken(start: Started) -> None:
    def fails(request: Request, jobs: int) -> Any:
        if request.name == "a":
            raise SearchError("nothing equals a", "shorten it")
        return made(request, jobs)

    kernels, requests = start(fails), [request_of(name) for name in "ab"]
    kernels.begin(requests)
    with pytest.raises(SearchError, match="nothing equals a") as error:
        kernels.take(requests[0])
    assert error.value.hint == "shorten it"
    assert kernels.take(requests[1]) is not None


def test_a_lost_process_leaves_its_kernel_to_the_caller(start: Started) -> None:
    kernels, requests = start(lambda request, jobs: os._exit(3)), [*map(request_of, "ab")]
    kernels.begin(requests)
    assert [kernels.take(request) for request in requests] == [None, None]


def test_a_kernel_may_have_its_search_made_in_processes(start: Started) -> None:
    def searches(request: Request, jobs: int) -> Any:
        with closing(in_process(lambda say: say(os.getpid()), threading.Event())) as messages:
            return SimpleNamespace(record=next(messages), report=jobs, files={})

    kernels, requests = start(searches), [*map(request_of, "ab")]
    kernels.begin(requests)
    assert None not in [kernels.take(request) for request in requests]


def test_what_is_no_longer_wanted_does_not_begin(start: Started, tmp_path: Path) -> None:
    def noted(request: Request, jobs: int) -> Any:
        (tmp_path / request.name).touch()
        time.sleep(0.3)
        return made(request, jobs)

    kernels, wanted = start(noted), [*map(request_of, "xy")]
    kernels.begin([*map(request_of, "abcdefgh")])
    kernels.begin(wanted)
    assert None not in [kernels.take(request) for request in wanted]
    assert len([*tmp_path.iterdir()]) <= len(wanted) + 2


def test_closing_ends_what_still_runs(start: Started) -> None:
    kernels = start(lambda request, jobs: time.sleep(60))
    kernels.begin([*map(request_of, "abc")])
    began = time.monotonic()
    kernels.close()
    assert time.monotonic() - began < 10
