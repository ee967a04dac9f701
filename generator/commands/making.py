"""Kernels that a command makes, one after the other or several at once."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager

from mirage_kernels.generator import pipeline
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
