"""The Ray executor: every job is one Ray task with one CPU, on this machine or on a cluster.

A task streams its messages back, so the driver keeps finished tasks as they come. Ray itself
retries nothing: a task that is given out again starts from what has arrived of its lost worker's.
"""

from __future__ import annotations

import socket
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from typing import cast

import ray
from ray.exceptions import RayError

from mirage_kernels.generator.errors import MirageError, ToolchainError
from mirage_kernels.generator.jobs.job import (
    POLL_SECONDS,
    Executor,
    Job,
    Message,
    Messages,
    TaskDone,
    WorkerLostError,
    work,
)
from mirage_kernels.generator.search.sketch import Found
from mirage_kernels.generator.settings import quiet_ray

_ANSWER_SECONDS = 10
_OBJECT_BYTES = 100 << 20  # messages are small: the store of shared objects can be, too


@contextmanager
def connected(address: str | None, processes: int) -> Iterator[Executor]:
    """Connect to the cluster at an address, or run one on this machine meanwhile.

    Raises ToolchainError where no cluster answers.
    """
    # Ray prints what happens to workers on stdout, which is for results.
    with redirect_stdout(sys.stderr):
        try:
            quiet_ray()
            host, colon, port = (address or "").rpartition(":")
            if colon and port.isdecimal() and "/" not in host:  # where nothing listens Ray waits
                socket.create_connection((host.strip("[]"), int(port)), _ANSWER_SECONDS).close()
            ray.init(
                address=address or "local",
                # What a running cluster has is not for this process to say.
                num_cpus=None if address else processes,
                include_dashboard=None if address else False,
                object_store_memory=None if address else _OBJECT_BYTES,
                log_to_driver=False,
                configure_logging=False,
            )
        except (OSError, RuntimeError, ValueError, ImportError) as error:
            reason = str(error).strip().partition("\n")[0]
            raise ToolchainError(
                f"no Ray cluster answers at {address or 'this machine'}: {reason}",
                "start one with `ray start --head`, or leave out --ray-address",
            ) from error
        try:
            yield on_ray
        finally:
            ray.shutdown()


def on_ray(
    job: Job, finished: Sequence[TaskDone], processes: int, stopping: threading.Event
) -> Messages:
    """Yield the messages of a Ray task on the cluster that this process is connected to.

    Raises WorkerLostError when its worker ends before them.
    """
    task = ray.remote(num_cpus=1, max_retries=0, num_returns="streaming")(work)
    messages = cast("ray.ObjectRefGenerator[Message]", task.remote(job, finished, processes))
    ended = False
    try:
        while not (ended or stopping.is_set()):
            if ray.wait([messages], timeout=POLL_SECONDS)[0]:
                message: Message = ray.get(next(messages))
                ended = isinstance(message, Found | MirageError)
                yield message
    except (RayError, StopIteration) as error:
        ended = True
        raise WorkerLostError(type(error).__name__, str(error)) from error
    finally:
        if not ended:
            ray.cancel(messages, force=True)
