"""What compute-sanitizer printed becomes rows and a table; every shipped kernel is among them."""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import sys
from itertools import product
from pathlib import Path
from types import ModuleType

import pytest
import torch

from mirage_kernels import KernelEntry
from mirage_kernels.generator.bench.measure import Environment
from mirage_kernels.generator.build.selection import features_of, kernel_name
from mirage_kernels.generator.records.folder import emitted
from tests.scripts import BENCHMARKS, script

ROOT = Path(__file__).parents[2]
EMITTED = ROOT / "kernels" / "sm_90a"
RESULT = BENCHMARKS / "results" / "sanitizers.json"
OUTCOMES = {"clean", "reports", "not ended", "not run"}
PRINTED = """\
========= COMPUTE-SANITIZER
begin gqa/D64_fp16
end gqa/D64_fp16 16 results, 0 wrong
begin rms_norm_linear/K72_N40_fp16
========= Invalid __global__ read of size 16 bytes
=========     at void mirage::generated::<unnamed>::rms_norm_linear_held<UpTo8M>(Args)+0x10
=========     by thread (0,0,0) in block (16,0,0)
=========
========= Uninitialized __global__ memory read of size 4 bytes
=========     at void mirage::generated::<unnamed>::gqa<AnyRows>(mirage::AttentionArgs)+0x20
=========
end rms_norm_linear/K72_N40_fp16 5 results, 2 wrong
begin lora_linear/K72_N40_R8_fp16
========= ERROR SUMMARY: 3 errors
"""
RACES = """\
begin gqa_full/D64_fp16
end gqa_full/D64_fp16 3 results, 0 wrong
========= Error: Race reported between Write access at void mirage::<unnamed>::gqa_full<A>(X)+0x4
=========     and Read access at void mirage::<unnamed>::gqa_full<A>(X)+0x8 [50304 hazards]
=========
========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)
"""


def test_reports_find_their_kernels() -> None:
    names = ["gqa/D64_fp16", "rms_norm_linear/K72_N40_fp16", "lora_linear/K72_N40_R8_fp16"]
    names += ["ntrans/K72_fp16"]
    found = script("sanitize_reports").read(PRINTED, names)
    assert [each.outcome for each in found] == ["reports", "reports", "reports", "not run"]
    assert [dict(each.reports) for each in found] == [
        {"Uninitialized __global__ memory read": 1},
        {"Invalid __global__ read": 1, "wrong": 2},
        {"not printed": 1},
        {},
    ]


def test_a_kernel_that_does_not_end_is_not_clean() -> None:
    (found,) = script("sanitize_reports").read("begin gqa/D64_fp16\n", ["gqa/D64_fp16"])
    assert found.outcome == "not ended"


def test_races_are_told_apart_by_recipe() -> None:
    names = ["gqa/D64_fp16", "gqa_full/D64_fp16"]
    found = script("sanitize_reports").read(RACES, names)
    assert [dict(each.reports) for each in found] == [{}, {"Error: Race reported": 1}]


def test_no_process_has_two_kernels_of_a_recipe() -> None:
    names = ["gqa/D64_fp16", "gqa/D64_bf16", "ntrans/K72_fp16", "lora_linear/K72_N40_R8_fp16"]
    made = script("sanitize").groups(names, 2)
    assert made == [("gqa/D64_fp16", "ntrans/K72_fp16"), ("gqa/D64_bf16", names[3])]


def test_every_tool_watches_every_kernel() -> None:
    sanitize = script("sanitize")
    sizes = {"lora_linear": {"K": 72, "N": 40, "R": 8}, "gqa": {"D": 64}, "ntrans": {"K": 72}}
    table = [
        KernelEntry(f"{recipe}/x_{dtype}", "sm_90a", recipe, dtype, dims, 0, "")
        for recipe, dims in sizes.items()
        for dtype in ("fp16", "bf16")
    ]
    wanted = argparse.Namespace(only=[""], tool=[*sanitize.TOOLS])
    planned = list(sanitize.planned(table, wanted))
    names = [kernel.name for kernel in table] + sanitize.sanitize_calls.append_names()
    for tool in sanitize.TOOLS:
        watched = [name for task in planned if task.tool == tool for name in task.names]
        assert sorted(watched) == sorted(names)
    known = {(name, tool) for name in names for tool in sanitize.TOOLS[:3]}
    left = list(sanitize.planned(table, wanted, known))
    assert [(task.tool, len(task.names)) for task in left] == [("racecheck", 1)] * len(names)


@pytest.mark.skipif(not EMITTED.is_dir(), reason="not a checkout")
def test_blocks_claim_segments_where_a_variant_does() -> None:
    records = {str(p.relative_to(EMITTED).with_suffix("")): p for p in EMITTED.rglob("*.json")}
    claiming = {name for name, path in records.items() if '"dynamic": 1' in path.read_text()}
    assert claiming
    many = script("sanitize_calls").CLAIM
    assert claiming == {name for name in records if name.startswith(many)}


@pytest.fixture(scope="module")
def watched() -> dict[str, set[str]]:
    """The kernels that each tool has watched."""
    if not RESULT.is_file() or not EMITTED.is_dir():
        pytest.skip("not a checkout")
    document, tables = json.loads(RESULT.read_text()), script("tables")
    assert set(document) - {"again"} == {"environment", "rows", "sanitizer"}
    rows = tables.runs()
    assert all(row["outcome"] in OUTCOMES for row in rows)
    assert all((row["outcome"] == "reports") == bool(row["reports"]) for row in rows)
    names = [(row["kernel"], row["tool"]) for row in rows]
    assert len(names) == len(set(names))
    seen = [row for row in rows if row["outcome"] != "not run"]
    return {tool: {r["kernel"] for r in seen if r["tool"] == tool} for tool in tables.TOOLS}


@pytest.mark.parametrize("tool", ["memcheck", "synccheck"])
def test_every_shipped_kernel_was_watched(watched: dict[str, set[str]], tool: str) -> None:
    shipped = {kernel_name(r) for r in emitted(EMITTED.parent, EMITTED.name).values()}
    assert shipped <= watched[tool]


@pytest.mark.parametrize("tool", ["initcheck", "racecheck"])
def test_all_code_of_shipped_kernels_was_watched(watched: dict[str, set[str]], tool: str) -> None:
    """By slow tools not in each shape: shapes of one form are the same code in files and types."""
    records = {kernel_name(r): r for r in emitted(EMITTED.parent, EMITTED.name).values()}
    code = {name: features_of(record, EMITTED.parent) for name, record in records.items()}
    shipped = set[tuple[str, ...]]().union(*code.values())
    seen = set[tuple[str, ...]]().union(*(code.get(n, set()) for n in watched[tool]))
    assert shipped <= seen


def test_the_table_counts_what_was_clean(tmp_path: Path) -> None:
    tables = script("tables")
    rows = [
        {
            "kernel": f"gqa/D64_{dtype}",
            "tool": tool,
            "outcome": "reports" if (tool, dtype) == ("memcheck", "bf16") else "clean",
            "calls": 3,
            "reports": {"Invalid read": 2} if (tool, dtype) == ("memcheck", "bf16") else {},
        }
        for tool in tables.TOOLS
        for dtype in ("fp16", "bf16")
    ]
    here = dict.fromkeys(("gpu", "driver", "cuda", "date", "commit", "command"), "x")
    path = tmp_path / "sanitizers.json"
    path.write_text(json.dumps({"environment": here, "rows": rows, "sanitizer": "1"}))
    made = tables.watched(path)
    assert "| gqa | 2 | 1 of 2 clean | clean | clean | clean |" in made
    assert "* memcheck, Invalid read: `gqa/D64_bf16`" in made


# -- the calls, on the CPU -------------------------------------------------------------------------

CACHE_RECIPES = (
    *("gqa", "sliding_window_attention", "gqa_full"),
    *("qk_norm_attention", "qk_layer_norm_attention", "mla_decode"),
)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The calls of few keys and on the CPU."""
    made = script("sanitize_calls")
    small = {"DEVICE": "cpu", "LONG": (0, 60, 1, 21), "ALONE": (60,), "MANY": (9,) * 3}
    for name, value in small.items():
        monkeypatch.setattr(made, name, value)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    return made


def entry(recipe: str, dims: dict[str, int], max_tokens: int = 0) -> KernelEntry:
    stem = "_".join(f"{name}{size}" for name, size in dims.items())
    return KernelEntry(f"{recipe}/{stem}_fp16", "sm_90a", recipe, "fp16", dims, max_tokens, "")


@pytest.mark.parametrize("recipe", CACHE_RECIPES)
def test_calls_over_a_cache_fill_every_bucket_of_rows(calls: ModuleType, recipe: str) -> None:
    kernel = entry(recipe, {"C": 64, "P": 16} if recipe == "mla_decode" else {"D": 64})
    found = list(calls.workloads(kernel))
    assert sorted({w.rows for w in found}) == [7, 12, 25, 45, 100]
    assert {w.page_size for w in found} == {0, 1, 16}
    computed = list(calls.of_recipe(kernel))
    assert len(computed) >= len(found) + 1
    assert all(bool(torch.isfinite(y).all()) for y in computed)


def test_calls_of_tensors_fill_every_bucket_of_tokens(calls: ModuleType) -> None:
    computed = calls.of_recipe(entry("rms_norm_linear", {"K": 72, "N": 40}, 64))
    assert [y.shape for y in computed] == [(m, 40) for m in (1, 8, 13, 29, 61)]


def test_the_whole_command_writes_a_row_per_kernel_and_tool(
    calls: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    """Each process runs in this one; the tool finds nothing."""
    sanitize = script("sanitize")
    table = (
        entry("gqa", {"D": 128}),
        entry("rms_norm_linear", {"K": 72, "N": 40}, 64),
        entry("_lora_linear", {"K": 72, "N": 40, "R": 8}),
    )

    def process(command: list[str], seconds: float, gpu: str) -> str:
        with contextlib.redirect_stdout(io.StringIO()) as said:
            monkeypatch.setattr(sys, "argv", command[command.index(str(calls.__file__)) :])
            assert calls.main() == 0
        return f"{said.getvalue()}========= ERROR SUMMARY: 0 errors\n"

    here = Environment("H200", "1", "13.0", "2.11", "today", "abc", "sanitize.py")
    stand_ins = {"kernel_table": lambda: table, "output_of": process, "gpus": lambda: ["0"]}
    stand_ins |= {"version": lambda tool: "2025", "measured_here": lambda *_: here}
    for name, value in stand_ins.items():
        monkeypatch.setattr(sanitize, name, value)
    monkeypatch.setattr(calls, "kernel_table", lambda: table)
    monkeypatch.setattr(sanitize.shutil, "which", lambda name: __file__)
    out = tmp_path / "rows.json"
    monkeypatch.setattr(sys, "argv", ["sanitize.py", "--json", str(out), "--jobs", "1"])
    assert sanitize.main() == 0, capsys.readouterr().out
    rows = json.loads(out.read_text())["rows"]
    names = [kernel.name for kernel in table] + calls.append_names()
    assert {(r["kernel"], r["tool"]) for r in rows} == set(product(names, sanitize.TOOLS))
    assert {r["outcome"] for r in rows} == {"clean"}
    assert "20 runs, 0 not clean" in capsys.readouterr().out
