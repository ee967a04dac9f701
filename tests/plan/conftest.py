"""muGraphs for planners: those of the ablation, and a way to write small ones down."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

MUGRAPHS = Path(__file__).parents[2] / "benchmarks" / "mugraphs.py"


@pytest.fixture(scope="session")
def mugraphs() -> ModuleType:
    """`benchmarks/mugraphs.py`: muGraphs in words."""
    spec = importlib.util.spec_from_file_location("mugraphs", MUGRAPHS)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["mugraphs"] = module
    spec.loader.exec_module(module)
    return module
