"""Cluster split-K: two blocks of a cluster share rows and split the depth, for many tokens."""

from __future__ import annotations

from mirage_kernels.generator.schedules.cluster_split_k.knobs import ClusterSplitK, SplitBlock
from mirage_kernels.generator.schedules.cluster_split_k.rule import (
    candidates,
    choose,
    fits,
    predict,
)
from mirage_kernels.generator.schedules.loop import lowered, sizes
from mirage_kernels.generator.schedules.schedule import Schedule

registers, shared_bytes = sizes(ClusterSplitK, SplitBlock.of)
SCHEDULE = Schedule(
    name=ClusterSplitK.schedule,
    knobs=ClusterSplitK,
    lower=lowered,
    fits=fits,
    choose=choose,
    candidates=candidates,
    registers=registers,
    shared_bytes=shared_bytes,
    predict=predict,
)
