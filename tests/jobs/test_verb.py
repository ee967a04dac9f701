"""`mirage-kernels search`: what it prints, what it keeps, its exit codes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from mirage_kernels.generator.commands import generate
from mirage_kernels.generator.jobs.job import Job

Search = Callable[..., SimpleNamespace]


@pytest.fixture
def verb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mirage_kernels) -> Search:
    """Run the verb on jobs of a fake search, in the test's store."""

    def run(jobs: list[Job], *words: str) -> SimpleNamespace:
        monkeypatch.setattr(generate, "search_jobs", lambda *_, **__: jobs)
        return mirage_kernels("search", "--store", str(tmp_path / "store"), *words)

    return run


def test_a_row_per_job_says_what_was_done(verb: Search, fake_job) -> None:
    outcome = verb([fake_job("a"), fake_job("b", tasks=50)])
    assert outcome.code == 0
    rows = [line.split() for line in outcome.out.splitlines()[:3]]
    assert rows[0] == ["job", "from", "states", "candidates", "verified", "proved", "seconds"]
    assert rows[1][:-1] == ["a", "new", "21", "8", "6", "5"]
    assert rows[2][:-1] == ["b", "new", "1,275", "52", "50", "49"]
    assert "a: pruned by type 1,700 and time 2" in outcome.out
    assert "2 jobs (2 new) in" in outcome.out
    assert "  b        50/50  done" in outcome.err


def test_a_second_run_takes_everything_from_the_store(verb: Search, fake_job) -> None:
    verb([fake_job("a")])
    outcome = verb([fake_job("a")])
    assert outcome.out.splitlines()[1].split()[1] == "store"
    assert "1 job (1 store)" in outcome.out


def test_fresh_and_resume_exclude_each_other(verb: Search, fake_job) -> None:
    job = fake_job("a")
    for word in ("--resume", "--fresh"):
        assert verb([job], word).code == 0
    assert len(job.ran()) == 12
    assert verb([job], "--fresh", "--resume").code == 2


def test_a_failed_job_is_a_row_and_exit_code_1(verb: Search, fake_job) -> None:
    jobs = [fake_job("bad", trouble="exit", times=9), fake_job("good", trouble="kill")]
    outcome = verb(jobs)
    assert outcome.code == 1
    assert outcome.out.splitlines()[1].split() == ["bad", "FAILED"]
    assert "FAILED bad: search job bad lost 3 workers" in outcome.out
    assert "good: 1 worker lost on the way, and replaced" in outcome.out
    assert "Traceback" not in outcome.err


def test_json_is_one_document(verb: Search, fake_job) -> None:
    jobs = [fake_job("a"), fake_job("bad", trouble="ours", times=9)]
    outcome = verb(jobs, "--json")
    assert outcome.code == 1
    good, bad = json.loads(outcome.out)["jobs"]
    assert (good["job"], good["from"], good["states"], good["proved"]) == ("a", "new", 21, 5)
    assert good["pruned"] == {"type": 1700, "time": 2}
    assert good["key"] == jobs[0].key
    assert bad["error"] == "there is no such muGraph"


def test_an_interruption_says_where_the_work_is(verb: Search, fake_job, monkeypatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(generate, "complete_all", interrupted)
    outcome = verb([fake_job("a")])
    assert outcome.code == 130
    assert "finished tasks are kept in" in outcome.err
    assert "the same command goes on" in outcome.err
    assert "Traceback" not in outcome.err


def test_a_store_that_cannot_be_written_is_a_sentence(verb: Search, fake_job, tmp_path) -> None:
    (tmp_path / "store").write_text("")
    outcome = verb([fake_job("a")])
    assert outcome.code == 2
    assert "store cannot be used: File exists" in outcome.err
    assert "hint: keep results elsewhere: --store DIR" in outcome.err


def test_without_ray_the_way_to_get_it_is_named(verb: Search, fake_job, monkeypatch) -> None:
    monkeypatch.setattr(generate.importlib.util, "find_spec", lambda name: None)
    outcome = verb([fake_job("a")], "--executor", "ray")
    assert outcome.code == 2
    assert "Ray is not installed" in outcome.err
    assert "pip install 'mirage-kernels[ray]'" in outcome.err
