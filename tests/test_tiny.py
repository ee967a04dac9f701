"""The whole product on one small shape, on the CPU: from mathematics to checked, executed files."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import chain
from pathlib import Path

import pytest

from mirage_kernels.generator import pipeline
from mirage_kernels.generator.bench.demonstrate import demonstrate
from mirage_kernels.generator.errors import SearchError
from mirage_kernels.generator.ir import DType, Graph, Node, Phase, from_json, phases_of, to_json
from mirage_kernels.generator.pipeline import Event, Request, Result, proved_graphs
from mirage_kernels.generator.recipe import Recipe, Shape
from mirage_kernels.generator.records.check import Difference, check
from mirage_kernels.generator.records.folder import write
from mirage_kernels.generator.records.record import load_record
from mirage_kernels.generator.search.sketch import Limits

Generated = Callable[[DType], Result]
DTYPES = [DType.FP16, DType.BF16]
each_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: d.value)


@pytest.fixture(scope="module")
def fp16(generated: Generated) -> Result:
    return generated(DType.FP16)


def body_of(result: Result) -> Graph:
    body = result.record.graph.blocks[0].body
    assert body is not None
    return body


def quiet(event: Event) -> None:
    pass


@each_dtype
def test_the_flow_makes_the_golden_record(
    generated: Generated, golden: Callable[[str, str], None], dtype: DType
) -> None:
    golden(f"K72_N40_{dtype.value}.json", generated(dtype).record.text())


@each_dtype
def test_the_flow_makes_record_cuda_and_triton(generated: Generated, dtype: DType) -> None:
    base, forms = f"sm_90a/rms_norm_linear/K72_N40_{dtype.value}", "forms/rms_norm_linear"
    files = [f"{base}.json", f"{forms}/sliced_k.cuh", f"{base}.cu", f"{forms}/triton.py"]
    assert list(generated(dtype).files) == files


def test_the_chosen_mugraph_is_one_kernel_that_divides_after_its_loop(fp16: Result) -> None:
    body = body_of(fp16)
    loop = {n.op for n in body.nodes if phases_of(body)[n.name] is Phase.LOOP}
    assert len(fp16.record.graph.blocks) == 1
    assert loop == {"input", "mul", "contract"}


def test_the_record_is_proved_at_the_tiles_of_every_variant(fp16: Result) -> None:
    record = fp16.record
    proved = [(c.tiles, c.sizes) for c in record.proof.cases]
    assert proved == [(c.tiles, c.sizes) for c in chain(*proved_graphs(record).values())]
    assert len(proved) == 3 * len(record.variants)


def test_a_wrong_mugraph_would_hardly_pass_the_proof(fp16: Result) -> None:
    assert fp16.record.proof.log2_failure < -40


def test_the_report_accounts_for_every_candidate(fp16: Result) -> None:
    report = fp16.report
    assert report.candidates >= report.proved + report.rejected > 0


def test_the_report_says_who_was_refused_by_the_numeric_gate(fp16: Result) -> None:
    assert fp16.report.gated == sum("error inf" in r.reason for r in fp16.report.refused) > 0


def test_every_stage_is_timed(fp16: Result) -> None:
    stages = ("search", "rank", "choose", "plan", "prove", "emit")
    assert tuple(fp16.report.seconds) == stages


def test_the_same_request_makes_the_same_bytes(
    fp16: Result, rms_norm_linear: Recipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipeline, "LIMITS", Limits(kernels=1, block_ops=9))
    monkeypatch.setattr(pipeline, "_searched", {})
    again = pipeline.generate(fp16.request, jobs=2, progress=quiet)
    assert again.files == fp16.files


def test_a_search_is_made_once_for_all_element_types(
    fp16: Result, generated: Generated, monkeypatch: pytest.MonkeyPatch
) -> None:
    generated(DType.BF16)
    monkeypatch.setattr(pipeline, "LIMITS", Limits(kernels=1, block_ops=9))
    jobs = {
        pipeline.search_job(r.request.recipe, r.request.shape, pipeline.LIMITS, arch="sm_90a").key
        for r in (fp16, generated(DType.BF16))
    }
    assert len(jobs) == 1


def test_other_limits_are_another_search(
    fp16: Result, rms_norm_linear: Recipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipeline, "LIMITS", Limits(kernels=1, block_ops=1))
    request = Request(rms_norm_linear, Shape("a test", {"K": 72, "N": 40}), DType.FP16)
    with pytest.raises(SearchError, match="found no muGraph equal"):
        pipeline.generate(request, jobs=1, progress=quiet)


@pytest.fixture
def folder(generated: Generated, tmp_path: Path) -> Path:
    """A kernels folder with both element types of the small kernel."""
    write([generated(dtype) for dtype in DTYPES], tmp_path)
    return tmp_path


def differences(folder: Path) -> list[Difference]:
    return check(folder, progress=quiet, jobs=1)


def test_a_written_folder_is_clean(folder: Path) -> None:
    assert differences(folder) == []


def test_writing_again_leaves_every_file_alone(folder: Path, generated: Generated) -> None:
    before = {p: p.stat().st_mtime_ns for p in folder.rglob("*") if p.is_file()}
    write([generated(DType.FP16)], folder)
    assert {p: p.stat().st_mtime_ns for p in before} == before


def test_what_a_kernel_had_of_other_plans_is_removed(folder: Path, generated: Generated) -> None:
    result = generated(DType.FP16)
    command = f"// {result.record.command}\n"
    old = {
        "sm_90a/rms_norm_linear/K72_N40_fp16.py": command.replace("//", "#"),
        "forms/rms_norm_linear/cluster_split_k.cuh": "// mirage-kernels generate rms_norm_linear\n",
    }
    others = {
        "sm_90a/rms_norm_linear/mine.cuh": "// by hand\n",
        "sm_90a/rms_norm_linear/K8_N40_fp16.cu": command.replace("72", "8"),  # of another kernel
    }
    for name, text in (old | others).items():
        (folder / name).write_text(text)
    write([result], folder)
    assert {name for name in old if (folder / name).exists()} == set()
    stray = "no committed record makes this file"
    assert [(d.path, d.reason) for d in differences(folder)] == [
        (name, stray) for name in sorted(others)
    ]


def test_the_table_serves_every_kernel_of_the_folder(folder: Path) -> None:
    table = (folder / "sm_90a" / "table.cpp").read_text()
    assert table.count("PLAIN(rms_norm_linear, ") == 2


def test_a_changed_byte_is_reported_with_a_diff(folder: Path) -> None:
    path = folder / "forms/rms_norm_linear/sliced_k_fp16.cuh"
    path.write_text(path.read_text().replace("tile::sqrt(", "tile::rsqrt("))
    (found,) = differences(folder)
    assert found.path == "forms/rms_norm_linear/sliced_k_fp16.cuh"
    assert found.reason == "the file is not what the generator makes"
    changed = [line for line in found.diff.splitlines()[2:] if line[0] in "+-"]
    assert [line[0] for line in changed] == ["-", "+"]
    assert "rsqrt" in changed[0]


def test_a_missing_file_is_reported(folder: Path) -> None:
    (folder / "forms/rms_norm_linear/triton_bf16.py").unlink()
    assert [(d.path, d.reason) for d in differences(folder)] == [
        ("forms/rms_norm_linear/triton_bf16.py", "the file is missing")
    ]


def test_a_stray_file_is_reported(folder: Path) -> None:
    (folder / "sm_90a/rms_norm_linear/mine.cu").write_text("")
    assert [(d.path, d.reason) for d in differences(folder)] == [
        ("sm_90a/rms_norm_linear/mine.cu", "no committed record makes this file")
    ]


def without_norm_weight(graph: Graph) -> Graph:
    """Return the muGraph with its products' scaled operand replaced by the unscaled one."""
    block = graph.blocks[0]
    assert block.body is not None
    (scaled,) = (n for n in block.body.of("mul") if "norm_weight_tile" in n.args)
    (kept,) = (a for a in scaled.args if a != "norm_weight_tile")
    nodes = tuple(_using(n, scaled.name, kept) for n in block.body.nodes if n is not scaled)
    body = replace(block.body, nodes=nodes)
    return replace(graph, nodes=(*graph.nodes[:-1], replace(block, body=body)))


def _using(node: Node, old: str, new: str) -> Node:
    return replace(node, args=tuple(new if a == old else a for a in node.args))


def test_a_mugraph_that_lost_a_factor_is_reported(folder: Path) -> None:
    path = folder / "sm_90a/rms_norm_linear/K72_N40_fp16.json"
    record = load_record(path)
    path.write_text(replace(record, graph=without_norm_weight(record.graph)).text())
    (found,) = differences(folder)
    assert found.path == "sm_90a/rms_norm_linear/K72_N40_fp16.json"
    assert found.reason.startswith("not equal to its recipe:")


def test_a_proof_that_was_edited_is_reported(folder: Path) -> None:
    path = folder / "sm_90a/rms_norm_linear/K72_N40_fp16.json"
    record = load_record(path)
    boast = replace(record.proof, log2_failure=record.proof.log2_failure - 100)
    path.write_text(replace(record, proof=boast).text())
    assert path.name in {Path(d.path).name for d in differences(folder)}


def test_the_committed_mugraph_reads_back(fp16: Result) -> None:
    assert from_json(to_json(fp16.record.graph)) == fp16.record.graph


@each_dtype
def test_the_mugraph_and_the_triton_program_run_within_storage_error(
    generated: Generated, rms_norm_linear: Recipe, dtype: DType
) -> None:
    record = generated(dtype).record
    shown = demonstrate(record, rms_norm_linear, {**record.shape, record.roles.tokens: 21})
    assert [d.what.partition(",")[0] for d in shown] == ["muGraph", "emitted Triton program"]
    assert [d.what for d in shown if not d.good] == []
