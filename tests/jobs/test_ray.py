"""The Ray executor on a cluster of this machine: the same outcomes, and lost workers replaced."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from mirage_kernels.generator.jobs.job import Executor
from mirage_kernels.generator.jobs.run import Origin

pytest.importorskip("ray", reason="Ray is not installed: pip install 'mirage-kernels[ray]'")


@pytest.fixture(scope="module")
def ray_executor() -> Iterator[Executor]:
    from mirage_kernels.generator.jobs.ray import connected

    with connected(None, 2) as executor:
        yield executor


def test_ray_finds_what_processes_find(fake_job, run_jobs, ray_executor: Executor) -> None:
    jobs = [fake_job(name) for name in "abc"]
    on_ray = run_jobs(*jobs, executor=ray_executor)
    assert [o.origin for o in on_ray] == [Origin.NEW] * 3
    assert [o.found for o in on_ray] == [o.found for o in run_jobs(*jobs, fresh=True)]


def test_a_job_whose_ray_worker_is_killed_is_given_out_again(
    fake_job, run_jobs, ray_executor: Executor
) -> None:
    jobs = [fake_job("a"), fake_job("b", trouble="kill"), fake_job("c")]
    outcomes = run_jobs(*jobs, executor=ray_executor)
    assert [o.origin for o in outcomes] == [Origin.NEW] * 3
    assert [o.lost for o in outcomes] == [0, 1, 0]
    # What a worker sent just before it was killed may be lost on the way: those tasks run again.
    assert [sorted(set(job.ran())) for job in jobs] == [list(range(6))] * 3
    assert [job.ran() for job in (jobs[0], jobs[2])] == [list(range(6))] * 2


def test_a_job_that_loses_every_ray_worker_fails_alone(
    fake_job, run_jobs, ray_executor: Executor
) -> None:
    jobs = [fake_job("bad", trouble="error", times=99), fake_job("good")]
    bad, good = run_jobs(*jobs, executor=ray_executor)
    assert (bad.origin, good.origin) == (Origin.FAILED, Origin.NEW)
    assert "search job bad lost 3 workers" in bad.failure.sentence
    assert "ZeroDivisionError: a bug of the search" in bad.failure.sentence


def test_an_error_of_the_search_is_told_once_by_ray(
    fake_job, run_jobs, ray_executor: Executor
) -> None:
    (outcome,) = run_jobs(fake_job("a", trouble="ours"), executor=ray_executor)
    assert (outcome.lost, outcome.failure.sentence) == (0, "there is no such muGraph")


def test_an_interruption_ends_work_on_ray(interrupted, run_jobs, ray_executor: Executor) -> None:
    hanging = interrupted(ray_executor)
    (again,) = run_jobs(hanging, executor=ray_executor)
    assert (again.origin, sorted(hanging.ran())) == (Origin.RESUMED, list(range(6)))


JOIN = """
import sys, time
from fake_search import FakeSearch, complete
from mirage_kernels.generator.jobs.ray import connected
address, folder = sys.argv[1:]
with connected(address, 1) as executor:
    (outcome,) = complete(folder, FakeSearch("a", folder, trouble="kill"), executor=executor)
    time.sleep(0.5)  # Ray tells of the lost worker a little later
print(outcome.origin.value, outcome.lost)
"""


def test_a_running_cluster_is_joined_by_its_address(ray_executor: Executor, tmp_path: Path) -> None:
    import ray

    address = ray.get_runtime_context().gcs_address
    command = [sys.executable, "-c", JOIN, address, str(tmp_path)]
    joined = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert joined.stdout == "new 1\n"  # what Ray says of the lost worker is on stderr
    assert ray.is_initialized()


@pytest.mark.parametrize("address", ["127.0.0.1:1", "nowhere"])
def test_a_cluster_that_does_not_answer_is_a_sentence(address: str, tmp_path: Path) -> None:
    command = [sys.executable, "-c", JOIN, address, str(tmp_path)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert f"no Ray cluster answers at {address}: " in ran.stderr.splitlines()[-1]
