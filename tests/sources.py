"""Sources for tests: a recipe file; a record's kernel as one text, and as files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from compilers import ROOT

from mirage_kernels.generator.cli import main
from mirage_kernels.generator.emit.cuda import emit_cuda
from mirage_kernels.generator.plan.program import Roles
from mirage_kernels.generator.records.record import KernelRecord
from mirage_kernels.generator.records.sources import files_of
from mirage_kernels.generator.records.triton import triton_of
from mirage_kernels.generator.schedules import streaming
from mirage_kernels.generator.schedules.attention import plan as attention

_RELU_LINEAR = '''
from mirage_kernels.generator.language import contract, relu
from mirage_kernels.generator.recipe import recipe, shape


def reference(x, weight):
    from torch.nn.functional import linear, relu

    return linear(relu(x), weight)


@recipe(
    inputs={"x": "M K", "weight": "N K"},
    output="M N",
    dynamic={"M": MOST},
    reference=reference,
    shapes=(shape("a kernel", K=72, N=40), shape("a general kernel", K=20, N=40)),
)
def relu_linear(x, weight):
    """linear(relu(x), weight)."""
    return contract(relu(x), weight, over="K")
'''


def relu_linear(place: Path, *, most_tokens: int) -> Path:
    """Write a recipe file, and beside it a kernel and a general one, of its two shapes."""
    (place / "relu_linear.py").write_text(_RELU_LINEAR.replace("MOST", str(most_tokens)))
    words = ("generate", f"{place}/relu_linear.py", "--dtype", "fp16", "--jobs", "1")
    assert main((*words, "--store", f"{place}/store")) == 0
    return place


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
