"""The store of results: whole or missing, never wrong, and the same bytes whoever writes."""

from __future__ import annotations

import json
import multiprocessing
import os
import subprocess
import sys
from pathlib import Path

import pytest

from mirage_kernels.generator.errors import FileError
from mirage_kernels.generator.jobs.executors import Local
from mirage_kernels.generator.jobs.job import Job
from mirage_kernels.generator.jobs.run import Workshop, complete_all
from mirage_kernels.generator.jobs.store import Store
from mirage_kernels.generator.records import files
from mirage_kernels.generator.settings import STORE_VARIABLE, store_folder

FOUND = {"programs": [{"outs": {"z": "fp16[M<=8]", "a": "fp32[]"}}], "least": float("-inf")}


@pytest.fixture
def kept(store: Store, fake_job) -> Job:
    job = fake_job("kept")
    store.keep(job, FOUND)
    return job


def test_a_result_reads_back_with_the_order_of_names(store: Store, kept: Job) -> None:
    found = store.result(kept.key)
    assert found == FOUND
    assert list(found["programs"][0]["outs"]) == ["z", "a"]


def test_a_result_says_what_was_asked_for(store: Store, kept: Job) -> None:
    assert json.loads(store.path(kept.key).read_text())["asked"] == kept.problem.identity()


def test_looking_up_makes_no_folder(store: Store, fake_job) -> None:
    assert store.result(fake_job("other").key) is None
    assert not store.folder.exists()


def test_every_changed_byte_is_noticed(store: Store, kept: Job) -> None:
    path = store.path(kept.key)
    whole = path.read_bytes()
    for place in range(0, len(whole), 3):
        if whole[place : place + 1].isspace():
            continue  # between tokens: no part of the data
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        assert store.result(kept.key) is None, place


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b"null", b"\xff", b'{"sha256": 1}'])
def test_what_is_no_result_counts_as_missing(store: Store, kept: Job, content: bytes) -> None:
    store.path(kept.key).write_bytes(content)
    assert store.result(kept.key) is None


def test_a_result_under_another_name_counts_as_missing(store: Store, kept: Job, fake_job) -> None:
    other = fake_job("other")
    store.path(kept.key).rename(store.path(other.key))
    assert store.result(other.key) is None


def test_a_damaged_result_is_made_again(store: Store, fake_job, run_jobs) -> None:
    job = fake_job("a")
    run_jobs(job)
    path = store.path(job.key)
    whole = path.read_bytes()
    path.write_bytes(whole[:-40])
    (again,) = run_jobs(job)
    assert again.origin.value == "remade"
    assert path.read_bytes() == whole


def test_seconds_stand_apart_from_the_result(store: Store, fake_job, run_jobs) -> None:
    job = fake_job("a")
    (made,) = run_jobs(job)
    assert "seconds" not in store.path(job.key).read_text()
    assert store.seconds(job.key) == pytest.approx(made.seconds, abs=0.01)


def test_a_result_without_its_seconds_is_good(store: Store, fake_job, run_jobs) -> None:
    job = fake_job("a")
    run_jobs(job)
    (store.folder / "seconds" / f"{job.key}.json").write_text("{")
    (again,) = run_jobs(job)
    assert (again.origin.value, again.seconds) == ("store", None)


def make_here(job: Job, store: Store, origins) -> None:
    (outcome,) = complete_all([job], Workshop(store, Local()), lambda tick: None)
    origins.put(outcome.origin.value)


def test_two_processes_at_once_make_a_search_once(store: Store, fake_job) -> None:
    job = fake_job("a", seconds=0.1)
    fork = multiprocessing.get_context("fork")
    origins = fork.Queue()
    both = [fork.Process(target=make_here, args=(job, store, origins)) for _ in range(2)]
    for process in both:
        process.start()
    for process in both:
        process.join()
    assert sorted(origins.get(timeout=5) for _ in both) == ["new", "store"]
    assert sorted(job.problem.ran()) == list(range(6))
    assert [p.name for p in (store.folder / "results").iterdir()] == [f"{job.key}.json"]


def keep_many_times(job: Job, store: Store, number: int) -> None:
    for i in range(30):
        store.keep(job, FOUND | {"writer": [number, i] * 500})


def test_a_reader_never_sees_half_a_result(store: Store, kept: Job) -> None:
    fork = multiprocessing.get_context("fork")
    both = [fork.Process(target=keep_many_times, args=(kept, store, n)) for n in range(2)]
    for process in both:
        process.start()
    while any(process.is_alive() for process in both):
        assert store.result(kept.key) is not None
    assert [process.exitcode for process in both] == [0, 0]
    assert [p.name for p in (store.folder / "results").iterdir()] == [f"{kept.key}.json"]


def test_a_store_that_cannot_be_made_is_a_sentence(tmp_path: Path, fake_job) -> None:
    (tmp_path / "file").write_text("")
    shop = Workshop(Store(tmp_path / "file" / "store"), Local())
    with pytest.raises(FileError, match="Not a directory") as caught:
        complete_all([fake_job("a")], shop, lambda tick: None)
    assert "--store DIR" in caught.value.hint


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_store_without_permission_is_a_sentence(tmp_path: Path, fake_job) -> None:
    tmp_path.chmod(0o555)
    with pytest.raises(FileError, match="cannot be written: Permission denied"):
        complete_all([fake_job("a")], Workshop(Store(tmp_path / "s"), Local()), lambda tick: None)
    tmp_path.chmod(0o755)


def test_a_read_only_store_still_answers(store: Store, fake_job, run_jobs, monkeypatch) -> None:
    job = fake_job("a")
    run_jobs(job)

    def read_only(*_: object, **__: object) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(files.os, "replace", read_only)
    monkeypatch.setattr(os, "open", read_only)
    assert run_jobs(job)[0].origin.value == "store"


FULL = """
import resource, signal, sys
from pathlib import Path
from fake_search import FakeSearch
from mirage_kernels.generator.errors import FileError
from mirage_kernels.generator.jobs.executors import Local
from mirage_kernels.generator.jobs.job import Job
from mirage_kernels.generator.jobs.run import Workshop, complete_all
from mirage_kernels.generator.jobs.store import Store
folder, limit = sys.argv[1], int(sys.argv[2])
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
shop = Workshop(Store(Path(folder) / "store"), Local())
try:
    complete_all([Job("a", FakeSearch("a", folder, tasks=40))], shop, lambda tick: None)
except FileError as error:
    print(error.sentence)
"""


def test_what_was_finished_before_the_disk_was_full_is_kept(tmp_path: Path, fake_job) -> None:
    # A limit on the size of files stands in for the disk: the result is too large for it.
    command = [sys.executable, "-c", FULL, str(tmp_path), "2000"]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "cannot be written: File too large" in ran.stdout
    assert sorted(fake_job("a", tasks=40).problem.ran()) == list(range(40))
    subprocess.run([*command[:-1], "100000"], check=True)
    assert sorted(fake_job("a", tasks=40).problem.ran()) == list(range(40))


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
