"""What each planner brings, predicted: every muGraph at hand, planned with one of them left out.

python benchmarks/ablation.py            # write results/ablation_predicted.json, docs/planning.md
python benchmarks/ablation.py --tables   # only the tables of docs/planning.md, from the results
python benchmarks/ablation.py --check    # exit 1 if the tables are not what the results say
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isfinite
from pathlib import Path
from typing import TypedDict

from mirage_kernels.generator.ir import Graph, from_json, retile
from mirage_kernels.generator.plan.blocks import default_sizes
from mirage_kernels.generator.plan.forms import Swizzle
from mirage_kernels.generator.plan.implementations import Offered
from mirage_kernels.generator.plan.layouts import Setup, layouts
from mirage_kernels.generator.plan.predict import UNPLANNED, Planners, Predicted, carried_out
from mirage_kernels.generator.plan.program import Roles
from mirage_kernels.generator.plan.tiles import WRITTEN
from mirage_kernels.generator.schedules import read_knobs
from mirage_kernels.generator.schedules.sliced_k.knobs import SlicedK
from mirage_kernels.generator.target import target

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
PREDICTED, MEASURED = (HERE / "results" / f"ablation_{what}.json" for what in ("predicted", "h200"))
PAGE = ROOT / "docs" / "planning.md"
KERNELS = "kernels/"  # where a muGraph comes from
ARCH = "sm_90a"

ABLATIONS = {
    "all": Planners(),
    "no layouts": Planners(layouts=False),
    "no schedule": Planners(schedule=False),
    "no memory": Planners(memory=False),
    "none": Planners(layouts=False, schedule=False, memory=False),
}
# What the emitted kernels do where nobody plans their layouts, csrc/tile being what it is.
WRITTEN_UNPLANNED = replace(WRITTEN, swizzles=(Swizzle.NONE,), m_side="dynamic")


class Outcome(TypedDict):
    """One muGraph under some planners; no time where it does not fit."""

    microseconds: float | None
    stages: list[int]
    barriers: list[int]
    shared_bytes: list[int]


@dataclass(frozen=True)
class Case:
    """A muGraph to plan: what it is called, at which extents, for which writers."""

    name: str
    source: str
    graph: Graph
    setup: Setup
    unplanned: Offered  # what there is to choose from without a plan of layouts


def main(arguments: Sequence[str]) -> int:
    """Write or check results and tables."""
    if not arguments:
        document = {"command": "python benchmarks/ablation.py", "arch": ARCH, "rows": rows()}
        PREDICTED.write_text(json.dumps(document, indent=1) + "\n")
    text = PAGE.read_text()
    made = text
    for name, table in tables().items():
        begin, end = f"<!-- {name}: python benchmarks/ablation.py -->", f"<!-- end of {name} -->"
        before, _, rest = made.partition(begin)
        _, _, after = rest.partition(end)
        made = f"{before}{begin}\n\n{table}\n{end}{after}"
    if "--check" in arguments:
        return int(made != text)
    PAGE.write_text(made)
    return 0


def rows() -> list[dict[str, object]]:
    """Return every case with what each set of planners makes of it."""
    found: list[dict[str, object]] = []
    for case in (*committed(), *by_hand()):
        outcomes = planned(case)
        if case.source == KERNELS and outcomes["all"]["microseconds"] is None:
            continue  # tokens are read twice, which these planners do not know
        print(case.name, {n: o["microseconds"] for n, o in outcomes.items()}, file=sys.stderr)
        row = {"mugraph": case.name, "source": case.source, "warps": case.setup.warps}
        found.append(row | {"sizes": dict(case.setup.sizes or {}), "planners": outcomes})
    return found


def planned(case: Case) -> dict[str, Outcome]:
    """Return what each set of planners makes of a case; sets share the layouts they have alike."""
    chosen = {
        offered: layouts(case.graph, replace(case.setup, offered=offered))
        for offered in (case.setup.offered, case.unplanned)
    }
    return {
        name: outcome(carried_out(chosen[case.setup.offered if p.layouts else case.unplanned], p))
        for name, p in ABLATIONS.items()
    }


def outcome(made: Predicted) -> Outcome:
    """Return a prediction as JSON data."""
    time = made.microseconds
    return {
        "microseconds": round(time, 3) if isfinite(time) else None,
        "stages": [k.stages for k in made.kernels],
        "barriers": [k.barriers for k in made.kernels],
        "shared_bytes": [k.arrangement.peak for k in made.kernels],
    }


def committed() -> Iterator[Case]:
    """Yield the muGraphs of `kernels/`, at the tiles of each of their variants of sliced-K."""
    for path in sorted((ROOT / "kernels" / ARCH).glob("*/*.json")):
        record = json.loads(path.read_text())
        roles = record.get("roles", {})
        if not {"rows", "tokens"} <= roles.keys():  # streams no weights
            continue
        for data in record.get("variants", []):
            knobs = read_knobs(data)
            if not isinstance(knobs, SlicedK):
                continue
            places = Roles(roles["rows"], roles["tokens"], roles["depth"])
            graph = retile(from_json(record["mugraph"]), knobs.tiles(places))
            sizes = default_sizes(graph) | {roles["tokens"]: knobs.tokens}
            setup = Setup(target(ARCH), sizes, knobs.warps, WRITTEN)
            name = f"{record['recipe']} {path.stem}, {knobs.tokens} tokens"
            yield Case(name, KERNELS, graph, setup, WRITTEN_UNPLANNED)


def by_hand() -> Iterator[Case]:
    """Yield the muGraphs written by hand, for all that the machine offers."""
    sys.path.insert(0, str(HERE))
    from mugraphs import MUGRAPHS

    for name, build in MUGRAPHS.items():
        graph = build()
        sizes = default_sizes(graph)
        if "B" in sizes:
            sizes["B"] = 8
        setup = Setup(target(ARCH), sizes)
        yield Case(name, "benchmarks/mugraphs.py", graph, setup, UNPLANNED)


def tables() -> dict[str, str]:
    """Return the page's tables by name."""
    made = {"predicted": _predicted(json.loads(PREDICTED.read_text()))}
    made["measured"] = (
        _measured(json.loads(MEASURED.read_text())) if MEASURED.is_file() else "Not measured yet.\n"
    )
    return made


class PredictedRow(TypedDict):
    """A line of the predicted results."""

    mugraph: str
    source: str
    planners: dict[str, Outcome]


def _predicted(document: Mapping[str, list[PredictedRow]]) -> str:
    heads = ["muGraph", "measured", *ABLATIONS]
    lines, known = [_line(heads), _line(["---"] * len(heads))], _bench()
    for row in document["rows"]:
        times = [row["planners"][name]["microseconds"] for name in ABLATIONS]
        lines.append(_line([row["mugraph"], known.get(row["mugraph"], ""), *_against(times)]))
    return "\n".join([*lines, ""])


class BenchRow(TypedDict):
    """What `mirage-kernels bench` writes of a kernel."""

    workload: str
    dtype: str
    dims: dict[str, int]
    ours_us: float


def _bench() -> dict[str, str]:
    """Return measured times, cold, by the names that `committed` gives its cases."""
    found = {}
    for path in sorted((HERE / "results").glob("bench_[bf]*16.json")):
        rows_: list[BenchRow] = json.loads(path.read_text())["rows"]
        for row in rows_:
            dims = dict(row["dims"])
            tokens = dims.pop("M")
            stem = "_".join(f"{name}{size}" for name, size in dims.items())
            name = f"{row['workload']} {stem}_{row['dtype']}, {tokens} tokens"
            found[name] = f"{row['ours_us']:.1f}"
    return found


def _against(times: Sequence[float | None]) -> list[str]:
    """Return the first time, and the others as multiples of it."""
    first = times[0]
    cells = ["does not fit" if first is None else f"{first:.1f}"]
    for time in times[1:]:
        fits = time is not None and first is not None
        cells.append(f"{time / first:.2f}" if fits and time and first else "does not fit")
    return cells


class MeasuredRow(TypedDict):
    """A line of the measured results."""

    kernel: str
    M: int
    cold_us: dict[str, float]


def _measured(document: Mapping[str, object]) -> str:
    rows_ = document["rows"]
    assert isinstance(rows_, list)
    measured: list[MeasuredRow] = rows_
    names = list(measured[0]["cold_us"])
    lines = [_line(["kernel", "M", *names]), _line(["---"] * (len(names) + 2))]
    for row in measured:
        times = [row["cold_us"][name] for name in names]
        lines.append(_line([Path(row["kernel"]).stem, str(row["M"]), *_against(times)]))
    environment = document["environment"]
    return "\n".join([*lines, "", f"`{json.dumps(environment)}`", ""])


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
