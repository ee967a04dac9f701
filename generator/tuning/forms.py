"""The muGraphs of a recipe among which measurement chooses.

The search finds many; a few are accurate and have a plan, and the predicted time hardly tells them
apart: one divides before it multiplies, another scales the scores and not the queries.
"""

from __future__ import annotations

from mirage_kernels.generator.errors import MirageError, PlanError
from mirage_kernels.generator.ir import Graph
from mirage_kernels.generator.jobs.store import Store
from mirage_kernels.generator.pipeline import mugraphs, searched
from mirage_kernels.generator.plan.threads import with_threads
from mirage_kernels.generator.recipe import trace
from mirage_kernels.generator.records.sources import plan_for
from mirage_kernels.generator.request import Progress, Request
from mirage_kernels.generator.schedules.schedule import Subject
from mirage_kernels.generator.search.gate import Gate
from mirage_kernels.generator.search.select import Ranked, rank
from mirage_kernels.generator.target import target


def mugraph_forms(
    request: Request, *, jobs: int, progress: Progress, store: Store | None
) -> list[Graph]:
    """Return every muGraph that is accurate and has the plan of tuned kernels, as predicted."""
    spec = trace(request.recipe, request.shape, request.dtype)
    found = searched(request, jobs=jobs, progress=progress, store=store)
    ranked = rank(mugraphs(found, request, spec), spec, target(request.arch))
    gate = Gate(spec, request.recipe, request.dtype)
    return [with_threads(r.graph) for r in ranked if _is_one(r, request, gate)]


def _is_one(ranked: Ranked, request: Request, gate: Gate) -> bool:
    try:
        subject = Subject(request.recipe.name, with_threads(ranked.graph), target(request.arch))
        if not plan_for(subject).form(subject):
            return False
        gate.measure(ranked.graph)
    except PlanError:
        return False
    except MirageError:  # it is not accurate
        return False
    return True
