"""The finished tasks of an unfinished job: what holds after a kill, and who may work on it."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import time

import pytest

from mirage_kernels.generator.errors import FileError
from mirage_kernels.generator.jobs.job import TaskDone
from mirage_kernels.generator.jobs.store import Store
from mirage_kernels.generator.records import files

TASKS = [TaskDone(0, i, {"programs": [f"p{i}"], "outs": {"z": 1, "a": 2}}, 0.25) for i in range(4)]
KEY = "key"


class HeldError(Exception):
    """Another process works on the search."""


def refuse() -> None:
    raise HeldError


@pytest.fixture
def unfinished(store: Store) -> Store:
    """A store with four tasks of a search that nobody works on."""
    with store.claim(KEY, waiting=refuse):
        for task in TASKS:
            store.keep_task(KEY, task)
    return store


def test_tasks_read_back_with_the_order_of_names(unfinished: Store) -> None:
    tasks = unfinished.tasks(KEY)
    assert tasks == TASKS
    assert list(tasks[0].found["outs"]) == ["z", "a"]


@pytest.mark.parametrize("content", [b"", b"{}", b"\x00" * 40, b'{"round": 0', b"p9"])
def test_a_damaged_task_costs_itself_alone(unfinished: Store, content: bytes) -> None:
    path = unfinished.tasks_folder(KEY) / "0-2.json"
    path.write_bytes(path.read_bytes().replace(b"p2", content) if content == b"p9" else content)
    assert unfinished.tasks(KEY) == [TASKS[0], TASKS[1], TASKS[3]]


def test_a_held_search_is_not_given_twice(unfinished: Store) -> None:
    with (
        unfinished.claim(KEY, waiting=refuse),
        pytest.raises(HeldError),
        unfinished.claim(KEY, waiting=refuse),
    ):
        pass
    with unfinished.claim(KEY, waiting=refuse):
        assert unfinished.tasks(KEY) == TASKS


def test_a_search_without_tasks_leaves_nothing(unfinished: Store) -> None:
    with unfinished.claim(KEY, waiting=refuse):
        unfinished.forget_tasks(KEY)
    assert list((unfinished.folder / "results").iterdir()) == []


def hold_for_ever(store: Store) -> None:
    with store.claim(KEY, waiting=lambda: None):  # the other process holds it while it looks
        time.sleep(600)


def test_a_killed_process_holds_no_search(unfinished: Store) -> None:
    process = multiprocessing.get_context("fork").Process(target=hold_for_ever, args=(unfinished,))
    process.start()
    deadline = time.monotonic() + 10
    with contextlib.suppress(HeldError):
        while time.monotonic() < deadline:
            with unfinished.claim(KEY, waiting=refuse):
                pass
            time.sleep(0.05)
    assert time.monotonic() < deadline
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    with unfinished.claim(KEY, waiting=refuse):
        assert unfinished.tasks(KEY) == TASKS


def test_a_folder_that_was_removed_meanwhile_is_not_held(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.open

    def removed_once_opened(*arguments: object) -> int:
        descriptor = real(*arguments)  # type: ignore[call-overload]
        store.tasks_folder(KEY).rmdir()
        return descriptor

    monkeypatch.setattr(os, "open", removed_once_opened)
    with pytest.raises(HeldError), store.claim(KEY, waiting=refuse):
        pass


def test_a_full_disk_is_a_sentence(unfinished: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files.os, "replace", full)
    with pytest.raises(FileError, match=r"9.json cannot be written: No space left on device"):
        unfinished.keep_task(KEY, TaskDone(0, 9, {}, 0.0))
    assert unfinished.tasks(KEY) == TASKS
