"""Searches as jobs: cut into tasks, run by processes or Ray, kept on disk by what was asked for.

problem --key--> store --missing--> executor --finished tasks--> store --all--> result
"""
