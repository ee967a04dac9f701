"""How well the model of general kernels chooses: python -m programs.choices DIR --json FILE

DIR holds what `programs.generate` made, the catalog what tuning measured of it. Of every bucket the
measured time of the knobs that the model predicts to be fastest is compared with the least.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from statistics import geometric_mean
from typing import Any

from mirage_kernels.generator.build.compile import DEFAULT_ARCH
from mirage_kernels.generator.errors import PlanError
from mirage_kernels.generator.records.folder import emitted
from mirage_kernels.generator.records.record import KernelRecord
from mirage_kernels.generator.schedules.general import GeneralKnobs, predict, roles_of, sizes_for
from mirage_kernels.generator.target import target
from mirage_kernels.generator.tuning.catalog import Bucket, Key, load_catalog
from programs.generate import CATALOG

LEAST_TRIED = 4  # measured candidates of a bucket


def choice_of(record: KernelRecord, bucket: Bucket) -> dict[str, Any] | None:
    """Return what the model chooses in a bucket, and how much longer it takes than the fastest.

    None where few candidates were measured, or the muGraph of today has other axes. Extents are
    those of the call that candidates were compared at.
    """
    graph = record.graph
    sizes = sizes_for(graph, roles_of(graph).counted, bucket.size)
    compared = (text.partition("=") for p in bucket.points for text in p.name.split(", "))
    sizes |= {dim: int(extent) for dim, _, extent in compared if dim in sizes}
    times = list[tuple[float, float]]()  # predicted and measured
    for tried in bucket.tried:
        if isinstance(tried.knobs, GeneralKnobs) and tried.assumed_us and not tried.failed:
            try:
                predicted = predict(graph, tried.knobs, sizes, target(record.arch))
            except PlanError:
                return None
            times.append((predicted, tried.assumed_us[0]))
    if len(times) < LEAST_TRIED:
        return None
    _, chosen = min(times, key=lambda pair: pair[0])
    least = min(us for _, us in times)
    return {"us": chosen, "least_us": least, "ratio": round(chosen / least, 3)}


def rows(folder: Path) -> Iterator[dict[str, Any]]:
    """Yield a row for every bucket of the tuned general kernels that a folder has records of."""
    records = {
        Key(r.recipe, r.dtype, r.shape).name: r for r in emitted(folder, DEFAULT_ARCH).values()
    }
    for tuned in load_catalog(CATALOG).of(DEFAULT_ARCH):
        record = records.get(tuned.key.name)
        for bucket in tuned.buckets if record is not None else ():
            found = choice_of(record, bucket)
            if found is not None:
                yield {"kernel": tuned.key.name, "bucket": bucket.size} | found


def main() -> None:
    """Print the mean ratio, and write a row for each bucket."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--json", type=Path, required=True)
    options = parser.parse_args()
    found = list(rows(options.folder))
    mean = round(geometric_mean(row["ratio"] for row in found), 3)
    kernels = len({row["kernel"] for row in found})
    print(
        f"{len(found)} buckets of {kernels} kernels: {mean} times as long as the fastest measured"
    )
    about = {"command": "python -m programs.choices DIR", "ratio": mean}
    options.json.write_text(json.dumps({**about, "rows": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
