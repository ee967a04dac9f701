"""The search jobs of recipes: a search for each class of shapes, and for all storage types."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mirage_kernels.generator.jobs.catalog import search_job, search_jobs
from mirage_kernels.generator.recipe import Recipe, Shape, catalog, load_recipe
from mirage_kernels.generator.search.problem import Limits

ARCH = "sm_90a"


@pytest.fixture(scope="module")
def rms_norm_linear() -> Recipe:
    return load_recipe("rms_norm_linear")


def key(source: Recipe, **dims: int) -> str:
    return search_job(source, Shape("a test", dims), Limits(), arch=ARCH).key


def test_a_recipe_is_one_job_with_its_name(rms_norm_linear: Recipe) -> None:
    assert len(rms_norm_linear.shapes) > 1
    jobs = search_jobs([rms_norm_linear], Limits(), arch=ARCH)
    assert [j.name for j in jobs] == ["rms_norm_linear"]


def test_one_search_serves_all_shapes_of_a_class(rms_norm_linear: Recipe) -> None:
    first = key(rms_norm_linear, K=4096, N=6144)
    assert key(rms_norm_linear, K=8192, N=10240) == first
    small = replace(rms_norm_linear, shapes=())
    assert key(small, K=64, N=6144) != key(small, K=4096, N=6144)


def test_a_recipe_given_twice_is_searched_once(rms_norm_linear: Recipe) -> None:
    assert len(search_jobs([rms_norm_linear] * 2, Limits(), arch=ARCH)) == 1


def test_a_recipe_without_shapes_has_no_job(rms_norm_linear: Recipe) -> None:
    assert search_jobs([replace(rms_norm_linear, shapes=())], Limits(), arch=ARCH) == []


def test_other_limits_are_another_search(rms_norm_linear: Recipe) -> None:
    (job,) = search_jobs([rms_norm_linear], Limits(), arch=ARCH)
    (other,) = search_jobs([rms_norm_linear], Limits(kernels=1), arch=ARCH)
    assert job.key != other.key


def test_every_recipe_of_the_catalog_has_a_job() -> None:
    known = catalog()
    jobs = search_jobs(list(known.values()), Limits(), arch=ARCH)
    assert [job.name for job in jobs] == list(known)
