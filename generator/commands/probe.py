"""Runs in an interpreter of its own: loads torch and the extension and prints JSON about them."""

from __future__ import annotations

import json
import sys
import time

from mirage_kernels.generator.errors import MirageError
from mirage_kernels.generator.ir.text import Json


def describe() -> Json:
    """Return torch's version, the GPU it sees, and the extension's kernels."""
    found: dict[str, Json] = {"torch": "", "cuda": "", "gpu": "", "capability": None}
    found |= {"kernels": [], "arch": "", "problem": "", "complaint": ""}
    try:
        import torch

        found |= {"torch": torch.__version__, "cuda": torch.version.cuda or ""}
        if torch.cuda.is_available():
            found["gpu"] = torch.cuda.get_device_name()
            found["capability"] = list(torch.cuda.get_device_capability())
        from mirage_kernels import kernel_table

        found["kernels"] = [entry.name for entry in kernel_table()]
        found["arch"] = next((entry.arch for entry in kernel_table()), "")
        if found["gpu"]:
            gpu = (*torch.cuda.get_device_capability(), found["gpu"])
            found["complaint"] = torch.ops.mirage_kernels._architecture_complaint(*gpu)
    except ImportError as failure:
        found["problem"] = str(failure)
    return found


def call(name: str, dtype: str, sizes: dict[str, int]) -> Json:
    """Call the recipe's op on CPU tensors; return its error and the reference's against float64."""
    from mirage_kernels.generator.bench.measure import largest_error
    from mirage_kernels.generator.bench.workloads.tensors import TensorWorkload
    from mirage_kernels.generator.ir.dtypes import DType

    work = TensorWorkload(name, sizes, dtype=DType(dtype))
    inputs = work.draw(0, "cpu")
    exact = work.exact(inputs)
    started = time.monotonic()
    try:
        result = work.ours(inputs)
    except LookupError as missing:
        raise MirageError(str(missing)) from missing
    seconds = time.monotonic() - started
    return {
        "error": largest_error(result, exact),
        "error_eager": largest_error(work.eager()(inputs), exact),
        "seconds": seconds,
    }


def main(words: list[str]) -> int:
    """Print the answer as the last line of stdout."""
    if words[0] == "describe":
        print(json.dumps(describe()))
        return 0
    try:
        print(json.dumps(call(words[1], words[2], json.loads(words[3]))))
    except (MirageError, ImportError) as failure:
        print(failure, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
