"""The command as a process: it starts without torch and extras, and an interruption is one line."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

MODULE = "mirage_kernels.generator.cli"
STARTS_WITHOUT_EXTRAS = f"""
import sys
from {MODULE} import main
codes = [main(["list"]), main(["show", "rms_norm_linear"]), main(["generate", "--help"])]
codes += [main(["generate", "rms_norm_linear", "--dry-run"]), main(["check", "--help"])]
extras = [name for name in ("torch", "triton", "pulp", "z3", "ray") if name in sys.modules]
print(codes, extras, file=sys.stderr)
"""
INTERRUPTED = f"""
import time
from mirage_kernels.generator import pipeline
from {MODULE} import main
def generate(*_, **__):
    print("searching", flush=True)
    time.sleep(60)
pipeline.generate = generate
raise SystemExit(main(["generate", "rms_norm_linear", "--out", "."]))
"""


def test_verbs_import_neither_torch_nor_requirements_of_the_search_without_need() -> None:
    command = [sys.executable, "-c", STARTS_WITHOUT_EXTRAS]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.stderr.splitlines()[-1] == "[0, 0, 0, 0, 0] []"


def test_module_runs_as_the_makefile_calls_it() -> None:
    command = [sys.executable, "-m", MODULE, "frobnicate"]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 2
    assert ran.stdout == ""
    assert ran.stderr.startswith("mirage-kernels: there is no verb 'frobnicate'\n  hint: ")


def test_interruption_leaves_nothing_behind(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "searching\n"
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert err.splitlines()[-1] == "mirage-kernels: interrupted; every file is whole"
    assert "Traceback" not in err
    assert list(tmp_path.iterdir()) == []
