"""Compares two measurements of the same calls, made on one machine before a change and after it.

    mirage-kernels bench --dtype bf16 --json before.json --commit OLD
    mirage-kernels bench --dtype bf16 --json after.json --commit NEW
    python benchmarks/compare.py before.json after.json --json results/before_after.json

Says which calls take longer than before by more than a share, and how all do on average. Exits with
1 if any do.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Compared:
    """A call before and after, in microseconds: as it is, and with weights promised constant."""

    workload: str
    setting: str
    dtype: str
    dims: Mapping[str, int]
    before_us: float
    after_us: float
    promised_before_us: float
    promised_after_us: float

    @property
    def slowdown(self) -> float:
        """Time after over time before, of the two kinds of calls the larger."""
        return max(self.after_us / self.before_us, self.promised_after_us / self.promised_before_us)

    def __str__(self) -> str:
        """Say how a call did in one line."""
        dims = " ".join(f"{name}={size}" for name, size in self.dims.items())
        call = " ".join(part for part in (self.workload, self.setting, self.dtype, dims) if part)
        return (
            f"{call}: {self.before_us:.2f} -> {self.after_us:.2f} us, promised "
            f"{self.promised_before_us:.2f} -> {self.promised_after_us:.2f}"
        )


def compared(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[Compared]:
    """Yield the calls that both have, in the order of the second."""
    known = {_key(row): row for row in before["rows"]}
    for row in after["rows"]:
        old = known.get(_key(row))
        if old is not None:
            times = [round(r[k], 3) for k in ("ours_us", "promised_us") for r in (old, row)]
            setting = str(row.get("setting") or "")
            yield Compared(row["workload"], setting, row["dtype"], row["dims"], *times)


def _key(row: Mapping[str, Any]) -> tuple[object, ...]:
    setting = row.get("setting") or ""
    return row["workload"], setting, row["dtype"], tuple(sorted(row["dims"].items()))


def mean(rows: list[Compared]) -> float:
    """Return the geometric mean of time after over time before."""
    return math.exp(statistics.fmean(math.log(row.after_us / row.before_us) for row in rows))


def main() -> int:
    """Compare two files."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument("--share", type=float, default=0.02, help="more than this is slower")
    parser.add_argument("--json", type=Path, help="write what was compared")
    asked = parser.parse_args()
    before, after = (json.loads(path.read_text()) for path in (asked.before, asked.after))
    rows = [*compared(before, after)]
    if not rows:
        print("the two files have no call in common", file=sys.stderr)
        return 2
    slower = [row for row in rows if row.slowdown > 1 + asked.share]
    for row in slower:
        print(row)
    print(
        f"{len(rows)} calls: {mean(rows):.3f} of the time before, {len(slower)} are slower by more "
        f"than {asked.share:.0%}"
    )
    if asked.json:
        document = {"before": before["environment"], "after": after["environment"]}
        document["rows"] = [asdict(row) for row in rows]
        asked.json.write_text(json.dumps(document, indent=1) + "\n")
    return int(bool(slower))


if __name__ == "__main__":
    sys.exit(main())
