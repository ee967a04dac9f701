"""What a step's kernels take within it: by themselves they follow their own kind."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from mirage_kernels.generator.bench.measure import captured

REPLAYS = 5


def kernels_of_a_layer(step: Callable[[], object], layers: int) -> list[dict[str, object]]:
    """Replay a step's graph under the profiler; return the kernels of a layer in order.

    `us` is from the end of the kernel before to its own, the median of all layers and replays;
    `starts_us` from the same end to its start, negative where they overlap. The step has as many
    kernels in every layer, and one before and behind them.
    """
    ends = _traced(step)
    a_step = len(ends) // REPLAYS
    each, more = divmod(a_step - 2, layers)
    if more:
        raise ValueError(f"{a_step - 2} kernels are not those of {layers} layers")
    found: list[dict[str, object]] = []
    for place in range(each):
        at = [r * a_step + 1 + la * each + place for r in range(REPLAYS) for la in range(layers)]
        pairs = [(ends[i - 1], ends[i]) for i in at]
        name = re.sub(
            r"<.*|\(anonymous namespace\)::|void |mirage::|generated::", "", pairs[0][1][2]
        )
        us = median(own[1] - before[1] for before, own in pairs)
        starts = median(own[0] - before[1] for before, own in pairs)
        found.append({"kernel": name, "us": round(us, 2), "starts_us": round(starts, 2)})
    return found


def _traced(step: Callable[[], object]) -> list[tuple[float, float, str]]:
    """Return start, end and name of every kernel of some replays, by their ends."""
    graph = captured([step])
    graph.replay()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as profiled:
        for _ in range(REPLAYS):
            graph.replay()
        torch.cuda.synchronize()
    with TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiled.export_chrome_trace(str(path))
        events: list[dict[str, Any]] = json.loads(path.read_text())["traceEvents"]
    kernels = [e for e in events if e.get("cat") == "kernel"]
    return sorted(((e["ts"], e["ts"] + e["dur"], e["name"]) for e in kernels), key=lambda e: e[1])
