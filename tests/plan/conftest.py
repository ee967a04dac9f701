"""muGraphs for planners: those of the ablation, and a way to write small ones down."""

from __future__ import annotations

from types import ModuleType

import pytest
from scripts import script


@pytest.fixture(scope="session")
def mugraphs() -> ModuleType:
    """`benchmarks/mugraphs.py`: muGraphs in words."""
    return script("mugraphs")
