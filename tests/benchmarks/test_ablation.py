"""The ablation's tables are those of its committed results; its kernels launch as the library's."""

from __future__ import annotations

import ctypes
import re
import subprocess
import sys
from pathlib import Path

import pytest
from scripts import script

ROOT = Path(__file__).parents[2]
SCRIPTS = ROOT / "benchmarks"
pytestmark = pytest.mark.skipif(not (ROOT / "docs").is_dir(), reason="not a checkout")


def test_the_page_shows_what_was_predicted_and_measured() -> None:
    ran = subprocess.run([sys.executable, str(SCRIPTS / "ablation.py"), "--check"], check=False)
    assert ran.returncode == 0, "python benchmarks/ablation.py --tables rewrites the page's tables"


def test_launch_arguments_are_those_of_the_header() -> None:
    header = (ROOT / "csrc" / "launch.h").read_text()
    (struct,) = re.findall(r"struct LaunchArgs \{(.*?)\};", header, re.DOTALL)
    sizes = {"void*": 8, "int64_t": 8, "float": 4}
    fields = re.findall(r"^\s*(?:const )?(\S+) (\w+)\[(\d+)\];", struct, re.MULTILINE)
    declared = {name: sizes[type_] * int(count) for type_, name, count in fields}
    args = script("ablation_gpu").LaunchArgs
    assert {n: ctypes.sizeof(t) for n, t in args._fields_} == declared
    assert ctypes.sizeof(args) == sum(declared.values())
