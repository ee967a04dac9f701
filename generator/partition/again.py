"""Programs of PyTorch functions that were generated before: cut again, without a search."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from mirage_kernels.generator.errors import FileError, SearchError
from mirage_kernels.generator.ir import DType
from mirage_kernels.generator.partition.document import document_path
from mirage_kernels.generator.partition.program import Program, partitioned
from mirage_kernels.generator.partition.trace import Function
from mirage_kernels.generator.pipeline import Result
from mirage_kernels.generator.recipe import Recipe
from mirage_kernels.generator.records.record import KernelRecord
from mirage_kernels.generator.report import Report
from mirage_kernels.generator.request import Request
from mirage_kernels.program_documents import DOCUMENT

NOTHING = Report(0, {}, 0, 0, 0, 0, {}, (), ())


def documents_in(folder: Path) -> dict[str, dict[str, Any]]:
    """Return the documents of a folder's programs by their paths below it.

    Raises FileError for one that cannot be read.
    """
    found = {}
    for path in sorted(folder.glob(f"*/*{DOCUMENT}")):
        try:
            found[str(path.relative_to(folder))] = json.loads(path.read_text())
        except (OSError, ValueError) as error:
            hint = "generate the function anew"
            raise FileError(f"{path} is no program: {error}", hint) from error
    return found


def cut_again(
    function: Function, document: Mapping[str, Any], kernels: Mapping[str, KernelRecord]
) -> Program:
    """Return a function's program, cut as it was for a document; nothing is searched for.

    `kernels` are the records of its architecture and type by recipe.
    """
    dtype, arch = DType(document["dtype"]), str(document["arch"])

    def make(recipe: Recipe) -> Result:
        record = kernels.get(recipe.name)
        for own in filter(None, (recipe, recipe.apart)):
            request = Request(own, own.shapes[0], dtype, arch)
            shape = {n: request.shape.dims[n] for n in own.static_dims}
            known = (shape, own.indexed, own.row_parts)
            if record is not None and (record.shape, record.indexed, record.row_parts) == known:
                return Result(request, record, NOTHING, {})
        raise SearchError(f"there is no kernel {recipe.name}", "generate the function anew")

    return partitioned(function, dtype, arch, make)


def programs_again(
    function: Function, folder: Path, records: Mapping[str, KernelRecord]
) -> Iterator[tuple[str, dict[str, Any], Program]]:
    """Yield each program of a function in a folder: its path, its document there, made now."""
    for path, document in documents_in(folder).items():
        if document.get("name") != function.named:
            continue
        own = {
            r.recipe: r
            for r in records.values()
            if (r.arch, r.dtype) == (document["arch"], document["dtype"])
        }
        made = cut_again(function, document, own)
        if document_path(made.document) == path:
            yield path, document, made
