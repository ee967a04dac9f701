"""Searches as jobs: cut into tasks, run by processes or Ray, kept on disk by what was asked for.

    problem --key--> store --missing--> executor --finished tasks--> store --all--> result

A result is a file named after everything that it depends on; making it again, anywhere, in any
number of processes, gives the same bytes.
"""
