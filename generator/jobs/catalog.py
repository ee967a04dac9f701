"""The search jobs of recipes: one per class of shapes that a single search serves."""

from __future__ import annotations

from collections.abc import Sequence

from mirage_kernels.generator.ir import DType
from mirage_kernels.generator.jobs.job import Job
from mirage_kernels.generator.recipe import Recipe, Shape, trace
from mirage_kernels.generator.search.problem import LARGEST_TILE, Limits
from mirage_kernels.generator.search.superoptimizer import Superoptimization, shape_class


def search_job(recipe: Recipe, shape: Shape, limits: Limits, *, arch: str) -> Job:
    """Return the job whose outcome serves a recipe at a shape, in every storage type.

    A dim counts as long where it is in some shape of the recipe, so that one search serves them
    all; a shape beyond them may be of a class of its own.
    """
    long = {d for s in (*recipe.shapes, shape) for d, n in s.dims.items() if n > LARGEST_TILE}
    spec = shape_class(trace(recipe, shape, DType.FP16), frozenset(long))
    return Job(recipe.name, Superoptimization(spec, limits, arch))


def search_jobs(recipes: Sequence[Recipe], limits: Limits, *, arch: str) -> list[Job]:
    """Return the jobs of recipes at their own shapes, each once, in order."""
    jobs = [search_job(r, r.shapes[0], limits, arch=arch) for r in recipes if r.shapes]
    return list({job.key: job for job in jobs}.values())
