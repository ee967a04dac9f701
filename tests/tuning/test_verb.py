"""`tune` on the command line: both phases with a pretended compiler and GPU, and bad input."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from pretended import REPORT, Pretended

from mirage_kernels.generator import pipeline
from mirage_kernels.generator.cli import main
from mirage_kernels.generator.commands import arguments, tune
from mirage_kernels.generator.ir import DType
from mirage_kernels.generator.records.record import KernelRecord
from mirage_kernels.generator.report import Report
from mirage_kernels.generator.tuning import libraries
from mirage_kernels.generator.tuning.catalog import load_catalog

COMPILE = ("tune", "rms_norm_linear", "--shape", "K=72,N=40", "--dtype", "fp16", "--compile")
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    golden_record: Callable[[DType], KernelRecord],
) -> Run:
    """Run the command in an empty folder; kernels come without a search, libraries at once."""
    monkeypatch.chdir(tmp_path)
    record = golden_record(DType.FP16)
    report = Report(1, {}, 1, 1, 0, 0, {}, (), ())

    def generate(request: pipeline.Request, **_: object) -> pipeline.Result:
        return pipeline.Result(request, record, report, {})

    def compiler(command: list[str]) -> str:
        Path(command[-1]).write_bytes(b"made")
        return REPORT.format(spilled=0)

    monkeypatch.setattr(pipeline, "generate", generate)
    monkeypatch.setattr(libraries, "_ran", compiler)

    def call(*words: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = main(words)
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return call


@pytest.fixture
def measurer(monkeypatch: pytest.MonkeyPatch) -> Pretended:
    made = Pretended()
    monkeypatch.setattr(tune, "worker_process", lambda folder: made)
    return made


def measured(run: Run, *more: str) -> tuple[int, str, str]:
    run(*COMPILE, "folder", "--top", "2")
    return run("tune", "--measure", "folder", "--catalog", "catalog.json", *more)


def test_compiling_says_how_many_candidates_there_are(run: Run) -> None:
    code, out, _ = run(*COMPILE, "folder", "--top", "1")
    assert code == 0
    assert out.startswith("1 kernel, 4 candidates, of which 0 cannot be measured, in folder")


def test_measuring_writes_the_catalog_the_same_from_the_same_measurements(
    run: Run, measurer: Pretended
) -> None:
    code, out, _ = measured(run, "--results", "elsewhere.json")
    assert code == 0
    assert "wrote catalog.json" in out
    assert Path("elsewhere.json").is_file()
    assert not Path("folder/measured.json").exists()
    (section,) = load_catalog(Path("catalog.json")).sections
    assert [b.size for b in section.kernels[0].buckets] == [8, 16, 32, 64]
    before = Path("catalog.json").read_bytes()
    Path("catalog.json").unlink()
    _, out, _ = measured(run, "--json")
    assert json.loads(out)["arch"] == "sm_90a"
    assert Path("catalog.json").read_bytes() == before


def test_after_an_interrupt_the_same_command_goes_on(run: Run, measurer: Pretended) -> None:
    measurer.stops_after = 5
    code, _, err = measured(run)
    assert code == 130
    assert "interrupted" in err
    assert not Path("catalog.json").exists()
    assert measurer.closed
    measurer.stops_after = 10_000
    asked = len(measurer.asked)
    assert measured(run)[0] == 0
    questions = [json.dumps(q) for q in measurer.asked]
    assert len(questions) == len(set(questions)) > asked


def test_a_second_compile_keeps_what_the_folder_has(
    run: Run, golden_record: Callable[[DType], KernelRecord], monkeypatch: pytest.MonkeyPatch
) -> None:
    run(*COMPILE, "folder", "--top", "1")
    other = golden_record(DType.BF16)
    report = Report(1, {}, 1, 1, 0, 0, {}, (), ())
    monkeypatch.setattr(
        pipeline, "generate", lambda request, **_: pipeline.Result(request, other, report, {})
    )
    run(*COMPILE, "folder", "--top", "1")
    kernels = json.loads(Path("folder/manifest.json").read_text())["kernels"]
    assert [k["key"]["dtype"] for k in kernels] == ["fp16", "bf16"]


BAD = [
    (("tune", "--top", "0"), "whole number of at least 1"),
    (("tune", "no_norm", "--compile", "x"), "no recipe called 'no_norm'"),
    (("tune", "--arch", "sm_50", "--compile", "x"), "no facts about architecture 'sm_50'"),
    (("tune", "--shape", "K=1,N=1", "--compile", "x"), "--shape needs a recipe"),
    (("tune", "rms_norm_linear", "--shape", "K", "--compile", "x"), "NAME=NUMBER"),
    (("tune", "--dtype", "fp64", "--compile", "x"), "kernels have no dtype 'fp64'"),
    (("tune", "--compile", "x", "--measure", "y"), "not allowed with"),
    (("tune", "--measure", "nowhere"), "nowhere/manifest.json cannot be read"),
    (("tune", "--measure", "broken"), "is not a tuning's manifest"),
    (("tune", "rms_norm_linear", "--measure", "broken"), "takes all that its folder holds"),
    (("tune", "--measure", "broken", "--catalog", "broken"), "broken is a folder"),
    (("tune", "--measure", "broken", "--catalog", "no/where/c.json"), "does not exist"),
    (("tune", "--measure", "broken", "--catalog", "broken/manifest.json"), "is not a catalog"),
    ((*COMPILE, "broken/manifest.json"), "is a file, not a folder"),
]


@pytest.mark.parametrize(("words", "sentence"), BAD, ids=[" ".join(w) for w, _ in BAD])
def test_bad_input_is_a_sentence_and_code_2(
    run: Run, words: tuple[str, ...], sentence: str
) -> None:
    Path("broken").mkdir()
    Path("broken/manifest.json").write_text("{")
    code, _, err = run(*words)
    assert code == 2
    assert sentence in err
    assert "Traceback" not in err


def test_without_a_gpu_the_two_phases_are_named(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    code, _, err = run("tune", "rms_norm_linear")
    assert code == 2
    assert "torch sees none" in err
    assert "tune --compile DIR" in err


def test_a_name_that_is_none_is_told_before_a_gpu_is_missed(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    code, _, err = run("tune", "nope")
    assert code == 2
    assert "there is no recipe called 'nope'" in err


def test_a_folder_for_another_architecture_is_an_error(run: Run) -> None:
    run(*COMPILE, "folder", "--top", "1")
    code, _, err = run(*COMPILE, "folder", "--arch", "sm_80")
    assert code == 2
    assert "holds candidates for sm_90a, not sm_80" in err


def test_an_installed_package_compiles_nothing(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arguments, "is_checkout", lambda: False)
    code, _, err = run(*COMPILE, "folder")
    assert code == 2
    assert "installed package" in err


def test_what_was_measured_elsewhere_becomes_the_catalog_as_it_is(
    run: Run, measurer: Pretended
) -> None:
    measured(run)
    Path("catalog.json").unlink()
    measurer.stops_after = 0
    code, out, _ = run("tune", "--measure", "folder", "--as-is", "--catalog", "catalog.json")
    assert code == 0
    assert "0 kernels not measured whole" in out
    assert len(load_catalog(Path("catalog.json")).sections[0].kernels) == 1


def test_as_it_is_a_kernel_measured_in_part_is_left(run: Run, measurer: Pretended) -> None:
    measurer.stops_after = 5
    measured(run)
    code, _, err = run("tune", "--measure", "folder", "--as-is", "--catalog", "catalog.json")
    assert code != 0
    assert "no candidate could be measured" in err
    assert not Path("catalog.json").exists()


def test_as_is_without_a_folder_is_refused(run: Run) -> None:
    code, _, err = run("tune", "rms_norm_linear", "--as-is")
    assert code != 0
    assert "--as-is goes with --measure" in err
