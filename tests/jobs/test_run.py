"""Jobs in worker processes: looked up, made, resumed, given out again when a worker is lost."""

from __future__ import annotations

import random

import pytest

from mirage_kernels.generator.jobs.job import local, work
from mirage_kernels.generator.jobs.run import ATTEMPTS, Origin
from mirage_kernels.generator.jobs.store import Store
from mirage_kernels.generator.request import Event


def origins(outcomes) -> list[Origin]:
    return [outcome.origin for outcome in outcomes]


def test_a_second_run_only_looks_up(fake_job, run_jobs) -> None:
    jobs = [fake_job(name) for name in "abc"]
    first, second = run_jobs(*jobs), run_jobs(*jobs)
    assert origins(first) == [Origin.NEW] * 3
    assert origins(second) == [Origin.STORE] * 3
    assert [(o.found, o.seconds) for o in second] == [(o.found, o.seconds) for o in first]
    assert all(sorted(job.ran()) == list(range(6)) for job in jobs)


def test_outcomes_come_in_the_order_of_jobs(fake_job, run_jobs) -> None:
    run_jobs(fake_job("b"))
    names = ["c", "b", "a", "b"]
    outcomes = run_jobs(*(fake_job(name, seconds=0.02 * (name == "c")) for name in names))
    assert [o.job.name for o in outcomes] == names


def test_the_outcome_does_not_depend_on_processes_or_lost_workers(fake_job, run_jobs) -> None:
    (one,) = run_jobs(fake_job("a"), processes=1)
    for settings in ({}, {"trouble": "kill", "times": 2}):
        (again,) = run_jobs(fake_job("a", **settings), processes=5, fresh=True)
        assert again.found == one.found


@pytest.mark.parametrize("seed", range(3))
def test_the_outcome_does_not_depend_on_what_is_finished(fake_job, seed: int) -> None:
    job, rng = fake_job("a"), random.Random(seed)
    told = list(work(job, [], 1))
    done = [message.last for message in told if getattr(message, "last", None)]
    assert [(t.round, t.index) for t in done] == [(r, i) for r in (0, 1) for i in range(6)]
    again = list(work(job, rng.sample(done, 7), 1))
    assert again[-1] == told[-1]
    assert sum(getattr(message, "last", None) is not None for message in again) == 5


def test_a_search_of_no_tasks_has_an_outcome(fake_job, run_jobs) -> None:
    assert run_jobs(fake_job("a", tasks=0))[0].found.programs == ()


def test_other_sources_refuse_the_work(fake_job) -> None:
    job = fake_job("a")
    vars(job)["key"] = "0" * 64  # as another version computes it
    (refusal,) = work(job, [], 1)
    assert "another version" in refusal.sentence
    assert job.ran() == []


@pytest.mark.parametrize("trouble", ["kill", "exit", "error"])
def test_a_lost_worker_costs_the_task_it_was_at(fake_job, run_jobs, trouble: str) -> None:
    jobs = [fake_job("a"), fake_job("b", trouble=trouble), fake_job("c")]
    outcomes = run_jobs(*jobs, processes=1)
    assert origins(outcomes) == [Origin.NEW] * 3
    assert [o.lost for o in outcomes] == [0, 1, 0]
    assert [job.ran() for job in jobs] == [list(range(6))] * 3


def test_a_lost_child_of_a_worker_is_a_lost_worker(fake_job, run_jobs) -> None:
    (outcome,) = run_jobs(fake_job("a", trouble="kill"), processes=3)
    assert (outcome.origin, outcome.lost) == (Origin.NEW, 1)


def test_a_job_that_loses_every_worker_fails_with_its_last_words(fake_job, run_jobs) -> None:
    jobs = [fake_job("bad", trouble="exit", times=99), fake_job("good")]
    bad, good = run_jobs(*jobs)
    assert (bad.origin, good.origin) == (Origin.FAILED, Origin.NEW)
    assert bad.lost == ATTEMPTS
    assert "search job bad lost 3 workers" in bad.failure.sentence
    assert "ended with exit code 7" in bad.failure.sentence
    assert "some words, the last ones" in bad.failure.sentence


def test_a_failed_job_goes_on_where_it_stood(fake_job, run_jobs) -> None:
    job = fake_job("a", trouble="kill", times=ATTEMPTS)
    assert origins(run_jobs(job, processes=1)) == [Origin.FAILED]
    assert origins(run_jobs(job, processes=1)) == [Origin.RESUMED]
    assert job.ran() == list(range(6))


def test_an_error_of_the_search_is_told_once(fake_job, run_jobs) -> None:
    (outcome,) = run_jobs(fake_job("a", trouble="ours", times=99))
    assert (outcome.origin, outcome.lost) == (Origin.FAILED, 0)
    assert outcome.failure.sentence == "there is no such muGraph"
    assert outcome.failure.hint == "try another one"


def test_what_a_search_prints_is_no_result(fake_job, run_jobs, capfd) -> None:
    assert origins(run_jobs(fake_job("a", trouble="print"))) == [Origin.NEW]
    assert capfd.readouterr().out == ""


def test_fresh_makes_everything_anew_and_forgets_unfinished_work(fake_job, run_jobs) -> None:
    job = fake_job("a", trouble="ours")
    run_jobs(job, processes=1)
    assert job.ran() == [0, 1, 2]
    for _ in range(2):
        assert origins(run_jobs(job, processes=1, fresh=True)) == [Origin.NEW]
    assert job.ran() == [0, 1, 2, *range(6), *range(6)]


def test_a_finished_job_leaves_no_tasks_and_no_lock(fake_job, run_jobs, store: Store) -> None:
    jobs = [fake_job("a"), fake_job("b", trouble="kill")]
    run_jobs(*jobs)
    assert {path.name for path in store.folder.iterdir()} == {f"{job.key}.json" for job in jobs}


def test_progress_counts_tasks_of_each_round_and_ends(fake_job, run_jobs) -> None:
    told: list[Event] = []
    run_jobs(fake_job("a"), processes=1, told=told)
    seen = [(e.done, e.total, e.text) for e in told]
    assert seen[0] == (0, 0, "cutting it into tasks")
    assert seen[1:8] == [*((i, 6, "search") for i in range(6)), (0, 6, "prove")]
    assert seen[-1] == (6, 6, "done")


def test_an_interruption_ends_work_in_processes(interrupted, run_jobs) -> None:
    hanging = interrupted(local)
    (again,) = run_jobs(hanging)
    assert (again.origin, sorted(hanging.ran())) == (Origin.RESUMED, list(range(6)))
