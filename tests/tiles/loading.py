"""Loads emitted Triton programs, in the processes that the tests of them run themselves in."""

from __future__ import annotations

from importlib.util import module_from_spec, spec_from_file_location
from types import ModuleType


def loaded(path: str) -> ModuleType:
    """Return an emitted program as a module."""
    spec = spec_from_file_location("program", path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
