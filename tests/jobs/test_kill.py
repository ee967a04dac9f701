"""Killed and interrupted searches: nothing finished is lost, nothing goes on behind one's back."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from mirage_kernels.generator.jobs.job import Job
from mirage_kernels.generator.jobs.run import Origin
from mirage_kernels.generator.jobs.store import Store

# Two slow jobs, as `mirage-kernels search` runs them.
SEARCH = """
import sys
from fake_search import FakeSearch, complete
folder, processes = sys.argv[1:]
jobs = [FakeSearch(n, folder, tasks=24, seconds=0.03) for n in ("a", "b")]
complete(folder, *jobs, processes=int(processes))
"""


@pytest.fixture
def jobs(fake_job) -> list[Job]:
    return [fake_job(name, tasks=24, seconds=0.03) for name in "ab"]


def wait_for(what: Callable[[], bool], seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def start(folder: Path, processes: int) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", SEARCH, str(folder), str(processes)]
    return subprocess.Popen(
        command,
        stderr=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )


def ran(jobs: list[Job]) -> int:
    return sum(len(job.ran()) for job in jobs)


def started_and_ended(
    folder: Path, jobs: list[Job], how: signal.Signals, processes: int = 2
) -> subprocess.Popen[bytes]:
    """Start the search, end it once both jobs are under way, and see that all of it ends."""
    process = start(folder, processes)
    wait_for(lambda: min(len(job.ran()) for job in jobs) >= 5)
    os.kill(process.pid, how)
    process.wait(timeout=10)
    wait_for(lambda: no_process_of(folder), 3.0)
    return process


def no_process_of(folder: Path) -> bool:
    """Say whether no process of the test but this one is left, by the mark in its environment."""
    marked = []
    for number in filter(str.isdigit, os.listdir("/proc")):
        try:
            environment = Path("/proc", number, "environ").read_bytes()
        except OSError:
            continue
        if number != str(os.getpid()) and str(folder).encode() in environment:
            marked.append(number)
    return not marked


@pytest.fixture(autouse=True)
def marked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Mark every process of the test in its environment."""
    monkeypatch.setenv("MIRAGE_KERNELS_TEST", str(tmp_path))


@pytest.mark.parametrize("processes", [2, 5])
def test_a_killed_search_resumes_and_ends_alike(
    tmp_path: Path, jobs: list[Job], run_jobs, processes: int
) -> None:
    started_and_ended(tmp_path, jobs, signal.SIGKILL, processes)
    before = ran(jobs)
    outcomes = run_jobs(*jobs)
    assert [o.origin for o in outcomes] == [Origin.RESUMED] * 2
    # Each process may have been at a task, and may have told of one that was not yet written.
    assert 48 <= ran(jobs) <= 48 + 2 * max(2, processes)
    assert before >= 10
    assert [o.found for o in outcomes] == [o.found for o in run_jobs(*jobs, fresh=True)]


def test_an_interruption_keeps_what_is_finished(tmp_path: Path, jobs: list[Job], run_jobs) -> None:
    process = started_and_ended(tmp_path, jobs, signal.SIGINT)
    assert process.stderr is not None
    assert process.stderr.read().decode().strip().endswith("KeyboardInterrupt")
    outcomes = run_jobs(*jobs)
    assert [o.origin for o in outcomes] == [Origin.RESUMED] * 2
    assert ran(jobs) <= 48 + 4


def test_a_worker_that_is_killed_from_outside_is_replaced(
    tmp_path: Path, jobs: list[Job], store: Store
) -> None:
    process = start(tmp_path, 2)
    wait_for(lambda: min(len(job.ran()) for job in jobs) >= 5)
    workers = children_of(process.pid)
    os.kill(workers[0], signal.SIGKILL)
    assert process.wait(timeout=30) == 0
    assert len(workers) == 2
    assert all(store.result(job.key) for job in jobs)
    assert ran(jobs) <= 50


def children_of(number: int) -> list[int]:
    tasks = Path(f"/proc/{number}/task").iterdir()
    return [int(word) for task in tasks for word in (task / "children").read_text().split()]
