"""The journal of an unfinished job: what holds after a kill, and who may write."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from pathlib import Path

import pytest

from mirage_kernels.generator.errors import FileError
from mirage_kernels.generator.jobs.journal import Journal, TaskDone, take

TASKS = [TaskDone(0, i, {"programs": [f"p{i}"], "outs": {"z": 1, "a": 2}}, 0.25) for i in range(4)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A journal of four tasks that nobody holds."""
    path = tmp_path / "results" / "key.tasks"
    journal = held(path)
    for task in TASKS:
        journal.append(task)
    journal.release()
    return path


def held(path: Path) -> Journal:
    journal = take(path)
    assert journal is not None
    return journal


def test_tasks_read_back_with_the_order_of_names(path: Path) -> None:
    tasks = held(path).read()
    assert tasks == TASKS
    assert list(tasks[0].found["outs"]) == ["z", "a"]


@pytest.mark.parametrize("lost", [1, 2, 20, 60])
def test_a_torn_last_line_costs_its_task_alone(path: Path, lost: int) -> None:
    path.write_bytes(path.read_bytes()[:-lost])
    assert held(path).read() == TASKS[:3]


def test_a_damaged_line_ends_the_journal(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b'"p2"', b'"p9"'))
    assert held(path).read() == TASKS[:2]


@pytest.mark.parametrize("rest", [b"\n", b"\x00" * 40, b"\xff\xfe\n", b"0123456789abcdef []\n"])
def test_what_is_no_task_ends_the_journal(path: Path, rest: bytes) -> None:
    with path.open("ab") as file:
        file.write(rest)
    assert held(path).read() == TASKS


def test_what_follows_a_torn_line_is_read(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-5])
    journal = held(path)
    journal.append(TaskDone(0, 9, {}, 0.0)) if journal.read() else None
    assert [t.index for t in journal.read()] == [0, 1, 2, 9]


def test_a_held_journal_is_not_given_twice(path: Path) -> None:
    journal = held(path)
    assert take(path) is None
    journal.release()
    assert take(path) is not None


def hold_for_ever(path: Path) -> None:
    while (journal := take(path)) is None:  # the other process holds it while it looks
        time.sleep(0.001)
    time.sleep(600)
    journal.release()


def test_a_killed_process_holds_no_journal(path: Path) -> None:
    process = multiprocessing.get_context("fork").Process(target=hold_for_ever, args=(path,))
    process.start()
    deadline = time.monotonic() + 10
    while (journal := take(path)) is not None:
        journal.release()
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    assert take(path) is not None


def test_a_journal_that_was_removed_meanwhile_is_not_taken(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.open

    def removed_once_opened(*arguments: object) -> int:
        descriptor = real(*arguments)  # type: ignore[call-overload]
        path.unlink()
        return descriptor

    monkeypatch.setattr(os, "open", removed_once_opened)
    assert take(path) is None


def test_a_full_disk_is_a_sentence(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = held(path)

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(FileError, match=r"key.tasks cannot be written: No space left on device"):
        journal.append(TASKS[0])


def test_a_write_that_ends_early_goes_on(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal, real = held(path), os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: real(descriptor, data[:7]))
    journal.append(TaskDone(1, 0, {}, 0.5))
    assert journal.read() == [*TASKS, TaskDone(1, 0, {}, 0.5)]
