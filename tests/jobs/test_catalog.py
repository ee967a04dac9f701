"""The search jobs of recipes, what their keys depend on, and `generate` with a stored search."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from mirage_kernels.generator import pipeline
from mirage_kernels.generator.ir import DType
from mirage_kernels.generator.jobs import job
from mirage_kernels.generator.jobs.job import SEARCH_CODE, code_digest
from mirage_kernels.generator.jobs.store import Store
from mirage_kernels.generator.pipeline import Result
from mirage_kernels.generator.recipe import Recipe, Shape, catalog
from mirage_kernels.generator.search.sketch import Limits
from mirage_kernels.generator.search.superoptimizer import search_job, search_jobs

ARCH, GENERATOR = "sm_90a", "mirage_kernels.generator"
SEARCH = f"{GENERATOR}.search.superoptimizer"


def key(source: Recipe, **dims: int) -> str:
    return search_job(source, Shape("a test", dims), Limits(), arch=ARCH).key


def test_one_search_serves_all_shapes_of_a_class(rms_norm_linear: Recipe) -> None:
    first = key(rms_norm_linear, K=4096, N=6144)
    assert key(rms_norm_linear, K=8192, N=10240) == first
    small = replace(rms_norm_linear, shapes=())
    assert key(small, K=64, N=6144) != key(small, K=4096, N=6144)


def test_a_recipe_without_shapes_has_no_job(rms_norm_linear: Recipe) -> None:
    assert search_jobs([replace(rms_norm_linear, shapes=())], Limits(), arch=ARCH) == []


def test_other_limits_are_another_search(rms_norm_linear: Recipe) -> None:
    (job,) = search_jobs([rms_norm_linear], Limits(), arch=ARCH)
    (other,) = search_jobs([rms_norm_linear], Limits(kernels=1), arch=ARCH)
    assert job.key != other.key


def test_every_recipe_of_the_catalog_is_searched_once() -> None:
    known = catalog()
    jobs = search_jobs([*known.values(), *known.values()], Limits(), arch=ARCH)
    assert [job.name for job in jobs] == list(known)


def test_the_code_of_a_search_is_what_it_imports_below_the_recipe() -> None:
    import_it = f"import sys, {SEARCH}; print(*sys.modules)"
    ran = subprocess.run([sys.executable, "-c", import_it], capture_output=True, text=True)
    ours = [m.removeprefix(f"{GENERATOR}.") for m in ran.stdout.split() if f"{GENERATOR}." in m]
    folders = {Path(name).stem for name in SEARCH_CODE}
    assert folders <= {name.partition(".")[0] for name in ours}
    others = {name.partition(".")[0] for name in ours} - folders
    assert others <= {"errors", "recipe", "frontend", "jobs", "request"}


def test_the_digest_of_the_code_changes_with_it_and_not_with_its_folder(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name / "search").mkdir(parents=True)
        (tmp_path / name / "search" / "values.py").write_text("x = 1\n")
        (tmp_path / name / "cli.py").write_text(f"{name}\n")
    assert code_digest(tmp_path / "a") == code_digest(tmp_path / "b")
    (tmp_path / "b" / "search" / "values.py").write_text("x = 2\n")
    code_digest.cache_clear()
    assert code_digest(tmp_path / "a") != code_digest(tmp_path / "b")


def test_a_stored_search_makes_the_same_bytes(
    generated: Callable[[DType], Result], store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_store = generated(DType.FP16)
    monkeypatch.setattr(pipeline, "LIMITS", Limits(kernels=1, block_ops=9))

    def again() -> Result:
        monkeypatch.setattr(pipeline, "_searched", {})  # as in another process
        request = without_store.request
        return pipeline.generate(request, jobs=2, progress=lambda event: None, store=store)

    def no_worker(*_: object) -> None:
        raise AssertionError("searched again")

    assert again().files == without_store.files
    monkeypatch.setattr(job, "work", no_worker)
    assert again().files == without_store.files
