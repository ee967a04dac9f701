"""Sliced-K: every warp of a block takes slices of the depth, by mma from a multistage pipeline."""

from mirage_kernels.generator.schedules.sliced_k.rule import SCHEDULE as SCHEDULE
