"""The work of a job: the same outcome for any number of processes, whatever is known already."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from mirage_kernels.generator.jobs.job import Job, TaskDone
from mirage_kernels.generator.jobs.work import Assignment, Merged, Message, Planned, work

EVERY = [(r, i) for r in (0, 1) for i in range(6)]


def messages(job: Job, finished: list[TaskDone] | None = None, processes: int = 1) -> list[Message]:
    return list(work(Assignment(job, job.key, finished or [], processes)))


def tasks_in(told: list[Message]) -> list[TaskDone]:
    return [m for m in told if isinstance(m, TaskDone)]


def test_rounds_are_told_with_their_tasks(fake_job) -> None:
    told = messages(fake_job("a"))
    assert [m for m in told if isinstance(m, Planned)] == [
        Planned("search", 6, 0),
        Planned("prove", 6, 0),
    ]
    assert [(t.round, t.index) for t in tasks_in(told)] == EVERY
    assert isinstance(told[-1], Merged)


@pytest.mark.parametrize("processes", [2, 3, 9])
def test_the_outcome_does_not_depend_on_processes(fake_job, processes: int) -> None:
    job = fake_job("a", seconds=0.01)
    told = messages(job, processes=processes)
    assert told[-1] == messages(job)[-1]
    assert sorted((t.round, t.index) for t in tasks_in(told)) == EVERY


@pytest.mark.parametrize("seed", range(5))
def test_the_outcome_does_not_depend_on_what_is_finished(fake_job, seed: int) -> None:
    job, rng = fake_job("a"), random.Random(seed)
    told = messages(job)
    known = rng.sample(tasks_in(told), rng.randrange(13))
    again = messages(job, known)
    assert again[-1] == told[-1]
    assert len(tasks_in(again)) == 12 - len(known)


def test_other_sources_refuse_the_work(fake_job) -> None:
    job = fake_job("a")
    (refusal,) = work(replace(Assignment(job, job.key, []), key="0" * 64))
    assert "another version" in refusal.sentence
    assert job.problem.ran() == []


def test_a_search_of_no_tasks_has_an_outcome(fake_job) -> None:
    told = messages(fake_job("a", tasks=0))
    assert told[-1].found["programs"] == []
