"""Imports the scripts of `benchmarks/`, which are no package."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


def script(name: str) -> ModuleType:
    """Return `benchmarks/<name>.py` as a module; it may import its neighbours."""
    if str(BENCHMARKS) not in sys.path:
        sys.path.append(str(BENCHMARKS))
    spec = importlib.util.spec_from_file_location(name, BENCHMARKS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


@contextmanager
def module_of_programs(name: str) -> Iterator[ModuleType]:
    """Import `benchmarks/programs/<name>.py` for a while: tests have a `programs` of their own."""

    def of_programs() -> dict[str, ModuleType]:
        return {n: sys.modules.pop(n) for n in [*sys.modules] if n.partition(".")[0] == "programs"}

    apart = of_programs()
    sys.path.insert(0, str(BENCHMARKS))
    try:
        yield importlib.import_module(f"programs.{name}")
    finally:
        sys.path.remove(str(BENCHMARKS))
        of_programs()
        sys.modules.update(apart)
