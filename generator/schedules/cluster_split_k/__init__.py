"""Cluster split-K: two blocks of a cluster share rows and split the depth, for many tokens."""

from mirage_kernels.generator.schedules.cluster_split_k.rule import SCHEDULE as SCHEDULE
