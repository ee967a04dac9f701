"""Benchmarks: compiled ops measured against the memory floor and their peers."""
