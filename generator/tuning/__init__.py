"""Tuning: variants of a kernel are compiled, measured on a GPU, and the fastest is kept.

    candidates --compile--> libraries and a manifest --measure--> measured.json --choose--> catalog

`compile` needs no GPU, `measure` no compiler: the machine with the GPU may be another one. What
they agree on is a folder: `manifest.json` with a library per candidate, beside it `measured.json`,
which is written whole after every measurement, so that an interrupted tuning goes on where it was.
"""
