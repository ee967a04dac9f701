"""Two measurements of the same calls, compared."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "compare.py"


def measured(path: Path, **us: float) -> Path:
    """Write what `mirage-kernels bench` would of some calls of one token."""
    rows = [
        {"workload": w, "dtype": "bf16", "dims": {"K": 64, "M": 1}, "ours_us": t, "promised_us": t}
        for w, t in us.items()
    ]
    path.write_text(json.dumps({"environment": {"gpu": "a GPU"}, "rows": rows}))
    return path


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run the script."""
    command = [sys.executable, str(SCRIPT), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_a_slower_call_is_named_and_fails(tmp_path: Path) -> None:
    before = measured(tmp_path / "a.json", linear=10.0, rms_norm=2.0)
    after = measured(tmp_path / "b.json", linear=10.5, rms_norm=1.9)
    done = run(before, after, "--json", tmp_path / "c.json")
    assert done.returncode == 1
    assert "linear bf16 K=64 M=1: 10.00 -> 10.50 us" in done.stdout
    assert "rms_norm" not in done.stdout
    assert len(json.loads((tmp_path / "c.json").read_text())["rows"]) == 2


def test_calls_as_fast_as_before_pass(tmp_path: Path) -> None:
    one = measured(tmp_path / "a.json", linear=10.0)
    done = run(one, one)
    assert done.returncode == 0
    assert "1 calls: 1.000 of the time before, 0 are slower" in done.stdout


def test_files_without_a_common_call_are_an_error(tmp_path: Path) -> None:
    done = run(measured(tmp_path / "a.json", a=1.0), measured(tmp_path / "b.json", b=1.0))
    assert done.returncode == 2
    assert "no call in common" in done.stderr
