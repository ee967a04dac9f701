"""The command as a process: it starts without torch and extras, and an interruption is one line."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

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


def in_a_shell(words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the command with redirections of a shell."""
    command = f"{shlex.quote(sys.executable)} -m {MODULE} {words}"
    given = os.environ | environment
    return subprocess.run(
        command, shell=True, capture_output=True, text=True, check=False, env=given
    )


@pytest.mark.parametrize(
    ("words", "code"),
    [("list >&-", 0), ("list >&- 2>&-", 0), ("list <&- >&- 2>&-", 0), ("frobnicate 2>&-", 2)],
)
def test_a_stream_that_is_closed_takes_what_is_printed(words: str, code: int) -> None:
    ran = in_a_shell(words)
    assert (ran.returncode, ran.stdout, ran.stderr) == (code, "", "")


@pytest.mark.parametrize("words", ["list", "list --json", "generate --help"])
def test_a_stdout_that_takes_no_more_is_a_sentence(words: str) -> None:
    ran = in_a_shell(f"{words} >/dev/full", PYTHONUNBUFFERED="")
    said = "mirage-kernels: <stdout>: No space left on device"
    assert (ran.returncode, ran.stderr.splitlines()[0]) == (2, said)
    assert "Traceback" not in ran.stderr
    assert "Exception" not in ran.stderr


def test_a_stderr_that_takes_no_more_leaves_the_exit_code() -> None:
    assert in_a_shell("frobnicate 2>/dev/full").returncode == 2


def test_letters_that_a_stream_lacks_are_escaped(tmp_path: Path) -> None:
    folder = tmp_path / "él"
    folder.mkdir()
    sizes = dict.fromkeys(("hidden_size", "intermediate_size", "vocab_size"), 512)
    config = {"model_type": "llama", "num_attention_heads": 4, **sizes}
    (folder / "config.json").write_text(json.dumps(config))
    ran = in_a_shell(f"list --model {shlex.quote(str(folder))}", PYTHONIOENCODING="ascii")
    assert ran.returncode == 0
    assert "\\xe9l RoPE, append to the cache" in ran.stdout


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
