"""The version of the code: it changes with what a module imports, and with nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from mirage_kernels.generator.jobs import code
from mirage_kernels.generator.jobs.code import code_digest, sources_behind

FILES = {
    "start.py": "from mirage_kernels.generator.pack import deep\nimport os\n",
    "pack/__init__.py": "",
    "pack/deep.py": "def f():\n    import mirage_kernels.generator.lazy\n",
    "lazy.py": "from mirage_kernels.generator.start import deep  # around\n",
    "other.py": "from mirage_kernels.generator import start\n",
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(code, "_FOLDER", tmp_path)
    return tmp_path


def digest() -> str:
    code_digest.cache_clear()
    return code_digest("mirage_kernels.generator.start")


def test_imports_are_followed_to_their_end(folder: Path) -> None:
    found = sources_behind("mirage_kernels.generator.start")
    names = [path.relative_to(folder).as_posix() for path in found]
    assert names == ["lazy.py", "pack/__init__.py", "pack/deep.py", "start.py"]


@pytest.mark.parametrize("name", FILES)
def test_the_digest_changes_with_what_is_imported(folder: Path, name: str) -> None:
    before = digest()
    (folder / name).write_text(FILES[name] + "# changed\n")
    assert (digest() != before) == (name != "other.py")


def test_the_digest_does_not_depend_on_the_folder(folder: Path, tmp_path: Path) -> None:
    before = digest()
    moved = tmp_path / "moved"
    moved.mkdir()
    for name in ("start.py", "pack", "lazy.py"):
        (tmp_path / name).rename(moved / name)
    code._FOLDER = moved
    assert digest() == before


def test_the_search_depends_on_meaning_and_facts_but_not_on_commands() -> None:
    code_digest.cache_clear()
    found = {p.relative_to(code._FOLDER).as_posix() for p in sources_behind(SEARCH)}
    assert {"search/kernels.py", "search/verify.py", "meaning/terms.py", "target.py"} <= found
    assert {"ir/ops.py", "ir/graph.py", "search/superoptimizer.py"} <= found
    assert not any(name.startswith(("commands/", "emit/", "plan/")) for name in found)


SEARCH = "mirage_kernels.generator.search.superoptimizer"
