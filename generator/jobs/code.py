"""A version of the code that a result depends on: the digest of a module and all that it imports.

Only modules of this package count. They are found by reading import statements, so the answer does
not depend on what happens to be loaded.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

GENERATOR = "mirage_kernels.generator"
_FOLDER = Path(__file__).resolve().parents[1]


@cache
def code_digest(*modules: str) -> str:
    """Return the digest of the sources behind some modules of the generator."""
    total = hashlib.sha256()
    for path in sources_behind(*modules):
        name = path.relative_to(_FOLDER).as_posix()
        content = hashlib.sha256(path.read_bytes()).hexdigest()
        total.update(f"{name} {content}\n".encode())
    return total.hexdigest()


def sources_behind(*modules: str) -> list[Path]:
    """Return the files of some modules and of all that they import, at any time, in order."""
    found: dict[str, Path] = {}
    waiting = [*modules]
    while waiting:
        module = waiting.pop()
        path = _file_of(module)
        if path is None or module in found:
            continue
        found[module] = path
        waiting += _imported(path)
    return sorted(set(found.values()))


def _imported(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module
            # `from package import module`; a name that is no module has no file
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def _file_of(module: str) -> Path | None:
    if not module.startswith(f"{GENERATOR}."):
        return None
    path = _FOLDER.joinpath(*module.removeprefix(f"{GENERATOR}.").split("."))
    candidates = (path.with_suffix(".py"), path / "__init__.py")
    return next((c for c in candidates if c.is_file()), None)
