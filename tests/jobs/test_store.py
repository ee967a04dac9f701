"""The store of results: whole or missing, never wrong; who may work on a search."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing, suppress
from pathlib import Path

import pytest

from mirage_kernels.generator.errors import FileError
from mirage_kernels.generator.jobs.job import Job, TaskDone
from mirage_kernels.generator.jobs.run import Workshop, complete_all
from mirage_kernels.generator.jobs.store import Store
from mirage_kernels.generator.search.sketch import Counts, Found, ProgramSketch
from mirage_kernels.generator.settings import STORE_VARIABLE, store_folder

FOUND = Found((ProgramSketch((), 0.1),), Counts(7, {"type": 3}, 2, 1))
TASKS = [TaskDone(0, i, Found((ProgramSketch((), i / 3),)), 0.25) for i in range(4)]
KEY = "key"


class HeldError(Exception):
    """Another process works on the search."""


def refuse() -> None:
    raise HeldError


def test_results_and_tasks_read_back(store: Store, fake_job) -> None:
    job = fake_job("kept")
    assert store.result(job.key) is None
    assert not store.folder.exists()
    for task in TASKS:
        store.keep_task(job.key, task)
    assert store.tasks(job.key) == TASKS
    store.keep(job, FOUND, 2.5)
    assert store.result(job.key) == (FOUND, 2.5)
    assert store.tasks(job.key) == []
    assert store.result(fake_job("other").key) is None


def test_a_damaged_database_is_put_aside_and_made_again(store: Store, fake_job, run_jobs) -> None:
    job = fake_job("a")
    run_jobs(job)
    store.path.write_bytes(b"no database" * 400)
    with pytest.raises(FileError, match="was damaged") as caught:
        run_jobs(job)
    assert "the same command" in caught.value.hint
    assert run_jobs(job)[0].origin.value == "new"
    assert store.path.with_suffix(".damaged").is_file()


@pytest.mark.parametrize("found", [b"{", b'{"programs": [{"cost": "?"}]}'])
def test_a_malformed_result_is_damage(store: Store, fake_job, run_jobs, found: bytes) -> None:
    job = fake_job("a")
    run_jobs(job)
    with closing(sqlite3.connect(store.path)) as database, database:
        database.execute("UPDATE results SET found = ?", (found,))
    with pytest.raises(FileError, match="was damaged"):
        run_jobs(job)
    assert run_jobs(job)[0].origin.value == "new"


def complete_here(job: Job, store: Store, origins: multiprocessing.Queue) -> None:
    (outcome,) = complete_all([job], Workshop(store), lambda event: None)
    origins.put(outcome.origin.value)


def test_two_processes_make_a_result_once(store: Store, fake_job) -> None:
    job, fork = fake_job("a", seconds=0.05), multiprocessing.get_context("fork")
    origins = fork.Queue()
    both = [fork.Process(target=complete_here, args=(job, store, origins)) for _ in range(2)]
    for process in both:
        process.start()
    for process in both:
        process.join()
    assert sorted(origins.get(timeout=5) for _ in both) == ["new", "store"]
    assert sorted(job.problem.ran()) == list(range(6))


def test_a_held_search_is_not_given_twice(store: Store) -> None:
    with (
        store.claim(KEY, waiting=refuse),
        pytest.raises(HeldError),
        store.claim(KEY, waiting=refuse),
    ):
        pass
    with store.claim(KEY, waiting=refuse):
        pass


def hold_for_ever(store: Store) -> None:
    with store.claim(KEY, waiting=lambda: None):  # the other process holds it while it looks
        time.sleep(600)


def test_a_killed_process_holds_no_search(store: Store) -> None:
    process = multiprocessing.get_context("fork").Process(target=hold_for_ever, args=(store,))
    process.start()
    deadline = time.monotonic() + 10
    with suppress(HeldError):
        while time.monotonic() < deadline:
            with store.claim(KEY, waiting=refuse):
                pass
            time.sleep(0.05)
    assert time.monotonic() < deadline
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    with store.claim(KEY, waiting=refuse):
        pass


def test_a_store_that_cannot_be_made_is_a_sentence(tmp_path: Path, fake_job) -> None:
    (tmp_path / "file").write_text("")
    shop = Workshop(Store(tmp_path / "file" / "store"))
    with pytest.raises(FileError, match="Not a directory") as caught:
        complete_all([fake_job("a")], shop, lambda event: None)
    assert "--store DIR" in caught.value.hint


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_store_without_permission_is_a_sentence(tmp_path: Path, fake_job) -> None:
    tmp_path.chmod(0o555)
    with pytest.raises(FileError, match="cannot be used: Permission denied"):
        complete_all([fake_job("a")], Workshop(Store(tmp_path / "s")), lambda event: None)
    tmp_path.chmod(0o755)


def test_a_read_only_store_still_answers(store: Store, fake_job, run_jobs, monkeypatch) -> None:
    job = fake_job("a")
    run_jobs(job)
    connect = sqlite3.connect

    def read_only(path: Path, timeout: float) -> sqlite3.Connection:
        return connect(f"{path.as_uri()}?mode=ro", timeout, uri=True)

    monkeypatch.setattr(sqlite3, "connect", read_only)
    assert run_jobs(job)[0].origin.value == "store"
    with pytest.raises(FileError, match="attempt to write a readonly database"):
        run_jobs(fake_job("b"))


FULL = """
import resource, signal, sys
from pathlib import Path
from fake_search import FakeSearch
from mirage_kernels.generator.errors import FileError
from mirage_kernels.generator.jobs.job import Job
from mirage_kernels.generator.jobs.run import Workshop, complete_all
from mirage_kernels.generator.jobs.store import Store
folder, limit = sys.argv[1], int(sys.argv[2])
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
try:
    job = Job("a", FakeSearch("a", folder, tasks=400))
    complete_all([job], Workshop(Store(Path(folder) / "store")), lambda event: None)
except FileError as error:
    print(error.sentence)
"""


def test_what_was_finished_before_the_disk_was_full_is_kept(tmp_path: Path, fake_job) -> None:
    # A limit on the size of files stands in for the disk.
    command = [sys.executable, "-c", FULL, str(tmp_path), "50000"]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "searches.sqlite cannot be used: " in ran.stdout
    job = fake_job("a", tasks=400)
    kept = len(Store(tmp_path / "store").tasks(job.key))
    assert 10 < kept < 400
    before = len(job.problem.ran())
    subprocess.run([*command[:-1], "10000000"], check=True)
    assert len(job.problem.ran()) == before + 400 - kept


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
