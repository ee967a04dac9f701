"""Programs in a folder of kernels: whose they are, and whether the kernels there are still theirs.

Programs of one function share kernels, so generating it again may change those of an earlier one.
A program's document and each shared object have digests of what kernels compute, to tell.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

from mirage_kernels.generator.errors import FileError
from mirage_kernels.generator.ir import dumps
from mirage_kernels.generator.records.folder import record_files
from mirage_kernels.generator.records.record import KernelRecord, load_record
from mirage_kernels.program_documents import document_files, kernels_of, read_document

# What a record says of the tensors that a kernel takes and of what it computes; no knobs.
_COMPUTED = frozenset(
    ("arch", "dtype", "shape", "stacked", "strided", "broadcast", "row_parts", "indexed", "mugraph")
)
Digests = dict[str, str]  # of kernels by their symbols


def kernel_digest(record: KernelRecord) -> str:
    """Return a number of what a kernel computes, which tuning and new versions leave as it is."""
    told = {name: data for name, data in record.to_json().items() if name in _COMPUTED}
    return sha256(dumps(told).encode()).hexdigest()


def digests_below(folder: Path, arch: str, symbols: Collection[str]) -> Digests:
    """Return the digests of kernels of a folder, of those that have a record that can be read."""
    files = {f"{file.parent.name}_{file.stem}": file for file in record_files(folder, arch)}
    found = Digests()
    for name in symbols:
        with suppress(FileError):  # `generate` may write it anew
            found |= {name: kernel_digest(load_record(files[name]))} if name in files else {}
    return found


def require_records(folder: Path, name: str) -> None:
    """Raise FileError for a kernel's record that cannot be read, before a search has taken minutes.

    Those of the recipe or function of this name may be written anew.
    """
    for file in record_files(folder):
        if not file.parent.name.startswith(name):
            load_record(file)


def documents_below(folder: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Yield the programs of a folder, those that can be read, with their files."""
    for file in document_files(folder):
        with suppress(ImportError):
            yield file, read_document(file)


def kernels_below(folder: Path) -> dict[Path, Digests]:
    """Return what the kernels of a folder's programs are now, by the programs' files."""
    return {
        file: digests_below(folder, document["arch"], kernels_of(document))
        for file, document in documents_below(folder)
    }


def outdated(folder: Path, before: dict[Path, Digests], name: str) -> dict[Path, str]:
    """Return the programs of a function that have lost kernels that they had `before`.

    Each with its inputs. Those that were written since have kernels of their own. Raises FileError
    where a program of another function has lost some.
    """
    found = dict[Path, str]()
    for file, document in documents_below(folder):
        now = digests_below(folder, document["arch"], kernels_of(document))
        changed = [symbol for symbol in now if before.get(file, now).get(symbol) != now[symbol]]
        if not changed or document.get("kernels") == now:
            continue
        if document["name"] != name:
            raise FileError(
                f"{name} would change {', '.join(changed)}, which {file} runs too",
                "give the function another name, or another folder: --out DIR",
            )
        found[file] = ", ".join(map(_input_text, document["inputs"]))
    return found


def _input_text(one: dict[str, Any]) -> str:
    """Return an input as `x [M, 4096]`."""
    extents = (e if isinstance(e, int) else f"{e['times']}*{e['extent']}" for e in one["shape"])
    return f"{one['name']} [{', '.join(str(e).removeprefix('1*') for e in extents)}]"


def origin_of(function: str, folder: Path) -> str:
    """Return `path/to/file.py:Name` as seen from a folder."""
    file, _, name = function.rpartition(":")
    return f"{os.path.relpath(Path(file).resolve(), folder.resolve())}:{name}"


def function_of(origin: str, folder: Path) -> str:
    """Return `path/to/file.py:Name`, whole, of what is seen from a folder."""
    return os.path.normpath(folder.resolve() / origin)


def require_own_name(name: str, origin: str, folder: Path) -> None:
    """Raise FileError where a folder has a program of this name that is of another origin."""
    for file, document in documents_below(folder):
        other = document.get("origin", "")
        if document["name"] == name and other and not _is_of(origin, other, folder.resolve()):
            mine, its = (function_of(one, folder) for one in (origin, other))
            raise FileError(
                f"{mine} would take the place of {its}: {file} is its program, which has the name "
                f"{name} too",
                "give it another name, or another folder: --out DIR; remove that file if its "
                "program is not wanted any more",
            )


def _is_of(origin: str, other: str, folder: Path) -> bool:
    """Say whether both are one function; its file may have moved since, but has its name."""
    if Path(origin).name != Path(other).name:  # file.py:Name
        return False
    now, before = (folder / x.rpartition(":")[0] for x in (origin, other))
    return not before.exists() or before.samefile(now)
