"""A worker process of the local executor: an assignment on stdin, messages on stdout, pickled."""

from __future__ import annotations

import os
import pickle
import sys

from mirage_kernels.generator.jobs.work import end_with, work


def main() -> None:
    """Do one assignment of the parent process."""
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what the search may print is no message
    assignment, parent = pickle.load(sys.stdin.buffer)
    end_with(parent)
    for message in work(assignment):
        pickle.dump(message, out)
        out.flush()


if __name__ == "__main__":
    main()
