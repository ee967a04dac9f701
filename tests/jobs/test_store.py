"""The store of results: whole or missing, never wrong; who may work on a search."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from mirage_kernels.generator.errors import FileError
from mirage_kernels.generator.jobs.job import Job, TaskDone
from mirage_kernels.generator.jobs.run import Workshop, complete_all
from mirage_kernels.generator.jobs.store import Store
from mirage_kernels.generator.search.sketch import Counts, Found, ProgramSketch
from mirage_kernels.generator.settings import STORE_VARIABLE, store_folder

FOUND = Found((ProgramSketch((), 0.1),), Counts(7, {"type": 3}, 2, 1))
TASKS = [TaskDone(0, i, Found((ProgramSketch((), i / 3),)), 0.625) for i in range(4)]
KEY = "key"


class ClaimedError(Exception):
    """Another process works on the search."""


def refuse() -> None:
    raise ClaimedError


def claimed(store: Store, key: str = KEY) -> list[TaskDone]:
    with store.claim(key, waiting=refuse) as unfinished:
        return unfinished.tasks


def test_results_and_tasks_read_back(store: Store, fake_job) -> None:
    job = fake_job("kept")
    assert store.result(job.key) is None
    assert not store.folder.exists()
    with store.claim(job.key, waiting=refuse) as unfinished:
        for task in TASKS:
            unfinished.add(task)
    assert claimed(store, job.key) == TASKS
    with store.claim(job.key, waiting=refuse) as unfinished:
        assert unfinished.finish(job, FOUND) == 2.5
    assert store.result(job.key) == (FOUND, 2.5)
    assert claimed(store, job.key) == []
    assert store.result(fake_job("other").key) is None


@pytest.mark.parametrize("torn", range(1, 60, 7))
def test_a_line_that_is_not_whole_is_no_task(store: Store, torn: int) -> None:
    with store.claim(KEY, waiting=refuse) as unfinished:
        for task in TASKS:
            unfinished.add(task)
        unfinished.file.truncate(unfinished.file.tell() - torn)
    with store.claim(KEY, waiting=refuse) as unfinished:
        assert unfinished.tasks == TASKS[:-1]
        unfinished.add(TASKS[-1])
    assert claimed(store) == TASKS


@pytest.mark.parametrize("found", ["no result", "{", '{"asked": 1, "seconds": 2, "found": 3}'])
def test_a_malformed_result_is_put_aside_and_made_again(
    store: Store, fake_job, run_jobs, found: str
) -> None:
    job = fake_job("a")
    run_jobs(job)
    path = store.folder / f"{job.key}.json"
    path.write_text(found)
    with pytest.raises(FileError, match="was damaged") as caught:
        run_jobs(job)
    assert "the same command" in caught.value.hint
    assert run_jobs(job)[0].origin.value == "new"
    assert path.with_suffix(".damaged").read_text() == found


def complete_here(job: Job, run_jobs, origins: multiprocessing.Queue) -> None:
    origins.put(run_jobs(job)[0].origin.value)


def test_two_processes_make_a_result_once(fake_job, run_jobs) -> None:
    job, fork = fake_job("a", seconds=0.05), multiprocessing.get_context("fork")
    origins = fork.Queue()
    both = [fork.Process(target=complete_here, args=(job, run_jobs, origins)) for _ in range(2)]
    for process in both:
        process.start()
    for process in both:
        process.join()
    assert sorted(origins.get(timeout=5) for _ in both) == ["new", "store"]
    assert sorted(job.ran()) == list(range(6))


def claim_for_ever(store: Store) -> None:
    with store.claim(KEY, waiting=lambda: None):  # the other process has it while it looks
        time.sleep(600)


def test_one_process_claims_a_search_until_it_is_killed(store: Store) -> None:
    process = multiprocessing.get_context("fork").Process(target=claim_for_ever, args=(store,))
    process.start()
    deadline = time.monotonic() + 10
    with suppress(ClaimedError):
        while time.monotonic() < deadline:
            claimed(store)
            time.sleep(0.05)
    assert time.monotonic() < deadline
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    claimed(store)


def test_a_store_that_cannot_be_made_is_a_sentence(tmp_path: Path, fake_job) -> None:
    (tmp_path / "file").write_text("")
    shop = Workshop(Store(tmp_path / "file" / "store"))
    with pytest.raises(FileError, match="Not a directory") as caught:
        complete_all([fake_job("a")], shop, lambda event: None)
    assert "--store DIR" in caught.value.hint


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_store_still_answers(store: Store, fake_job, run_jobs) -> None:
    job = fake_job("a")
    run_jobs(job)
    store.folder.chmod(0o555)
    assert run_jobs(job)[0].origin.value == "store"
    with pytest.raises(FileError, match="cannot be used: Permission denied"):
        run_jobs(fake_job("b"))
    store.folder.chmod(0o755)


FULL = """
import resource, signal, sys
from fake_search import FakeSearch, complete
from mirage_kernels.generator.errors import FileError
folder, limit = sys.argv[1], int(sys.argv[2])
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
try:
    complete(folder, FakeSearch("a", folder, tasks=400))
except FileError as error:
    print(error.sentence)
"""


def test_what_was_finished_before_the_disk_was_full_is_kept(tmp_path: Path, fake_job) -> None:
    # A limit on the size of files stands in for the disk.
    command = [sys.executable, "-c", FULL, str(tmp_path), "20000"]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "store cannot be used: File too large" in ran.stdout
    job = fake_job("a", tasks=400)
    kept = len(claimed(Store(tmp_path / "store"), job.key))
    assert 10 < kept < 400
    before = len(job.ran())
    subprocess.run([*command[:-1], "10000000"], check=True)
    assert len(job.ran()) == before + 400 - kept


def test_a_store_is_named_or_the_users_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.delenv(STORE_VARIABLE, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert store_folder() == Path("/home/me/.cache/mirage-kernels")
    monkeypatch.setenv("XDG_CACHE_HOME", "/caches")
    assert store_folder() == Path("/caches/mirage-kernels")
    monkeypatch.setenv(STORE_VARIABLE, "/results")
    assert store_folder() == Path("/results")
    assert store_folder("given") == Path("given")
