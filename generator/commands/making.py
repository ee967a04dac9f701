"""Kernels that a command makes, one after the other or several at once."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager

from mirage_kernels.generator import pipeline
from mirage_kernels.generator.errors import MirageError
from mirage_kernels.generator.jobs.abreast import Abreast
from mirage_kernels.generator.jobs.store import Store
from mirage_kernels.generator.pipeline import Result
from mirage_kernels.generator.request import Request
from mirage_kernels.generator.settings import store_folder
from mirage_kernels.generator.terminal import Terminal

Made = tuple[Result, float]  # seconds that it took, a shared search included once


@contextmanager
def abreast(arguments: argparse.Namespace) -> Iterator[Abreast]:
    """Yield what makes kernels in --jobs processes at once; what still runs ends with the block."""
    store = Store(store_folder(arguments.store))

    def make(request: Request, jobs: int) -> Result:
        return pipeline.generate(request, jobs=jobs, progress=lambda event: None, store=store)

    with closing(Abreast(make, arguments.jobs)) as others:
        yield others


def generate_one(
    request: Request,
    arguments: argparse.Namespace,
    terminal: Terminal,
    others: Abreast | None = None,
) -> Made:
    """Generate one kernel with live progress, then print its line; its search may be stored.

    One that was begun with `others` is waited for.
    """
    started = time.monotonic()
    store = Store(store_folder(arguments.store))
    with terminal.watch(request.name) as progress:
        made = others.take(request) if others else None
        if made is None:
            result = pipeline.generate(request, jobs=arguments.jobs, progress=progress, store=store)
            made = result, time.monotonic() - started
    terminal.note(f"  done     {request.name}  {made[1]:.1f} s")
    return made


def generate_all(
    requests: Sequence[Request],
    arguments: argparse.Namespace,
    terminal: Terminal,
    failed: Callable[[Request, MirageError], None] | None = None,
) -> list[Made]:
    """Generate kernels of one recipe: the first, which makes the search of all, then the others.

    `failed` hears of what goes wrong, and the others are made all the same; without it that is
    raised.
    """
    made = list[Made]()
    with abreast(arguments) as others:
        for i, request in enumerate(requests):
            try:
                made.append(generate_one(request, arguments, terminal, others))
            except MirageError as error:
                if failed is None:
                    raise
                failed(request, error)
            if i == 0:
                others.begin(requests[1:])
    return made
