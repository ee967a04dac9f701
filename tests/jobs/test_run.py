"""Jobs in worker processes: looked up, made, resumed, given out again when a worker is lost."""

from __future__ import annotations

from pathlib import Path

import pytest

from mirage_kernels.generator.jobs.executors import Local
from mirage_kernels.generator.jobs.run import ATTEMPTS, Origin, Tick, _Shares
from mirage_kernels.generator.jobs.store import Store


def origins(outcomes) -> list[Origin]:
    return [outcome.origin for outcome in outcomes]


def results(store: Store) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in (store.folder / "results").iterdir()}


def test_a_second_run_only_looks_up(fake_job, run_jobs) -> None:
    jobs = [fake_job(name) for name in "abc"]
    first, second = run_jobs(*jobs), run_jobs(*jobs)
    assert origins(first) == [Origin.NEW] * 3
    assert origins(second) == [Origin.STORE] * 3
    assert [o.found for o in second] == [o.found for o in first]
    assert all(sorted(job.problem.ran()) == list(range(6)) for job in jobs)


def test_outcomes_come_in_the_order_of_jobs(fake_job, run_jobs) -> None:
    run_jobs(fake_job("b"))
    names = ["c", "b", "a", "b"]
    outcomes = run_jobs(*(fake_job(name, seconds=0.02 * (name == "c")) for name in names))
    assert [o.job.name for o in outcomes] == names


def test_results_are_the_same_bytes_for_any_number_of_processes(
    fake_job, run_jobs, store: Store
) -> None:
    run_jobs(*map(fake_job, "abc"), processes=1)
    one = results(store)
    run_jobs(*map(fake_job, "abc"), processes=7, fresh=True)
    assert one == results(store)
    assert len(one) == 3


def test_another_search_is_another_result(fake_job, run_jobs, store: Store) -> None:
    run_jobs(fake_job("a"), fake_job("a", tasks=5))
    assert len(results(store)) == 2


@pytest.mark.parametrize("trouble", ["kill", "exit", "error"])
def test_a_lost_worker_costs_the_task_it_was_at(fake_job, run_jobs, trouble: str) -> None:
    jobs = [fake_job("a"), fake_job("b", trouble=trouble), fake_job("c")]
    outcomes = run_jobs(*jobs, processes=1)
    assert origins(outcomes) == [Origin.NEW] * 3
    assert [o.lost for o in outcomes] == [0, 1, 0]
    assert [job.problem.ran() for job in jobs] == [list(range(6))] * 3


def test_a_lost_child_of_a_worker_is_a_lost_worker(fake_job, run_jobs) -> None:
    (outcome,) = run_jobs(fake_job("a", trouble="kill"), processes=3)
    assert (outcome.origin, outcome.lost) == (Origin.NEW, 1)


def test_a_lost_worker_changes_no_byte(fake_job, run_jobs, store: Store) -> None:
    run_jobs(fake_job("a", trouble="kill", times=2))
    broken = results(store)
    run_jobs(fake_job("a"), fresh=True)
    assert broken == results(store)


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
    assert job.problem.ran() == list(range(6))


def test_an_error_of_the_search_is_told_once(fake_job, run_jobs) -> None:
    job = fake_job("a", trouble="ours", times=99)
    (outcome,) = run_jobs(job)
    assert (outcome.origin, outcome.lost) == (Origin.FAILED, 0)
    assert outcome.failure.sentence == "there is no such muGraph"
    assert outcome.failure.hint == "try another one"


def test_what_a_search_prints_is_no_message(fake_job, run_jobs, capfd) -> None:
    assert origins(run_jobs(fake_job("a", trouble="print"))) == [Origin.NEW]
    assert capfd.readouterr().out == ""


def test_fresh_makes_everything_anew(fake_job, run_jobs) -> None:
    job = fake_job("a")
    run_jobs(job)
    assert origins(run_jobs(job, fresh=True)) == [Origin.NEW]
    assert len(job.problem.ran()) == 12


def test_fresh_forgets_unfinished_work(fake_job, run_jobs) -> None:
    job = fake_job("a", trouble="ours")
    run_jobs(job, processes=1)
    assert job.problem.ran() == [0, 1, 2]
    run_jobs(job, processes=1, fresh=True)
    assert job.problem.ran() == [0, 1, 2, *range(6)]


def test_a_finished_job_leaves_no_tasks(fake_job, run_jobs, store: Store) -> None:
    run_jobs(fake_job("a"), fake_job("b", trouble="kill"))
    assert {Path(name).suffix for name in results(store)} == {".json"}


def test_progress_counts_tasks_of_each_round_and_ends(fake_job, run_jobs) -> None:
    ticks: list[Tick] = []
    run_jobs(fake_job("a"), processes=1, ticks=ticks)
    told = [(t.done, t.tasks, t.words) for t in ticks]
    assert told[0] == (0, 0, "cutting it into tasks")
    assert told[1:8] == [*((i, 6, "search") for i in range(6)), (0, 6, "prove")]
    assert told[-1] == (6, 6, "done")


@pytest.mark.parametrize(("processes", "jobs"), [(8, 5), (8, 1), (2, 5), (7, 7), (1, 3), (12, 5)])
def test_processes_are_dealt_out_without_rest(processes: int, jobs: int) -> None:
    shares = _Shares(processes, jobs)
    at_once = [shares.share() for _ in range(min(processes, jobs))]
    dealt = [share.__enter__() for share in at_once]
    assert sum(dealt) == processes
    assert max(dealt) - min(dealt) <= 1


def test_an_interruption_ends_work_in_processes(interrupted, run_jobs) -> None:
    hanging = interrupted(Local())
    (again,) = run_jobs(hanging)
    assert (again.origin, sorted(hanging.problem.ran())) == (Origin.RESUMED, list(range(6)))
