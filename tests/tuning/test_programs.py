"""Programs of a generated folder are tuned: candidates, their calls, what the worker measures."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from pretended import HERE
from sources import relu_linear
from torch import Tensor

from mirage_kernels.generator.bench.measure import Clock, Timed
from mirage_kernels.generator.bench.workloads import programs as calls
from mirage_kernels.generator.bench.workloads.programs import ProgramBuffers, ProgramCall, distance
from mirage_kernels.generator.cli import main
from mirage_kernels.generator.ir.text import Json
from mirage_kernels.generator.records.folder import emitted
from mirage_kernels.generator.records.record import KernelRecord
from mirage_kernels.generator.schedules.general import predict, roles_of, sizes_for
from mirage_kernels.generator.schedules.general.candidates import TOO_SLOW, general_candidates
from mirage_kernels.generator.schedules.sliced_k import SlicedK
from mirage_kernels.generator.target import target
from mirage_kernels.generator.tuning import programs
from mirage_kernels.generator.tuning.catalog import load_catalog, load_manifest
from mirage_kernels.generator.tuning.measurements import UNMEASURED, Results
from mirage_kernels.generator.tuning.programs import is_generated, program_candidates
from mirage_kernels.generator.tuning.session import Tuning
from mirage_kernels.generator.tuning.worker import Worker

FAST, GENERAL = (f"sm_90a/relu_linear/K{k}_N40_fp16.json" for k in (72, 20))
CLOCK = Clock("cpu", lambda timed: 5.0, lambda size: 1.0, lambda dtype: 1.0, lambda size: 2)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recipe file, and beside it the kernels of both its shapes."""
    return relu_linear(tmp_path_factory.mktemp("made"), most_tokens=16384)


@pytest.fixture
def records(made: Path) -> dict[str, KernelRecord]:
    return emitted(made / "kernels")


# -- candidates ------------------------------------------------------------------------------------


def test_a_folder_that_generate_wrote_is_told_from_a_recipe(made: Path) -> None:
    assert is_generated(made / "kernels")
    assert not is_generated(made)
    assert not is_generated(Path("rms_norm_linear"))


def test_candidates_of_a_general_kernel_are_the_rules_and_other_fast_ones(records) -> None:
    record = records[GENERAL]
    kernel = program_candidates(record, 1).kernel
    assert [b.size for b in kernel.buckets] == [16, 64, 0]
    counted = roles_of(record.graph).counted
    for bucket in kernel.buckets:
        every = [t.knobs for t in bucket.tried]
        assert len(every) == len(set(every)) >= 2 + programs.GENERAL_MORE
        sizes = sizes_for(record.graph, counted, bucket.size)
        times = [predict(record.graph, k, sizes, target("sm_90a")) for k in every]
        assert max(times) <= TOO_SLOW * times[0]


def test_what_may_be_fast_in_a_bucket_is_tried_in_all(records) -> None:
    record = records[GENERAL]
    top, on = 1 + programs.GENERAL_MORE, target("sm_90a")
    own = [dict(general_candidates(record.graph, n, on, top)) for n in (16, 64, 0)]
    tried = [{t.knobs for t in b.tried} for b in program_candidates(record, 1).kernel.buckets]
    assert all(found.keys() <= knobs for found, knobs in zip(own, tried, strict=True))
    assert any(k in tried[i] for i in (0, 2) for k in own[1].keys() - own[i].keys())


def test_the_rules_choice_is_what_generate_takes(records) -> None:
    record = records[GENERAL]
    rule = {b.size: b.tried[0].knobs for b in program_candidates(record, 1).kernel.buckets}
    assert all(rule[v.bucket] == v.knobs for v in record.variants)


def test_candidates_of_a_fast_kernel_are_of_its_schedules(records) -> None:
    kernel = program_candidates(records[FAST], 2).kernel
    assert [b.size for b in kernel.buckets] == [8, 16, 32, 64]
    assert {t.knobs.schedule for b in kernel.buckets for t in b.tried} >= {SlicedK.schedule}
    assert all(b.sizes == {"M": b.size} for b in kernel.buckets)


def test_each_candidate_is_a_program_of_its_own(records) -> None:
    for path in (FAST, GENERAL):
        found = program_candidates(records[path], 1)
        text = found.source(found.kernel.buckets[-1].tried[-1].knobs)
        assert found.kernel.symbol == f"relu_linear_{Path(path).stem}"
        assert f"{found.kernel.symbol}_signature" in text or "MIRAGE_PROGRAM" in text


def test_calls_of_any_number_of_rows_have_many_and_none_has_too_much(records, monkeypatch) -> None:
    record = records[GENERAL]
    last = program_candidates(record, 1).kernel.buckets[-1]
    assert last.sizes == {"M": programs.MOST_ROWS}
    monkeypatch.setattr(programs, "MOST_BYTES", 128 * 120)
    sizes = [b.sizes["M"] for b in program_candidates(record, 1).kernel.buckets]
    assert sizes == [16, 64]  # more than 64 rows would need more bytes


# -- measuring -------------------------------------------------------------------------------------


@dataclass
class Doubling:
    """A kernel that doubles its first tensor, or does something wrong."""

    error: float = 0.0
    signature: dict[str, Any] = field(
        default_factory=lambda: {
            "static": {"K": 20, "N": 40},
            "tensors": [
                {"name": "x", "dtype": "fp16", "dims": ["M", "K"]},
                {"name": "weight", "dtype": "fp16", "dims": ["N", "K"]},
                {"name": "lengths", "dtype": "int32", "dims": ["M"]},
            ],
            "scalars": [],
        }
    )

    def results(self, given: Sequence[Tensor]) -> list[Tensor]:
        return [torch.empty_like(given[0])]

    def run(self, given: Sequence[Tensor], scalars: Sequence[float], made: list[Tensor]) -> None:
        made[0].copy_((2 + self.error) * given[0])


def called(calls: Timed) -> float:
    """Make the calls; each takes 7 us."""
    for call in calls:
        call()
    return 7.0


@pytest.fixture
def buffers(monkeypatch: pytest.MonkeyPatch) -> ProgramBuffers:
    """Kernels are named by their errors."""
    monkeypatch.setattr(
        calls, "read_kernel", lambda file, symbol: Doubling(float(file.stem.replace("_", ".")))
    )
    call = ProgramCall("relu_linear", {"M": 16})
    return ProgramBuffers(call, Path("0_0.so"), replace(CLOCK, per_call=called), 1.0)


def test_tensors_have_the_extents_and_types_of_the_signature(buffers: ProgramBuffers) -> None:
    x, weight, lengths = buffers.given
    assert (x.shape, weight.shape) == ((16, 20), (40, 20))
    assert 0.8 < float(x.float().std()) < 1.2
    assert 0.8 < 20**0.5 * float(weight.float().std()) < 1.2
    assert lengths.dtype is torch.int32
    assert int(lengths.min()) >= 1


def test_a_candidate_that_computes_what_the_rules_does_is_timed(buffers: ProgramBuffers) -> None:
    assert buffers.candidate(Path("0_001.so"))["us"] == 7.0
    assert len({t.data_ptr() for given in buffers.sets for t in given}) == 2 * len(buffers.given)


def test_a_candidate_that_computes_something_else_fails(buffers: ProgramBuffers) -> None:
    assert "from the rule's results" in str(buffers.candidate(Path("0_1.so"))["failed"])


def test_infinities_and_nans_are_compared_by_place() -> None:
    right = torch.tensor([1.0, float("inf"), float("nan")])
    assert distance(right, right) == 0
    assert not distance(torch.tensor([1.0, float("-inf"), float("nan")]), right) < 1
    assert not distance(torch.tensor([1.0, float("inf"), 0.5]), right) < 1
    assert not distance(torch.tensor([float("nan"), float("inf"), float("nan")]), right) < 1


# -- the whole -------------------------------------------------------------------------------------


@dataclass
class Measurer:
    """Asks a worker that times kernels by their place in a folder's list of sources."""

    worker: Worker

    def ask(self, question: dict[str, Json], *, seconds: float) -> dict[str, Json]:
        return {"environment": HERE} if "environment" in question else self.worker.answer(question)

    def close(self) -> None:
        pass


@pytest.fixture(scope="module")
def compiled(made: Path) -> Path:
    """The folder with the sources of candidates beside it, in `work`."""
    words = ("--only", "K20", "--top", "1", "--compile", str(made / "work"), "--sources")
    assert main(("tune", str(made / "kernels"), *words)) == 0
    return made


@pytest.fixture
def tuned(compiled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the folder with the sources of candidates and their measurements in `work`."""
    shutil.copytree(compiled, tmp_path / "made")
    shutil.move(tmp_path / "made/work", tmp_path / "work")
    work, folder = tmp_path / "work", tmp_path / "made/kernels"
    manifest = load_manifest(work)
    for digest in list(manifest.kernels[0].candidates)[:-1]:
        (work / f"{digest}.so").touch()
    monkeypatch.setattr(calls, "read_kernel", lambda file, symbol: Doubling())
    fast = iter(range(1000, 0, -1))

    clock = replace(CLOCK, per_call=lambda calls: float(next(fast)))
    measurer = Measurer(Worker(work, manifest, clock))
    Tuning(manifest, Results.at(work / "measured.json"), measurer, "").measure(lambda e: None)
    words = ("--measure", str(work), "--as-is")
    assert main(("tune", str(folder), *words)) == 0
    return tmp_path


def test_a_script_compiles_the_sources_elsewhere(tuned: Path, made: Path) -> None:
    script = (tuned / "work/compile.sh").read_text()
    assert str(made) not in script
    assert "-cudart=none" in script
    names = (tuned / "work/sources.txt").read_text().split()
    assert all((tuned / f"work/{name}.cu").is_file() for name in names)


def test_a_library_that_is_not_there_yet_is_not_measured(tuned: Path) -> None:
    manifest = load_manifest(tuned / "work")
    known = Results.at(tuned / "work/measured.json").known
    missing = list(manifest.kernels[0].candidates)[-1]
    assert not any(name.startswith(missing) for name in known.outcomes)
    assert all(o.failed != UNMEASURED for o in known.outcomes.values())


def test_generate_takes_the_measured_knobs_and_check_finds_all_as_it_is(
    tuned: Path, records: dict[str, KernelRecord]
) -> None:
    folder, file = tuned / "made/kernels", tuned / "made/relu_linear.py"
    (section,) = load_catalog(folder / "catalog.json").sections
    chosen = {b.size: b.chosen[0].knobs for b in section.kernels[0].buckets}
    assert any(chosen[v.bucket] != v.knobs for v in records[GENERAL].variants)
    words = ("generate", str(file), "--dtype", "fp16", "--jobs", "1", "--out", str(folder))
    assert main((*words, "--store", f"{tuned}/made/store")) == 0
    remade = emitted(folder)
    assert all(chosen[v.bucket] == v.knobs for v in remade[GENERAL].variants)
    assert remade[FAST] == records[FAST]
    assert main(("check", str(file), "--kernels", str(folder), "--jobs", "1")) == 0


def test_knobs_of_other_axes_are_left(tuned: Path, records: dict[str, KernelRecord]) -> None:
    folder, file = tuned / "made/kernels", tuned / "made/relu_linear.py"
    catalog = folder / "catalog.json"
    catalog.write_text(catalog.read_text().replace('"N"', '"P"'))
    words = ("generate", str(file), "--dtype", "fp16", "--jobs", "1", "--out", str(folder))
    assert main((*words, "--store", f"{tuned}/made/store")) == 0
    assert emitted(folder)[GENERAL] == records[GENERAL]


BAD = [
    (("tune", "FOLDER", "rms_norm_linear", "--compile", "w"), "is tuned alone"),
    (("tune", "FOLDER", "--only", "nothing", "--compile", "w"), "whose paths match 'nothing'"),
    (("tune", "FOLDER", "--sources"), "--sources goes with --compile DIR"),
    (("generate", "rms_norm_linear", "--catalog", "none.json"), "there is no catalog none.json"),
]


@pytest.mark.parametrize(("words", "sentence"), BAD)
def test_bad_input_is_a_sentence(
    made: Path, words: tuple[str, ...], sentence: str, capsys, tmp_path, monkeypatch
) -> None:
    monkeypatch.chdir(tmp_path)
    given = [str(made / "kernels") if word == "FOLDER" else word for word in words]
    assert main(given) == 2
    assert sentence in capsys.readouterr().err
