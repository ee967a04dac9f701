"""Tables of calls from a small result file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from scripts import script

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.skipif(not (ROOT / "docs").is_dir(), reason="not a checkout")
ENVIRONMENT = {
    "gpu": "NVIDIA H200",
    "driver": "580.1",
    "cuda": "13.0",
    "torch": "2.11.0",
    "date": "2026-01-01",
    "commit": "abc",
    "command": "mirage-kernels bench --attention",
}
SIZES = {"Hq": 32, "Hkv": 8, "D": 128, "T": 1, "L": 4096, "page": 16}


def row(sequences: int, **more: object) -> dict[str, object]:
    return {
        "workload": "gqa",
        "setting": "decode",
        "dtype": "fp16",
        "dims": {"B": sequences, **SIZES},
        "bytes_read": 1,
        "floor_us": 5.0,
        "compute_us": 0.1,
        "ours_us": 6.0,
        "warm_us": 4.0,
        "ratio": 1.2,
        "promised_us": 5.5,
        "eager_us": 80.0,
        "peers": {"SDPA cuDNN": 11.5},
        "best_peer": "SDPA cuDNN",
        "best_peer_us": 11.5,
        "error_ours": 1.5e-4,
        "error_eager": 3e-4,
        **more,
    }


@pytest.fixture
def results(tmp_path: Path) -> Path:
    alone = row(1, dtype="bf16", ours_us=6.6, best_peer="", best_peer_us=None, peers={})
    rows = [row(1), row(8, ours_us=30.0, ratio=6.0), alone]
    document = {"environment": ENVIRONMENT, "rows": rows}
    (tmp_path / "bench_attention_fp16.json").write_text(json.dumps(document))
    (tmp_path / "bench_fp16.json").write_text("no attention")
    return tmp_path


def test_the_long_table_names_the_best_peer_and_the_command(results: Path) -> None:
    text = script("tables").by_calls(results)
    cells = "| 1 | 5.0 | 0.1 | 6.0 | 1.20 | 5.5 | 1.10 | 4.0 | 11.5 | SDPA cuDNN | 80.0 |"
    assert f"{cells} 1.5e-04 (3.0e-04) |" in text
    assert "`mirage-kernels bench --attention`" in text
    assert "NVIDIA H200" in text


def test_without_results_there_are_no_tables(tmp_path: Path) -> None:
    assert script("tables").by_calls(tmp_path) == ""
