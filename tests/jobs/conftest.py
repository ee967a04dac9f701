"""Jobs of a fake search, in a store of their own, and executors for them."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from mirage_kernels.generator.jobs.job import Executor, Job, local
from mirage_kernels.generator.jobs.run import Outcome, Workshop, complete_all
from mirage_kernels.generator.jobs.store import Store
from mirage_kernels.generator.request import Event

HERE = Path(__file__).resolve().parent
# Worker processes unpickle the fake search by its module's name.
sys.path.insert(0, str(HERE))
os.environ["PYTHONPATH"] = os.pathsep.join(
    filter(None, [str(HERE), os.environ.get("PYTHONPATH", "")])
)

FakeJob = Callable[..., Job]
RunJobs = Callable[..., list[Outcome]]


@pytest.fixture
def fake_job(tmp_path: Path) -> FakeJob:
    """Make a job of a fake search that notes in the test's folder what it runs."""
    from fake_search import FakeSearch

    return lambda name, **settings: FakeSearch(name, str(tmp_path), **settings)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


@pytest.fixture
def run_jobs(store: Store) -> RunJobs:
    """Run jobs in the test's store; `told` is filled with the progress."""

    def run(
        *jobs: Job,
        executor: Executor = local,
        processes: int = 2,
        fresh: bool = False,
        told: list[Event] | None = None,
    ) -> list[Outcome]:
        shop = Workshop(store, executor, processes, fresh)
        return complete_all(jobs, shop, (told if told is not None else []).append)

    return run


@pytest.fixture
def interrupted(fake_job: FakeJob, store: Store) -> Callable[[Executor], Job]:
    """Interrupt two jobs while one hangs in its fourth task; return that one."""

    def run(executor: Executor) -> Job:
        hanging = fake_job("hanging", trouble="hang")
        other = fake_job("other", tasks=3000, seconds=0.01)
        hangs = Path(hanging.folder) / "hanging.troubles"

        def interrupt(event: Event) -> None:
            if event.stage == "other" and hangs.exists():
                raise KeyboardInterrupt

        started = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            complete_all([hanging, other], Workshop(store, executor, 2), interrupt)
        assert time.monotonic() - started < 10
        assert hanging.ran() == [0, 1, 2]
        return hanging

    return run
