"""Sources of a record for tests: a kernel as one text, and as files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from compilers import ROOT

from mirage_kernels.generator.emit.cuda import emit_cuda
from mirage_kernels.generator.plan.program import Roles
from mirage_kernels.generator.records.record import KernelRecord
from mirage_kernels.generator.records.sources import files_of
from mirage_kernels.generator.records.triton import triton_of
from mirage_kernels.generator.schedules import streaming
from mirage_kernels.generator.schedules.attention import plan as attention


def error(made: np.ndarray, exact: np.ndarray) -> float:
    """Return the relative error of an array."""
    return float(np.linalg.norm(made - exact) / np.linalg.norm(exact))


def source(record: KernelRecord, ending: str) -> str:
    """Return a record's kernel as one CUDA text (`cu`), or its Triton program (`py`)."""
    kind = streaming if isinstance(record.roles, Roles) else attention
    return emit_cuda(kind.kernel_of(record)) if ending == "cu" else triton_of(record)


def written(record: KernelRecord, folder: Path) -> Path:
    """Write the files of a record; return the one that instantiates its forms."""
    for name, text in files_of(record).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder / record.path.replace(".json", ".cu")


def foreign_forms(record: KernelRecord) -> list[str]:
    """Return the forms of a record that are no committed ones, but for a suffix of the name."""
    forms = {p: text for p, text in files_of(record).items() if p.startswith("forms/")}
    return [path for path, text in forms.items() if text not in _committed(Path(path))]


def _committed(form: Path) -> list[str]:
    found = (ROOT / "kernels" / form.parent).glob(f"{form.stem}*{form.suffix}")
    return [path.read_text() for path in found]
