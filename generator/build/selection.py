"""Selection: which of the committed kernels a build compiles, and the table that lists those alone.

The core set is for tests: between them its kernels include every file that any kernel does (device
code and forms; each schedule in each element type) and serve every recipe and option.
"""

from __future__ import annotations

import hashlib
import math
import os
import sys
from collections.abc import Collection, Iterable, Sequence
from difflib import get_close_matches
from fnmatch import fnmatchcase
from pathlib import Path

from mirage_kernels.generator.build.compile import (
    DEFAULT_ARCH,
    ROOT,
    Sources,
    all_sources,
)
from mirage_kernels.generator.errors import MirageError, ToolchainError
from mirage_kernels.generator.frontend.decode_steps import needs
from mirage_kernels.generator.frontend.models import load_model
from mirage_kernels.generator.ir.dtypes import STORAGE_DTYPES
from mirage_kernels.generator.recipe import catalog
from mirage_kernels.generator.records.files import write_whole
from mirage_kernels.generator.records.folder import INCLUDE, emitted, sources_below
from mirage_kernels.generator.records.record import KernelRecord
from mirage_kernels.generator.records.sources import table_of
from mirage_kernels.generator.settings import only
from mirage_kernels.generator.terminal import Terminal

KERNELS = ROOT / "kernels"
CORE, MODEL = "core", "model:"
SMALL = 1 << 27  # elements of a weight: tests make it in float64
ALWAYS_CORE = "rms_norm_linear/K4096_N6144_*"  # the kernels that examples name


def selected(only: Sequence[str], arch: str, kernels_dir: Path) -> Sources:
    """Return the sources of kernels that match a pattern of `only`.

    A pattern is a kernel's name (`rms_norm_linear/K4096_*`), a recipe's, `core`, or what a model's
    decode step needs (`model:llama-3.1-8b`, on one of 8 GPUs `model:llama-3.1-8b@8`). Raises
    ToolchainError for one that matches nothing, and for a model's kernel that was not generated.
    """
    all_sources(arch, kernels_dir)  # raises where there are none
    records = list(emitted(kernels_dir, arch).values())
    wanted = {name for pattern in only for name in _matching(pattern, records, kernels_dir)}
    chosen = [record for record in records if kernel_name(record) in wanted]
    cuda = {p for r in chosen for p in sources_below(kernels_dir, r) if p.suffix == ".cu"}
    table = write_whole(ROOT / "build" / arch / "table.cpp", table_of(arch, chosen))
    return Sources(arch, tuple(sorted(p.resolve() for p in cuda)), table)


def core(records: Iterable[KernelRecord], kernels_dir: Path) -> list[str]:
    """Return names of few kernels that have every feature between them, small ones if alike."""
    by_name = {kernel_name(record): record for record in records}
    features = {name: features_of(record, kernels_dir) for name, record in by_name.items()}
    is_small = {n: math.prod(r.shape.values()) <= SMALL for n, r in by_name.items()}
    names = [name for name in features if fnmatchcase(name, ALWAYS_CORE)]
    left = set[tuple[str, ...]]().union(*features.values())
    left -= set[tuple[str, ...]]().union(*(features[name] for name in names))
    while left:
        best = max(sorted(features), key=lambda n: (len(features[n] & left), is_small[n]))
        names.append(best)
        left -= features[best]
    return names


def features_of(record: KernelRecord, kernels_dir: Path) -> set[tuple[str, ...]]:
    """Return what a kernel alone may show: files that it includes, its recipes, its options."""
    sources = [p for p in sources_below(kernels_dir, record) if p.suffix != ".py"]
    names = {name for path in sources for name in INCLUDE.findall(path.read_text())}
    recipes = {("recipe", path.parent.name) for path in sources if path.suffix == ".cu"}
    options = {("option", record.recipe, n.name) for n in record.graph.of("input") if n.optional}
    files = {feature for n in names for feature in (("file", n), (Path(n).name, record.dtype))}
    return files | recipes | options


def _matching(pattern: str, records: Sequence[KernelRecord], kernels_dir: Path) -> Iterable[str]:
    if pattern == CORE:
        return core(records, kernels_dir)
    names = [kernel_name(record) for record in records]
    if pattern.startswith(MODEL):
        return _of_model(pattern.removeprefix(MODEL), {*names})
    found = [n for n in names if fnmatchcase(n, pattern) or n.startswith(f"{pattern}/")]
    if found:
        return found
    near = get_close_matches(pattern, names, n=3, cutoff=0)
    raise ToolchainError(
        f"no kernel is called {pattern!r}",
        f"the nearest: {', '.join(near)}; `mirage-kernels list` names all; {CORE!r} is a set",
    )


def _of_model(named: str, names: Collection[str]) -> list[str]:
    name, _, tp = named.partition("@")
    if tp and not (tp.isdecimal() and int(tp)):
        raise ToolchainError(f"{named!r} is no model on GPUs", "NAME@8 works, or NAME")
    found = [(need, need.found(catalog())) for need in needs(load_model(name), int(tp or 1))]
    wanted = [
        f"{need.recipe}/{known[1].kernel(dtype)}"
        for need, known in found
        if known is not None
        for dtype in STORAGE_DTYPES
    ]
    missing = [kernel for kernel in wanted if kernel not in names]
    if missing:
        raise ToolchainError(
            f"{len(missing)} kernels of {named} are not there, {missing[0]} for one",
            f"`mirage-kernels generate --model {name} --tp {tp or 1}` makes them",
        )
    return wanted


def kernel_name(record: KernelRecord) -> str:
    """Return the kernel's name, in the dispatch table too: `rms_norm_linear/K64_N48_fp16`."""
    return f"{record.recipe}/{record.stem}"


def version_label(only: Sequence[str], arch: str, kernels_dir: Path) -> str:
    """Return the local part of a wheel's version: `sm90a`; of a selection `sm90a.k1b2c3d4e`.

    Wheels of other kernels have another one, so that pip tells them apart. Raises ToolchainError
    for an architecture without kernels, too.
    """
    all_sources(arch, kernels_dir)  # raises where there are none
    plain = arch.replace("_", "")
    if not only:
        return plain
    table = selected(only, arch, kernels_dir).table.read_bytes()
    return f"{plain}.k{hashlib.sha256(table).hexdigest()[:8]}"  # k: digits alone lose zeros


def main() -> int:
    """Print the label of the wheel that the environment asks for, and return an exit code."""
    try:
        print(version_label(only(), os.environ.get("MIRAGE_KERNELS_ARCH", DEFAULT_ARCH), KERNELS))
    except MirageError as error:
        Terminal().fail(error)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
